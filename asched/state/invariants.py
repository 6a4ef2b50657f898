"""What holds of every state that a fold may leave behind, whatever the records were.

For tests and simulation, after each record; it looks at everything, so it is not for hot paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from asched.framework.nodes import RowArray
from asched.framework.pod_groups import MemberStatus, PodGroupKey, group_of
from asched.model.resources import KINDS
from asched.state.cluster import ClusterState, PodEntry, PodPhase
from asched.state.node_table import NodeTable
from asched.state.pod_fold import standing_of

_HOLDS_BACK_PREEMPTORS = "DefaultPreemption"

T = TypeVar("T")


def check(state: ClusterState) -> None:
    """Raise :class:`AssertionError`, saying in one line what is wrong, unless all is well."""
    for key, entry in state.pods.items():
        _check_entry(state, key, entry)
    state.queue.check()
    _check_queue_holds_no_stranger(state)
    _check_inquiries(state)
    _check_waiting(state)
    _check_nominator(state)
    _check_evictions(state)
    _check_room_made(state)
    _check_sessions(state)
    _check_groups(state)
    _check_columns(state)


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def _places(state: ClusterState, key: str) -> list[str]:
    queue = state.queue
    places = {
        "active": key in queue.active,
        "backoff": key in queue.backoff,
        "unschedulable": key in queue.unschedulable,
        "gated": key in queue.gated,
        "in flight": key in queue.in_flight,
    }
    return [place for place, there in places.items() if there]


def _check_entry(state: ClusterState, key: str, entry: PodEntry) -> None:
    """A pod is in exactly one place of the queue, or in none, as its phase demands."""
    pod, places = entry.info.pod, _places(state, key)
    _demand(key == entry.info.key, f"pod {key} is filed as {entry.info.key}")
    _demand(not pod.terminal, f"pod {key} is finished but still known")
    _demand(
        bool(entry.node) is (entry.phase is not PodPhase.PENDING),
        f"pod {key} is {entry.phase.value} with node {entry.node!r}",
    )
    _demand(
        (entry.assignment is not None) is (entry.phase is PodPhase.ASSUMED),
        f"pod {key} is {entry.phase.value} with assignment {entry.assignment}",
    )
    match entry.phase:
        case PodPhase.PENDING:
            ours = pod.spec.scheduler_name in state.profiles and not pod.terminating
            asked = key in state.inquiries and bool(state.inquiries[key].pending)
            flies = places == ["in flight"]
            right = len(places) == 1 and flies is asked if ours else not places
        case PodPhase.ASSUMED:
            in_session = entry.assignment is not None and entry.assignment.session
            right = places == ([] if in_session else ["in flight"])
        case PodPhase.BOUND:
            right = not places
    where = " and ".join(places) or "nowhere in the queue"
    _demand(right, f"pod {key} is {entry.phase.value} but {where}")


def _check_queue_holds_no_stranger(state: ClusterState) -> None:
    for queued in (*state.queue, *state.queue.flying):
        entry = state.pods.get(queued.info.key)
        _demand(
            entry is not None and entry.info is queued.info,
            f"the queue holds another pod {queued.info.key} than the state",
        )


def _check_inquiries(state: ClusterState) -> None:
    """Extenders are asked for pending pods only, and who has all answers is about to be tried."""
    for key, inquiry in state.inquiries.items():
        entry = state.entry(key, inquiry.uid)
        _demand(
            entry is not None and entry.phase is PodPhase.PENDING,
            f"extenders are asked about pod {key} ({inquiry.uid}), which is not pending",
        )
        place = state.queue.in_flight if inquiry.pending else state.queue.active
        _demand(key in place, f"pod {key} was asked about but is not where it waits for answers")


def _check_waiting(state: ClusterState) -> None:
    for key, waiting in state.waiting.items():
        entry = state.pods.get(key)
        _demand(
            entry is not None
            and entry.phase is PodPhase.ASSUMED
            and entry.info is waiting.info
            and entry.node == waiting.node_name,
            f"pod {key} waits for Permit on {waiting.node_name} but is not assumed there",
        )
        _demand(bool(waiting.pending_until_ns), f"pod {key} waits for no Permit plugin")


def _check_nominator(state: ClusterState) -> None:
    nominator = state.nominator
    rows = {state.nodes.row_of(name) for name in nominator.by_node} - {None}
    _demand(rows == {*nominator.rows().tolist()}, "the rows with nominations are others")
    for node_name, pods in nominator.by_node.items():
        _demand(bool(pods), f"node {node_name} is nominated for nobody")
        for key, info in pods.items():
            entry = state.pods.get(key)
            _demand(
                entry is not None and entry.info is info and entry.phase is PodPhase.PENDING,
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
            f"pod {eviction.victim.key} ({uid}) is to be evicted but is not known",
        )


def _check_room_made(state: ClusterState) -> None:
    """A pod that was held back while room was made for it, or turned away to make some, is found when
    there may be room."""
    evictions = state.evictions
    done = {*evictions.done_for.values()}
    for key, pod in (*state.queue.gated.items(), *state.queue.unschedulable.items()):
        if _HOLDS_BACK_PREEMPTORS in (pod.gating_plugin, *pod.unschedulable_plugins):
            _demand(
                key in done or evictions.make_room_for(pod.info.uid),
                f"pod {key} waits for evictions that nobody knows of",
            )


def _check_groups(state: ClusterState) -> None:
    """Each group has the members that name it, as they stand by the rest of the state."""
    expected: dict[PodGroupKey, dict[str, MemberStatus]] = {}
    for key, entry in state.pods.items():
        group = group_of(entry.info.pod)
        if group is not None:
            expected.setdefault(group, {})[key] = standing_of(state, entry)
    kept = {group: {**state.groups.members(group).standings} for group in state.groups}
    _demand(kept == expected, f"groups are kept as {kept}, the pods say {expected}")
    for group, standings in expected.items():
        members = state.groups.members(group)
        for standing in MemberStatus:
            number = [*standings.values()].count(standing)
            _demand(
                members.count(standing) == number,
                f"group {group.key}: {number} pods are {standing.value}, {members.count(standing)}"
                " are counted",
            )
    holding = {g for g, standings in expected.items() if MemberStatus.WAITING in standings.values()}
    _demand({*state.groups.holding} == holding, f"groups {holding} hold pods")


def _check_sessions(state: ClusterState) -> None:
    """Exactly the pending pods of a scheduler that sessions serve wait for its next session."""
    waiting = {profile.spec.scheduler_name: {*profile.pending} for profile in state.sessions}
    pending: dict[str, set[str]] = {name: set() for name in waiting}
    for key, entry in state.pods.items():
        pod = entry.info.pod
        if entry.phase is PodPhase.PENDING and not pod.terminating:
            pending.get(pod.spec.scheduler_name, set()).add(key)
    _demand(waiting == pending, f"{waiting} wait for sessions, {pending} are pending")
    for profile in state.sessions:
        for key, refused in profile.refused.items():
            known = state.entry(key, refused.uid) is not None
            _demand(known, f"pod {key} ({refused.uid}) was refused a binding and is not there")
    for key, info in state.sessions.finished.items():
        _demand(info.pod.terminal and key == info.key, f"pod {key} is filed as finished")
        _demand(key not in state.pods, f"pod {key} is finished and still known")
        _demand(state.sessions.has_jobs_with(info.pod), f"finished pod {key} is of no job")
    for (kind, key), write in state.sessions.writes.items():
        there = state.objects_of.get(KINDS[kind], {})
        _demand(key in there, f"{kind} {key} has a status decided but is not there")
        _demand((kind, key) == (write.decision.kind, write.decision.group), f"{key} is filed wrong")


def _check_columns(state: ClusterState) -> None:
    """The columns equal those of a table built afresh from the nodes and the placed pods."""
    table, fresh = state.nodes, NodeTable()
    for row in np.flatnonzero(table.alive).tolist():
        fresh.set_node(table.node(row))
    for key, entry in state.pods.items():
        if entry.node:
            _demand(
                table.holds_pod(entry.node, entry.info),
                f"pod {key} is {entry.phase.value} on {entry.node} but not counted there as such",
            )
            fresh.add_pod(entry.node, entry.info)
    counted, placed = table.pods_counted, fresh.pods_counted
    _demand(counted == placed, f"{counted} pods are counted on nodes, {placed} are placed")
    rows: list[int] = []
    for name in fresh.names:
        kept_at = table.row_of(name)
        _demand(kept_at is not None, f"node {name} has no row")
        assert kept_at is not None
        rows.append(kept_at)
    # The rows of the fresh one are in the order of its names.
    mine = np.array(rows, np.intp)
    for column, kept, rebuilt in _columns(table, fresh):
        if not np.array_equal(kept[mine], rebuilt):
            index = int(np.flatnonzero(kept[mine] != rebuilt)[0])
            said = f"says {kept[mine[index]]}, its pods say {rebuilt[index]}"
            raise AssertionError(f"node {fresh.names[index]}: column {column} {said}")
    _check_marks(table, fresh, mine)


def _check_marks(table: NodeTable, fresh: NodeTable, mine: RowArray) -> None:
    """Labels, taints, ports and images, which the two tables number each in its own way."""
    for key in {**table._labels.columns, **fresh._labels.columns}:
        kept, rebuilt = table.label(key).values(), fresh.label(key).values()
        _demand(
            [kept[row] for row in mine] == rebuilt, f"label {key} is kept other than the nodes say"
        )
    kept_taints, new_taints = table.taints, fresh.taints
    _demand(
        [kept_taints.sets[number] for number in kept_taints.ids[mine]]
        == [new_taints.sets[number] for number in new_taints.ids],
        "taints are kept other than the nodes say",
    )
    ports = _by_name(table, table._ports.taken), _by_name(fresh, fresh._ports.taken)
    _demand(ports[0] == ports[1], "ports are taken other than by the pods there")
    images = _by_name(table, table._images.sizes), _by_name(fresh, fresh._images.sizes)
    _demand(images[0] == images[1], "images are kept on others than the nodes that hold them")


def _by_name(
    table: NodeTable, kept: Mapping[T, Mapping[int, object]]
) -> dict[T, dict[str, object]]:
    return {
        thing: {table.names[row]: said for row, said in rows.items()}
        for thing, rows in kept.items()
    }


_Column = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


def _columns(table: NodeTable, fresh: NodeTable) -> list[tuple[str, _Column, _Column]]:
    columns: list[tuple[str, _Column, _Column]] = [
        ("pod count", table.pod_count, fresh.pod_count),
        ("allowed pods", table.allowed_pods, fresh.allowed_pods),
        ("scoring cpu", table.scoring_cpu_milli, fresh.scoring_cpu_milli),
        ("scoring memory", table.scoring_memory_bytes, fresh.scoring_memory_bytes),
        ("unschedulable", table.unschedulable, fresh.unschedulable),
    ]
    for name in table.resources:
        columns.append((f"allocatable {name}", table.allocatable(name), fresh.allocatable(name)))
        columns.append((f"requested {name}", table.requested(name), fresh.requested(name)))
    return columns
