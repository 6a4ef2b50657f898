"""Questions about the past: which pods, which time, and what happened to them.

What happened to a node, and to pods on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container
from datetime import datetime
from typing import NamedTuple

import msgspec

from asched.audit.entries import PodTimeline
from asched.audit.lookup import AuditError, PodName, find_pod
from asched.audit.timeline import PodTimelines, Wanted, follow, time_of
from asched.framework.runtime.profile import PluginLoader
from asched.journal.checkpoints import RestoredFold, nearest
from asched.journal.codec import object_subject
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore, StoredRecord
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.records import ObjectDeleted, Rejected, TurnStarted


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
) -> RestoredFold:
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
    last_seq = own[-1].seq if isinstance(own[-1].record, ObjectDeleted) else None
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


class NodeEvent(msgspec.Struct, frozen=True, rename="camel"):
    """One thing that happened to a node."""

    event: str
    """``seen``, ``changed``, ``gone``; of a pod ``assigned``, ``bound``, ``bindFailed``, ``left``;
    ``nominated`` where room is made on it for a pod."""
    seq: int
    at: datetime
    pod: str = ""
    detail: str = ""


class NodeTimeline(msgspec.Struct, rename="camel"):
    """All that happened to a node, oldest first."""

    name: str
    entries: list[NodeEvent] = []


class _Follower:
    """Writes down what concerns one node."""

    def __init__(self, name: str, state: ClusterState) -> None:
        """``state`` is what comes before the first record."""
        self.timeline = NodeTimeline(name)
        self.now_ns = state.now_ns
        self._name = name
        node = state.objects_of.get(Node, {}).get(name)
        self._node = node if isinstance(node, Node) else None
        self.known = self._node is not None
        """Whether there ever was such a node."""
        self._here = {
            key: entry.info.uid for key, entry in state.pods.items() if entry.node == name
        }
        self._seq = 0

    def follow(self, seq: int, record: r.AnyRecord) -> None:
        self._seq = seq
        match record:
            case r.TurnStarted():
                self.now_ns = record.now_ns
            case r.ObjectObserved(object=Node() as node) if node.name == self._name:
                self._seen(node)
            case r.ObjectDeleted(kind="Node", key=key) if key == self._name:
                self._node = None
                self._write("gone")
            case r.Assigned(node=name) if name == self._name:
                self._here[record.key] = record.uid
                self._write("assigned", record.key, f"attempt {record.attempt}")
            case r.Bound(node=name) if name == self._name:
                self._here[record.key] = record.uid
                self._write("bound", record.key)
            case r.BindFailed(node=name) if name == self._name:
                # It may be of a pod that is gone, and another of that name be here.
                if self._here.get(record.key) == record.uid:
                    del self._here[record.key]
                self._write("bindFailed", record.key, record.message)
            case r.Rejected(nominated_node=name) if name == self._name:
                victims = ", ".join(victim.key for victim in record.victims)
                self._write("nominated", record.key, f"evicting {victims}" if victims else "")
            case r.PodObserved() | r.PodUpdated():
                self._placed(record.key, record.uid, record.node_name)
            case r.ObjectObserved(object=thing) if type(thing).__name__ == "Pod":
                self._placed(thing.key, thing.uid, getattr(thing, "node_name", ""))
            case r.ObjectDeleted(kind="Pod", key=key) | r.PermitRejected(key=key):
                if key in self._here:
                    del self._here[key]
                    self._write("left", key)

    def _write(self, event: str, pod: str = "", detail: str = "") -> None:
        at = time_of(self.now_ns)
        self.timeline.entries.append(NodeEvent(event, self._seq, at, pod, detail))

    def _placed(self, key: str, uid: str, node: str) -> None:
        """The API server showed the pod on that node."""
        if node == self._name and key not in self._here:
            self._here[key] = uid
            self._write("bound", key, "by another scheduler, or before we looked")

    def _seen(self, node: Node) -> None:
        before, self._node = self._node, node
        self.known = True
        if before is None:
            self._write("seen", detail=_described(node))
        else:
            self._write("changed", detail="; ".join(_differences(before, node)))


def _described(node: Node) -> str:
    offered = ", ".join(f"{key} {value}" for key, value in node.status.allocatable.items())
    taints = ", ".join(f"{t.key}={t.value}:{t.effect}" for t in node.spec.taints)
    cordoned = ", cordoned" if node.spec.unschedulable else ""
    return f"offers {offered or 'nothing'}{f', taints {taints}' if taints else ''}{cordoned}"


def _differences(old: Node, new: Node) -> list[str]:
    found = []
    for what, before, after in (
        ("label", old.metadata.labels, new.metadata.labels),
        ("allocatable", old.status.allocatable, new.status.allocatable),
    ):
        for key in sorted({*before, *after}):
            was, now = before.get(key, "(none)"), after.get(key, "(none)")
            if was != now:
                found.append(f"{what} {key} {was} -> {now}")
    for what, was, now in (
        ("unschedulable", old.spec.unschedulable, new.spec.unschedulable),
        ("taints", _taints(old), _taints(new)),
        ("ready", old.ready, new.ready),
    ):
        if was != now:
            found.append(f"{what} {was} -> {now}")
    return found or ["nothing that is told here"]


def _taints(node: Node) -> str:
    return ", ".join(f"{t.key}={t.value}:{t.effect}" for t in node.spec.taints) or "(none)"


async def node_timeline(
    journal: JournalStore, name: str, load: PluginLoader, period: Period = ALWAYS
) -> NodeTimeline | None:
    """The node's timeline within the period; None where the journal knows no such node.

    Raises :class:`~asched.journal.errors.JournalError`, ProfileError and FoldError.
    """
    opened = await opened_for(journal, load, period)
    follower = _Follower(name, opened.fold.state)
    async for stored in journal.read(opened.seq):
        if isinstance(stored.record, r.TurnStarted) and not period.covers(
            max(stored.record.now_ns, period.since_ns)
        ):
            break
        follower.follow(stored.seq, stored.record)
    if not follower.known:
        return None
    timeline, since = follower.timeline, time_of(period.since_ns)
    timeline.entries = [entry for entry in timeline.entries if entry.at >= since]
    return timeline
