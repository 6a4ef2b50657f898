"""Derives pod timelines from a journal.

The journal is folded, and the queue of each followed pod is compared before and after each record.
So an entry about a move between queues names the record that caused it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar

from asched.audit import entries
from asched.audit.devices import allocated_devices, released_claim
from asched.audit.entries import Entry, PodTimeline, TimelineEntry
from asched.framework.pod_info import PodInfo
from asched.journal.checkpoints import RestoredFold, folding
from asched.journal.codec import subject_of
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.model.node import Node
from asched.model.pod import Pod, PodCondition, PodResourceClaimStatus
from asched.state import records as r
from asched.state.cluster import ClusterState, PlacementState
from asched.state.fold import Fold
from asched.state.queue import SchedulingQueue
from asched.state.session_records import EvictionDecided

_EntryT = TypeVar("_EntryT", bound=TimelineEntry)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(ns: int) -> datetime:
    """Nanoseconds since the epoch as a time in UTC, to the microsecond."""
    return _EPOCH + timedelta(microseconds=ns // 1000)


PodFilter = Callable[[Pod, ClusterState], bool]
"""Selects the pods to follow, when they are first observed."""

_ExtenderReply = (
    r.ExtenderFiltered
    | r.ExtenderPrioritized
    | r.ExtenderPreemptionProcessed
    | r.ExtenderCallFailed
)
_AboutPod = (
    r.PodUpdated
    | r.Rejected
    | r.Assigned
    | r.AttemptFailed
    | r.PermitAllowed
    | r.PermitRejected
    | r.ExtenderCallRequested
    | _ExtenderReply
    | r.Bound
    | r.BindFailed
    | EvictionDecided
    | r.EvictionSucceeded
    | r.EvictionFailed
    | r.ClaimReleaseEnded
)


class _FollowedPod(NamedTuple):
    timeline: PodTimeline
    queue: str


class PodTimelines:
    """Folds a journal and collects the timelines of the selected pods."""

    def __init__(self, selects: PodFilter, fold: Fold) -> None:
        """``fold`` contains all earlier records; selected pods in its state are followed, too."""
        self.found: list[PodTimeline] = []
        """One per uid, oldest first."""
        self._selects = selects
        self._fold = fold
        self._followed: dict[str, _FollowedPod] = {}
        # By key and uid. Includes deleted pods, because the result of an effect may arrive later,
        # when another pod has the key.
        self._timelines: dict[tuple[str, str], PodTimeline] = {}
        # Any record may move a queued pod. Only its own records move other pods.
        self._queued: dict[str, None] = {}
        self._seq = 0
        self._cursor = fold.state.queue.changes.cursor
        """The end of the queue's log of changes at the last record."""
        for key, entry in fold.state.pods.items():
            if self._chooses(entry.info):
                queue = queue_of(fold.state.queue, key)
                self.follow(key, entry.info.uid, queue)
                if queue:
                    self._queued[key] = None

    def _chooses(self, info: PodInfo) -> bool:
        """Whether to follow a pod of the first state."""
        return self._selects(info.pod, self._fold.state)

    def apply(self, seq: int, record: r.AnyRecord) -> None:
        """Folds the next record. Raises ProfileError."""
        self.before(seq, record)
        self._fold.apply(record)
        self.after(record)

    def before(self, seq: int, record: r.AnyRecord) -> None:
        """The next record, before it is folded."""
        self._seq = seq
        if isinstance(record, r.ObjectObserved) and isinstance(record.object, Pod):
            self._add_observation(record.object)
        elif isinstance(record, r.PodObserved):
            self._add_observation(self._fold.state.templates.pod_of(record).pod)
        elif isinstance(record, r.ObjectDeleted):
            followed = self._followed.get(record.key) if record.kind == "Pod" else None
            if followed is not None and followed.timeline.uid == record.uid:
                self._add(record.key, record.uid, entries.DeletionEntry(self._seq, self._at))
        elif isinstance(record, _AboutPod):
            self._add_entries(record)

    def after(self, record: r.AnyRecord) -> None:
        """The same record, after it is folded."""
        _, _, subject = subject_of(record).partition("/")
        if subject in self._followed:
            self._update_queue(subject, record)
        for key in self._moved():
            self._update_queue(key, record)

    def _moved(self) -> Sequence[str]:
        """The queued pods that the last record may have moved."""
        changes = self._fold.state.queue.changes
        moved, self._cursor = changes.since(self._cursor), changes.cursor
        if moved is None:
            return [*self._queued]
        return [key for key in dict.fromkeys(moved) if key in self._queued]

    @property
    def queued(self) -> bool:
        """Whether a followed pod is in a queue, so that any record may move it. Otherwise only
        records about a followed pod add entries."""
        return bool(self._queued)

    def skip_to(self, fold: Fold) -> None:
        """Continue with a fold of later records. No skipped record adds entries."""
        self._fold, self._cursor = fold, -1

    @property
    def _at(self) -> datetime:
        return time_of(self._fold.state.date_ns)

    def _add(self, key: str, uid: str, entry: Entry) -> None:
        timeline = self._timeline_of(key, uid)
        if timeline is not None:
            timeline.entries.append(entry)

    def _timeline_of(self, key: str, uid: str) -> PodTimeline | None:
        """None for a pod that is not followed."""
        return self._timelines.get((key, uid))

    def _add_observation(self, pod: Pod) -> None:
        key, uid = pod.key, pod.metadata.uid
        if not self._selects(pod, self._fold.state):
            return
        followed = self._followed.get(key)
        if followed is not None and followed.timeline.uid == uid:
            before = self._fold.state.pods[key].info.pod
            self._add(key, uid, entries.ChangeEntry(self._seq, self._at, changes(before, pod)))
            return
        if followed is not None:
            # The deletion of the previous pod was not observed.
            deletion = entries.DeletionEntry(self._seq, self._at)
            self._add(key, followed.timeline.uid, deletion)
        self.follow(key, uid, "")
        observed = entries.ObservedEntry(
            self._seq,
            self._at,
            scheduler_name=pod.spec.scheduler_name,
            priority=pod.spec.priority,
            node=pod.node_name,
            gates=tuple(gate.name for gate in pod.spec.scheduling_gates),
        )
        self._add(key, uid, observed)

    def follow(self, key: str, uid: str, queue: str) -> None:
        """Begin the timeline of a pod, in that queue."""
        timeline = self._new_timeline(key, uid)
        self._followed[key] = _FollowedPod(timeline, queue)
        self._timelines[key, uid] = timeline

    def _new_timeline(self, key: str, uid: str) -> PodTimeline:
        namespace, _, name = key.rpartition("/")
        timeline = PodTimeline(namespace, name, uid)
        self.found.append(timeline)
        return timeline

    def _add_entries(self, record: _AboutPod) -> None:
        if isinstance(record, r.Rejected):
            for victim in record.victims:
                node = record.nominated_node or ""
                preemption = entries.PreemptionEntry(self._seq, self._at, record.key, node)
                self._add(victim.key, victim.uid, preemption)
        timeline = self._timeline_of(record.key, record.uid)
        if timeline is None:
            return
        entry = self._entry(record)
        if entry is not None:
            timeline.entries.append(entry)
        if isinstance(record, r.PodUpdated) and self._confirms(record, record.node_name):
            timeline.entries.append(entries.BindingEntry(self._seq, self._at, record.node_name))

    def _entry(self, record: _AboutPod) -> Entry | None:
        seq, at = self._seq, self._at
        if isinstance(record, _ExtenderReply):
            name, verb = self._extender(record.extender), record.verb_answered.value
            failure = record.message if isinstance(record, r.ExtenderCallFailed) else ""
            return entries.ExtenderReplyEntry(seq, at, record.attempt, verb, name, failure)
        match record:
            case r.PodUpdated():
                return entries.ChangeEntry(seq, at, self._changes(record))
            case r.Bound():
                confirms = self._confirms(record, record.node)
                return entries.BindingEntry(seq, at, record.node) if confirms else None
            case r.ExtenderCallRequested():
                names = tuple(self._extender(index) for index in record.extenders)
                return entries.ExtenderCallEntry(seq, at, record.attempt, record.verb.value, names)
            case r.Assigned():
                waits = tuple(wait.plugin for wait in record.permit_waits)
                devices = allocated_devices(record)
                return _copied(
                    entries.AssignmentEntry, seq, at, record, permit_waits=waits, devices=devices
                )
            case r.Rejected():
                node, victims = record.nominated_node or "", tuple(v.key for v in record.victims)
                return _copied(
                    entries.RejectionEntry,
                    seq,
                    at,
                    record,
                    nominated_node=node,
                    victims=victims,
                    released_claim=released_claim(record),
                )
            case r.AttemptFailed():
                return _copied(entries.AttemptFailureEntry, seq, at, record)
            case r.PermitAllowed():
                return entries.PermitEntry(seq, at, record.plugin, True)
            case r.PermitRejected():
                return entries.PermitEntry(seq, at, record.plugin, False, record.message)
            case r.BindFailed():
                return _copied(entries.BindingFailureEntry, seq, at, record, code=record.code.title)
            case EvictionDecided():
                return entries.PreemptionEntry(seq, at, record.preemptor.key, record.node)
            case r.EvictionSucceeded():
                return entries.EvictionEntry(seq, at)
            case r.EvictionFailed():
                return entries.EvictionFailureEntry(seq, at, record.message)
            case r.ClaimReleaseEnded():
                return entries.ClaimReleaseEntry(seq, at, record.message)

    def _extender(self, index: int) -> str:
        evaluators = self._fold.state.evaluators
        return evaluators[index].name if index < len(evaluators) else f"extender {index}"

    def _confirms(self, record: r.PodUpdated | r.Bound, node_name: str) -> bool:
        """Whether the record is the first confirmation of the decided binding."""
        entry = self._fold.state.entry(record.key, record.uid)
        if entry is None or entry.placement_state is not PlacementState.ASSUMED:
            return False
        return entry.node == node_name

    def _changes(self, record: r.PodUpdated) -> tuple[str, ...]:
        """As :func:`changes`, from a change record."""
        entry = self._fold.state.entry(record.key, record.uid)
        if entry is None:
            return ()
        old = entry.info.pod
        labels = record.labels_after(old.metadata.labels)
        fields = [
            *_label_changes(old.metadata.labels, labels),
            ("node", old.spec.node_name, record.node_name),
            ("phase", old.status.phase, record.phase),
            ("nominated node", old.status.nominated_node_name, record.nominated_node_name),
            ("deletion", _time(old.metadata.deletion_timestamp), _time(record.deletion_timestamp)),
            ("started", _time(old.status.start_time), _time(record.start_time)),
            *_claims(old, record.claims),
            *_conditions(old, record.conditions),
        ]
        return _differences(fields)

    def _update_queue(self, key: str, record: r.AnyRecord) -> None:
        followed = self._followed[key]
        if self._fold.state.entry(key, followed.timeline.uid) is None:
            del self._followed[key]
            self._queued.pop(key, None)
            return
        queue = queue_of(self._fold.state.queue, key)
        if queue:
            self._queued[key] = None
        else:
            self._queued.pop(key, None)
        if queue == followed.queue:
            return
        self._followed[key] = _FollowedPod(followed.timeline, queue)
        # The entry of the decision implies that the pod leaves the queue.
        if queue:
            cause = self._cause(key, record, followed.queue)
            move = entries.QueueMoveEntry(self._seq, self._at, queue, followed.queue, cause)
            self._add(key, followed.timeline.uid, move)

    def _cause(self, key: str, record: r.AnyRecord, before: str) -> str:
        """Why the pod moved from the queue ``before``."""
        followed = self._followed[key]
        uid = followed.timeline.uid
        if subject_of(record) == f"pod/{key}" and getattr(record, "uid", uid) == uid:
            return _own_cause(record, followed.queue)
        if isinstance(record, r.ObjectObserved) and isinstance(record.object, Node):
            return f"node {record.object.name} was observed"
        if isinstance(record, r.TurnStarted):
            return TIMER_CAUSES[before != "backoff"]
        subject = subject_of(record) or "the engine"
        cause = _CAUSES.get(type(record), "{kind} of {subject}")
        return cause.format(record=record, subject=subject, kind=type(record).__name__)


TIMER_CAUSES: Final = "its backoff expired", "the timeout of unschedulable pods expired"
"""The causes of moves that no object caused."""

_CAUSES: Final[dict[type[r.AnyRecord], str]] = {
    r.ObjectObserved: "{subject} was observed",
    r.ObjectDeleted: "{subject} was deleted",
    r.PodObserved: "pod {record.key} was observed",
    r.PodUpdated: "pod {record.key} changed",
    r.Assigned: "pod {record.key} was assigned to {record.node}",
    r.PermitRejected: "pod {record.key} was rejected at Permit",
    r.Bound: "pod {record.key} was bound to {record.node}",
    r.EvictionSucceeded: "pod {record.key} was evicted",
    r.EvictionFailed: "eviction of pod {record.key} failed",
    r.ClaimReleaseEnded: "the claim of pod {record.key} was released",
    r.ProfilesLoaded: "profiles were loaded",
}
"""Why another pod moves, by record type."""


def _own_cause(record: r.AnyRecord, queue: str) -> str:
    """The cause if the record is about the pod itself."""
    if isinstance(record, _ExtenderReply):
        return "all called extenders have replied"
    match record:
        case r.Rejected(unschedulable_plugins=plugins):
            if plugins and queue in ("active", "backoff"):
                return "rejected, but an event during the attempt may make it schedulable"
            return f"rejected by {', '.join(plugins)}" if plugins else "rejected"
        case r.AttemptFailed():
            return f"{record.plugin} failed"
        case r.PermitRejected():
            return f"rejected by {record.plugin} at Permit"
        case r.BindFailed():
            return "its binding failed"
        case r.PodUpdated():
            return "it changed"
        case _:
            return "it was observed"


def queue_of(queue: SchedulingQueue, key: str) -> str:
    """The name of the pod's queue; empty for none."""
    names = ("active", "backoff", "unschedulable", "gated")
    return next((name for name in names if key in getattr(queue, name)), "")


def changes(old: Pod, new: Pod) -> tuple[str, ...]:
    """The differences in fields that scheduling reads, as short phrases."""
    fields = [
        *_label_changes(old.metadata.labels, new.metadata.labels),
        ("node", old.spec.node_name, new.spec.node_name),
        (
            "scheduling gates",
            [gate.name for gate in old.spec.scheduling_gates],
            [gate.name for gate in new.spec.scheduling_gates],
        ),
        ("tolerations", len(old.spec.tolerations), len(new.spec.tolerations)),
        ("phase", old.status.phase, new.status.phase),
        ("nominated node", old.status.nominated_node_name, new.status.nominated_node_name),
        (
            "deletion",
            _time(old.metadata.deletion_timestamp),
            _time(new.metadata.deletion_timestamp),
        ),
        *_conditions(old, new.status.conditions),
    ]
    return _differences(fields)


def _claims(
    old: Pod, new: tuple[PodResourceClaimStatus, ...] | None
) -> list[tuple[str, object, object]]:
    """The ResourceClaims that were generated for the pod; None if unchanged."""
    before = {each.name: each.resource_claim_name for each in old.status.resource_claim_statuses}
    return [
        (f"claim of {each.name}", before.get(each.name), each.resource_claim_name)
        for each in new or ()
    ]


def _label_changes(old: dict[str, str], new: dict[str, str]) -> list[tuple[str, object, object]]:
    keys = sorted({*old, *new})
    return [(f"label {key}", old.get(key, ""), new.get(key, "")) for key in keys]


def _conditions(old: Pod, new: tuple[PodCondition, ...]) -> list[tuple[str, object, object]]:
    if old.status.conditions == new:
        return []
    return [("conditions", _joined(old.status.conditions), _joined(new))]


def _joined(conditions: tuple[PodCondition, ...]) -> str:
    return ", ".join(f"{condition.type}={condition.status}" for condition in conditions)


def _time(time: datetime | None) -> str:
    return "" if time is None else time.isoformat()


def _differences(fields: Iterable[tuple[str, object, object]]) -> tuple[str, ...]:
    return tuple(
        f"{name} {old or '(none)'} -> {new or '(none)'}" for name, old, new in fields if old != new
    )


def _copied(
    kind: type[_EntryT], seq: int, at: datetime, record: _AboutPod, **other: Any
) -> _EntryT:
    """An entry with the fields ``other``, and the record's fields of the same names."""
    names = [name for name in kind.__struct_fields__ if name not in ("seq", "at", *other)]
    return kind(seq=seq, at=at, **other, **{name: getattr(record, name) for name in names})


async def collect_timelines(
    journal: JournalStore,
    selects: PodFilter,
    start: RestoredFold,
    *,
    until_ns: int | None = None,
    last_seq: int | None = None,
) -> PodTimelines:
    """The timelines of all selected pods from ``start`` to a time, a record, or the journal's end.

    Raises :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    found = PodTimelines(selects, start.fold)
    if until_ns is not None:
        in_period_seq = await last_seq_at(journal, until_ns)
        last_seq = in_period_seq if last_seq is None else min(last_seq, in_period_seq)
    async for stored in journal.read(start.seq, last_seq):
        with folding(stored):
            found.apply(stored.seq, stored.record)
    return found
