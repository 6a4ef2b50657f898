"""Subsets of the node table's rows with hypothetical pods, and single rows for plugins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asched.framework.nodes import (
    BoolColumn,
    HypotheticalNodes,
    Int64Column,
    LabelColumn,
    NodeInfo,
    RowArray,
    S,
    TaintColumn,
)
from asched.framework.pod_info import HostPort, PodInfo, PodShape
from asched.model.node import Node, Taint
from asched.state.node_columns import (
    ports_collide,
    requests_of,
    scoring_cpu_of,
    scoring_memory_of,
    shift,
)

if TYPE_CHECKING:
    from asched.state.node_table_view import NodeTableView

_Shift: TypeAlias = tuple[NDArray[np.intp], int]
"""The number of pods of a shape added to each row (negative: removed), and the amount per pod."""

_FEW = 4
"""Up to that many rows a loop costs less than numpy's overhead."""

SAFE = 1 << 62
"""Sums below this, changed by less than this, stay within 64 bits."""


def _gathered(name: str) -> Any:
    """A cached property: the rows of this column of the table."""
    return cached_property(lambda nodes: nodes.align(getattr(nodes.table, name)))


class NodeRows(HypotheticalNodes):
    """Some rows of a :class:`NodeTableView`, in the order given.

    Columns are gathered when they are first used. Hypothetical pods change these copies, never the
    table.
    """

    alive: BoolColumn = _gathered("alive")
    unschedulable: BoolColumn = _gathered("unschedulable")
    pod_count: Int64Column = _gathered("pod_count")
    allowed_pods: Int64Column = _gathered("allowed_pods")
    scoring_cpu_milli: Int64Column = _gathered("scoring_cpu_milli")
    scoring_memory_bytes: Int64Column = _gathered("scoring_memory_bytes")

    def __init__(
        self, table: NodeTableView, rows: RowArray | Callable[[], RowArray], size: int | None = None
    ) -> None:
        """``rows`` may be a function, called when needed, if ``size`` is given."""
        self.table = table
        self._given = rows
        self.size = len(self.rows) if size is None else size
        self._allocatable: dict[str, Int64Column] = {}
        self._requested: dict[str, Int64Column] = {}
        # The pods of rows that differ from the table's.
        self._pods: dict[int, dict[str, PodInfo]] = {}

    @cached_property
    def rows(self) -> RowArray:
        """The rows of the table."""
        given = self._given
        return given if isinstance(given, np.ndarray) else given()

    @cached_property
    def names(self) -> Sequence[str]:  # type: ignore[override]
        every = self.table.names
        return [every[row] for row in self.rows.tolist()]

    @property
    def cluster_size(self) -> int:
        return self.table.cluster_size

    @property
    def version(self) -> int:
        return self.table.version

    def align(self, column: NDArray[S]) -> NDArray[S]:
        return column[self.rows]

    def row_of(self, name: str) -> int | None:
        row = self.table.row_of(name)
        if row is None:
            return None
        found = np.flatnonzero(self.rows == row)
        return int(found[0]) if len(found) else None

    def allocatable(self, resource: str) -> Int64Column:
        column = self._allocatable.get(resource)
        if column is None:
            column = self.table.allocatable(resource)[self.rows]
            self._allocatable[resource] = column
        return column

    def requested(self, resource: str) -> Int64Column:
        column = self._requested.get(resource)
        if column is None:
            column = self.table.requested(resource)[self.rows]
            self._requested[resource] = column
        return column

    def label(self, key: str) -> LabelColumn:
        return self.table.label(key).take(self.rows)

    @property
    def taints(self) -> TaintColumn:
        column = self.table.taints
        return TaintColumn(column.ids[self.rows], column.sets)

    def port_conflicts(self, ports: Sequence[HostPort]) -> BoolColumn:
        taken = self.table.port_conflicts(ports)[self.rows]
        for index, pods in self._pods.items():
            held = [port for pod in pods.values() for port in pod.shape.ports]
            taken[index] = any(ports_collide(w, t) for w in ports for t in held)
        return taken

    def image_size_bytes(self, image: str) -> tuple[Int64Column, int]:
        column, holders = self.table.image_size_bytes(image)
        return column[self.rows], holders

    def node(self, row: int) -> Node:
        return self.table.node(int(self.rows[row]))

    def pods(self, row: int) -> Iterable[PodInfo]:
        pods = self._pods.get(row)
        return self.table.pods(int(self.rows[row])) if pods is None else pods.values()

    def infos(self) -> Sequence[NodeInfo]:
        if self._pods:
            return super().infos()
        infos = self.table.infos()
        return [infos[row] for row in self.rows.tolist()]

    @property
    def modified_rows(self) -> Collection[int]:
        return self._pods.keys()

    def take(self, rows: RowArray) -> NodeRows:
        if self._pods:
            raise ValueError("rows with hypothetical pods cannot be taken again")
        return NodeRows(self.table, self.rows[rows])

    # -- hypothetical pods --------------------------------------------------------------------

    def add_pods(self, placed: Iterable[tuple[int, PodInfo]]) -> None:
        added: dict[PodShape, list[int]] = {}
        for row, pod in placed:
            pods = self._own_pods(row)
            if pod.uid in pods:
                raise ValueError(f"pod {pod.key} is on node {self.names[row]} already")
            pods[pod.uid] = pod
            added.setdefault(pod.shape, []).append(row)
        self._count(added, 1)

    def remove_pods(self, placed: Iterable[tuple[int, PodInfo]]) -> None:
        removed: dict[PodShape, list[int]] = {}
        for row, pod in placed:
            # The shape that was counted: the pod may have been updated since.
            shape = self._own_pods(row).pop(pod.uid).shape
            removed.setdefault(shape, []).append(row)
        self._count(removed, -1)

    def _own_pods(self, row: int) -> dict[str, PodInfo]:
        pods = self._pods.get(row)
        if pods is None:
            pods = self._pods[row] = {**self.table.pods_by_uid(int(self.rows[row]))}
        return pods

    def _count(self, moved: Mapping[PodShape, Sequence[int]], sign: int) -> None:
        """Update the columns for pods of each shape, by row; ``sign`` is 1 or -1."""
        if len(moved) == 1:
            [(shape, rows)] = moved.items()
            if self.size <= _FEW or len(rows) <= _FEW:
                for row, often in Counter(rows).items():
                    self._count_one(row, shape, sign * often)
                return
        shifts: dict[str, list[_Shift]] = {}
        cpu: list[_Shift] = []
        memory: list[_Shift] = []
        for shape, rows in moved.items():
            times = np.bincount(rows, minlength=self.size) * sign
            self.pod_count[:] += times
            for name, number in shape.requests.items():
                shifts.setdefault(name, []).append((times, number))
            cpu.append((times, shape.scoring_cpu_milli))
            memory.append((times, shape.scoring_memory_bytes))
        for name, of_resource in shifts.items():
            self._shift(self.requested(name), of_resource, partial(requests_of, resource=name))
        self._shift(self.scoring_cpu_milli, cpu, scoring_cpu_of)
        self._shift(self.scoring_memory_bytes, memory, scoring_memory_of)

    def _count_one(self, row: int, shape: PodShape, times: int) -> None:
        """Update one row for pods of a shape; negative if removed."""
        pods = self._pods[row]
        self.pod_count[row] += times
        for name, number in shape.requests.items():
            column = self.requested(name)
            if not shift(column, row, times * number):
                column[row] = requests_of(pods.values(), name)
        if not shift(self.scoring_cpu_milli, row, times * shape.scoring_cpu_milli):
            self.scoring_cpu_milli[row] = scoring_cpu_of(pods.values())
        if not shift(self.scoring_memory_bytes, row, times * shape.scoring_memory_bytes):
            self.scoring_memory_bytes[row] = scoring_memory_of(pods.values())

    def _shift(
        self,
        column: Int64Column,
        shifts: Sequence[_Shift],
        exact: Callable[[Iterable[PodInfo]], int],
    ) -> None:
        """Add to a column of sums; compute sums again that are saturated or close to it."""
        if not shifts:
            return
        most = sum(abs(number) * int(np.abs(times).max()) for times, number in shifts)
        if max(most, int(np.abs(column).max())) < SAFE:
            for times, number in shifts:
                column += times * number
            return
        moved = np.zeros(self.size, np.bool_)
        for times, _ in shifts:
            moved |= times != 0
        for row in np.flatnonzero(moved).tolist():
            column[row] = exact(self._pods[row].values())


class _Lists(dict[str, list[int]]):
    """Amounts by row for each resource that was read."""

    def __init__(self, made: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._made = made

    def __missing__(self, resource: str) -> list[int]:
        found = self[resource] = self._made(resource)
        return found


class NodeSweep:
    """Every row of a table as a :class:`NodeInfo`, for plugins that are called for each node: they
    read lists that are created from the columns once per table change."""

    def __init__(self, table: NodeTableView, objects: Sequence[Node | None]) -> None:
        """``objects`` are the nodes by row; the table updates the list."""
        self.table = table
        self.objects = objects
        self.allocatable = _Lists(lambda resource: table.allocatable(resource).tolist())
        self.requested = _Lists(lambda resource: table.requested(resource).tolist())
        self._nodes: list[NodeInfo] = []
        self._cursor = -1

    def nodes(self) -> Sequence[NodeInfo]:
        """One for each row, valid until the table changes."""
        if self._cursor != self.table.cursor:
            self.allocatable.clear()
            self.requested.clear()
            self._cursor = self.table.cursor
        known, size = self._nodes, self.table.size
        if len(known) < size:
            known += [_SweptNode(self, row) for row in range(len(known), size)]
        return known


class _SweptNode(NodeInfo):
    """One node of a sweep."""

    __slots__ = ("_allocatable", "_objects", "_requested")

    def __init__(self, sweep: NodeSweep, row: int) -> None:
        super().__init__(sweep.table, row)
        self._objects = sweep.objects
        self._allocatable = sweep.allocatable
        self._requested = sweep.requested

    @property
    def node(self) -> Node:
        node = self._objects[self._row]
        return self._nodes.node(self._row) if node is None else node

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.metadata.labels

    @property
    def taints(self) -> tuple[Taint, ...]:
        return self.node.spec.taints

    @property
    def unschedulable(self) -> bool:
        return self.node.spec.unschedulable

    def allocatable(self, resource: str) -> int:
        return self._allocatable[resource][self._row]

    def requested(self, resource: str) -> int:
        return self._requested[resource][self._row]

    def free(self, resource: str) -> int:
        row = self._row
        return self._allocatable[resource][row] - self._requested[resource][row]
