"""Nodes in columns, kept up to date row by row as the fold goes.

One row per node. A removed node leaves an empty row that the next new node takes (the lowest one
first, so rows depend on the history of nodes alone). Columns double in capacity as needed; readers
get slices. Every change to a row is logged, so that whoever caches per-row results can ask which
rows changed since it last looked and compute only those again.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from asched.framework.change_log import ChangeLog
from asched.framework.nodes import (
    BoolColumn,
    Int64Column,
    LabelColumn,
    NodeInfo,
    Nodes,
    RowArray,
    TaintColumn,
    TicketColumn,
)
from asched.framework.pod_info import HostPort, PodInfo
from asched.model.node import Node
from asched.model.requests import PODS, amounts
from asched.state.node_columns import (
    FullnessNumbers,
    ImageIndex,
    LabelIndex,
    PortIndex,
    TaintNumbers,
    requests_of,
    scoring_cpu_of,
    scoring_memory_of,
    shift,
)
from asched.state.node_rows import NodeRows, NodeSweep

S = TypeVar("S", bound=np.generic)

_FIRST_CAPACITY = 64

LOGGED = 1 << 16
"""Changes that each of the table's logs remembers at most."""

_COLUMNS = (
    "_alive", "_allowed_pods", "_pod_count", "_scoring_cpu", "_scoring_memory", "_stamps",
    "_taint_ids", "_tickets", "_unschedulable",
)  # fmt: skip
"""Those that every table has; a row is all zeros at first."""


class NodeTable(Nodes):
    """All nodes of the cluster. Only the fold calls the methods that change it."""

    def __init__(self) -> None:
        self.size = 0
        self.names: list[str] = []
        self._objects: list[Node | None] = []
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._pods: list[dict[str, PodInfo]] = []
        # Pods whose node is not known (yet, or any more): counted as soon as it appears.
        self._strays: dict[str, dict[str, PodInfo]] = {}
        self._capacity = _FIRST_CAPACITY
        self._alive = self._zeros(np.bool_)
        self._unschedulable = self._zeros(np.bool_)
        self._tickets = self._zeros(np.uint64)
        self._pod_count = self._zeros(np.int64)
        self._allowed_pods = self._zeros(np.int64)
        self._scoring_cpu = self._zeros(np.int64)
        self._scoring_memory = self._zeros(np.int64)
        self._allocatable: dict[str, Int64Column] = {}
        self._requested: dict[str, Int64Column] = {}
        self._labels = LabelIndex()
        self._views: dict[Hashable, NDArray[Any]] = {}
        # By resource what all rows offer, None where they differ.
        self._capacities: dict[str, Int64Column | None] = {}
        self._amount_columns: list[Int64Column] = []
        # By row, None where it is to be looked at again.
        self._fullness: list[int | None] = []
        self._fullness_numbers = FullnessNumbers()
        self._taint_ids = self._zeros(np.int32)
        self._taint_numbers = TaintNumbers()
        self._ports = PortIndex()
        self._images = ImageIndex()
        self._stamps = self._zeros(np.int64)
        self._row_log: ChangeLog[int] = ChangeLog(LOGGED)
        self._objects_changed = 0
        self._pod_log: ChangeLog[tuple[int, PodInfo, int]] = ChangeLog(LOGGED)
        self._version = 0
        self._by_ticket: RowArray | None = None
        self._sweep: NodeSweep | None = None
        self.layout = 0
        """Changes whenever results cannot be patched row by row: what is said of an image depends on
        how many nodes hold it, of how many there are."""

    # -- reading ------------------------------------------------------------------------------

    @property
    def alive(self) -> BoolColumn:
        return self._view("alive", self._alive)

    @property
    def tickets(self) -> TicketColumn:
        """A number by row, made of the node's name: what equally good nodes are drawn by."""
        return self._view("tickets", self._tickets)

    @property
    def by_ticket(self) -> RowArray:
        """The rows of nodes in order of their tickets."""
        if self._by_ticket is None:
            rows = np.flatnonzero(self.alive)
            self._by_ticket = rows[np.argsort(self._tickets[rows], kind="stable")]
        return self._by_ticket

    @property
    def cluster_size(self) -> int:
        return len(self._rows)

    @property
    def version(self) -> int:
        return self._version

    def align(self, column: NDArray[S]) -> NDArray[S]:
        return column

    def row_of(self, name: str) -> int | None:
        return self._rows.get(name)

    def allocatable(self, resource: str) -> Int64Column:
        return self._amounts("allocatable", self._allocatable, resource)

    def capacity(self, resource: str) -> Int64Column:
        try:
            same = self._capacities[resource]
        except KeyError:
            same = self._capacities[resource] = _one_for_all(self.allocatable(resource))
        return self.allocatable(resource) if same is None else same

    def requested(self, resource: str) -> Int64Column:
        return self._amounts("requested", self._requested, resource)

    def allocatable_on(self, row: int, resource: str) -> int:
        column = self._allocatable.get(resource)
        return 0 if column is None else column.item(row)

    def requested_on(self, row: int, resource: str) -> int:
        column = self._requested.get(resource)
        return 0 if column is None else column.item(row)

    def fullness_on(self, row: int) -> int:
        """A number that rows share which are of one size and equally full: all that the columns say of
        them in amounts is the same."""
        number = self._fullness[row]
        if number is None:
            number = self._fullness[row] = self._fullness_numbers.of(self._amounts_on(row))
        return number

    def _amounts_on(self, row: int) -> tuple[int, ...]:
        columns = self._amount_columns
        if not columns:
            columns += [*self._allocatable.values(), *self._requested.values(), self._pod_count]
            columns += [self._allowed_pods, self._scoring_cpu, self._scoring_memory]
        return tuple([column.item(row) for column in columns])

    @property
    def scoring_cpu_milli(self) -> Int64Column:
        return self._view("scoring_cpu_milli", self._scoring_cpu)

    @property
    def scoring_memory_bytes(self) -> Int64Column:
        return self._view("scoring_memory_bytes", self._scoring_memory)

    @property
    def pod_count(self) -> Int64Column:
        return self._view("pod_count", self._pod_count)

    @property
    def allowed_pods(self) -> Int64Column:
        return self._view("allowed_pods", self._allowed_pods)

    @property
    def unschedulable(self) -> BoolColumn:
        return self._view("unschedulable", self._unschedulable)

    def label(self, key: str) -> LabelColumn:
        labels = self._labels
        ids = labels.columns.get(key)
        if ids is None:
            return LabelColumn(np.full(self.size, -1, np.int32), labels.vocabulary)
        return LabelColumn(self._view(("label", key), ids), labels.vocabulary)

    @property
    def taints(self) -> TaintColumn:
        return TaintColumn(self._view("taints", self._taint_ids), self._taint_numbers.sets)

    def port_conflicts(self, ports: Sequence[HostPort]) -> BoolColumn:
        taken = np.zeros(self.size, np.bool_)
        rows = self._ports.conflicting_rows(ports)
        if rows:
            taken[rows] = True
        return taken

    def image_size_bytes(self, image: str) -> tuple[Int64Column, int]:
        return self._images.column(image, self.size)

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

    def holds_pod(self, node_name: str, pod: PodInfo) -> bool:
        """Whether just this picture of the pod is filed under the node, known or not."""
        row = self._rows.get(node_name)
        here = self._strays.get(node_name, {}) if row is None else self._pods[row]
        return here.get(pod.uid) is pod

    @property
    def pods_counted(self) -> int:
        """How many pods are filed, on nodes known or not."""
        return sum(map(len, self._pods)) + sum(map(len, self._strays.values()))

    def take(self, rows: RowArray) -> NodeRows:
        return NodeRows(self, rows)

    def infos(self) -> Sequence[NodeInfo]:
        if self._sweep is None:
            self._sweep = NodeSweep(self, self._objects)
        return self._sweep.nodes()

    @property
    def resources(self) -> Iterable[str]:
        """Every resource that some node offers or some pod on a node requests."""
        return dict.fromkeys((*self._allocatable, *self._requested))

    # -- what changed -------------------------------------------------------------------------

    @property
    def stamps(self) -> Int64Column:
        """By row: a number that grows whenever anything about the row changes."""
        return self._stamps[: self.size]

    def touch(self, name: str) -> None:
        """Something about a node changed that the table does not hold."""
        row = self._rows.get(name)
        if row is not None:
            self._stamps[row] += 1

    @property
    def cursor(self) -> int:
        """The present end of the log of changed rows."""
        return self._row_log.cursor

    def changed_since(self, cursor: int) -> list[int] | None:
        """Rows changed since ``cursor``, sorted, each once; None where the log forgot that far."""
        recent = self._row_log.since(cursor)
        return recent if recent is None or len(recent) <= 1 else sorted(set(recent))

    @property
    def objects_cursor(self) -> int:
        """How many times a node object came or changed."""
        return self._objects_changed

    def objects_changed_since(self, cursor: int) -> bool:
        """Whether any row's node object came or changed since ``cursor``."""
        return self._objects_changed != cursor

    @property
    def pods_cursor(self) -> int:
        """The present end of the log of pods that came to rows and left them."""
        return self._pod_log.cursor

    def pods_changed_since(self, cursor: int) -> list[tuple[int, PodInfo, int]] | None:
        """(row, pod, 1 or -1) for each that came or left; None where the log forgot that far."""
        return self._pod_log.since(cursor)

    # -- nodes --------------------------------------------------------------------------------

    def set_node(self, node: Node) -> None:
        """A node appeared or changed."""
        name = node.metadata.name
        row = self._rows.get(name)
        if row is None:
            row = self._new_row(name)
            old = None
        else:
            old = self._objects[row]
        self._objects[row] = node
        if old is None or (old.labels, old.spec.taints) != (node.labels, node.spec.taints):
            self._version += 1
        self._unschedulable[row] = node.spec.unschedulable
        self._set_allocatable(row, node, old)
        old_labels = {} if old is None else old.metadata.labels
        self._labels.set_row(row, node.metadata.labels, old_labels, self._capacity)
        self._taint_ids[row] = self._taint_numbers.of(node.spec.taints)
        images = node.status.images
        if (images if old is None else images != old.status.images) and self._images.set_row(
            row, images
        ):
            self._layout_changed()
        self._objects_changed += 1
        self._row_changed(row)
        if old is None:
            if self._images:
                self._layout_changed()
            for pod in self._strays.pop(name, {}).values():
                self._add_to_row(row, pod)

    def remove_node(self, name: str) -> None:
        """A node went. Pods on it stay known and count again if it comes back."""
        row = self._rows.pop(name, None)
        if row is None:
            return
        stay = dict(self._pods[row])
        for pod in stay.values():
            self._remove_from_row(row, pod)
        if stay:
            self._strays[name] = stay
        old = self.node(row)
        self._labels.set_row(row, {}, old.metadata.labels, self._capacity)
        for column in self._allocatable.values():
            column[row] = 0
        self._capacities.clear()
        self._allowed_pods[row] = 0
        self._unschedulable[row] = False
        self._taint_ids[row] = 0
        self._images.set_row(row, ())
        self._objects[row] = None
        self._alive[row] = False
        self._by_ticket = None
        self.names[row] = ""
        heapq.heappush(self._free, row)
        self._version += 1
        self._layout_changed()
        self._row_changed(row)

    def _row_changed(self, row: int) -> None:
        self._fullness[row] = None
        self._stamps[row] += 1
        self._row_log.append(row)

    def _layout_changed(self) -> None:
        self.layout += 1
        self._stamps += 1

    def _new_row(self, name: str) -> int:
        if self._free:
            row = heapq.heappop(self._free)
            self.names[row] = name
        else:
            row = self.size
            if row == self._capacity:
                self._grow()
            self.size += 1
            self._views.clear()
            self.names.append(name)
            self._objects.append(None)
            self._pods.append({})
            self._fullness.append(None)
        self._rows[name] = row
        self._alive[row] = True
        self._by_ticket = None
        self._tickets[row] = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
        return row

    def _set_allocatable(self, row: int, node: Node, old: Node | None) -> None:
        offered = node.status.allocatable
        if old is not None:
            if old.status.allocatable == offered:
                return
            for name in old.status.allocatable.keys() - offered.keys():
                self._column(self._allocatable, name)[row] = 0
        self._capacities.clear()
        for name, number in amounts(offered).items():
            self._column(self._allocatable, name)[row] = number
        self._allowed_pods[row] = self._column(self._allocatable, PODS)[row]

    # -- pods ---------------------------------------------------------------------------------

    def add_pod(self, node_name: str, pod: PodInfo) -> None:
        """Count a pod on its node. Raises ValueError if a pod of that uid is there already."""
        row = self._rows.get(node_name)
        here = self._strays.setdefault(node_name, {}) if row is None else self._pods[row]
        if pod.uid in here:
            raise ValueError(f"pod {pod.key} is on node {node_name} already")
        if row is None:
            here[pod.uid] = pod
        else:
            self._add_to_row(row, pod)

    def remove_pod(self, node_name: str, pod: PodInfo) -> None:
        """Uncount a pod. Raises KeyError if it is not there."""
        row = self._rows.get(node_name)
        if row is not None:
            self._remove_from_row(row, self._pods[row][pod.uid])
            return
        strays = self._strays[node_name]
        del strays[pod.uid]
        if not strays:
            del self._strays[node_name]

    def replace_pod(self, node_name: str, pod: PodInfo) -> None:
        """The pod of that uid changed; where its shape did not, no column does."""
        row = self._rows.get(node_name)
        here = self._strays[node_name] if row is None else self._pods[row]
        old = here[pod.uid]
        if row is None:
            here[pod.uid] = pod
            return
        if old.shape is pod.shape:
            here[pod.uid] = pod
            changed = old.label_set is not pod.label_set or old.priority != pod.priority
            if changed or old.pod.terminating != pod.pod.terminating:
                self._pod_log.append((row, old, -1))
                self._pod_log.append((row, pod, 1))
            # No column changed, but a plugin of node scope may look at the pods themselves.
            self._row_changed(row)
            return
        order = [*here]
        self._remove_from_row(row, old)
        self._add_to_row(row, pod)
        self._pods[row] = {uid: here[uid] for uid in order}

    def _add_to_row(self, row: int, pod: PodInfo) -> None:
        self._pods[row][pod.uid] = pod
        self._count(row, pod, 1)
        if pod.shape.ports:
            self._ports.add(row, pod.shape.ports)

    def _remove_from_row(self, row: int, pod: PodInfo) -> None:
        del self._pods[row][pod.uid]
        self._count(row, pod, -1)
        if pod.shape.ports:
            self._ports.remove(row, pod.shape.ports)

    def _count(self, row: int, pod: PodInfo, sign: int) -> None:
        """Enter in the columns that the pod came to the row, or left it."""
        shape, pods, requested = pod.shape, self._pods[row], self._requested
        self._pod_count[row] += sign
        for name, number in shape.requests.items():
            column = requested.get(name)
            if column is None:
                column = self._column(requested, name)
            if not shift(column, row, sign * number):
                column[row] = requests_of(pods.values(), name)
        if not shift(self._scoring_cpu, row, sign * shape.scoring_cpu_milli):
            self._scoring_cpu[row] = scoring_cpu_of(pods.values())
        if not shift(self._scoring_memory, row, sign * shape.scoring_memory_bytes):
            self._scoring_memory[row] = scoring_memory_of(pods.values())
        self._row_changed(row)
        self._pod_log.append((row, pod, sign))

    # -- storage ------------------------------------------------------------------------------

    def _view(self, name: Hashable, column: NDArray[S]) -> NDArray[S]:
        """The rows in use, read-only: one that writes to them by mistake must be told, not
        believed. Kept until the rows are others, as most questions are about one row."""
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = column[: self.size]
            view.flags.writeable = False
        return view

    def _amounts(self, kind: str, columns: Mapping[str, Int64Column], resource: str) -> Int64Column:
        column = columns.get(resource)
        if column is None:
            return np.zeros(self.size, np.int64)
        return self._view((kind, resource), column)

    def _zeros(self, dtype: type[S]) -> NDArray[S]:
        return np.zeros(self._capacity, dtype)

    def _column(self, columns: dict[str, Int64Column], name: str) -> Int64Column:
        column = columns.get(name)
        if column is None:
            column = columns[name] = self._zeros(np.int64)
            self._amount_columns.clear()
        return column

    def _grow(self) -> None:
        extra = self._capacity
        self._capacity *= 2
        self._amount_columns.clear()
        for name in _COLUMNS:
            setattr(self, name, _longer(getattr(self, name), extra))
        for columns in (self._allocatable, self._requested):
            for name, column in columns.items():
                columns[name] = _longer(column, extra)
        self._labels.grow(extra)


def _longer(column: NDArray[S], extra: int) -> NDArray[S]:
    return np.concatenate([column, np.zeros(extra, column.dtype)])


def _one_for_all(column: Int64Column) -> Int64Column | None:
    """One entry that says what all say; None where they do not say the same."""
    if not len(column) or (column != column[0]).any():
        return None
    one = column[:1].copy()
    one.flags.writeable = False
    return one
