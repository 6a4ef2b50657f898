"""The timelines of a gang's or owner's pods, and what caused what among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import Enum
from typing import NamedTuple

import msgspec

from asched.audit import entries
from asched.audit.entries import Entry, PodTimeline
from asched.audit.evictions import EvictionLog, EvictionReport
from asched.audit.groups import GANG, GroupName
from asched.audit.history import ALWAYS, Owner, Period, fold_for
from asched.audit.lookup import AuditError
from asched.audit.timeline import TIMER_CAUSES, PodFilter, PodTimelines
from asched.framework.pod_groups import group_of
from asched.framework.runtime.profile import PluginLoader
from asched.journal.checkpoints import folding
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore


class CauseKind(Enum):
    """How an event of one pod causes one of another pod."""

    QUEUED = "queued"
    """The effect is a move to another queue."""
    RELEASED = "released"
    """The assignment of the last member let the others bind."""
    EVICTS = "evicts"
    """A rejected member evicts a pod."""
    FREED = "freed"
    """The end of an evicted pod is followed by the assignment of the member."""
    EVICTED = "evicted"
    """A member is evicted for another pod."""
    REJECTED = "rejected"
    """A member that waited on Permit lost its reservation."""


class CauseLink(msgspec.Struct, frozen=True, rename="camel"):
    """A cause and its effect. One of both is a pod of the group."""

    kind: CauseKind
    text: str
    from_pod: str
    """``namespace/name``; empty if the cause is no pod."""
    from_seq: int
    from_at: datetime
    to_pod: str
    to_seq: int
    to_at: datetime


class GroupHistory(msgspec.Struct, frozen=True, rename="camel"):
    """What happened to the pods of a group; also the JSON form (``docs/how-to/show.md``)."""

    pods: tuple[PodTimeline, ...]
    evictions: tuple[EvictionReport, ...]
    """Those for pods of the group, oldest first."""
    causes: tuple[CauseLink, ...]
    """By record of the effect."""


async def group_history(
    journal: JournalStore,
    load: PluginLoader,
    group: GroupName,
    period: Period = ALWAYS,
    *,
    first_seq: int = 1,
    last_seq: int | None = None,
) -> GroupHistory:
    """The timelines of all pods that were in the group, from ``first_seq`` to ``last_seq``.

    Raises :class:`AuditError` if there are none, :class:`~asched.journal.errors.JournalError`,
    ProfileError.
    """
    start = await fold_for(journal, load, period, first_seq)
    if period.until_ns is not None:
        until_seq = await last_seq_at(journal, period.until_ns)
        last_seq = until_seq if last_seq is None else min(last_seq, until_seq)
    found, log, seq = PodTimelines(_filter(group), start.fold), EvictionLog(), start.seq
    async for stored in journal.read(start.seq, last_seq):
        with folding(stored):
            found.apply(stored.seq, stored.record)
        seq = stored.seq
        log.apply(seq, stored.record, start.fold.state)
    timelines = tuple(
        part for part in (period.part_of(timeline) for timeline in found.found) if part.entries
    )
    if not timelines:
        raise AuditError(f"no pod of {group} is in the journal")
    return history_of(timelines, log, seq)


def history_of(timelines: Iterable[PodTimeline], log: EvictionLog, seq: int) -> GroupHistory:
    """The history of pods up to a record. ``log`` has all evictions up to that record."""
    pods = sorted(timelines, key=lambda pod: (pod.namespace, len(pod.name), pod.name))
    evictions = log.for_pods((_key(pod) for pod in pods), seq)
    links = sorted(_links(pods, evictions), key=lambda link: (link.to_seq, link.to_pod))
    return GroupHistory(tuple(pods), tuple(evictions), tuple(links))


def _filter(group: GroupName) -> PodFilter:
    if group.kind != GANG:
        return Owner(group.namespace, group.kind, group.name).owns
    return lambda pod, _: (named := group_of(pod)) is not None and named.key == group.key


def _key(pod: PodTimeline) -> str:
    return f"{pod.namespace}/{pod.name}"


class _Event(NamedTuple):
    """Something that may be a cause."""

    seq: int
    at: datetime
    pod: str


def _links(pods: Sequence[PodTimeline], evictions: Iterable[EvictionReport]) -> Iterator[CauseLink]:
    evictions = [*evictions]
    causes = {event.seq: event for event in _victim_events(evictions)}
    for pod in pods:
        for entry in pod.entries:
            if not isinstance(entry, entries.QueueMoveEntry):
                causes[entry.seq] = _Event(entry.seq, entry.at, _key(pod))
    assigned = sorted(
        _Event(entry.seq, entry.at, _key(pod))
        for pod in pods
        for entry in pod.entries
        if isinstance(entry, entries.AssignmentEntry)
    )
    for pod in pods:
        own = {entry.seq for entry in pod.entries if not isinstance(entry, entries.QueueMoveEntry)}
        for entry in pod.entries:
            yield from _effects(pod, entry, own, causes)
        yield from _releases(pod, assigned)
    yield from _eviction_links(evictions, assigned)


def _victim_events(evictions: Iterable[EvictionReport]) -> Iterator[_Event]:
    for eviction in evictions:
        key = f"{eviction.victim.namespace}/{eviction.victim.name}"
        if eviction.accepted_at is not None:
            yield _Event(eviction.accepted_seq, eviction.accepted_at, key)
        if eviction.ended_at is not None:
            yield _Event(eviction.ended_seq, eviction.ended_at, key)


def _effects(
    pod: PodTimeline, entry: Entry, own: set[int], causes: dict[int, _Event]
) -> Iterator[CauseLink]:
    """Moves that a record about something else caused, and evictions of the pod."""
    key, seq, at = _key(pod), entry.seq, entry.at
    match entry:
        case entries.QueueMoveEntry() if seq not in own and entry.cause not in TIMER_CAUSES:
            cause = causes.get(seq)
            source = "" if cause is None else cause.pod
            event, effect = _Event(seq, at, source), _Event(seq, at, key)
            yield _link(CauseKind.QUEUED, entry.cause, event, effect)
        case entries.PermitEntry(allowed=False):
            text = f"{entry.plugin} rejected it: {entry.message}"
            yield _link(CauseKind.REJECTED, text, _Event(seq, at, ""), _Event(seq, at, key))
        case entries.PreemptionEntry():
            event, effect = _Event(seq, at, entry.by), _Event(seq, at, key)
            yield _link(CauseKind.EVICTED, f"evicted for {entry.by}", event, effect)


def _releases(pod: PodTimeline, assigned: Sequence[_Event]) -> Iterator[CauseLink]:
    """What let a member that waited on Permit bind: the last assignment of another member."""
    key = _key(pod)
    for entry in pod.entries:
        if not isinstance(entry, entries.PermitEntry) or not entry.allowed:
            continue
        cause = next((event for event in reversed(assigned) if event.seq < entry.seq), None)
        if cause is not None:
            last = "its own assignment" if cause.pod == key else f"the assignment of {cause.pod}"
            text = f"{entry.plugin} allowed it after {last}"
            yield _link(CauseKind.RELEASED, text, cause, _Event(entry.seq, entry.at, key))


def _eviction_links(
    evictions: Iterable[EvictionReport], assigned: Sequence[_Event]
) -> Iterator[CauseLink]:
    for one in evictions:
        member = f"{one.beneficiary.namespace}/{one.beneficiary.name}"
        victim = f"{one.victim.namespace}/{one.victim.name}"
        decided = _Event(one.seq, one.at, member)
        text = f"{member} evicts {victim}: {one.rule}"
        yield _link(CauseKind.EVICTS, text, decided, _Event(one.seq, one.at, victim))
        if one.ended_at is None:
            continue
        ended = _Event(one.ended_seq, one.ended_at, victim)
        after = next((e for e in assigned if e.pod == member and e.seq > one.ended_seq), None)
        if after is not None:
            yield _link(CauseKind.FREED, f"{victim} ended, {member} was assigned", ended, after)


def _link(kind: CauseKind, text: str, cause: _Event, effect: _Event) -> CauseLink:
    return CauseLink(
        kind=kind,
        text=text,
        from_pod=cause.pod,
        from_seq=cause.seq,
        from_at=cause.at,
        to_pod=effect.pod,
        to_seq=effect.seq,
        to_at=effect.at,
    )
