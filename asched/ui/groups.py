"""Answers about groups of pods: gangs, owners, queues and evictions."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

import anyio.lowlevel
import msgspec

from asched.audit.entries import PodTimeline
from asched.audit.evictions import EvictionKind, EvictionReport, EvictionReports
from asched.audit.explain_job import JobExplanation, explain_job
from asched.audit.gangs import GangPhase, GangsReport, GangSummary
from asched.audit.group_history import CauseLink, group_history, history_of
from asched.audit.groups import (
    GANG,
    GroupExplanation,
    GroupName,
    read_group,
    with_session,
)
from asched.audit.history import Period
from asched.audit.lookup import AuditError, PodName
from asched.audit.pod_group.explain import GroupQuestion, explain_pod_group
from asched.audit.pod_group.forms import PodGroupExplanation
from asched.audit.timeline import time_of
from asched.state.cluster import ClusterState
from asched.ui.index import IndexedGroup
from asched.ui.journal_progress import Moment
from asched.ui.journal_reader import JournalReader
from asched.ui.past import PastStates
from asched.ui.pods import TimelineSpan, spans_of

MAX_MEMBERS: Final = 200
"""Pods of a timeline."""
MAX_ENTRIES: Final = 100
"""Entries of each of them: a pod that is retried for hours has thousands."""


class MemberSpans(msgspec.Struct, frozen=True, rename="camel"):
    """The periods of one pod."""

    namespace: str
    name: str
    uid: str
    spans: tuple[TimelineSpan, ...]


class GroupTimeline(msgspec.Struct, frozen=True, rename="camel"):
    """The timelines of a group. Lists are those of ``asched show gang --timeline -o json``."""

    kind: str
    namespace: str
    name: str
    until: datetime
    """The end of spans that last."""
    pods: tuple[PodTimeline, ...]
    members: tuple[MemberSpans, ...]
    """As :attr:`pods`."""
    evictions: tuple[EvictionReport, ...]
    causes: tuple[CauseLink, ...]
    omitted: int
    """Older pods beyond the limit."""
    omitted_entries: int = 0
    """Older entries of the pods beyond the limit of each, with their causes."""


def _indexed(reader: JournalReader, group: GroupName) -> IndexedGroup | None:
    if group.kind == GANG:
        return reader.index.gangs.get(group.key)
    return reader.index.owners.get(f"{group.namespace}/{group.kind}/{group.name}")


async def group_explanation(
    reader: JournalReader, group: GroupName, moment: Moment
) -> GroupExplanation:
    """Raises AuditError for an unknown group, JournalError, ProfileError."""
    seq = await reader.seq_of(moment)
    indexed = _indexed(reader, group)
    known = () if indexed is None else tuple(indexed.pods)
    live = reader.live
    if live is None or live.seq != seq:
        return await reader.call(_explained_then, group, known, seq)
    found, pod = _read(live.fold.state, seq, group, known)
    if pod is None or not found.reasons:
        return found
    return msgspec.structs.replace(found, job=await reader.call(_job, pod, seq))


def _read(
    state: ClusterState, seq: int, group: GroupName, known: tuple[str, ...]
) -> tuple[GroupExplanation, PodName | None]:
    """``known``: the keys of all pods that were in the group."""
    return read_group(state, seq, group, sum(key not in state.pods for key in known))


async def _explained_then(
    journal: PastStates, group: GroupName, known: tuple[str, ...], seq: int
) -> GroupExplanation:
    """For a worker process."""
    found, pod = await journal.on_state(seq, lambda state: _read(state, seq, group, known))
    return await with_session(journal.store, journal.load, found, pod)


async def _job(journal: PastStates, pod: PodName, seq: int) -> JobExplanation | None:
    """For a worker process."""
    try:
        return await explain_job(journal.store, pod, journal.load, last_seq=seq)
    except AuditError:
        return None


async def group_why(journal: PastStates, key: str, seq: int) -> PodGroupExplanation:
    """As ``asched explain --group``, without repeating the last attempt. For a worker process."""
    store, load = journal.store, journal.load
    asked = GroupQuestion(last_seq=seq, repeat=False)
    return await explain_pod_group(store, load, key, asked)


async def group_timeline(reader: JournalReader, group: GroupName, moment: Moment) -> GroupTimeline:
    """Raises as :func:`group_explanation`."""
    seq = await reader.seq_of(moment)
    indexed = await _indexed_timelines(reader, group, seq)
    if indexed is None:
        first, last = await _extent(reader, group)
        whole = await reader.call(_timelines, group, first, min(seq, last or seq))
        indexed = whole, 0
    whole, omitted = indexed
    newest = sorted(whole, key=lambda pod: pod.entries[0].seq)[-MAX_MEMBERS:]
    shortened = [msgspec.structs.replace(pod, entries=pod.entries[-MAX_ENTRIES:]) for pod in newest]
    found = history_of(shortened, reader.logs.evictions, seq)
    until = reader.date_ns(seq)
    if until is None:
        until = await reader.at(seq, _date_ns)
    pods = found.pods
    return GroupTimeline(
        kind=group.kind,
        namespace=group.namespace,
        name=group.name,
        until=time_of(until),
        pods=pods,
        members=tuple(
            MemberSpans(pod.namespace, pod.name, pod.uid, tuple(spans_of(pod.entries)))
            for pod in pods
        ),
        evictions=found.evictions,
        causes=found.causes,
        omitted=omitted + len(whole) - len(pods),
        omitted_entries=sum(max(0, len(pod.entries) - MAX_ENTRIES) for pod in newest),
    )


async def _indexed_timelines(
    reader: JournalReader, group: GroupName, seq: int
) -> tuple[list[PodTimeline], int] | None:
    """Those of the newest pods from the index, and how many older names are left out; None if the
    index lacks a part. All pods of a name are in the group if the newest one is."""
    indexed, pods = _indexed(reader, group), reader.index.pods
    if indexed is None:
        return None
    begun = [key for key in indexed.pods if pods[key].first_seq <= seq]
    newest = sorted(begun, key=lambda key: pods[key].first_seq)[-MAX_MEMBERS:]
    found: list[PodTimeline] = []
    for key in newest:
        timelines = reader.timelines(key, seq)
        if timelines is None:
            return None
        found += (one for one in timelines if one.entries)
        await anyio.lowlevel.checkpoint()  # other requests may have their turn
    if not found:
        return None
    return found, len(begun) - len(newest)


async def _timelines(
    journal: PastStates, group: GroupName, first_seq: int, last_seq: int
) -> list[PodTimeline]:
    """For a worker process."""
    found = await group_history(
        journal.store, journal.load, group, first_seq=first_seq, last_seq=last_seq
    )
    return [*found.pods]


def _date_ns(state: ClusterState, seq: int) -> int:
    return state.date_ns


async def _extent(reader: JournalReader, group: GroupName) -> tuple[int, int]:
    """The first record of the group's first pod, and the last record about any; 1 and 0 if they
    are unknown."""
    indexed = _indexed(reader, group)
    if indexed is None:
        return 1, 0
    first = min((reader.index.pods[key].first_seq for key in indexed.pods), default=0)
    return max(first, (await reader.store.archived()).seq + 1), indexed.last_seq


class EvictionFilter(NamedTuple):
    """Which evictions are wanted."""

    text: str = ""
    kind: EvictionKind | None = None
    limit: int | None = None


def chosen_evictions(
    reader: JournalReader, seq: int, period: Period, wanted: EvictionFilter
) -> EvictionReports:
    """The evictions decided in the period and up to record ``seq``, newest first."""
    found = reader.logs.evictions.reports(seq, period, wanted.text)
    kept = [one for one in found.evictions if wanted.kind in (None, one.kind)]
    return EvictionReports(seq, len(kept), tuple(kept[: wanted.limit]))


def chosen_gangs(found: GangsReport, text: str, phase: GangPhase | None) -> GangsReport:
    """The gangs with the text in their name or queue, and of that phase."""
    wanted = text.casefold().strip()

    def matches(gang: GangSummary) -> bool:
        named = f"{gang.namespace}/{gang.name} {gang.queue}".casefold()
        return wanted in named and phase in (None, gang.phase)

    return msgspec.structs.replace(found, gangs=tuple(filter(matches, found.gangs)))
