"""What happened to pods, from the journal alone.

The journal is folded once more, and after each record it is looked where the pod is now queued: so
a move from queue to queue is told with the very record that caused it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from asched.audit.entries import (
    AssignmentEntry,
    AttemptFailureEntry,
    BindingEntry,
    BindingFailureEntry,
    ChangeEntry,
    DeletionEntry,
    Entry,
    EvictionEntry,
    EvictionFailureEntry,
    ExtenderCallEntry,
    ExtenderReplyEntry,
    ObservedEntry,
    PermitAnswerEntry,
    PodTimeline,
    PreemptionEntry,
    QueueMoveEntry,
    RejectionEntry,
)
from asched.journal.checkpoints import RestoredFold
from asched.journal.codec import subject_of
from asched.journal.store import JournalStore
from asched.model.node import Node
from asched.model.pod import Pod, PodCondition
from asched.state import records as r
from asched.state.cluster import ClusterState, PodPhase
from asched.state.fold import Fold
from asched.state.queue import SchedulingQueue
from asched.state.session_records import EvictionDecided

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(ns: int) -> datetime:
    """Nanoseconds since the epoch as a time in UTC, to the microsecond."""
    return _EPOCH + timedelta(microseconds=ns // 1000)


Wanted = Callable[[Pod, ClusterState], bool]
"""Whether a pod that is seen for the first time, in that state, is to be followed."""


class _Followed(NamedTuple):
    """A pod that is followed, and where it was last."""

    timeline: PodTimeline
    queue: str


class PodTimelines:
    """Folds a journal and writes down what concerns the pods that are asked for."""

    def __init__(self, wanted: Wanted, fold: Fold) -> None:
        """``wanted`` says which pods are followed, when each is first seen. ``fold`` has folded what
        comes before the first record; pods that it holds are followed from there."""
        self.found: list[PodTimeline] = []
        """Oldest first; one for each uid."""
        self._wanted = wanted
        self._fold = fold
        self._followed: dict[str, _Followed] = {}
        # By key and uid, those of pods that are gone too: the end of an effect may come after the
        # pod's, when another pod has its name.
        self._told: dict[tuple[str, str], PodTimeline] = {}
        # Followed pods that wait in a queue: whatever happens may move them. All others move only
        # by records of their own.
        self._queued: dict[str, None] = {}
        self._seq = 0
        for key, entry in fold.state.pods.items():
            if wanted(entry.info.pod, fold.state):
                queue = queue_of(fold.state.queue, key)
                self._follow(entry.info.pod, queue)
                if queue:
                    self._queued[key] = None

    @property
    def now_ns(self) -> int:
        """The time of the present turn."""
        return self._fold.state.now_ns

    def apply(self, seq: int, record: r.AnyRecord) -> None:
        """Fold the next record. Raises FoldError, ProfileError."""
        self._seq = seq
        if isinstance(record, r.ObjectObserved) and isinstance(record.object, Pod):
            self._pod_seen(record.object)
        elif isinstance(record, r.PodObserved):
            self._pod_seen(self._fold.state.templates.pod_of(record).pod)
        else:
            self._tell(record)
        self._fold.apply(record)
        _, _, subject = subject_of(record).partition("/")
        if subject in self._followed:
            self._look_at_queue(subject, record)
        for key in [*self._queued]:
            self._look_at_queue(key, record)

    # -- writing ------------------------------------------------------------------------------

    @property
    def _at(self) -> datetime:
        return time_of(self.now_ns)

    def _write(self, key: str, uid: str, entry: Entry) -> None:
        timeline = self._told.get((key, uid))
        if timeline is not None:
            timeline.entries.append(entry)

    def _pod_seen(self, pod: Pod) -> None:
        key, uid = pod.key, pod.metadata.uid
        if not self._wanted(pod, self._fold.state):
            return
        followed = self._followed.get(key)
        if followed is not None and followed.timeline.uid == uid:
            before = self._fold.state.pods[key].info.pod
            self._write(key, uid, ChangeEntry(self._seq, self._at, changes(before, pod)))
            return
        if followed is not None:
            # A new pod of the same name: the one before must have gone unnoticed.
            self._write(key, followed.timeline.uid, DeletionEntry(self._seq, self._at))
        self._follow(pod, "")
        gates = tuple(gate.name for gate in pod.spec.scheduling_gates)
        self._write(
            key,
            uid,
            ObservedEntry(
                self._seq,
                self._at,
                pod.spec.scheduler_name,
                pod.spec.priority,
                pod.node_name,
                gates,
            ),
        )

    def _follow(self, pod: Pod, queue: str) -> None:
        timeline = PodTimeline(pod.namespace, pod.name, pod.metadata.uid)
        self.found.append(timeline)
        self._followed[pod.key] = _Followed(timeline, queue)
        self._told[pod.key, timeline.uid] = timeline

    def _tell(self, record: r.AnyRecord) -> None:
        seq, at = self._seq, self._at
        match record:
            case r.PodUpdated() if (record.key, record.uid) in self._told:
                self._write(record.key, record.uid, ChangeEntry(seq, at, self._changed(record)))
                if self._confirms(record, record.node_name):
                    self._write(record.key, record.uid, BindingEntry(seq, at, record.node_name))
            case r.ObjectDeleted(kind="Pod"):
                followed = self._followed.get(record.key)
                if followed is not None and followed.timeline.uid == record.uid:
                    self._write(record.key, record.uid, DeletionEntry(seq, at))
            case r.Rejected():
                self._rejected(record)
            case r.Assigned() | r.AttemptFailed() | r.PermitAllowed() | r.PermitRejected():
                self._write(record.key, record.uid, _decision(record, seq, at))
            case r.ExtenderCallRequested():
                names = tuple(self._extender(index) for index in record.extenders)
                evaluation = ExtenderCallEntry(seq, at, record.attempt, record.verb.value, names)
                self._write(record.key, record.uid, evaluation)
            case (
                r.ExtenderFiltered()
                | r.ExtenderPrioritized()
                | r.ExtenderPreemptionProcessed()
                | r.ExtenderCallFailed()
            ):
                name, verb = self._extender(record.extender), record.verb_answered.value
                failure = record.message if isinstance(record, r.ExtenderCallFailed) else ""
                reply = ExtenderReplyEntry(seq, at, record.attempt, verb, name, failure)
                self._write(record.key, record.uid, reply)
            case r.Bound():
                if self._confirms(record, record.node):
                    self._write(record.key, record.uid, BindingEntry(seq, at, record.node))
            case r.BindFailed():
                self._write(
                    record.key,
                    record.uid,
                    BindingFailureEntry(
                        seq, at, record.node, record.code.title, record.plugin, record.message
                    ),
                )
            case EvictionDecided():
                self._write(
                    record.key,
                    record.uid,
                    PreemptionEntry(seq, at, record.preemptor.key, record.node),
                )
            case r.EvictionSucceeded():
                self._write(record.key, record.uid, EvictionEntry(seq, at))
            case r.EvictionFailed():
                self._write(record.key, record.uid, EvictionFailureEntry(seq, at, record.message))

    def _extender(self, index: int) -> str:
        extenders = self._fold.state.evaluators
        return extenders[index].name if index < len(extenders) else f"extender {index}"

    def _rejected(self, record: r.Rejected) -> None:
        seq, at = self._seq, self._at
        self._write(
            record.key,
            record.uid,
            RejectionEntry(
                seq, at, record.attempt, record.message, record.unschedulable_plugins, record.pending_plugins,
                record.nominated_node or "", tuple(victim.key for victim in record.victims),
            ),
        )  # fmt: skip
        for victim in record.victims:
            self._write(
                victim.key,
                victim.uid,
                PreemptionEntry(seq, at, record.key, record.nominated_node or ""),
            )

    def _confirms(self, record: r.PodUpdated | r.Bound, node_name: str) -> bool:
        """Whether a record is the first to say that a binding took place, as was decided."""
        entry = self._fold.state.entry(record.key, record.uid)
        if entry is None or entry.phase is not PodPhase.ASSUMED:
            return False
        return entry.node == node_name

    def _changed(self, record: r.PodUpdated) -> tuple[str, ...]:
        """As :func:`changes`, from the short form of a change."""
        entry = self._fold.state.entry(record.key, record.uid)
        if entry is None:
            return ()
        old = entry.info.pod
        labels = old.metadata.labels if record.labels is None else record.labels
        return _differences(
            *_label_changes(old.metadata.labels, labels),
            ("node", old.spec.node_name, record.node_name),
            ("phase", old.status.phase, record.phase),
            ("nominated node", old.status.nominated_node_name, record.nominated_node_name),
            ("deletion", _when(old.metadata.deletion_timestamp), _when(record.deletion_timestamp)),
            ("started", _when(old.status.start_time), _when(record.start_time)),
            *_conditions(old, record.conditions),
        )

    # -- queues -------------------------------------------------------------------------------

    def _look_at_queue(self, key: str, record: r.AnyRecord) -> None:
        followed = self._followed[key]
        if self._fold.state.entry(key, followed.timeline.uid) is None:
            del self._followed[key]  # gone; another of that name may come
            self._queued.pop(key, None)
            return
        queue = queue_of(self._fold.state.queue, key)
        if queue:
            self._queued[key] = None
        else:
            self._queued.pop(key, None)
        if queue == followed.queue:
            return
        self._followed[key] = followed._replace(queue=queue)
        # That a decision takes a pod off the queue goes without saying.
        if queue:
            move = QueueMoveEntry(
                self._seq, self._at, queue, followed.queue, self._cause(key, record)
            )
            self._write(key, followed.timeline.uid, move)

    def _cause(self, key: str, record: r.AnyRecord) -> str:
        """What moved the pod, in words."""
        uid = self._followed[key].timeline.uid
        if subject_of(record) == f"pod/{key}" and getattr(record, "uid", uid) == uid:
            return _own_cause(record, self._followed[key].queue)
        match record:
            case r.TurnStarted():
                return "its time was up"
            case r.ObjectObserved(object=Node() as node):
                return f"node {node.name} was seen"
            case r.ObjectObserved():
                return f"{subject_of(record)} was seen"
            case r.ObjectDeleted():
                return f"{subject_of(record)} is gone"
            case r.PodObserved():
                return f"pod {record.key} was seen"
            case r.PodUpdated():
                return f"pod {record.key} changed"
            case r.Bound():
                return f"pod {record.key} was bound to {record.node}"
            case r.EvictionSucceeded():
                return f"pod {record.key} was evicted"
            case r.EvictionFailed():
                return f"pod {record.key} could not be evicted"
            case r.ProfilesLoaded():
                return "profiles were loaded"
            case _:
                return f"{type(record).__name__} of {subject_of(record) or 'the engine'}"


def _own_cause(record: r.AnyRecord, queue: str) -> str:
    """What a record about the pod itself did to it."""
    match record:
        case r.Rejected(unschedulable_plugins=plugins) if plugins and queue in (
            "active",
            "backoff",
        ):
            return "rejected, but something that may help happened during the attempt"
        case r.Rejected(unschedulable_plugins=plugins):
            return f"rejected by {', '.join(plugins)}" if plugins else "rejected"
        case r.AttemptFailed():
            return f"{record.plugin} failed"
        case r.PermitRejected():
            return f"turned away by {record.plugin}"
        case r.BindFailed():
            return "its binding failed"
        case r.PodObserved():
            return "it was seen"
        case r.PodUpdated():
            return "it changed"
        case (
            r.ExtenderFiltered()
            | r.ExtenderPrioritized()
            | r.ExtenderPreemptionProcessed()
            | r.ExtenderCallFailed()
        ):
            return "the extenders that were asked have answered"
        case _:
            return "it was seen"


def queue_of(queue: SchedulingQueue, key: str) -> str:
    """In which queue a pod waits; empty for none."""
    for name, pods in (
        ("active", queue.active),
        ("backoff", queue.backoff),
        ("unschedulable", queue.unschedulable),
        ("gated", queue.gated),
    ):
        if key in pods:
            return name
    return ""


def changes(old: Pod, new: Pod) -> tuple[str, ...]:
    """What is different, a short phrase each; only what scheduling reads."""
    return _differences(
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
            _when(old.metadata.deletion_timestamp),
            _when(new.metadata.deletion_timestamp),
        ),
        *_conditions(old, new.status.conditions),
    )


def _label_changes(old: dict[str, str], new: dict[str, str]) -> list[tuple[str, object, object]]:
    keys = sorted({*old, *new})
    return [(f"label {key}", old.get(key, ""), new.get(key, "")) for key in keys]


def _conditions(old: Pod, new: tuple[PodCondition, ...]) -> list[tuple[str, object, object]]:
    if old.status.conditions == new:
        return []
    return [("conditions", _listed(old.status.conditions), _listed(new))]


def _listed(conditions: tuple[PodCondition, ...]) -> str:
    return ", ".join(f"{condition.type}={condition.status}" for condition in conditions)


def _when(time: datetime | None) -> str:
    return "" if time is None else time.isoformat()


def _differences(*fields: tuple[str, object, object]) -> tuple[str, ...]:
    return tuple(
        f"{name} {old or '(none)'} -> {new or '(none)'}" for name, old, new in fields if old != new
    )


def _decision(
    record: r.Assigned | r.AttemptFailed | r.PermitAllowed | r.PermitRejected,
    seq: int,
    at: datetime,
) -> Entry:
    match record:
        case r.Assigned():
            return AssignmentEntry(
                seq, at, record.attempt, record.node, record.feasible_nodes, record.score, record.ties,
                record.evaluated_nodes, tuple(wait.plugin for wait in record.permit_waits),
            )  # fmt: skip
        case r.AttemptFailed():
            return AttemptFailureEntry(seq, at, record.attempt, record.plugin, record.message)
        case r.PermitAllowed():
            return PermitAnswerEntry(seq, at, record.plugin, True)
        case r.PermitRejected():
            return PermitAnswerEntry(seq, at, record.plugin, False, record.message)


async def follow(
    journal: JournalStore,
    wanted: Wanted,
    opened: RestoredFold,
    *,
    until_ns: int | None = None,
    last_seq: int | None = None,
) -> PodTimelines:
    """The timelines of all wanted pods from where the journal was opened to a time or record, by
    default to the journal's end.

    Raises :class:`~asched.journal.errors.JournalError`, ProfileError and FoldError.
    """
    found = PodTimelines(wanted, opened.fold)
    async for stored in journal.read(opened.seq, last_seq):
        record = stored.record
        if isinstance(record, r.TurnStarted) and until_ns is not None and record.now_ns > until_ns:
            break
        found.apply(stored.seq, record)
    return found
