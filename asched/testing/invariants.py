"""Invariants of the state after each record, for tests and simulation. Checking them is slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from typing import TypeVar

import numpy as np

from asched.framework.nodes import RowArray
from asched.framework.pod_groups import MemberStatus, PodGroupKey, group_of
from asched.framework.runtime.plugin_calls import gate_status
from asched.model.resources import KINDS
from asched.state.cluster import ClusterState, PlacementState, PodEntry
from asched.state.node_table import NodeTable
from asched.state.pod_fold import member_status
from asched.state.stored_form import run

_DEFAULT_PREEMPTION = "DefaultPreemption"

T = TypeVar("T")


def check(state: ClusterState) -> None:
    """Raise :class:`AssertionError`, in one line, if the state contradicts itself."""
    _check_objects(state)
    _check_columns(state)


class InvariantChecker:
    """Checks a state after each of its records as :func:`check` does, in less time: the columns of
    nodes are compared again only if a node, a placed pod or a column has changed."""

    def __init__(self) -> None:
        self._compared: tuple[object, ...] | None = None

    def check(self, state: ClusterState) -> None:
        """Raise :class:`AssertionError`, in one line, if the state contradicts itself."""
        _check_objects(state)
        inputs = _inputs_of_columns(state)
        if inputs != self._compared:
            _check_columns(state)
            self._compared = inputs


def _inputs_of_columns(state: ClusterState) -> tuple[object, ...]:
    """What :func:`_check_columns` reads: its answer changes only with these."""
    table = state.nodes
    placed = [
        (entry.node, _Identity(entry.info), table.has_pod(entry.node, entry.info))
        for entry in state.pods.values()
        if entry.node
    ]
    counters = (table.cursor, table.objects_cursor, table.pods_cursor, table.version, table.layout)
    columns = [column.tobytes() for _, column, _ in _columns(table, table)]
    labels = [(key, ids.tobytes()) for key, ids in table.label_index.columns.items()]
    ports, images = table.port_index.taken, table.image_index.sizes
    return (
        _Identity(table),
        placed,
        table.pods_counted,
        counters,
        table.alive.tobytes(),
        columns,
        labels,
        table.taints.ids.tobytes(),
        {thing: {**rows} for thing, rows in ports.items()},
        {thing: {**rows} for thing, rows in images.items()},
    )


class _Identity:
    """Equal for the same object only; keeps the object."""

    def __init__(self, of: object) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.of is self.of

    def __hash__(self) -> int:
        return id(self.of)


def _check_objects(state: ClusterState) -> None:
    queue = state.queue
    parts: dict[str, Container[str]] = {
        "active": queue.active,
        "backoff": queue.backoff,
        "unschedulable": queue.unschedulable,
        "gated": queue.gated,
        "in flight": {*queue.in_flight},
    }
    for key, entry in state.pods.items():
        _check_entry(state, key, entry, [name for name, keys in parts.items() if key in keys])
    _check_queue(state)
    _check_gated(state)
    _check_pending_evaluations(state)
    _check_waiting(state)
    _check_nominator(state)
    _check_evictions(state)
    _check_preemptors(state)
    _check_sessions(state)
    _check_groups(state)
    in_order = state.pods_by_uid.captured()[:]
    _demand(in_order == [*state.pods.values()], "pods in order of arrival are not those by key")


def _demand(holds: bool, what: str) -> None:
    """For what is checked rarely: callers build the text in any case."""
    if not holds:
        raise AssertionError(what)


def _check_entry(state: ClusterState, key: str, entry: PodEntry, places: list[str]) -> None:
    """A pod is in exactly one part of the queue, or in none, according to its placement state."""
    pod, placement = entry.info.pod, entry.placement_state
    if key != entry.info.key:
        raise AssertionError(f"pod {key} is stored as {entry.info.key}")
    if pod.terminal:
        raise AssertionError(f"pod {key} has finished but is still stored")
    if bool(entry.node) is (placement is PlacementState.PENDING):
        raise AssertionError(f"pod {key} is {placement.value} with node {entry.node!r}")
    if (entry.assignment is not None) is not (placement is PlacementState.ASSUMED):
        raise AssertionError(f"pod {key} is {placement.value} with assignment {entry.assignment}")
    match placement:
        case PlacementState.PENDING:
            ours = pod.spec.scheduler_name in state.profiles and not pod.terminating
            called = key in state.pending_evaluations and bool(
                state.pending_evaluations[key].pending
            )
            in_flight = places == ["in flight"]
            right = len(places) == 1 and in_flight is called if ours else not places
        case PlacementState.ASSUMED:
            in_session = entry.assignment is not None and entry.assignment.session
            right = places == ([] if in_session else ["in flight"])
        case PlacementState.BOUND:
            right = not places
    if not right:
        where = " and ".join(places) or "nowhere in the queue"
        raise AssertionError(f"pod {key} is {placement.value} but {where}")


def _check_queue(state: ClusterState) -> None:
    queue = state.queue
    for queued in (*queue, *queue.in_flight_pods):
        entry = state.pods.get(queued.info.key)
        if entry is None or entry.info is not queued.info:
            raise AssertionError(f"the queue holds another pod {queued.info.key} than the state")
    for key, pod in (*queue.active.items(), *queue.backoff.items()):
        if key != pod.info.key:
            raise AssertionError(f"queue: pod {pod.info.key} is stored as {key}")
    active = {pod.info.namespace for pod in queue.active.values()}
    for namespace in {*active, ""}:
        _demand(
            queue.has_active_of_others(namespace) == bool(active - {namespace}),
            f"queue: the count of active pods outside {namespace!r} is wrong",
        )
    expected: dict[str, set[str]] = {}
    for pod in queue.gated.values():
        expected.setdefault(pod.gating_plugin, set()).add(pod.info.key)
    for pod in queue.unschedulable.values():
        for plugin in pod.unschedulable_plugins | pod.pending_plugins:
            expected.setdefault(plugin, set()).add(pod.info.key)
    indexed = {
        plugin: {pod.info.key for pod in pods.values()}
        for plugin, pods in queue.waiting_by_plugin.items()
    }
    if indexed != expected:
        raise AssertionError(f"queue: pods by plugin are {expected}, the index has {indexed}")
    if queue.events:
        stored = run(queue.snapshot())
        kept = len(stored.events)
        _demand(bool(stored.attempts), f"queue: {kept} events kept without a pod in flight")


def _check_gated(state: ClusterState) -> None:
    """A PreEnqueue plugin still rejects each gated pod: else no event opened its gate."""
    # Their event follows: the victims of a preemptor are terminating; the pod of a session counts
    # for its group from its assignment on, and the event is that of its binding.
    preemptors = {*state.evictions.completed_preemptors.values()}
    groups = {
        group_of(entry.info.pod)
        for entry in state.pods.values()
        if entry.assignment is not None and entry.assignment.session
    } - {None}
    for key, queued in state.queue.gated.items():
        pod = queued.info.pod
        pre_enqueue = state.profiles[pod.spec.scheduler_name].pre_enqueue
        rejected = any(gate_status(plugin, queued.info) is not None for plugin in pre_enqueue)
        _demand(
            rejected or key in preemptors or group_of(pod) in groups,
            f"pod {key} is gated by {queued.gating_plugin}, but no PreEnqueue plugin rejects it",
        )


def _check_pending_evaluations(state: ClusterState) -> None:
    """Evaluations are pending for pending pods only; a pod with all answers is active."""
    for key, evaluation in state.pending_evaluations.items():
        entry = state.entry(key, evaluation.uid)
        _demand(
            entry is not None and entry.placement_state is PlacementState.PENDING,
            f"an evaluation is pending for pod {key} ({evaluation.uid}), which is not pending",
        )
        place = state.queue.in_flight if evaluation.pending else state.queue.active
        _demand(key in place, f"pod {key} has a pending evaluation but is in the wrong queue")


def _check_waiting(state: ClusterState) -> None:
    for key, waiting in state.waiting.items():
        entry = state.pods.get(key)
        _demand(
            entry is not None
            and entry.placement_state is PlacementState.ASSUMED
            and entry.info is waiting.info
            and entry.node == waiting.node_name,
            f"pod {key} waits on Permit on {waiting.node_name} but is not assumed there",
        )
        _demand(bool(waiting.pending_until_ns), f"pod {key} waits for no Permit plugin")


def _check_nominator(state: ClusterState) -> None:
    nominator = state.nominator
    rows = {state.nodes.row_of(name) for name in nominator.by_node} - {None}
    _demand(rows == {*nominator.rows().tolist()}, "the rows with nominations are wrong")
    for node_name, pods in nominator.by_node.items():
        _demand(bool(pods), f"node {node_name} has no nominated pods")
        for key, info in pods.items():
            entry = state.pods.get(key)
            _demand(
                entry is not None
                and entry.info is info
                and entry.placement_state is PlacementState.PENDING,
                f"pod {key} is nominated to {node_name} but is not pending as such",
            )
            _demand(
                nominator.node_of(key) == node_name,
                f"pod {key} is nominated to {node_name} and to {nominator.node_of(key)!r}",
            )


def _check_evictions(state: ClusterState) -> None:
    for uid, eviction in state.evictions.items():
        entry = state.entry(eviction.victim.key, uid)
        _demand(
            entry is not None and uid == eviction.victim.uid,
            f"pod {eviction.victim.key} ({uid}) has an eviction but is unknown",
        )


def _check_preemptors(state: ClusterState) -> None:
    """A pod that waits for its victims has evictions, pending or completed."""
    evictions = state.evictions
    done = {*evictions.completed_preemptors.values()}
    for key, pod in (*state.queue.gated.items(), *state.queue.unschedulable.items()):
        if _DEFAULT_PREEMPTION in (pod.gating_plugin, *pod.unschedulable_plugins):
            _demand(
                key in done or evictions.is_preempting(pod.info.uid),
                f"pod {key} waits for evictions that do not exist",
            )


def _check_groups(state: ClusterState) -> None:
    """Each group has the members that name it, with the status that follows from the state."""
    expected: dict[PodGroupKey, dict[str, MemberStatus]] = {}
    for key, entry in state.pods.items():
        group = group_of(entry.info.pod)
        if group is not None:
            expected.setdefault(group, {})[key] = member_status(state, entry)
    kept = {group: {**state.groups.members(group).statuses} for group in state.groups}
    if kept != expected:
        raise AssertionError(f"groups are {kept}, expected {expected}")
    for group, statuses in expected.items():
        members = state.groups.members(group)
        numbers = Counter(statuses.values())
        for status in MemberStatus:
            number, counted = numbers[status], members.count(status)
            if counted != number:
                raise AssertionError(
                    f"group {group.key}: {number} pods are {status.value}, {counted} are counted"
                )
    at_permit = {g for g, found in expected.items() if MemberStatus.WAITING in found.values()}
    _demand({*state.groups.at_permit} == at_permit, f"groups {at_permit} wait on Permit")


def _check_sessions(state: ClusterState) -> None:
    """The pending pods of a scheduler name that sessions serve wait for its next session."""
    waiting = {profile.spec.scheduler_name: {*profile.pending} for profile in state.sessions}
    pending: dict[str, set[str]] = {name: set() for name in waiting}
    for key, entry in state.pods.items():
        pod = entry.info.pod
        if entry.placement_state is PlacementState.PENDING and not pod.terminating:
            pending.get(pod.spec.scheduler_name, set()).add(key)
    if waiting != pending:
        raise AssertionError(f"{waiting} wait for sessions, {pending} are pending")
    for profile in state.sessions:
        for key, failed in profile.failed_bindings.items():
            known = state.entry(key, failed.uid) is not None
            _demand(known, f"pod {key} ({failed.uid}) has a failed binding but is unknown")
    for key, info in state.sessions.finished.items():
        _demand(info.pod.terminal and key == info.key, f"pod {key} is stored as finished")
        _demand(key not in state.pods, f"pod {key} has finished but is still stored")
        _demand(state.sessions.is_in_job(info.pod), f"finished pod {key} belongs to no job")
    for (kind, key), write in state.sessions.writes.items():
        stored = state.object_store.of_kind(KINDS[kind])
        _demand(key in stored, f"{kind} {key} has a decided status but is unknown")
        _demand(
            (kind, key) == (write.decision.kind, write.decision.group),
            f"the write of {key} is stored under another key",
        )


def _check_columns(state: ClusterState) -> None:
    """The columns equal those of a new table with the same nodes and placed pods."""
    table, fresh = state.nodes, NodeTable()
    for row in np.flatnonzero(table.alive).tolist():
        fresh.set_node(table.node(row))
    for key, entry in state.pods.items():
        if entry.node:
            if not table.has_pod(entry.node, entry.info):
                where = f"{entry.placement_state.value} on {entry.node}"
                raise AssertionError(f"pod {key} is {where} but not counted there")
            fresh.add_pod(entry.node, entry.info)
    counted, placed = table.pods_counted, fresh.pods_counted
    _demand(counted == placed, f"{counted} pods are counted on nodes, {placed} are placed")
    rows: list[int] = []
    for name in fresh.names:
        row_there = table.row_of(name)
        _demand(row_there is not None, f"node {name} has no row")
        assert row_there is not None
        rows.append(row_there)
    mine = np.array(rows, np.intp)
    for column, kept, rebuilt in _columns(table, fresh):
        if not np.array_equal(kept[mine], rebuilt):
            index = int(np.flatnonzero(kept[mine] != rebuilt)[0])
            values = f"is {kept[mine[index]]}, expected {rebuilt[index]}"
            raise AssertionError(f"node {fresh.names[index]}: column {column} {values}")
    _demand({*table.resources} == {*fresh.resources}, "resources differ from nodes and pods")
    _check_indexes(table, fresh, mine)


def _check_indexes(table: NodeTable, fresh: NodeTable, mine: RowArray) -> None:
    """Labels, taints, ports and images; the two tables number them differently."""
    for key in {**table.label_index.columns, **fresh.label_index.columns}:
        kept, rebuilt = table.label(key).values(), fresh.label(key).values()
        _demand([kept[row] for row in mine] == rebuilt, f"label {key} differs from the nodes")
    kept_taints, new_taints = table.taints, fresh.taints
    _demand(
        [kept_taints.sets[number] for number in kept_taints.ids[mine]]
        == [new_taints.sets[number] for number in new_taints.ids],
        "taints differ from the nodes",
    )
    ports = _by_name(table, table.port_index.taken), _by_name(fresh, fresh.port_index.taken)
    _demand(ports[0] == ports[1], "ports differ from the pods on the nodes")
    images = _by_name(table, table.image_index.sizes), _by_name(fresh, fresh.image_index.sizes)
    _demand(images[0] == images[1], "images differ from the nodes")


def _by_name(
    table: NodeTable, kept: Mapping[T, Mapping[int, object]]
) -> dict[T, dict[str, object]]:
    return {
        thing: {table.names[row]: value for row, value in rows.items()}
        for thing, rows in kept.items()
    }


_COLUMNS = (
    "pod_count",
    "allowed_pods",
    "scoring_cpu_milli",
    "scoring_memory_bytes",
    "unschedulable",
)
_Column = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


def _columns(table: NodeTable, fresh: NodeTable) -> Iterator[tuple[str, _Column, _Column]]:
    for name in _COLUMNS:
        yield name.replace("_", " "), getattr(table, name), getattr(fresh, name)
    for name in table.resources:
        yield f"allocatable {name}", table.allocatable(name), fresh.allocatable(name)
        yield f"requested {name}", table.requested(name), fresh.requested(name)
