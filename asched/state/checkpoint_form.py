"""The stored form of a checkpoint. What the fields mean is said where the state has them.

Pods are kept once and referred to by number: an even number ``2k`` is ``whole_pods[k]``, an odd one
``2k + 1`` is ``copied_pods[k]``, a copy of a template.
"""

from __future__ import annotations

from typing import Any, dataclass_transform

import msgspec

from asched.framework.interface import Victim
from asched.framework.runtime.extenders import ExtenderVerb, PreemptionCandidate
from asched.framework.sessions import SessionSpec
from asched.framework.status import Status
from asched.model.pod import Pod
from asched.model.resources import AnyObject
from asched.state.records import Assigned, Lottery, PodSeen, ProfilesLoaded
from asched.state.rules import Rules
from asched.state.session_records import PodGroupDecided

FORMAT = 9
"""To be raised whenever the form changes, or what the fold makes of the same records."""


@dataclass_transform(frozen_default=True)
class Form(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base: fields by position, so a change of any is a change of :data:`FORMAT`."""


class TemplateForm(Form):
    number: int
    pod: Pod
    users: int
    current: bool
    """Whether new pods like it are recorded under this number."""


class EntryForm(Form):
    pod: int
    template: int
    phase: str
    node: str
    rejection: str
    assignment: Assigned | None
    reserved: Assigned | None


class RowForm(Form):
    """A row of the node table; one that is free has no name."""

    name: str
    pods: tuple[int, ...]


class PlaceForm(Form):
    """Pods of a node by name: nominated there, or on it though it is not known."""

    node: str
    pods: tuple[int, ...]


class WaitingForm(Form):
    pod: int
    node: str
    since_ns: int
    pending_until_ns: dict[str, int]


class AnswerForm(Form):
    key: str
    plugin: str
    message: str | None


class EvictionForm(Form):
    victim: Victim
    preemptor: Victim
    node: str
    reason: str


class SessionForm(Form):
    """A profile that is served by sessions."""

    spec: SessionSpec
    number: int
    held_ns: int
    changes: tuple[bool, bool]
    pending: tuple[str, ...]
    """Keys, in their order."""
    refused: dict[str, tuple[str, str, int, int]] = {}


class GroupWriteForm(Form):
    decision: PodGroupDecided
    under_way: bool


class CircuitForm(Form):
    """The breaker of a plugin."""

    scheduler_name: str
    plugin: str
    failed_at_ns: tuple[int, ...]
    until_ns: int
    on_trial: bool
    held: tuple[str, ...]


class FilterAnswersForm(Form):
    rows: tuple[int, ...]
    codes: tuple[int, ...]
    statuses: tuple[Status, ...]


class InquiryForm(Form):
    key: str
    uid: str
    attempt: int
    verb: ExtenderVerb
    pending: tuple[int, ...]
    rows: tuple[int, ...]
    candidates: tuple[PreemptionCandidate, ...]
    filters: dict[int, FilterAnswersForm]
    compared: tuple[int, ...]
    scores: dict[int, tuple[int, ...]]
    reviews: dict[int, tuple[PreemptionCandidate, ...]]
    failures: tuple[tuple[ExtenderVerb, int, str], ...]


class QueuedForm(Form):
    pod: int
    added_at_ns: int
    entered_at_ns: int | None
    timestamp_ns: int
    rejected_at_ns: int
    attempts: int
    unschedulable_count: int
    consecutive_errors: int
    unschedulable_plugins: tuple[str, ...]
    pending_plugins: tuple[str, ...]
    gating_plugin: str


class HappenedForm(Form):
    resource: str
    action: int
    old: AnyObject | int | None
    """The number of a pod, or another object."""
    new: AnyObject | int | None
    held_since_ns: int | None = None
    nomination: bool = False


class QueueForm(Form):
    pods: tuple[QueuedForm, ...]
    """All that wait or fly; the others refer to them by position."""
    active: tuple[int, ...]
    """In the order in which they came."""
    active_order: tuple[tuple[int, tuple[Any, ...]], ...]
    """In the order in which they are tried, each with what it was sorted by; empty where that is to be
    asked again."""
    backoff: tuple[int, ...]
    backoff_order: tuple[int, ...]
    unschedulable: tuple[int, ...]
    gated: tuple[int, ...]
    waiting_for: tuple[tuple[str, tuple[int, ...]], ...]
    in_flight: tuple[tuple[int, int], ...]
    events: tuple[HappenedForm, ...]
    events_start: int
    drifted: int


class StateForm(Form):
    """All of a state."""

    now_ns: int
    seed: int
    lottery: Lottery
    rules: Rules
    epoch: int
    next_start_row: int
    loaded: ProfilesLoaded
    templates: tuple[TemplateForm, ...]
    last_template: int
    whole_pods: tuple[Pod, ...]
    copied_pods: tuple[PodSeen, ...]
    objects: tuple[AnyObject, ...]
    resources: tuple[tuple[str, ...], tuple[str, ...]]
    """That nodes ever offered and that pods on them ever requested, in order."""
    rows: tuple[RowForm, ...]
    strays: tuple[PlaceForm, ...]
    entries: tuple[EntryForm, ...]
    nominated: tuple[PlaceForm, ...]
    waiting: tuple[WaitingForm, ...]
    answers: tuple[AnswerForm, ...]
    evictions: tuple[EvictionForm, ...]
    room_made: tuple[tuple[str, str], ...]
    """Uids and keys of :attr:`Evictions.done_for`, in order."""
    useless: tuple[str, ...]
    inquiries: tuple[InquiryForm, ...]
    queue: QueueForm
    sessions: tuple[SessionForm, ...]
    finished: tuple[int, ...]
    group_writes: tuple[GroupWriteForm, ...]
    circuits: tuple[CircuitForm, ...]
