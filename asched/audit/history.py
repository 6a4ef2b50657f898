"""Questions about the past: which pods, which time, and what happened to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container
from typing import NamedTuple

import msgspec

from asched.audit.entries import PodTimeline
from asched.audit.pods import AuditError, PodName
from asched.audit.timeline import PodTimelines, Wanted, follow, time_of
from asched.framework.profile import PluginLoader
from asched.journal.store import JournalStore
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.state.cluster import ClusterState
from asched.state.records import Rejected, TurnStarted


class Period(NamedTuple):
    """From ``since_ns`` until ``until_ns``, both included, in nanoseconds since the epoch."""

    since_ns: int = 0
    until_ns: int | None = None

    def covers(self, at_ns: int) -> bool:
        return self.since_ns <= at_ns and (self.until_ns is None or at_ns <= self.until_ns)

    def part_of(self, timeline: PodTimeline) -> PodTimeline:
        """What of the timeline lies in the period."""
        since = time_of(self.since_ns)
        entries = [entry for entry in timeline.entries if entry.at >= since]
        return msgspec.structs.replace(timeline, entries=entries)


ALWAYS = Period()


class Owner(NamedTuple):
    """``KIND/NAME`` or ``NAMESPACE/KIND/NAME`` of what pods belong to."""

    namespace: str
    """Empty where the user named none."""
    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Owner:
        """Raises :class:`AuditError` for what names no owner."""
        parts = text.split("/")
        if len(parts) not in (2, 3) or not all(parts):
            raise AuditError(f"{text!r} names no owner; expected KIND/NAME or NAMESPACE/KIND/NAME")
        return cls("" if len(parts) == 2 else parts[0], *parts[-2:])

    def owns(self, pod: Pod, state: ClusterState) -> bool:
        """Whether the pod is its, or belongs to something watched that is (the pods of a Deployment
        belong to its ReplicaSets)."""
        return self.namespace in ("", pod.namespace) and self._has(pod, state)

    def _has(self, thing: Object, state: ClusterState) -> bool:
        return any(
            (owner.kind.lower(), owner.name) == (self.kind.lower(), self.name)
            or any(
                self._has(kept, state)
                for kind, of_kind in state.objects_of.items()
                if kind.__name__ == owner.kind
                and (kept := of_kind.get(f"{thing.namespace}/{owner.name}")) is not None
                and kept.uid == owner.uid
            )
            for owner in thing.metadata.owner_references
        )


async def timelines(
    journal: JournalStore, pod: PodName, load: PluginLoader, period: Period = ALWAYS
) -> list[PodTimeline]:
    """The timeline of every pod that had that name, oldest first.

    Raises :class:`AuditError` where there is no such pod or the name fits pods of several
    namespaces, :class:`~asched.journal.errors.JournalError`, ProfileError and FoldError.
    """
    found = await follow(journal, lambda seen, _: pod.matches(seen.key), load, period.until_ns)
    pod.choose(found.keys)
    return _within(found, period)


async def timelines_of_owner(
    journal: JournalStore, owner: Owner, load: PluginLoader, period: Period = ALWAYS
) -> list[PodTimeline]:
    """The timelines of all pods that belong to the owner, oldest first; long deleted ones too.

    Raises :class:`AuditError` where there are none, and as :func:`timelines`.
    """
    found = await follow(journal, owner.owns, load, period.until_ns)
    if not found.found:
        raise AuditError(f"the journal knows no pod of {owner.kind}/{owner.name}")
    return _within(found, period)


async def timelines_of_unschedulable(
    journal: JournalStore, load: PluginLoader, period: Period = ALWAYS
) -> list[PodTimeline]:
    """The timelines of the pods that were rejected within the period. Raises as :func:`timelines`."""
    uids: dict[str, None] = {}
    async for rejected in _rejections(journal, period):
        uids[rejected.uid] = None
    return _within(await follow(journal, _one_of(uids), load, period.until_ns), period)


async def timelines_of_preempted(
    journal: JournalStore, load: PluginLoader, period: Period = ALWAYS
) -> list[PodTimeline]:
    """The timelines of the pods that were to be evicted for others within the period. Raises as
    :func:`timelines`."""
    uids: dict[str, None] = {}
    async for rejected in _rejections(journal, period):
        uids.update((victim.uid, None) for victim in rejected.victims)
    return _within(await follow(journal, _one_of(uids), load, period.until_ns), period)


async def _rejections(journal: JournalStore, period: Period) -> AsyncIterator[Rejected]:
    now_ns = 0
    async for stored in journal.read():
        record = stored.record
        if isinstance(record, TurnStarted):
            now_ns = record.now_ns
        elif isinstance(record, Rejected) and period.covers(now_ns):
            yield record


def _one_of(uids: Container[str]) -> Wanted:
    return lambda pod, _: pod.uid in uids


def _within(found: PodTimelines, period: Period) -> list[PodTimeline]:
    parts = [period.part_of(timeline) for timeline in found.found]
    return [part for part in parts if part.entries]
