"""The recent records as steps, and hypothetical changes of a state."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import KINDS
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import AnyRecord, ObjectDeleted, ObjectObserved, PodObserved, PodUpdated


class Subject(NamedTuple):
    """The object that a record is about."""

    kind: type[Object]
    key: str

    def __str__(self) -> str:
        return f"{self.kind.__name__.lower()} {self.key}"


class StepKind(Enum):
    """How a step may influence decisions about other pods."""

    NOTHING = auto()
    BINDING = auto()
    """A pod was bound, by the other scheduler."""
    NOMINATION = auto()
    """A pod's nominated node changed, by the other scheduler."""
    CHANGE = auto()


SCHEDULER_STEPS = frozenset({StepKind.BINDING, StepKind.NOMINATION})
"""Decisions of the other scheduler, which knew them first."""


class Step(NamedTuple):
    """One record, and how it changed its object."""

    position: int
    at_ns: int
    record: AnyRecord
    """Without a reference to a template: hypothetical records change template numbers."""
    kind: StepKind = StepKind.NOTHING
    subject: Subject | None = None
    before: Object | None = None
    after: Object | None = None

    @property
    def text(self) -> str:
        """What happened, as a clause."""
        after = self.after
        if self.kind is StepKind.BINDING and isinstance(after, Pod):
            return f"{self.subject} was bound to {after.node_name}"
        if self.kind is StepKind.NOMINATION and isinstance(after, Pod):
            node = after.status.nominated_node_name
            return f"{self.subject} " + (
                f"was nominated to {node}" if node else "lost its nomination"
            )
        if after is None:
            return f"{self.subject} was deleted"
        return f"{self.subject} was {'updated' if self.before is not None else 'created'}"


def subject_of(record: AnyRecord) -> Subject | None:
    """The object that the record is about, if any."""
    match record:
        case ObjectObserved():
            return Subject(type(record.object), record.object.key)
        case ObjectDeleted():
            return Subject(KINDS[record.kind], record.key)
        case PodObserved() | PodUpdated():
            return Subject(Pod, record.key)
    return None


def object_of(state: ClusterState, subject: Subject) -> Object | None:
    """The object in the present state."""
    if subject.kind is Pod:
        entry = state.pods.get(subject.key)
        return None if entry is None else entry.info.pod
    return state.object_store.of_kind(subject.kind).get(subject.key)


def folded_step(fold: Fold, record: AnyRecord, position: int) -> Step:
    """Fold the record, and return it as a step."""
    subject = subject_of(record)
    if subject is None:
        fold.apply(record)
        return Step(position, fold.state.now_ns, record)
    before = object_of(fold.state, subject)
    fold.apply(record)
    after = object_of(fold.state, subject)
    if isinstance(record, PodObserved) and after is not None:
        record = ObjectObserved(after)  # type: ignore[arg-type]  # a pod
    return Step(
        position=position,
        at_ns=fold.state.now_ns,
        record=record,
        kind=_kind(before, after),
        subject=subject,
        before=before,
        after=after,
    )


def _kind(before: Object | None, after: Object | None) -> StepKind:
    if not isinstance(after, Pod):
        if isinstance(before, Pod):
            return StepKind.CHANGE if _matters(before) else StepKind.NOTHING
        return StepKind.CHANGE
    if not isinstance(before, Pod):
        if after.node_name:
            return StepKind.BINDING
        return StepKind.NOMINATION if after.status.nominated_node_name else StepKind.NOTHING
    if after.node_name != before.node_name:
        return StepKind.BINDING
    if after.status.nominated_node_name != before.status.nominated_node_name:
        return StepKind.NOMINATION
    if not _matters(after):
        return StepKind.NOTHING
    same = before.metadata == after.metadata and before.spec == after.spec
    return StepKind.NOTHING if same else StepKind.CHANGE


def _matters(pod: Pod) -> bool:
    """Whether the pod influences other pods: it is on a node, or nominated to one."""
    return bool(pod.node_name or pod.status.nominated_node_name)


class ShadowHypothesis:
    """Hypothetical changes of a state, which can be reverted. The fold applies and reverts them."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._before: dict[Subject, Object | None] = {}

    def apply(self, step: Step) -> None:
        """Give the step's object the state that it has after the step."""
        if step.subject is not None:
            self.set(step.subject, step.after)

    def set(self, subject: Subject, wanted: Object | None) -> None:
        """Replace or create the object; None deletes it."""
        present = object_of(self._fold.state, subject)
        self._before.setdefault(subject, present)
        self._replace(subject, present, wanted)

    def revert(self) -> None:
        """Restore the state, except for counters that no decision depends on."""
        for subject, before in reversed(self._before.items()):
            present = object_of(self._fold.state, subject)
            if isinstance(present, Pod) and before is not None:
                # An update cannot remove a pod from its node.
                self._replace(subject, present, None)
                present = None
            self._replace(subject, present, before)
        self._before.clear()

    def _replace(self, subject: Subject, present: Object | None, wanted: Object | None) -> None:
        if wanted is not None:
            self._fold.apply(ObjectObserved(wanted))  # type: ignore[arg-type]  # of a known kind
        elif present is not None:
            self._fold.apply(ObjectDeleted(subject.kind.__name__, subject.key, present.uid))


def is_reversible(step: Step) -> bool:
    """Whether the step can be applied early and reverted completely. Creating or deleting a node
    would change the order of the table's rows."""
    recreated = step.before is None or step.after is None
    return step.subject is not None and not (step.subject.kind is Node and recreated)
