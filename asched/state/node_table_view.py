"""Read access to the node table. The write side is :mod:`asched.state.node_table`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from asched.framework.caching import ChangeLog
from asched.framework.nodes import (
    BoolColumn,
    Int64Column,
    LabelColumn,
    NodeInfo,
    Nodes,
    RowArray,
    TaintColumn,
    TieBreakColumn,
)
from asched.framework.pod_info import HostPort, PodInfo
from asched.model.node import Node
from asched.state.captures import Captures
from asched.state.node_columns import (
    ImageIndex,
    LabelIndex,
    NodeColumns,
    PortIndex,
    TaintNumbers,
    UtilizationIds,
)
from asched.state.node_rows import NodeRows, NodeSweep

S = TypeVar("S", bound=np.generic)

LOG_LENGTH = 1 << 16


def _column(name: str) -> Any:
    """A property: the rows in use of this column of :class:`NodeColumns`."""
    column = attrgetter(name)
    return property(lambda table: table.columns.view(name, column(table.columns)))


class NodeTableView(Nodes):
    """The columns of all nodes, and logs of what changed."""

    version = 0
    alive: BoolColumn = _column("alive")
    unschedulable: BoolColumn = _column("unschedulable")
    tie_break_keys: TieBreakColumn = _column("tie_break_keys")
    """By row: a hash of the node name, which breaks ties between equally good nodes."""
    pod_count: Int64Column = _column("pod_count")
    allowed_pods: Int64Column = _column("allowed_pods")
    scoring_cpu_milli: Int64Column = _column("scoring_cpu_milli")
    scoring_memory_bytes: Int64Column = _column("scoring_memory_bytes")

    def __init__(self) -> None:
        self.size = 0
        self.names: list[str] = []
        self.layout = 0
        """Changes if results cannot be updated row by row: the score of an image depends on the
        number of nodes and of those that have it."""
        self._unstamped = 0
        """Changes of the layout that are not in the stamps yet. Each of many new nodes is one."""
        self.label_index = LabelIndex()
        self.port_index = PortIndex()
        self.image_index = ImageIndex()
        self._objects: list[Node | None] = []
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._pods: list[dict[str, PodInfo]] = []
        self._captures: Captures[dict[str, PodInfo]] = Captures(dict)
        """The rows that checkpoints still read."""
        # Counted as soon as the node is added.
        self._pods_on_unknown_nodes: dict[str, dict[str, PodInfo]] = {}
        self.columns = NodeColumns()
        self._utilization_ids = UtilizationIds()
        self._taint_numbers = TaintNumbers()
        # By resource: the allocatable amount if it is the same on all rows, else None.
        self._capacities: dict[str, Int64Column | None] = {}
        self._row_log: ChangeLog[int] = ChangeLog(LOG_LENGTH)
        self._pod_log: ChangeLog[tuple[int, PodInfo, int]] = ChangeLog(LOG_LENGTH)
        self._logged_parts = 0
        self.objects_cursor = 0
        """How many times a node object was added or updated."""
        self._sweep: NodeSweep | None = None

    @property
    def by_tie_break_key(self) -> RowArray:
        """The rows of nodes sorted by tie-break key."""
        return self.columns.by_tie_break_key()

    @property
    def cluster_size(self) -> int:
        return len(self._rows)

    def align(self, column: NDArray[S]) -> NDArray[S]:
        return column

    def row_of(self, name: str) -> int | None:
        return self._rows.get(name)

    def allocatable(self, resource: str) -> Int64Column:
        column = self.columns.allocatable.get(resource)
        if column is None:
            return np.zeros(self.size, np.int64)
        return self.columns.view(("allocatable", resource), column)

    def capacity(self, resource: str) -> Int64Column:
        try:
            same = self._capacities[resource]
        except KeyError:
            same = self._capacities[resource] = _one_for_all(self.allocatable(resource))
        return self.allocatable(resource) if same is None else same

    def requested(self, resource: str) -> Int64Column:
        column = self.columns.requested.get(resource)
        if column is None:
            return self.columns.unoffered.column(resource, self.size)
        return self.columns.view(("requested", resource), column)

    def allocatable_on(self, row: int, resource: str) -> int:
        column = self.columns.allocatable.get(resource)
        return 0 if column is None else column.item(row)

    def requested_on(self, row: int, resource: str) -> int:
        column = self.columns.requested.get(resource)
        if column is None:
            return self.columns.unoffered.of(resource, row)
        return column.item(row)

    def utilization_id(self, row: int) -> int:
        """A number that is the same for rows with the same amounts in all columns."""
        number = self._utilization_ids.by_row[row]
        if number is None:
            number = self._utilization_ids.set_row(row, self.columns.amounts_on(row))
        return number

    def label(self, key: str) -> LabelColumn:
        labels = self.label_index
        ids = labels.columns.get(key)
        if ids is None:
            return LabelColumn(np.full(self.size, -1, np.int32), labels.vocabulary)
        return LabelColumn(self.columns.view(("label", key), ids), labels.vocabulary)

    def has_label(self, key: str) -> bool:
        return key in self.label_index.columns and super().has_label(key)

    @property
    def taints(self) -> TaintColumn:
        return TaintColumn(
            self.columns.view("taints", self.columns.taint_ids), self._taint_numbers.sets
        )

    def port_conflicts(self, ports: Sequence[HostPort]) -> BoolColumn:
        taken = np.zeros(self.size, np.bool_)
        rows = self.port_index.conflicting_rows(ports)
        if rows:
            taken[rows] = True
        return taken

    def image_size_bytes(self, image: str) -> tuple[Int64Column, int]:
        return self.image_index.column(image, self.size)

    def node(self, row: int) -> Node:
        node = self._objects[row]
        if node is None:
            raise IndexError(f"row {row} has no node")
        return node

    def find(self, name: str) -> Node | None:
        row = self._rows.get(name)
        return None if row is None else self._objects[row]

    def pods(self, row: int) -> Iterable[PodInfo]:
        return self._pods[row].values()

    def pods_by_uid(self, row: int) -> Mapping[str, PodInfo]:
        return self._pods[row]

    def pods_on_rows(self) -> Iterable[PodInfo]:
        """The pods of all rows."""
        return chain.from_iterable(pods.values() for pods in self._pods)

    def has_pod(self, node_name: str, pod: PodInfo) -> bool:
        """Whether exactly this object is counted on the node, known or not."""
        row = self._rows.get(node_name)
        unknown = self._pods_on_unknown_nodes
        pods = unknown.get(node_name, {}) if row is None else self._pods[row]
        return pods.get(pod.uid) is pod

    @property
    def pods_counted(self) -> int:
        """The number of pods, on nodes known or not."""
        return sum(map(len, self._pods)) + sum(map(len, self._pods_on_unknown_nodes.values()))

    def take(self, rows: RowArray) -> NodeRows:
        return NodeRows(self, rows)

    def infos(self) -> Sequence[NodeInfo]:
        if self._sweep is None:
            self._sweep = NodeSweep(self, self._objects)
        return self._sweep.nodes()

    @property
    def resources(self) -> Iterable[str]:
        """Every resource that a node offers, then every other that a pod on a node requests."""
        return (*self.columns.allocatable, *self.columns.unoffered)

    # -- what changed -------------------------------------------------------------------------

    @property
    def stamps(self) -> Int64Column:
        """By row: a number that grows with every change of the row."""
        if self._unstamped:
            self.columns.stamps += self._unstamped
            self._unstamped = 0
        return self.columns.stamps[: self.size]

    def touch(self, name: str) -> None:
        """Something about a node changed that is not in the table."""
        row = self._rows.get(name)
        if row is not None:
            self.columns.stamps[row] += 1

    @property
    def cursor(self) -> int:
        """The end of the log of changed rows."""
        return self._row_log.cursor

    def changed_since(self, cursor: int) -> list[int] | None:
        """Rows changed since ``cursor``, sorted and unique; None if the log does not reach back."""
        recent = self._row_log.since(cursor)
        return recent if recent is None or len(recent) <= 1 else sorted(set(recent))

    @property
    def pods_cursor(self) -> int:
        """The end of the log of pods added to rows and removed from them."""
        return self._pod_log.cursor

    def pods_changed_since(self, cursor: int) -> list[tuple[int, PodInfo, int]] | None:
        """(row, pod, 1 if added or -1 if removed); None if the log does not reach back."""
        return self._pod_log.since(cursor)


def _one_for_all(column: Int64Column) -> Int64Column | None:
    """A column of one entry if all entries are the same; else None."""
    if not len(column) or (column != column[0]).any():
        return None
    one = column[:1].copy()
    one.flags.writeable = False
    return one
