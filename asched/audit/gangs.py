"""Gangs at a moment: how many of their pods have a node, and which gang comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import Enum
from typing import Final

import msgspec

from asched.audit.lookup import state_at
from asched.audit.pod_state import is_pending, pending_since_ns, pod_state, queue_name
from asched.audit.timeline import time_of
from asched.framework.pod_groups import (
    AnyPodGroup,
    PodGroupKey,
    find_group,
    group_of,
    key_of,
    min_count,
)
from asched.framework.runtime.profile import PluginLoader
from asched.journal.store import JournalStore
from asched.model.groups import CUSTOM_POD_GROUPS, PodGroup
from asched.model.quantity import NS_PER_S
from asched.state.cluster import ClusterState, PodEntry

FINISHED: Final = "finished"
"""The state of a finished pod of a job of batch sessions."""


class GangPhase(Enum):
    """How far a gang is."""

    COMPLETE = "complete"
    """At least the minimum has a node, and no member waits on Permit."""
    WAITING = "waiting"
    """Members have a node and wait on Permit for the others."""
    PENDING = "pending"
    """Too few members have a node."""
    TOO_FEW_PODS = "tooFewPods"
    """Fewer pods exist than it needs."""
    NO_POD_GROUP = "noPodGroup"
    """Pods name a PodGroup that does not exist."""


class GangSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A gang, which is also its JSON form (see ``docs/how-to/show.md``)."""

    namespace: str
    name: str
    phase: GangPhase
    position: int
    """Among the gangs that are not complete, from 1; 0 for others. Batch sessions have an order of
    their own: see the queues."""
    order_reason: str
    """Why it is after the gang before it; empty for the first."""
    scheduled_by: str
    """``pods`` one by one, or the scheduler name of batch sessions."""
    queue: str
    priority: int
    """The highest of its pods."""
    minimum: int
    pods: int
    bound: int
    waiting: int
    """Members on Permit."""
    pending: int
    states: dict[str, int]
    since: datetime | None
    """When the oldest pod that has no node was observed, or began to wait on Permit."""
    waited_s: float | None
    created: datetime | None


class GangsReport(msgspec.Struct, frozen=True, rename="camel"):
    """All gangs at a moment: incomplete ones in their order, then complete ones by name."""

    seq: int
    at: datetime
    gangs: tuple[GangSummary, ...]


POD_BY_POD: Final = "pods"


def gang_states(state: ClusterState, seq: int) -> GangsReport:
    """The gangs after record ``seq``."""
    finished = _finished(state)
    found = [gang_summary(state, group, finished) for group in _groups(state)]
    gangs = [gang for gang in found if gang is not None]
    gangs.sort(key=_order)
    return GangsReport(seq, time_of(state.date_ns), tuple(_with_positions(gangs)))


def _groups(state: ClusterState) -> dict[PodGroupKey, None]:
    """All groups with pods, and PodGroups without."""
    custom = (group for kind in CUSTOM_POD_GROUPS for group in state.objects(kind).values())
    objects: list[AnyPodGroup] = [*state.objects(PodGroup).values(), *custom]
    return dict.fromkeys((*state.groups, *map(key_of, objects)))


def member_keys(state: ClusterState, group: PodGroupKey) -> list[str]:
    """The keys of the group's pods that have not finished."""
    return sorted(state.groups.members(group).statuses)


def gang_summary(
    state: ClusterState, group: PodGroupKey, finished: Counter[PodGroupKey] | None = None
) -> GangSummary | None:
    """None for a PodGroup that is not a gang. ``finished``: the finished pods by group."""
    found = find_group(state, group)
    minimum = 0 if found is None else min_count(found)
    if found is not None and minimum < 1:
        return None
    entries = [state.pods[key] for key in member_keys(state, group) if key in state.pods]
    states = Counter(pod_state(state, entry.info.key) for entry in entries)
    done = (_finished(state) if finished is None else finished)[group]
    if done:
        states[FINISHED] = done
    waiting = sum(entry.info.key in state.waiting for entry in entries)
    bound, assumed = states["bound"], states["assumed"]
    served = {entry.info.pod.spec.scheduler_name for entry in entries}
    since_ns = min((ns for entry in entries if (ns := _waits_since_ns(state, entry))), default=0)
    namespace, _, name = group.key.partition("/")
    phase = GangPhase.NO_POD_GROUP
    if found is not None:
        phase = _phase(minimum, len(entries) + done, bound + assumed + done, waiting)
    return GangSummary(
        namespace=namespace,
        name=name,
        phase=phase,
        position=0,
        order_reason="",
        scheduled_by=next((n for n in served if n in state.sessions), POD_BY_POD),
        queue=queue_name(found),
        priority=max((entry.info.priority for entry in entries), default=0),
        minimum=minimum,
        pods=len(entries),
        bound=bound,
        waiting=waiting,
        pending=len(entries) - bound - assumed,
        states=dict(states),
        since=time_of(since_ns) if since_ns else None,
        waited_s=(state.date_ns - since_ns) / NS_PER_S if since_ns else None,
        created=None if found is None else found.metadata.creation_timestamp,
    )


def _finished(state: ClusterState) -> Counter[PodGroupKey]:
    """The finished pods of jobs of batch sessions by group."""
    infos = (info for key, info in state.sessions.finished.items() if key not in state.pods)
    return Counter(group for info in infos if (group := group_of(info.pod)) is not None)


def _phase(minimum: int, pods: int, with_node: int, waiting: int) -> GangPhase:
    if waiting:
        return GangPhase.WAITING
    if with_node >= minimum:
        return GangPhase.COMPLETE
    return GangPhase.TOO_FEW_PODS if pods < minimum else GangPhase.PENDING


def _waits_since_ns(state: ClusterState, entry: PodEntry) -> int:
    waiting = state.waiting.get(entry.info.key)
    if waiting is not None:
        return waiting.since_ns + state.engine.clock_offset_ns
    return pending_since_ns(state, entry) if is_pending(state, entry) else 0


def _order(gang: GangSummary) -> tuple[bool, bool, int, float, str]:
    """Incomplete gangs as GangScheduling compares them."""
    created_s = 0.0 if gang.created is None else gang.created.timestamp()
    key = f"{gang.namespace}/{gang.name}"
    complete = gang.phase is GangPhase.COMPLETE
    in_session = gang.scheduled_by != POD_BY_POD
    if complete:
        return True, False, 0, 0.0, key
    return complete, in_session, -gang.priority, created_s, key


def _with_positions(gangs: Sequence[GangSummary]) -> Iterator[GangSummary]:
    before: GangSummary | None = None
    for position, gang in enumerate(gangs, 1):
        if gang.phase is GangPhase.COMPLETE or gang.scheduled_by != POD_BY_POD:
            yield gang
            continue
        reason = "" if before is None else _order_reason(before, gang)
        yield msgspec.structs.replace(gang, position=position, order_reason=reason)
        before = gang


def _order_reason(first: GangSummary, second: GangSummary) -> str:
    if first.priority != second.priority:
        return f"priority {second.priority} below {first.priority}"
    if first.created != second.created:
        return "its PodGroup is younger"
    return "by name: its PodGroup is as old"


async def gangs_at(
    journal: JournalStore, load: PluginLoader, at_ns: int | None = None
) -> GangsReport:
    """The gangs at a time; None for the journal's end.

    Raises :class:`AuditError` before the first record,
    :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    return gang_states(*await state_at(journal, load, at_ns))
