"""Nodes in columns, updated row by row by the fold.

One row per node. A deleted node leaves a free row for the next new node; the lowest free row is
used first, so rows depend on the history of nodes alone. Readers get slices of the columns.

Caches of results by row compare these counters:

================== ======================================== ====================================
Counter            Incremented by                           Read by
================== ======================================== ====================================
``version``        a new or deleted node; a change of       plugins that cache by label or taint
                   labels or taints                         (topology domains, volume pools)
``layout``         a deleted node; a change of images, or   shape caches: recompute all rows
                   a new node while any node has images
``cursor``         each change of a row; the log has the    shape caches, sweeps, plugin
                   row                                      workers, sessions: recompute a row
``objects_cursor`` an added or updated node                 shape caches: node object filters
``pods_cursor``    a pod that is added to a row, removed    pod index, ``Cluster.pods_version``
                   or updated there; the log has the pod
``stamps``         by row: each change of the row or of     caches of dry runs
                   ``layout``; a nomination (``touch``)     (``Cluster.row_stamps``)
================== ======================================== ====================================
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from functools import partial
from hashlib import blake2b

from asched.framework.caching import ChangeLog
from asched.framework.pod_info import PodInfo
from asched.model.node import Node, Taint
from asched.model.requests import PODS, amounts
from asched.state.captures import Capture, Captures
from asched.state.node_columns import (
    UtilizationIds,
    requests_of,
    scoring_cpu_of,
    scoring_memory_of,
    shift,
)
from asched.state.node_sums import add_all, offer_all
from asched.state.node_table_forms import (
    NodeTableSnapshot,
    PodOrder,
    PodsOnRows,
    UnknownNodeSnapshot,
)
from asched.state.node_table_view import LOG_LENGTH, NodeTableView
from asched.state.stored_form import STEP, Steps
from asched.state.unoffered_requests import ELSEWHERE

KEPT_PODS = 512
"""The last changes of pods, which are always in the log."""
_MAX_LOGGED_PARTS = 8 * LOG_LENGTH
"""Parts of all pods that are added to the pod log before it starts over: about 80 MB."""
_BYTES_OF_PART = 64
"""Of the JSON of a pod's shape. A label is a part, too."""


class NodeTable(NodeTableView):
    """All nodes of the cluster. Only the fold calls the methods that change it."""

    def fork(self) -> NodeTable:
        """A table with the same contents, for hypothetical changes: pods can be added and removed
        in either table, nodes in neither. Costs as much as copying the columns."""
        copied = copy(self)
        vars(copied).update(
            port_index=deepcopy(self.port_index),
            _pods=[dict(pods) for pods in self._pods],
            _pods_on_unknown_nodes={
                name: dict(pods) for name, pods in self._pods_on_unknown_nodes.items()
            },
            columns=self.columns.fork(),
            # The resources of the two may come to differ, so their numbers must differ as well.
            _utilization_ids=UtilizationIds(self.size),
            _capacities={},
            _row_log=ChangeLog(LOG_LENGTH),
            _pod_log=ChangeLog(LOG_LENGTH),
            _sweep=None,
            _captures=Captures(dict),
        )
        return copied

    # -- nodes --------------------------------------------------------------------------------

    def set_node(self, node: Node) -> None:
        """A node was added or updated."""
        name, columns = node.metadata.name, self.columns
        row = self._rows.get(name)
        if row is None:
            row = self._new_row(name)
            old = None
        else:
            old = self._objects[row]
        self._objects[row] = node
        if old is None or (old.labels, old.spec.taints) != (node.labels, node.spec.taints):
            self.version += 1
        columns.unschedulable[row] = node.spec.unschedulable
        self._set_allocatable(row, node, old)
        self._set_labels(row, node.metadata.labels, {} if old is None else old.metadata.labels)
        self._set_taints(row, node.spec.taints)
        images = node.status.images
        if (images if old is None else images != old.status.images) and self.image_index.set_row(
            row, images
        ):
            self._layout_changed()
        self.objects_cursor += 1
        self._row_changed(row)
        if old is None:
            if self.image_index:
                self._layout_changed()
            for pod in self._pods_on_unknown_nodes.pop(name, {}).values():
                self._count_elsewhere(pod, -1)
                self._add_to_row(row, pod)

    def remove_node(self, name: str) -> None:
        """A node was deleted. Its pods are kept and count again if it is added again."""
        row, columns = self._rows.pop(name, None), self.columns
        if row is None:
            return
        remaining = dict(self._pods[row])
        for pod in remaining.values():
            self._remove_from_row(row, pod)
        old = self.node(row)
        self._set_labels(row, {}, old.metadata.labels)
        for resource in old.status.allocatable:
            self._withdraw(resource, row)
        self._capacities.clear()
        columns.allowed_pods[row] = 0
        columns.unschedulable[row] = False
        columns.taint_ids[row] = 0
        self.image_index.set_row(row, ())
        self._objects[row] = None
        columns.set_alive(row, False)
        self.names[row] = ""
        heapq.heappush(self._free, row)
        self.version += 1
        self._layout_changed()
        self._row_changed(row)
        if remaining:
            self._pods_on_unknown_nodes[name] = remaining
        for pod in remaining.values():
            self._count_elsewhere(pod, 1)

    def _row_changed(self, row: int) -> None:
        self._utilization_ids.by_row[row] = None
        self.columns.stamps[row] += 1
        self._row_log.append(row)

    def _layout_changed(self) -> None:
        self.layout += 1
        self._unstamped += 1

    def _new_row(self, name: str) -> int:
        row = heapq.heappop(self._free) if self._free else self._append_row()
        self.names[row] = name
        self._rows[name] = row
        self.columns.tie_break_keys[row] = _tie_break_key(name)
        self.columns.set_alive(row, True)
        return row

    def _append_row(self) -> int:
        row = self.size
        if row == self.columns.capacity:
            self.label_index.grow(row)
        self.columns.append_rows()
        self.size += 1
        self.names.append("")
        self._objects.append(None)
        self._pods.append({})
        self._utilization_ids.by_row.append(None)
        return row

    def _set_allocatable(self, row: int, node: Node, old: Node | None) -> None:
        allocatable, columns = node.status.allocatable, self.columns
        if old is not None:
            if old.status.allocatable == allocatable:
                return
            for name in old.status.allocatable:
                if name not in allocatable:
                    self._withdraw(name, row)
        self._capacities.clear()
        offered = amounts(allocatable)
        before = {} if old is None else old.status.allocatable
        for name, number in offered.items():
            column = columns.allocatable[name] if name in before else columns.offer(name)
            column[row] = number
        columns.allowed_pods[row] = offered.get(PODS, 0)

    def _withdraw(self, resource: str, row: int) -> None:
        columns = self.columns
        if not columns.withdraw(resource, row):
            return
        self._utilization_ids.forget()
        for number, pods in enumerate(self._pods):
            for pod in pods.values():
                columns.unoffered.add(resource, number, pod.shape.requests.get(resource, 0))
        for pods in self._pods_on_unknown_nodes.values():
            for pod in pods.values():
                columns.unoffered.add(resource, ELSEWHERE, pod.shape.requests.get(resource, 0))

    def _set_labels(self, row: int, labels: Mapping[str, str], old: Mapping[str, str]) -> None:
        columns = self.columns
        changed = self.label_index.set_row(row, labels, old, columns.capacity)
        if changed:
            columns.forget_views(("label", key) for key in changed)

    def _set_taints(self, row: int, taints: tuple[Taint, ...]) -> None:
        columns, numbers = self.columns, self._taint_numbers
        columns.taint_ids[row] = numbers.of(taints)
        ids = numbers.drop_unused(columns.taint_ids)
        if ids is not columns.taint_ids:
            columns.taint_ids = ids
            columns.forget_views(["taints"])

    # -- pods ---------------------------------------------------------------------------------

    def add_pod(self, node_name: str, pod: PodInfo) -> None:
        """Count a pod on its node. Raises ValueError if a pod of that uid is there already."""
        row = self._rows.get(node_name)
        if row is None:
            pods = self._pods_on_unknown_nodes.setdefault(node_name, {})
        else:
            pods = self._pods[row]
        if pod.uid in pods:
            raise ValueError(f"pod {pod.key} is on node {node_name} already")
        if row is None:
            pods[pod.uid] = pod
            self._count_elsewhere(pod, 1)
        else:
            self._add_to_row(row, pod)

    def remove_pod(self, node_name: str, pod: PodInfo) -> None:
        """Remove a pod from its node. Raises KeyError if it is not there."""
        row = self._rows.get(node_name)
        if row is not None:
            self._remove_from_row(row, self._pods[row][pod.uid])
            return
        pods = self._pods_on_unknown_nodes[node_name]
        self._count_elsewhere(pods.pop(pod.uid), -1)
        if not pods:
            del self._pods_on_unknown_nodes[node_name]

    def replace_pod(self, node_name: str, pod: PodInfo) -> None:
        """The pod of that uid changed; columns change only with its shape."""
        row = self._rows.get(node_name)
        pods = self._pods_on_unknown_nodes[node_name] if row is None else self._pods[row]
        old = pods[pod.uid]
        if row is None:
            pods[pod.uid] = pod
            self._count_elsewhere(old, -1)
            self._count_elsewhere(pod, 1)
            return
        if old.shape is pod.shape:
            self._keep_captured(row)
            pods[pod.uid] = pod
            changed = old.label_set is not pod.label_set or old.priority != pod.priority
            if changed or old.pod.terminating != pod.pod.terminating:
                self._log_pod(row, old, -1)
                self._log_pod(row, pod, 1)
            # A node-scope plugin may look at the pods themselves.
            self._row_changed(row)
            return
        order = [*pods]
        self._remove_from_row(row, old)
        self._add_to_row(row, pod)
        self._pods[row] = {uid: pods[uid] for uid in order}

    def pod_order(self, node_names: Iterable[str]) -> PodOrder:
        """The order of the pods on nodes, for :meth:`restore_order`."""
        rows = {row for name in node_names if (row := self._rows.get(name)) is not None}
        return PodOrder({row: [*self._pods[row]] for row in rows}, self.columns.unoffered.copy())

    def restore_order(self, order: PodOrder) -> None:
        """The same pods are on the nodes again as when the order was noted: restore it."""
        for row, uids in order.by_row.items():
            pods = self._pods[row]
            self._pods[row] = {uid: pods[uid] for uid in uids}
        self.columns.unoffered = order.unoffered

    def _add_to_row(self, row: int, pod: PodInfo) -> None:
        self._keep_captured(row)
        self._pods[row][pod.uid] = pod
        self._count(row, pod, 1)
        if pod.shape.ports:
            self.port_index.add(row, pod.shape.ports)

    def _keep_captured(self, row: int) -> None:
        """Call before the pods on a row change."""
        if self._captures.used:
            self._captures.keep(self._pods[row])

    def _remove_from_row(self, row: int, pod: PodInfo) -> None:
        self._keep_captured(row)
        del self._pods[row][pod.uid]
        self._count(row, pod, -1)
        if pod.shape.ports:
            self.port_index.remove(row, pod.shape.ports)

    def _count(self, row: int, pod: PodInfo, sign: int) -> None:
        """Update the columns for a pod that was added (1) or removed (-1)."""
        shape, pods, columns = pod.shape, self._pods[row], self.columns
        columns.pod_count[row] += sign
        requested = columns.requested
        for name, number in shape.requests.items():
            column = requested.get(name)
            if column is None:
                if not number:
                    continue
                if name not in columns.allocatable:
                    columns.unoffered.add(name, row, sign * number)
                    continue
                column = columns.resource(requested, name)
            if not shift(column, row, sign * number):
                column[row] = requests_of(pods.values(), name)
        if not shift(columns.scoring_cpu_milli, row, sign * shape.scoring_cpu_milli):
            columns.scoring_cpu_milli[row] = scoring_cpu_of(pods.values())
        if not shift(columns.scoring_memory_bytes, row, sign * shape.scoring_memory_bytes):
            columns.scoring_memory_bytes[row] = scoring_memory_of(pods.values())
        self._row_changed(row)
        self._log_pod(row, pod, sign)

    def _log_pod(self, row: int, pod: PodInfo, sign: int) -> None:
        """The log keeps pods in memory: it is cut after many large ones."""
        self._logged_parts += len(pod.labels) + pod.shape.size_bytes // _BYTES_OF_PART
        if self._logged_parts > _MAX_LOGGED_PARTS:
            self._logged_parts = 0
            self._pod_log.trim(KEPT_PODS)
        self._pod_log.append((row, pod, sign))

    def trim_pod_log(self) -> None:
        """Keep only the last changes: the log keeps removed pods in memory."""
        self._pod_log.trim(KEPT_PODS)

    def _count_elsewhere(self, pod: PodInfo, sign: int) -> None:
        """Keep the names that a pod on an unknown node requests: sessions count it for its job."""
        columns = self.columns
        for name, number in pod.shape.requests.items():
            if name not in columns.allocatable:
                columns.unoffered.add(name, ELSEWHERE, sign * number)

    # -- checkpoints --------------------------------------------------------------------------

    def snapshot(self) -> Steps[NodeTableSnapshot]:
        """The steps that convert the contents at this moment."""
        without_pods = partial(
            NodeTableSnapshot,
            names=tuple(self.names),
            unknown_nodes=tuple(
                UnknownNodeSnapshot(name, tuple(pods_there.values()))
                for name, pods_there in self._pods_on_unknown_nodes.items()
            ),
            allocatable=tuple(self.columns.allocatable),
            unoffered=tuple(self.columns.unoffered),
        )
        return _to_form(self._captures.begin([*self._pods]), without_pods)

    def restore(self, snapshot: NodeTableSnapshot, nodes: Mapping[str, Node]) -> None:
        """Fill an empty table, or one that has the same rows already: every node in its row, with
        its pods in their order."""
        if not self.size:
            self.restore_rows(snapshot, [nodes[name] if name else None for name in snapshot.names])
        self._fill_rows(snapshot.row_ends, snapshot.pods)
        for unknown in snapshot.unknown_nodes:
            for pod in unknown.pods:
                self.add_pod(unknown.node, pod)

    def restore_rows(self, snapshot: NodeTableSnapshot, objects: list[Node | None]) -> None:
        """Fill an empty table with the node of each row; None for a free row."""
        columns = self.columns
        for name in snapshot.allocatable:
            columns.resource(columns.allocatable, name)
        for name in snapshot.unoffered:
            columns.unoffered.declare(name)
        self._add_rows(snapshot.names, objects)

    def take_rows(self, other: NodeTable) -> None:
        """Fill an empty table with the contents of another one, which must not be used again."""
        vars(self).update(vars(other))

    def has_rows(self, snapshot: NodeTableSnapshot) -> bool:
        """Whether :meth:`restore_rows` leaves a table as this one, which nothing else changed, with
        the same objects."""
        offered, unoffered = self.columns.allocatable, self.columns.unoffered
        named = (tuple(offered), tuple(unoffered)) == (snapshot.allocatable, snapshot.unoffered)
        return named and tuple(self.names) == snapshot.names

    def has_objects(self, nodes: Mapping[str, Node]) -> bool:
        """Whether the rows have these objects."""
        kept = (node for node in self._objects if node is not None)
        return all(nodes.get(node.key) is node for node in kept)

    def _add_rows(self, names: Sequence[str], objects: list[Node | None]) -> None:
        """As :meth:`set_node` for each node of an empty table; None for a free row.

        ``names`` are those of the rows. A reader of these strings writes to no memory page of the
        objects.
        """
        columns = self.columns
        placed = [(row, node) for row, node in enumerate(objects) if node is not None]
        rows = [row for row, _ in placed]
        self.size = len(objects)
        columns.append_rows(self.size)
        self.names = [*names]
        self._objects, self._pods = objects, [{} for _ in objects]
        self._utilization_ids = UtilizationIds(self.size)
        self._rows = {name: row for row, name in enumerate(names) if name}
        self._free = [row for row, node in enumerate(objects) if node is None]
        if len(self._rows) != len(placed):
            raise ValueError("a node has several rows")
        columns.set_alive(rows, True)
        columns.tie_break_keys[rows] = [_tie_break_key(node.metadata.name) for _, node in placed]
        columns.unschedulable[rows] = [node.spec.unschedulable for _, node in placed]
        columns.taint_ids[rows] = [self._taint_numbers.of(node.spec.taints) for _, node in placed]
        offer_all(columns, placed)
        labels = [(row, node.metadata.labels) for row, node in placed]
        self.label_index.fill(labels, columns.capacity)
        for row, node in placed:
            if node.status.images:
                self.image_index.set_row(row, node.status.images)
        self.version += 1
        self.objects_cursor += 1
        self._layout_changed()
        # Whoever follows the log starts over.
        self._row_log.forget()

    def _fill_rows(self, row_ends: Sequence[int], pods: Sequence[PodInfo]) -> None:
        """Add the pods of all rows, which have none yet."""
        begin = 0
        for row, end in enumerate(row_ends):
            on_row = self._pods[row] = {pod.uid: pod for pod in pods[begin:end]}
            if len(on_row) != end - begin:
                raise ValueError(f"node {self.names[row]} has a pod twice")
            if on_row and not self.names[row]:
                raise ValueError(f"pods are on row {row}, which has no node")
            begin = end
        if any(shape.ports for shape in add_all(self.columns, row_ends, pods)):
            for row, on_row in enumerate(self._pods):
                for pod in on_row.values():
                    self.port_index.add(row, pod.shape.ports)
        self._pod_log.forget()


def _to_form(
    rows: Capture[dict[str, PodInfo]], without_pods: Callable[..., NodeTableSnapshot]
) -> Steps[NodeTableSnapshot]:
    # Flat: one tuple per row would be an object that the garbage collector tracks.
    row_ends: list[int] = []
    pods: list[PodInfo] = []
    for begin in range(0, len(rows), STEP):
        for on_row in rows.part(begin, begin + STEP):
            pods.extend(on_row.values())
            row_ends.append(len(pods))
        yield
    return without_pods(row_ends=tuple(row_ends), pods=PodsOnRows(pods))


def _tie_break_key(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
