"""Records: what happened, frozen. The journal is a list of them and the fold reads nothing else.

*Observations* come from outside. *Decisions* are ours. The order within a turn is:
:class:`TurnStarted` (the clock), what was observed, what was decided.

A record's type and field names are its stored form: once released they change only together with
an upcaster (see :mod:`asched.journal.codec`).
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from asched.framework.cluster import Victim
from asched.framework.runtime.extenders import ExtenderSpec, ExtenderVerb, PreemptionCandidate
from asched.framework.runtime.profile import ProfileSpec
from asched.framework.status import Code
from asched.model.meta import OwnerReference
from asched.model.pod import PodCondition
from asched.model.resources import AnyObject
from asched.state.session_records import (
    EvictionDecided,
    PodGroupStatusDecided,
    PodGroupStatusWriteFailed,
    PodGroupStatusWritten,
    SessionExecuted,
    SessionsLoaded,
)
from asched.state.stored_form import Record as Record

# -- observations -----------------------------------------------------------------------------


class EngineStarted(Record):
    """A daemon opened the journal and will append to it."""

    version: str
    """Version of asched."""
    seed: int
    """Seeds the tie-breaks of all decisions until the next start."""
    shadow: bool = False
    """It only compares itself with another scheduler. A journal is of one kind from its start."""


class QueueSettings(msgspec.Struct, frozen=True, gc=False):
    """Timing of the queue; the defaults are kube-scheduler's."""

    initial_backoff_s: float = 1.0
    max_backoff_s: float = 10.0
    unschedulable_timeout_s: float = 300.0
    """A pod that no event woke is tried again after this long."""


class ProfilesLoaded(Record):
    """The configuration that decides from here on."""

    profiles: tuple[ProfileSpec, ...]
    queue: QueueSettings = QueueSettings()
    extenders: tuple[ExtenderSpec, ...] = ()
    """In the order in which they are asked; other records name them by their position here."""


class ObjectObserved(Record):
    """An object appeared or changed; it is now as given."""

    object: AnyObject
    template: int = 0
    """For a pod: the number under which its template is kept from here on; 0 where it is not."""


class ObjectDeleted(Record):
    """An object was deleted, or was missing from a new list."""

    kind: str
    key: str
    uid: str = ""


class PodObserved(Record):
    """A pod appeared that is like another one: its template is held already."""

    key: str
    uid: str
    template: int
    """See :class:`asched.state.templates.Templates`."""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    """None where they are those of the template."""
    owner_references: tuple[OwnerReference, ...] | None = None
    """None where they are those of the template."""
    node_name: str = ""
    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()
    nominated_node_name: str = ""
    deletion_timestamp: datetime | None = None
    start_time: datetime | None = None
    annotations: dict[str, str] | None = None
    """Those that plugins read; None where they are those of the template."""


class PodUpdated(Record):
    """A pod whose template is as before: what else it now is. Far smaller than :class:`ObjectObserved`.

    Every field is the whole present value, not a difference.
    """

    key: str
    uid: str
    labels: dict[str, str] | None = None
    """None where they are as before."""
    node_name: str = ""
    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()
    nominated_node_name: str = ""
    deletion_timestamp: datetime | None = None
    start_time: datetime | None = None
    annotations: dict[str, str] | None = None
    """Those that plugins read; None where they are as before."""


class TurnStarted(Record):
    """The engine looked at the clock: due timers fire, and decisions from here on are of this time."""

    now_ns: int
    """Nanoseconds since the epoch. Never less than in the turn before."""


class Bound(Record):
    """The API server confirmed our binding: in its answer, or by showing the pod on its node."""

    key: str
    uid: str
    node: str
    observed: bool = False
    """The pod's own object names the node, and has not changed otherwise; see
    :mod:`asched.state.bind_confirmation`."""
    topology_labels: bool = False
    """With that it was given the node's topology labels."""


class BindFailed(Record):
    """The binding cycle ended without the pod being bound; the node's room is free again."""

    key: str
    uid: str
    node: str
    code: Code
    plugin: str = ""
    message: str = ""


class EvictionSucceeded(Record):
    """The API server accepted the deletion of a victim (or it was gone already)."""

    key: str
    uid: str
    unplaced: bool = False
    """It holds no room any more, because its binding failed or a plugin gave its place back. Nothing
    else will show that room become free, so who waits for it is let go."""


class EvictionFailed(Record):
    key: str
    uid: str
    message: str = ""


class ExtenderFailedNodes(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Nodes that an extender refused with the same words."""

    message: str
    nodes: bytes
    """Which of the nodes that it was asked about, a bit each in their order."""
    unresolvable: bool = False
    """Evicting pods would not help there."""


class ExtenderFiltered(Record):
    """An extender said which of the nodes of the last question will do."""

    key: str
    uid: str
    attempt: int
    extender: int
    passed: bytes
    """Which of the nodes that it was asked about, a bit each in their order."""
    failed_nodes: tuple[ExtenderFailedNodes, ...] = ()

    @property
    def verb_answered(self) -> ExtenderVerb:
        return ExtenderVerb.FILTER


class ExtenderPrioritized(Record):
    """An extender scored the nodes of the last question."""

    key: str
    uid: str
    attempt: int
    extender: int
    scores: tuple[int, ...]
    """In the order of the nodes; 0 for one that it did not mention. An extender's are 0 to 10, those
    of a plugin 0 to 100."""

    @property
    def verb_answered(self) -> ExtenderVerb:
        return ExtenderVerb.PRIORITIZE


class ExtenderPreemptionProcessed(Record):
    """An extender said which candidates of a preemption will do, and with which victims."""

    key: str
    uid: str
    attempt: int
    extender: int
    candidates: tuple[PreemptionCandidate, ...] = ()

    @property
    def verb_answered(self) -> ExtenderVerb:
        return ExtenderVerb.PREEMPT


class ExtenderCallFailed(Record):
    """An extender did not answer the last question, or answered nonsense."""

    key: str
    uid: str
    attempt: int
    extender: int
    verb: ExtenderVerb
    message: str

    @property
    def verb_answered(self) -> ExtenderVerb:
        return self.verb


ExtenderAnswer = (
    ExtenderFiltered | ExtenderPrioritized | ExtenderPreemptionProcessed | ExtenderCallFailed
)


class DisagreementCause(StrEnum):
    """Why another scheduler, seeing what it saw, may have decided otherwise than we would."""

    ASSUMED_POD = "assumed-pod"
    """It had placed other pods already, whose bindings came to be seen later."""
    NOMINATED_POD = "nominated-pod"
    """It had nominated a pod to a node already, or taken a nomination back."""
    UNSEEN_CHANGE = "unseen-change"
    """A change of a node, pod or other object that it had not seen yet."""
    LATER_CHANGE = "later-change"
    """A change that it had seen, and that was shown to us only later."""
    IMAGE_SIZE = "image-size"
    """Nodes report different sizes of the pod's image, and it went by another node's."""
    SAMPLED_NODES = "sampled-nodes"
    """It looks at a share of the nodes only."""
    UNEXPLAINED = "unexplained"


class LeadershipGained(Record):
    epoch: int


class LeadershipLost(Record):
    epoch: int


class ShadowExplained(Record):
    """Why another scheduler disagreed in :class:`ShadowCompared` ``number``, as far as was found."""

    number: int
    key: str
    uid: str
    cause: DisagreementCause
    detail: str = ""


# -- decisions --------------------------------------------------------------------------------


class PermitWait(msgspec.Struct, frozen=True, gc=False):
    """A Permit plugin that said WAIT, and until when."""

    plugin: str
    deadline_ns: int


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """What a Reserve plugin set aside, for it to enter in its books again in every replay."""

    plugin: str
    note: dict[str, Any]


class Assigned(Record):
    """The pod goes to this node: room is taken there from now on, and binding follows unless held."""

    key: str
    uid: str
    node: str
    attempt: int
    feasible_nodes: int
    """How many nodes were feasible."""
    score: int = 0
    """The node's total score; 0 where a single feasible node needed none."""
    ties: int = 1
    """How many nodes shared the best score."""
    evaluated_nodes: int = 0
    """How many nodes were looked at, where a share sufficed; 0 for all."""
    permit_waits: tuple[PermitWait, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    activate: tuple[str, ...] = ()
    """Keys of pods that are to be tried now because this one was assigned."""
    session: int = 0
    """The number of the batch session that decided it (the same as ``attempt``); 0 for none."""


class Rejected(Record):
    """No node, or a plugin said no: the pod waits until something changes."""

    key: str
    uid: str
    attempt: int
    message: str
    """The text of the pod's ``PodScheduled=False`` condition."""
    unschedulable_plugins: tuple[str, ...] = ()
    """The plugins that rejected it, sorted: their events wake the pod."""
    pending_plugins: tuple[str, ...] = ()
    nominated_node: str | None = None
    """A node on which room is being made; empty clears an earlier nomination, None keeps it."""
    victims: tuple[Victim, ...] = ()
    evaluated_nodes: int = 0
    """How many nodes were looked at, where a share sufficed; 0 for all."""
    cleared_nominations: tuple[Victim, ...] = ()
    """Pending pods of lower priority that lose their nomination to the same node."""
    requeue_now: bool = False
    """Held pods make room for it, so it is tried again without waiting."""
    open_circuit: str = ""
    """The plugin whose circuit is open, which is why the pod was not tried: it is when that closes."""
    session: int = 0
    """The number of the batch session that decided it (the same as ``attempt``); 0 for none."""


class AttemptFailed(Record):
    """The attempt ended in an error (a plugin raised, or answered Error); retried with backoff."""

    key: str
    uid: str
    attempt: int
    plugin: str
    message: str


class ExtenderCallRequested(Record):
    """The attempt cannot go on without these extenders' answers; until then the pod is in flight."""

    key: str
    uid: str
    attempt: int
    verb: ExtenderVerb
    extenders: tuple[int, ...]
    """Their positions in :attr:`ProfilesLoaded.extenders`; after those come the plugins that are asked
    outside decisions (:attr:`ProfileSpec.outside`), profile by profile. All are asked at the same
    time."""
    nodes: bytes = b""
    """The nodes in question: a bit for each row of the node table."""
    candidates: tuple[PreemptionCandidate, ...] = ()
    """The candidates in question, where ``verb`` is PREEMPT."""
    evaluated_nodes: int = 0
    """How many nodes were looked at, where a share sufficed; 0 for all."""


class ShadowCompared(Record):
    """In shadow mode another scheduler answered for a pod; with it, what we would have decided.

    Decided from the state of all records before this one. Nothing follows from it.
    """

    number: int
    """Comparisons are counted from the start of the daemon."""
    key: str
    uid: str
    node: str = ""
    """Where the other scheduler bound the pod; empty where it found no node."""
    message: str = ""
    """Why the other found none: the text of the pod's ``PodScheduled=False`` condition."""
    best: tuple[str, ...] = ()
    """Our best nodes, sorted; empty where we find none."""
    score: int = 0
    """Their total; 0 where a single feasible node needed none."""
    feasible_nodes: int = 0
    own_message: str = ""
    """Why we find none, where that is not the other's message."""
    agreed: bool = False
    """The other's node is among our best, or its message is ours."""


class PermitAllowed(Record):
    """A Permit plugin that held the pod let it go; once the last one did, binding follows."""

    key: str
    uid: str
    plugin: str


class PermitRejected(Record):
    """A Permit plugin turned a held pod away, or its time was up."""

    key: str
    uid: str
    plugin: str
    message: str


Observation = (
    EngineStarted
    | ProfilesLoaded
    | ObjectObserved
    | ObjectDeleted
    | PodObserved
    | PodUpdated
    | TurnStarted
    | Bound
    | BindFailed
    | EvictionSucceeded
    | EvictionFailed
    | SessionsLoaded
    | PodGroupStatusWritten
    | PodGroupStatusWriteFailed
    | ExtenderAnswer
    | LeadershipGained
    | LeadershipLost
    | ShadowExplained
)
SessionDecision = SessionExecuted | EvictionDecided | PodGroupStatusDecided
Decision = (
    Assigned
    | Rejected
    | AttemptFailed
    | ExtenderCallRequested
    | PermitAllowed
    | PermitRejected
    | SessionDecision
)
AnyRecord = Observation | Decision | ShadowCompared

DECISIONS = (
    Assigned,
    Rejected,
    AttemptFailed,
    ExtenderCallRequested,
    PermitAllowed,
    PermitRejected,
    SessionExecuted,
    EvictionDecided,
    PodGroupStatusDecided,
)
