"""The history of a pod group as one thing: attempts, members, domain, victims, start and end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec
from msgspec.structs import replace

from asched.audit import entries
from asched.audit.entries import PodTimeline
from asched.audit.evictions import EvictionReport
from asched.audit.group_history import group_history
from asched.audit.groups import GANG, GroupName
from asched.audit.history import ALWAYS, Period
from asched.audit.lookup import fold_before
from asched.audit.pod_group.attempts import group_records, recorded_attempt
from asched.audit.pod_group.examine import find_key
from asched.audit.pod_group.forms import RecordedGroupAttempt
from asched.framework.pod_groups import PodGroupKey, find_group, min_count
from asched.framework.runtime.profile import PluginLoader
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.state.cluster import ClusterState
from asched.state.group_records import GroupOutcome


class GroupMemberHistory(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that was in the group."""

    namespace: str
    name: str
    uid: str
    node: str = ""
    """Where it was bound last."""
    attempts: int = 0
    """Its own attempts, without repetitions for extenders."""
    first_at: datetime | None = None
    bound_at: datetime | None = None
    ended_at: datetime | None = None


class PodGroupHistory(msgspec.Struct, frozen=True, rename="camel"):
    """What happened to a group, which is also its JSON form (see ``docs/how-to/history.md``)."""

    namespace: str
    name: str
    minimum: int
    """At the end; 0 if the PodGroup is gone."""
    members: tuple[GroupMemberHistory, ...]
    first_at: datetime | None
    """When its first pod appeared."""
    started_at: datetime | None
    """When as many pods were bound as the minimum, or one without minimum."""
    ended_at: datetime | None
    """When its last pod was deleted or had finished; None if pods exist."""
    wait_s: float | None
    """From the first pod to the start."""
    attempts: tuple[RecordedGroupAttempt, ...]
    """Attempts of the whole group, oldest first; none of a group that is scheduled pod by pod."""
    outcomes: dict[str, int]
    """The number of these attempts by outcome."""
    member_attempts: int
    """Attempts of all pods together."""
    domain: str
    """Of the last attempt that scheduled it."""
    victims: tuple[EvictionReport, ...]
    """Pods that were evicted for the group."""
    evicted: int
    """How many of its own pods were evicted."""


async def pod_group_history(
    journal: JournalStore, load: PluginLoader, key: str, period: Period = ALWAYS
) -> PodGroupHistory:
    """The history of the group ``namespace/name`` in a period.

    Raises :class:`~asched.audit.lookup.AuditError` if the journal has nothing about it,
    :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    end = (await journal.head()).seq
    if period.until_ns is not None:
        end = await last_seq_at(journal, period.until_ns)
    state = (await fold_before(journal, load, end + 1)).state
    namespace, _, name = key.partition("/")
    found = await group_history(journal, load, GroupName(GANG, namespace, name), period)
    attempts = await _attempts(journal, state, key, end, _times(found.pods))
    members = tuple(map(_member, found.pods))
    minimum = _minimum(state, key)
    first = min((m.first_at for m in members if m.first_at is not None), default=None)
    started = _started(members, max(minimum, 1))
    scheduled = [one for one in attempts if one.outcome is GroupOutcome.SCHEDULED]
    return PodGroupHistory(
        namespace=namespace,
        name=name,
        minimum=minimum,
        members=members,
        first_at=first,
        started_at=started,
        ended_at=_ended(members),
        wait_s=(started - first).total_seconds() if started and first else None,
        attempts=attempts,
        outcomes=dict(Counter(one.outcome.value for one in attempts)),
        member_attempts=sum(member.attempts for member in members),
        domain=scheduled[-1].domain if scheduled else "",
        victims=found.evictions,
        evicted=sum(_evicted(pod) for pod in found.pods),
    )


async def _attempts(
    journal: JournalStore, state: ClusterState, key: str, end: int, times: Mapping[int, datetime]
) -> tuple[RecordedGroupAttempt, ...]:
    known = find_key(state, key)
    groups = (PodGroupKey(key, True), PodGroupKey(key, False)) if known is None else (known,)
    headers = [
        header for group in groups for header in (await group_records(journal, group, end)).headers
    ]
    found = []
    for header in headers:
        at = times.get(header.seq + 1)
        if at is not None:  # else before the period
            found.append(replace(await recorded_attempt(journal, header), at=at))
    return tuple(found)


def _times(pods: Iterable[PodTimeline]) -> dict[int, datetime]:
    """By record, the times of the turns. The decisions about members follow an attempt."""
    return {entry.seq: entry.at for pod in pods for entry in pod.entries}


def _evicted(pod: PodTimeline) -> bool:
    return any(isinstance(entry, entries.PreemptionEntry) for entry in pod.entries)


def _minimum(state: ClusterState, key: str) -> int:
    group = find_key(state, key)
    declared = None if group is None else find_group(state, group)
    return 0 if declared is None else min_count(declared)


def _member(pod: PodTimeline) -> GroupMemberHistory:
    node, bound_at, ended_at = "", None, None
    attempts: set[int] = set()
    for entry in pod.entries:
        match entry:
            case entries.AssignmentEntry() | entries.RejectionEntry():
                attempts.add(entry.attempt)
            case entries.AttemptFailureEntry():
                attempts.add(entry.attempt)
            case entries.BindingEntry() | entries.ObservedEntry() if entry.node:
                node, bound_at = entry.node, bound_at or entry.at
            case entries.DeletionEntry():
                ended_at = entry.at
    return GroupMemberHistory(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        node=node,
        attempts=len(attempts),
        first_at=pod.entries[0].at,
        bound_at=bound_at,
        ended_at=ended_at,
    )


def _started(members: tuple[GroupMemberHistory, ...], required: int) -> datetime | None:
    """When so many members were on nodes at the same time first."""
    changes: list[tuple[datetime, int]] = []
    for member in members:
        if member.bound_at is not None:
            changes.append((member.bound_at, 1))
            if member.ended_at is not None:
                changes.append((member.ended_at, -1))
    running = 0
    for at, change in sorted(changes, key=lambda item: (item[0], -item[1])):
        running += change
        if running >= required:
            return at
    return None


def _ended(members: tuple[GroupMemberHistory, ...]) -> datetime | None:
    if not members or any(member.ended_at is None for member in members):
        return None
    return max(member.ended_at for member in members if member.ended_at is not None)
