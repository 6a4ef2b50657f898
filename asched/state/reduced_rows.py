"""Rows of the node table without some of their pods, as sums: for searches for victims, which
remove all less important pods of many nodes and put them back one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from asched.framework.nodes import (
    BoolColumn,
    Int64Column,
    NodeInfo,
    Nodes,
    ReducedNodes,
    RowArray,
)
from asched.framework.pod_info import HostPort, PodInfo, PodShape
from asched.framework.removable_pods import RemovablePods
from asched.state.node_columns import (
    ports_collide,
    requests_of,
    scoring_cpu_of,
    scoring_memory_of,
)
from asched.state.node_rows import SAFE, NodeRows

if TYPE_CHECKING:
    from asched.state.node_table_view import NodeTableView

Amount = Callable[[PodShape], int]


class ReducedRows(NodeRows, ReducedNodes):
    """See :class:`ReducedNodes`. A column is that of the table minus the sum of what its removed
    pods request."""

    def __init__(
        self, table: NodeTableView, rows: RowArray, pods: Sequence[Sequence[PodInfo]]
    ) -> None:
        """``pods``: for each row, at least one."""
        super().__init__(table, rows)
        self._removable = RemovablePods.of(pods)
        self._first = self._removable.first
        self._removed = np.ones(len(self._removable.entries), np.bool_)
        self._amounts: dict[str, Int64Column] = {}
        """Of each pod, by name of the column."""
        self._columns: dict[str, Int64Column] = {}

    @property
    def removed(self) -> BoolColumn:
        return self._removed

    @property
    def first(self) -> RowArray:
        return self._first

    def put_back(self, pods: RowArray) -> None:
        self._removed[pods] = False
        self._columns.clear()

    def remove(self, pods: RowArray) -> None:
        self._removed[pods] = True
        self._columns.clear()

    def requested(self, resource: str) -> Int64Column:
        return self._reduced(
            f"requested {resource}",
            lambda: self.table.requested(resource),
            lambda shape: shape.requests.get(resource, 0),
            lambda left: requests_of(left, resource),
        )

    @property
    def pod_count(self) -> Int64Column:  # type: ignore[override]
        return self._reduced(
            "pods", lambda: self.table.pod_count, lambda _: 1, lambda left: len([*left])
        )

    @property
    def scoring_cpu_milli(self) -> Int64Column:  # type: ignore[override]
        return self._reduced(
            "scoring cpu",
            lambda: self.table.scoring_cpu_milli,
            lambda shape: shape.scoring_cpu_milli,
            scoring_cpu_of,
        )

    @property
    def scoring_memory_bytes(self) -> Int64Column:  # type: ignore[override]
        return self._reduced(
            "scoring memory",
            lambda: self.table.scoring_memory_bytes,
            lambda shape: shape.scoring_memory_bytes,
            scoring_memory_of,
        )

    def _reduced(
        self,
        name: str,
        column: Callable[[], Int64Column],
        amount: Amount,
        exact: Callable[[Iterable[PodInfo]], int],
    ) -> Int64Column:
        reduced = self._columns.get(name)
        if reduced is not None:
            return reduced
        amounts = self._amounts.get(name)
        if amounts is None:
            amounts = self._amounts[name] = self._removable.amounts(amount)
        every = column()[self.rows]
        # The sum of a part of its pods is at most the row's, unless that is saturated.
        saturated = (every >= SAFE).nonzero()[0].tolist()
        reduced = every - np.add.reduceat(np.where(self._removed, amounts, 0), self._first)
        for row in saturated:
            reduced[row] = exact(self.pods(row))
        self._columns[name] = reduced
        return reduced

    def pods(self, row: int) -> Iterable[PodInfo]:
        first = int(self._first[row])
        removed = {
            pod.uid
            for number, pod in enumerate(self._removable[row], start=first)
            if self._removed[number]
        }
        return [pod for pod in super().pods(row) if pod.uid not in removed]

    def port_conflicts(self, ports: Sequence[HostPort]) -> BoolColumn:
        taken = super().port_conflicts(ports)
        for row in taken.nonzero()[0].tolist():
            held = [port for pod in self.pods(row) for port in pod.shape.ports]
            taken[row] = any(ports_collide(wanted, port) for wanted in ports for port in held)
        return taken

    def infos(self) -> Sequence[NodeInfo]:
        return Nodes.infos(self)

    def take(self, rows: RowArray) -> NodeRows:
        raise ValueError("rows without some of their pods cannot be taken again")
