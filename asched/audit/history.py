"""Timelines of pods and nodes in a period of a journal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import NamedTuple, TypeVar

import msgspec

from asched.audit.entries import PodTimeline
from asched.audit.lookup import AuditError, PodName, find_pod
from asched.audit.timeline import PodFilter, PodTimelines, collect_timelines, time_of
from asched.framework.runtime.profile import PluginLoader
from asched.journal.checkpoints import RestoredFold, folding, nearest
from asched.journal.codec import object_subject
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore, StoredRecord
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.state import records as r
from asched.state.cluster import ClusterState

TimelineT = TypeVar("TimelineT", PodTimeline, "NodeTimeline")


class Period(NamedTuple):
    """From ``since_ns`` to ``until_ns`` inclusive, in nanoseconds since the epoch."""

    since_ns: int = 0
    until_ns: int | None = None

    def covers(self, at_ns: int) -> bool:
        return self.since_ns <= at_ns and (self.until_ns is None or at_ns <= self.until_ns)

    def part_of(self, timeline: TimelineT) -> TimelineT:
        """The timeline without entries before the period."""
        since = time_of(self.since_ns)
        entries = [entry for entry in timeline.entries if entry.at >= since]
        return msgspec.structs.replace(timeline, entries=entries)


ALWAYS = Period()


class Owner(NamedTuple):
    """``KIND/NAME`` or ``NAMESPACE/KIND/NAME`` of a pod's direct or indirect owner."""

    namespace: str
    """Empty if the user gave none."""
    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Owner:
        """Raises :class:`AuditError` if the text is not an owner."""
        parts = text.split("/")
        if len(parts) not in (2, 3) or not all(parts):
            raise AuditError(f"{text!r} is not an owner; expected KIND/NAME or NAMESPACE/KIND/NAME")
        return cls("" if len(parts) == 2 else parts[0], *parts[-2:])

    def owns(self, pod: Pod, state: ClusterState) -> bool:
        """Whether it owns the pod directly or through other watched objects, as a Deployment does
        through its ReplicaSets."""
        return self.namespace in ("", pod.namespace) and self._owns(pod, state)

    def _owns(self, item: Object, state: ClusterState) -> bool:
        return any(
            (owner.kind.lower(), owner.name) == (self.kind.lower(), self.name)
            or any(
                self._owns(parent, state)
                for kind, of_kind in state.object_store.by_kind.items()
                if kind.__name__ == owner.kind
                and (parent := of_kind.get(f"{item.namespace}/{owner.name}")) is not None
                and parent.uid == owner.uid
            )
            for owner in item.metadata.owner_references
        )


async def fold_for(
    journal: JournalStore, load: PluginLoader, period: Period, first_seq: int = 1
) -> RestoredFold:
    """The fold from which to read: before the period, and at or before ``first_seq``.

    Raises :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    seq = first_seq - 1
    if period.since_ns:
        seq = max(seq, await last_seq_at(journal, period.since_ns - 1))
    if (await journal.archived()).seq:
        marks = await journal.checkpoint_marks()
        seq = max([seq, *(mark.seq for mark in marks[:1])])
    return await nearest(journal, load, seq)


async def timelines(
    journal: JournalStore,
    pod: PodName,
    load: PluginLoader,
    period: Period = ALWAYS,
    last_seq: int | None = None,
) -> list[PodTimeline]:
    """The timelines of all pods that had that name, oldest first, up to record ``last_seq``.

    Raises :class:`AuditError` for an unknown or ambiguous name,
    :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    key = await find_pod(journal, pod)
    own: list[StoredRecord] = []
    archived = await journal.archived()
    async for stored in journal.read(archived.seq, subject=object_subject("Pod", key)):
        own = [*own[:1], stored]
    if not own:
        # The records were archived after find_pod().
        raise AuditError(
            f"all records of pod {key} are in the archive: records 1 to {archived.seq}"
            " (asched journal restore)"
        )
    # The records of a deleted pod end with its deletion.
    if isinstance(own[-1].record, r.ObjectDeleted):
        last_seq = own[-1].seq if last_seq is None else min(own[-1].seq, last_seq)
    start = await fold_for(journal, load, period, own[0].seq)
    found = await collect_timelines(
        journal, lambda seen, _: seen.key == key, start, until_ns=period.until_ns, last_seq=last_seq
    )
    return _within(found, period)


async def timelines_of_owner(
    journal: JournalStore, owner: Owner, load: PluginLoader, period: Period = ALWAYS
) -> list[PodTimeline]:
    """The timelines of all present and deleted pods of the owner, oldest first.

    Raises :class:`AuditError` if the period has none, and as :func:`timelines`.
    """
    found = await _collect(journal, owner.owns, load, period)
    if not found.found:
        raise AuditError(f"no pod of {owner.kind}/{owner.name} is in the journal")
    return _within(found, period)


async def timelines_of_unschedulable(
    journal: JournalStore, load: PluginLoader, period: Period = ALWAYS
) -> list[PodTimeline]:
    """The timelines of pods that were rejected in the period. Raises as :func:`timelines`."""
    uids = {rejected.uid async for rejected in _rejections(journal, period)}
    return _within(await _collect(journal, lambda pod, _: pod.uid in uids, load, period), period)


async def timelines_of_preempted(
    journal: JournalStore, load: PluginLoader, period: Period = ALWAYS
) -> list[PodTimeline]:
    """The timelines of pods that preemption chose as victims in the period. Raises as
    :func:`timelines`."""
    uids = {
        victim.uid async for rejected in _rejections(journal, period) for victim in rejected.victims
    }
    return _within(await _collect(journal, lambda pod, _: pod.uid in uids, load, period), period)


async def _collect(
    journal: JournalStore, selects: PodFilter, load: PluginLoader, period: Period
) -> PodTimelines:
    start = await fold_for(journal, load, period)
    return await collect_timelines(journal, selects, start, until_ns=period.until_ns)


async def _rejections(journal: JournalStore, period: Period) -> AsyncIterator[r.Rejected]:
    begin = (await journal.archived()).seq
    if period.since_ns:
        begin = max(begin, await last_seq_at(journal, period.since_ns - 1))
    async for stored in journal.read(begin, await _last_seq(journal, period)):
        if isinstance(stored.record, r.Rejected) and period.covers(stored.written_at_ns):
            yield stored.record


async def _last_seq(journal: JournalStore, period: Period) -> int | None:
    """The last record of the period; None for the journal's end."""
    return None if period.until_ns is None else await last_seq_at(journal, period.until_ns)


def _within(found: PodTimelines, period: Period) -> list[PodTimeline]:
    parts = [period.part_of(timeline) for timeline in found.found]
    return [part for part in parts if part.entries]


class NodeEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of a node's timeline."""

    event: str
    """``observed``, ``changed`` or ``deleted``; for a pod ``assigned``, ``bound``, ``bindFailed``,
    ``removed`` or ``nominated``."""
    seq: int
    at: datetime
    pod: str = ""
    detail: str = ""


class NodeTimeline(msgspec.Struct, rename="camel"):
    """The events of a node, oldest first."""

    name: str
    entries: list[NodeEvent] = []


class _NodeTimelineBuilder:
    """Collects the events of one node."""

    def __init__(self, name: str, state: ClusterState) -> None:
        """``state`` is the state before the first record."""
        self.timeline = NodeTimeline(name)
        self.date_ns = state.date_ns
        self._offset_ns = state.engine.clock_offset_ns
        self._name = name
        self._node = state.objects(Node).get(name)
        self.known = self._node is not None
        """Whether the node was ever observed."""
        self._pods = {
            key: entry.info.uid for key, entry in state.pods.items() if entry.node == name
        }
        self._seq = 0

    def apply(self, seq: int, record: r.AnyRecord) -> None:
        self._seq = seq
        match record:
            case r.TurnStarted():
                self.date_ns = record.now_ns + self._offset_ns
            case r.ClockStepped():
                self.date_ns += record.offset_ns - self._offset_ns
                self._offset_ns = record.offset_ns
            case r.ObjectObserved(object=Node() as node) if node.name == self._name:
                self._observed(node)
            case r.ObjectDeleted(kind="Node", key=key) if key == self._name:
                self._node = None
                self._add("deleted")
            case r.Assigned(node=name) if name == self._name:
                self._pods[record.key] = record.uid
                self._add("assigned", record.key, f"attempt {record.attempt}")
            case r.Bound(node=name) if name == self._name:
                self._pods[record.key] = record.uid
                self._add("bound", record.key)
            case r.BindFailed(node=name) if name == self._name:
                # A newer pod with the same key may be on the node.
                if self._pods.get(record.key) == record.uid:
                    del self._pods[record.key]
                self._add("bindFailed", record.key, record.message)
            case r.Rejected(nominated_node=name) if name == self._name:
                victims = ", ".join(victim.key for victim in record.victims)
                self._add("nominated", record.key, f"evicting {victims}" if victims else "")
            case r.PodObserved() | r.PodUpdated():
                self._placed(record.key, record.uid, record.node_name)
            case r.ObjectObserved(object=thing) if type(thing).__name__ == "Pod":
                self._placed(thing.key, thing.uid, getattr(thing, "node_name", ""))
            case r.ObjectDeleted(kind="Pod", key=key) | r.PermitRejected(key=key):
                if key in self._pods:
                    del self._pods[key]
                    self._add("removed", key)

    def _add(self, event: str, pod: str = "", detail: str = "") -> None:
        at = time_of(self.date_ns)
        self.timeline.entries.append(NodeEvent(event, self._seq, at, pod, detail))

    def _placed(self, key: str, uid: str, node: str) -> None:
        """The API server reported the pod on that node."""
        if node == self._name and key not in self._pods:
            self._pods[key] = uid
            self._add("bound", key, "by another scheduler, or before the first record")

    def _observed(self, node: Node) -> None:
        before, self._node = self._node, node
        self.known = True
        if before is None:
            self._add("observed", detail=_described(node))
        else:
            self._add("changed", detail="; ".join(_differences(before, node)))


def _described(node: Node) -> str:
    resources = ", ".join(f"{key} {value}" for key, value in node.status.allocatable.items())
    taints = f", taints {_taints(node)}" if node.spec.taints else ""
    cordoned = ", cordoned" if node.spec.unschedulable else ""
    return f"allocatable {resources or 'nothing'}{taints}{cordoned}"


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
    return found or ["no field that timelines include"]


def _taints(node: Node) -> str:
    return ", ".join(f"{t.key}={t.value}:{t.effect}" for t in node.spec.taints) or "(none)"


async def node_timeline(
    journal: JournalStore, name: str, load: PluginLoader, period: Period = ALWAYS
) -> NodeTimeline | None:
    """The node's timeline in the period; None if the journal has no such node.

    Raises :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    start = await fold_for(journal, load, period)
    builder = _NodeTimelineBuilder(name, start.fold.state)
    async for stored in journal.read(start.seq, await _last_seq(journal, period)):
        with folding(stored):
            builder.apply(stored.seq, stored.record)
    return period.part_of(builder.timeline) if builder.known else None
