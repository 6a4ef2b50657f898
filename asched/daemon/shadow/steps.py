"""The recent past, step by step: what each record changed, and suppositions on a state."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import KINDS
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import AnyRecord, ObjectGone, ObjectSeen, PodChanged, PodSeen


class Subject(NamedTuple):
    """The object that a record is about."""

    kind: type[Object]
    key: str

    def __str__(self) -> str:
        return f"{self.kind.__name__.lower()} {self.key}"


class StepKind(Enum):
    """What a step can mean for a decision about another pod."""

    NOTHING = auto()
    BINDING = auto()
    """A pod got its node: the other scheduler's own doing, which it knew first."""
    NOMINATION = auto()
    """A pod's nominated node changed: its own doing as well."""
    CHANGE = auto()


OWN_DOING = frozenset({StepKind.BINDING, StepKind.NOMINATION})


class Step(NamedTuple):
    """One record, and what it made of its object."""

    position: int
    at_ns: int
    record: AnyRecord
    """Without reference to a template: what is supposed in between changes their numbers."""
    kind: StepKind = StepKind.NOTHING
    subject: Subject | None = None
    before: Object | None = None
    after: Object | None = None

    @property
    def text(self) -> str:
        """What happened, for people."""
        after = self.after
        if self.kind is StepKind.BINDING and isinstance(after, Pod):
            return f"{self.subject} was bound to {after.node_name}"
        if self.kind is StepKind.NOMINATION and isinstance(after, Pod):
            node = after.status.nominated_node_name
            return f"{self.subject} " + (f"was nominated to {node}" if node else "lost its node")
        if after is None:
            return f"{self.subject} went"
        return f"{self.subject} " + ("changed" if self.before is not None else "came")


def subject_of(record: AnyRecord) -> Subject | None:
    """The object that the record shows; None for records that show none."""
    match record:
        case ObjectSeen():
            return Subject(type(record.object), record.object.key)
        case ObjectGone():
            return Subject(KINDS[record.kind], record.key)
        case PodSeen() | PodChanged():
            return Subject(Pod, record.key)
    return None


def object_of(state: ClusterState, subject: Subject) -> Object | None:
    """The object as the state has it now."""
    if subject.kind is Pod:
        entry = state.pods.get(subject.key)
        return None if entry is None else entry.info.pod
    return state.objects_of.get(subject.kind, {}).get(subject.key)


def folded_step(fold: Fold, record: AnyRecord, position: int) -> Step:
    """Fold the record, and say what it was."""
    subject = subject_of(record)
    if subject is None:
        fold.apply(record)
        return Step(position, fold.state.now_ns, record)
    before = object_of(fold.state, subject)
    fold.apply(record)
    after = object_of(fold.state, subject)
    if isinstance(record, PodSeen) and after is not None:
        record = ObjectSeen(after)  # type: ignore[arg-type]  # a pod
    kind = _kind(before, after)
    return Step(position, fold.state.now_ns, record, kind, subject, before, after)


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
    """Whether decisions about other pods look at the pod: on a node, or nominated to one."""
    return bool(pod.node_name or pod.status.nominated_node_name)


class ShadowHypothesis:
    """Objects as they might have been, folded into a state, and how to take them back.

    Nothing but the fold changes the state, here too: what was there before is folded again.
    """

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._before: dict[Subject, Object | None] = {}

    def suppose(self, step: Step) -> None:
        """The step has been taken."""
        if step.subject is not None:
            self.set(step.subject, step.after)

    def set(self, subject: Subject, wanted: Object | None) -> None:
        """The object is as given, or gone."""
        present = object_of(self._fold.state, subject)
        self._before.setdefault(subject, present)
        self._replace(subject, present, wanted)

    def take_back(self) -> None:
        """The state is as it was, but for counters that no decision depends on."""
        for subject, before in reversed(self._before.items()):
            present = object_of(self._fold.state, subject)
            if isinstance(present, Pod) and before is not None:
                # A pod that has a node keeps it, whatever an update says.
                self._replace(subject, present, None)
                present = None
            self._replace(subject, present, before)
        self._before.clear()

    def _replace(self, subject: Subject, present: Object | None, wanted: Object | None) -> None:
        if wanted is not None:
            self._fold.apply(ObjectSeen(wanted))  # type: ignore[arg-type]  # of a kind of ours
        elif present is not None:
            self._fold.apply(ObjectGone(subject.kind.__name__, subject.key, present.uid))


def may_be_supposed(step: Step) -> bool:
    """Whether the step can be taken ahead of its time and taken back without a trace: nodes that
    come or go would change the order of the table's rows."""
    comes_or_goes = step.before is None or step.after is None
    return step.subject is not None and not (step.subject.kind is Node and comes_or_goes)
