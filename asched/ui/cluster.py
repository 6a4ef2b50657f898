"""The cluster at a moment: nodes with their use, and the difference between two moments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import msgspec

from asched.audit.lookup import AuditError
from asched.audit.pod_state import pod_owner, pod_state
from asched.audit.timeline import time_of
from asched.audit.unblock import amount_text
from asched.framework.runtime.strict import nearest
from asched.model.node import Node
from asched.model.requests import PODS
from asched.state.cluster import ClusterState
from asched.ui.columns import QUEUES, RecordedColumns, resources_of
from asched.ui.device_history import DeviceTracker, DeviceUses, DriverDevices
from asched.ui.node_facts import FactsTable, GroupLabel, NodeFacts, group_labels
from asched.ui.placements import PlacedPod
from asched.ui.series import queue_lengths


class NodeUse(msgspec.Struct, frozen=True, rename="camel"):
    """A node and its use."""

    name: str
    ready: bool
    unschedulable: bool
    taints: tuple[str, ...]
    labels: dict[str, str]
    """Those that can group nodes."""
    pods: int
    allocatable: dict[str, int]
    """cpu in millicores, others in whole units."""
    requested: dict[str, int]
    devices: DeviceUses = {}
    """Of Dynamic Resource Allocation, by driver."""


class ClusterPicture(msgspec.Struct, frozen=True, rename="camel"):
    """All nodes after a record."""

    seq: int
    at: datetime
    resources: tuple[str, ...]
    drivers: tuple[str, ...]
    """Those with devices on a node."""
    group_labels: tuple[GroupLabel, ...]
    queues: dict[str, int]
    """Pods without a node, by queue."""
    nodes: tuple[NodeUse, ...]
    """By name."""


class PodOnNode(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str
    name: str
    state: str
    """``bound`` or ``assumed``."""
    priority: int
    owner: str
    requests: dict[str, int]


class NodeDetail(msgspec.Struct, frozen=True, rename="camel"):
    """A node with its pods."""

    seq: int
    at: datetime
    node: NodeUse
    pods: tuple[PodOnNode, ...]


class Placement(msgspec.Struct, frozen=True, rename="camel"):
    """A pod with another node."""

    namespace: str
    name: str
    before: str
    """Its node at the first moment; empty if it had none or did not exist."""
    after: str


class NodeChange(msgspec.Struct, frozen=True, rename="camel"):
    """A node with another use or state."""

    name: str
    requested: dict[str, int]
    """The difference by resource; resources without a difference are omitted."""
    pods: int
    changes: tuple[str, ...]
    """``field old -> new``."""


class ClusterDifference(msgspec.Struct, frozen=True, rename="camel"):
    """What differs between two moments."""

    from_seq: int
    from_at: datetime
    to_seq: int
    to_at: datetime
    nodes_added: tuple[str, ...]
    nodes_removed: tuple[str, ...]
    nodes_changed: tuple[NodeChange, ...]
    placements: tuple[Placement, ...]
    pods_added: int
    """Pods that exist only at the second moment, with or without a node."""
    pods_removed: int


def picture(state: ClusterState, seq: int) -> ClusterPicture:
    """The cluster as the state has it."""
    nodes, resources = state.objects(Node), resources_of(state.nodes)
    labels = group_labels([node.metadata.labels for node in nodes.values()])
    keys, devices = tuple(label.key for label in labels), DeviceTracker.of(state)
    found = tuple(_use(state, nodes[name], resources, keys, devices) for name in sorted(nodes))
    return ClusterPicture(
        seq=seq,
        at=time_of(state.date_ns),
        resources=resources,
        drivers=_drivers(found),
        group_labels=labels,
        queues=queue_lengths(state),
        nodes=found,
    )


def _drivers(nodes: Iterable[NodeUse]) -> tuple[str, ...]:
    return tuple(sorted({driver for node in nodes for driver in node.devices}))


def picture_of(
    columns: RecordedColumns, table: FactsTable, devices: dict[str, DeviceUses], seq: int
) -> ClusterPicture:
    """The same picture from the columns of a record. Nothing is folded."""
    resources = columns.resources
    rows = dict(zip(columns.names, columns.values.tolist(), strict=True))
    nodes = []
    for name, facts, labels in table.rows:
        used = dict(zip(resources, rows[name], strict=True))
        nodes.append(_use_of(name, facts, labels, used, devices.get(name, {})))
    return ClusterPicture(
        seq=seq,
        at=time_of(columns.date_ns),
        resources=resources,
        drivers=_drivers(nodes),
        group_labels=table.group_labels,
        queues=dict(zip(QUEUES, columns.queues, strict=True)),
        nodes=tuple(nodes),
    )


def _use_of(
    name: str,
    facts: NodeFacts,
    labels: dict[str, str],
    used: dict[str, int],
    devices: DeviceUses,
) -> NodeUse:
    return NodeUse(
        name=name,
        ready=facts.ready,
        unschedulable=facts.unschedulable,
        taints=facts.taints,
        labels=labels,
        pods=used[PODS],
        allocatable={resource: facts.offered.get(resource, 0) for resource in used},
        requested=used,
        devices=devices,
    )


def node_of(
    columns: RecordedColumns,
    table: FactsTable,
    devices: DeviceUses,
    pods: Iterable[PlacedPod],
    seq: int,
    name: str,
) -> NodeDetail:
    """As :func:`node_detail`, from the index. Nothing is folded."""
    facts = table.facts.get(name)
    if facts is None:
        raise _unknown(name, [row.name for row in table.rows], seq)
    used = dict(zip(columns.resources, columns.amounts_of(name), strict=True))
    return NodeDetail(
        seq=seq,
        at=time_of(columns.date_ns),
        node=_use_of(name, facts, facts.labels, used, devices),
        pods=tuple(
            PodOnNode(
                namespace=pod.key.partition("/")[0],
                name=pod.key.partition("/")[2],
                state=pod.state,
                priority=pod.form.priority,
                owner=pod.form.owner,
                requests=pod.form.requests,
            )
            for pod in pods
        ),
    )


def _unknown(name: str, known: Sequence[str], seq: int) -> AuditError:
    guess = nearest(name, known)
    hint = f"; did you mean {guess}?" if guess else ""
    return AuditError(f"no node {name!r} at record {seq}{hint}")


def _use(
    state: ClusterState,
    node: Node,
    resources: tuple[str, ...],
    keys: tuple[str, ...],
    devices: DeviceTracker,
) -> NodeUse:
    table, row = state.nodes, state.nodes.row_of(node.name)
    assert row is not None, "each observed node has a row"
    offered = {name: table.allocatable_on(row, name) for name in resources[:-1]}
    used = {name: table.requested_on(row, name) for name in offered}
    pods, facts = int(table.pod_count[row]), NodeFacts.of(node)
    return NodeUse(
        name=node.name,
        ready=facts.ready,
        unschedulable=facts.unschedulable,
        taints=facts.taints,
        labels={key: facts.labels[key] for key in keys if key in facts.labels},
        pods=pods,
        allocatable={**offered, PODS: int(table.allowed_pods[row])},
        requested={**used, PODS: pods},
        devices=devices.uses(node.name),
    )


def node_detail(state: ClusterState, seq: int, name: str) -> NodeDetail:
    """Raises AuditError for an unknown node."""
    nodes = state.objects(Node)
    node = nodes.get(name)
    if node is None:
        raise _unknown(name, [*nodes], seq)
    resources = resources_of(state.nodes)
    row = state.nodes.row_of(name)
    assert row is not None, "each observed node has a row"
    pods = sorted(state.nodes.pods(row), key=lambda info: info.key)
    keys = tuple(node.metadata.labels)
    return NodeDetail(
        seq=seq,
        at=time_of(state.date_ns),
        node=_use(state, node, resources, keys, DeviceTracker.of(state)),
        pods=tuple(
            PodOnNode(
                namespace=info.namespace,
                name=info.name,
                state=pod_state(state, info.key),
                priority=info.priority,
                owner=pod_owner(info.pod),
                requests=dict(info.shape.requests),
            )
            for info in pods
        ),
    )


class ClusterSnapshot(msgspec.Struct, frozen=True):
    """What a difference compares."""

    picture: ClusterPicture
    placements: dict[tuple[str, str, str], str]
    """The node of each pod by namespace, name and uid; empty without a node."""


def snapshot(state: ClusterState, seq: int) -> ClusterSnapshot:
    placements = {
        (entry.info.namespace, entry.info.name, entry.info.uid): entry.node
        for entry in state.pods.values()
    }
    return ClusterSnapshot(picture(state, seq), placements)


def difference(old: ClusterSnapshot, new: ClusterSnapshot) -> ClusterDifference:
    """What changed from one moment to another."""
    before = {node.name: node for node in old.picture.nodes}
    after = {node.name: node for node in new.picture.nodes}
    common = [name for name in after if name in before]
    changed = [_change(before[name], after[name]) for name in common if before[name] != after[name]]
    pods = {**old.placements, **new.placements}
    return ClusterDifference(
        from_seq=old.picture.seq,
        from_at=old.picture.at,
        to_seq=new.picture.seq,
        to_at=new.picture.at,
        nodes_added=tuple(name for name in after if name not in before),
        nodes_removed=tuple(name for name in before if name not in after),
        nodes_changed=tuple(changed),
        placements=tuple(
            Placement(*pod[:2], old.placements.get(pod, ""), new.placements.get(pod, ""))
            for pod in sorted(pods)
            if old.placements.get(pod, "") != new.placements.get(pod, "")
        ),
        pods_added=sum(pod not in old.placements for pod in new.placements),
        pods_removed=sum(pod not in new.placements for pod in old.placements),
    )


def _change(before: NodeUse, after: NodeUse) -> NodeChange:
    names = dict.fromkeys((*before.requested, *after.requested))
    deltas = {name: after.requested.get(name, 0) - before.requested.get(name, 0) for name in names}
    return NodeChange(
        name=after.name,
        requested={name: delta for name, delta in deltas.items() if delta},
        pods=after.pods - before.pods,
        changes=(
            *_node_changes(before, after),
            *_device_changes(before.devices, after.devices),
        ),
    )


def _node_changes(before: NodeUse, after: NodeUse) -> Iterator[str]:
    if before.ready != after.ready:
        yield "ready" if after.ready else "not ready"
    if before.unschedulable != after.unschedulable:
        yield "cordoned" if after.unschedulable else "uncordoned"
    yield from (f"taint {one} added" for one in after.taints if one not in before.taints)
    yield from (f"taint {one} removed" for one in before.taints if one not in after.taints)
    for name in dict.fromkeys((*before.labels, *after.labels)):
        old, new = (labels.get(name, "(none)") for labels in (before.labels, after.labels))
        if old != new:
            yield f"label {name} {old} -> {new}"
    for name in dict.fromkeys((*before.allocatable, *after.allocatable)):
        offered, offers = before.allocatable.get(name, 0), after.allocatable.get(name, 0)
        if offered != offers:
            yield f"allocatable {name} {amount_text(name, offered)} -> {amount_text(name, offers)}"


def _device_changes(before: DeviceUses, after: DeviceUses) -> Iterator[str]:
    none = DriverDevices(0, 0, 0, 0)
    for driver in dict.fromkeys((*before, *after)):
        old, new = before.get(driver, none), after.get(driver, none)
        for field in ("devices", "allocated", "tainted"):
            if getattr(old, field) != getattr(new, field):
                yield f"{driver} {field} {getattr(old, field)} -> {getattr(new, field)}"
