"""Questions about the past: which pods, which time, and what happened to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container
from typing import NamedTuple

import msgspec

from asched.audit.entries import PodTimeline
from asched.audit.pods import AuditError, PodName, find_pod
from asched.audit.timeline import PodTimelines, Wanted, follow, time_of
from asched.framework.profile import PluginLoader
from asched.journal.checkpoints import Opened, nearest
from asched.journal.codec import object_subject
from asched.journal.moments import last_seq_at
from asched.journal.store import JournalStore, StoredRecord
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.state.cluster import ClusterState
from asched.state.records import ObjectGone, Rejected, TurnStarted


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


async def opened_for(
    journal: JournalStore, load: PluginLoader, period: Period, first_seq: int = 1
) -> Opened:
    """The state before the period and before that record, or earlier: where to begin to fold. It
    is that of a checkpoint, where there is one.

    Raises :class:`~asched.journal.errors.JournalError`, and ProfileError.
    """
    seq = first_seq - 1
    if period.since_ns:
        seq = max(seq, await last_seq_at(journal, period.since_ns - 1))
    if (await journal.archived()).seq:
        marks = await journal.checkpoint_marks()
        seq = max([seq, *(mark.seq for mark in marks[:1])])
    return await nearest(journal, load, seq)


async def timelines(
    journal: JournalStore, pod: PodName, load: PluginLoader, period: Period = ALWAYS
) -> list[PodTimeline]:
    """The timeline of every pod that had that name, oldest first.

    Raises :class:`AuditError` where there is no such pod or the name fits pods of several
    namespaces, :class:`~asched.journal.errors.JournalError`, ProfileError and FoldError.
    """
    key = await find_pod(journal, pod)
    own: list[StoredRecord] = []
    archived = await journal.archived()
    async for stored in journal.read(archived.seq, subject=object_subject("Pod", key)):
        own = [*own[:1], stored]
    if not own:
        # It was moved there after the pod was found.
        raise AuditError(
            f"all that the journal knew of pod {key} is in the archive now: records 1 to"
            f" {archived.seq} (asched journal restore)"
        )
    opened = await opened_for(journal, load, period, own[0].seq)
    # What concerns a pod that is gone ends with that.
    last_seq = own[-1].seq if isinstance(own[-1].record, ObjectGone) else None
    found = await follow(
        journal, lambda seen, _: seen.key == key, opened,
        until_ns=period.until_ns, last_seq=last_seq,
    )  # fmt: skip
    return _within(found, period)


async def timelines_of_owner(
    journal: JournalStore, owner: Owner, load: PluginLoader, period: Period = ALWAYS
) -> list[PodTimeline]:
    """The timelines of all pods that belong to the owner, oldest first; long deleted ones too.

    Raises :class:`AuditError` where there are none in the period, and as :func:`timelines`.
    """
    found = await _followed(journal, owner.owns, load, period)
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
    return _within(await _followed(journal, _one_of(uids), load, period), period)


async def timelines_of_preempted(
    journal: JournalStore, load: PluginLoader, period: Period = ALWAYS
) -> list[PodTimeline]:
    """The timelines of the pods that were to be evicted for others within the period. Raises as
    :func:`timelines`."""
    uids: dict[str, None] = {}
    async for rejected in _rejections(journal, period):
        uids.update((victim.uid, None) for victim in rejected.victims)
    return _within(await _followed(journal, _one_of(uids), load, period), period)


async def _followed(
    journal: JournalStore, wanted: Wanted, load: PluginLoader, period: Period
) -> PodTimelines:
    opened = await opened_for(journal, load, period)
    return await follow(journal, wanted, opened, until_ns=period.until_ns)


async def _rejections(journal: JournalStore, period: Period) -> AsyncIterator[Rejected]:
    begin = (await journal.archived()).seq
    if period.since_ns:
        begin = max(begin, await last_seq_at(journal, period.since_ns - 1))
    now_ns = None
    async for stored in journal.read(begin):
        record = stored.record
        if isinstance(record, TurnStarted):
            now_ns = record.now_ns
            if period.until_ns is not None and now_ns > period.until_ns:
                return
        elif now_ns is None:
            now_ns = stored.written_at_ns
        if isinstance(record, Rejected) and period.covers(now_ns):
            yield record


def _one_of(uids: Container[str]) -> Wanted:
    return lambda pod, _: pod.uid in uids


def _within(found: PodTimelines, period: Period) -> list[PodTimeline]:
    parts = [period.part_of(timeline) for timeline in found.found]
    return [part for part in parts if part.entries]
