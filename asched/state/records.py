"""Record types: the journal is a list of records, and the fold reads nothing else.

*Observations* come from outside; *decisions* are made by asched. Within a turn
:class:`TurnStarted` (the clock) comes first, then observations, then decisions.

The names of a record type and its fields are its stored form. Once released they change only
together with an upcaster (:mod:`asched.journal.codec`).
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, get_args

import msgspec

from asched.framework.cluster import PodRef
from asched.framework.feature_gates import DEFAULT_FEATURE_GATES, FeatureGates
from asched.framework.interface import ReleasedClaim
from asched.framework.runtime.extenders import ExtenderSpec, ExtenderVerb, PreemptionCandidate
from asched.framework.runtime.profile import ProfileSpec
from asched.framework.status import Code
from asched.model.meta import OwnerReference
from asched.model.pod import PodCondition, PodResourceClaimStatus
from asched.model.resources import AnyObject
from asched.state.attempt_budget import NS_PER_STEP
from asched.state.consolidation_records import ConsolidationDecided as ConsolidationDecided
from asched.state.consolidation_records import ConsolidationEnded as ConsolidationEnded
from asched.state.group_records import PodGroupAttempted
from asched.state.session_records import (
    EvictionDecided,
    PodGroupStatusDecided,
    PodGroupStatusWriteFailed,
    PodGroupStatusWritten,
    SessionExecuted,
    SessionsLoaded,
)
from asched.state.stored_form import PodRecord
from asched.state.stored_form import Record as Record

# -- observations -----------------------------------------------------------------------------


class EngineStarted(Record):
    """A daemon opened the journal and will append to it."""

    version: str
    """Version of asched."""
    seed: int
    """Seed of the tie-breaks until the next start."""
    shadow: bool = False
    """Shadow mode: it only compares itself with another scheduler. A journal has one mode."""
    step_ns: int = NS_PER_STEP
    """How long a counted step takes on the machine; what namespaces owe for expensive attempts
    depends on it, and no decision about a node."""


class QueueSettings(msgspec.Struct, frozen=True, gc=False):
    """Timing of the queue; the defaults are kube-scheduler's."""

    initial_backoff_s: float = 1.0
    max_backoff_s: float = 10.0
    unschedulable_timeout_s: float = 300.0
    """A rejected pod that no event requeued is retried after this time."""

    def __post_init__(self) -> None:
        # An int in a field for a float is encoded as an int, and decoded as a float: a state and
        # the one that its records fold to would have different checkpoints.
        for field in self.__struct_fields__:
            msgspec.structs.force_setattr(self, field, float(getattr(self, field)))


class ProfilesLoaded(Record):
    """Replaces the configuration of decisions.

    Pods no longer wait on Permit for plugins that were removed, and lose nominations under profiles
    that were removed.
    """

    profiles: tuple[ProfileSpec, ...]
    queue: QueueSettings = QueueSettings()
    extenders: tuple[ExtenderSpec, ...] = ()
    """In calling order; other records refer to them by position."""
    feature_gates: FeatureGates = DEFAULT_FEATURE_GATES


class ObjectObserved(Record):
    """An object was added or updated; this is its current state."""

    object: AnyObject
    template: int = 0
    """For a pod: the number under which its template is stored; 0 if it is not."""


class ObjectDeleted(Record):
    """An object was deleted, or is missing from a new list."""

    kind: str
    key: str
    uid: str = ""


class ApiVersionServed(Record):
    """The API server serves a resource in this version. Recorded when it differs from the last."""

    kind: str
    """The name of the struct, as in :class:`ObjectDeleted`."""
    api_version: str
    """``group/version``."""


class PodObserved(PodRecord):
    """A pod was added that is a copy of a stored template."""

    template: int
    """See :class:`asched.state.templates.Templates`."""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    """None if equal to the template."""
    owner_references: tuple[OwnerReference, ...] | None = None
    """None if equal to the template."""
    node_name: str = ""
    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()
    nominated_node_name: str = ""
    deletion_timestamp: datetime | None = None
    start_time: datetime | None = None
    annotations: dict[str, str] | None = None
    """Annotations that plugins read; None if equal to the template."""
    claims: tuple[PodResourceClaimStatus, ...] = ()
    """The ResourceClaims generated for the pod."""


class PodUpdated(PodRecord):
    """A pod was updated, but not its template. Far smaller than :class:`ObjectObserved`.

    Every field except ``label_changes`` is the complete current value.
    """

    labels: dict[str, str] | None = None
    """None if unchanged, or if ``label_changes`` are smaller."""
    node_name: str = ""
    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()
    nominated_node_name: str = ""
    deletion_timestamp: datetime | None = None
    start_time: datetime | None = None
    annotations: dict[str, str] | None = None
    """Annotations that plugins read; None if unchanged."""
    claims: tuple[PodResourceClaimStatus, ...] | None = None
    """The ResourceClaims generated for the pod; None if unchanged."""
    label_changes: dict[str, str | None] | None = None
    """New and changed labels, and those that were removed, with None as value."""

    def labels_after(self, before: dict[str, str]) -> dict[str, str]:
        """The labels of the pod that had the labels ``before``."""
        changes = self.label_changes
        if changes is None:
            return before if self.labels is None else self.labels
        labels = {**before, **changes}
        return {name: value for name, value in labels.items() if value is not None}

    @property
    def changes_labels(self) -> bool:
        return self.labels is not None or self.label_changes is not None


class PodQuarantined(PodRecord):
    """The scheduler died twice while it decided on this pod. The pod is not attempted until it
    changes."""


class TurnStarted(Record):
    """Time of a turn: timers that are due fire, and decisions use this time."""

    now_ns: int
    """Nanoseconds; never decreases, and follows a monotonic clock. Since the epoch unless the wall
    clock was set; see :class:`ClockStepped`."""


class ClockStepped(Record):
    """The wall clock was set. No decision depends on it, but dates do."""

    offset_ns: int
    """From now on, the date of a turn is its time plus this."""


class Bound(PodRecord):
    """The API server confirmed our binding, in its response or in a watch event."""

    node: str
    observed: bool = False
    """A watch event shows the binding without other changes of the pod; see
    :mod:`asched.state.observe`."""
    topology_labels: bool = False
    """The API server added the node's topology labels to the pod."""


class BindFailed(PodRecord):
    """The binding cycle ended without a binding; the pod's node is released."""

    node: str
    code: Code
    plugin: str = ""
    message: str = ""


class EvictionSucceeded(PodRecord):
    """The API server accepted the deletion of a victim, or the victim did not exist."""

    unplaced: bool = False
    """The victim is on no node by now: its binding failed, or it was rejected at Permit. No other
    record will show a released node, so this one activates the preemptor."""


class EvictionFailed(PodRecord):
    message: str = ""


class ClaimReleaseEnded(PodRecord):
    """A claim that a rejection released was written, or could not be."""

    claim_uid: str
    message: str = ""
    """Why it was not written; empty if it was."""


class ExtenderFailedNodes(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Nodes that an extender rejected with the same message."""

    message: str
    nodes: bytes
    """A bit for each node of the request, in order."""
    unresolvable: bool = False
    """Preemption would not help on these nodes."""


class ExtenderFiltered(PodRecord):
    """Response of an extender to a filter request.

    An extender is an HTTP extender or an external plugin.
    """

    attempt: int
    extender: int
    passed: bytes
    """A bit for each node of the request, in order."""
    failed_nodes: tuple[ExtenderFailedNodes, ...] = ()
    verb_answered: ClassVar[ExtenderVerb] = ExtenderVerb.FILTER


class ExtenderPrioritized(PodRecord):
    """Response of an extender to a prioritize request."""

    attempt: int
    extender: int
    scores: tuple[int, ...]
    """In the order of the nodes; 0 for a node that is missing in the response. 0 to 10 for an
    extender, 0 to 100 for a plugin."""
    verb_answered: ClassVar[ExtenderVerb] = ExtenderVerb.PRIORITIZE


class ExtenderPreemptionProcessed(PodRecord):
    """Response of an extender to a preemption request: the remaining candidates and their
    victims."""

    attempt: int
    extender: int
    candidates: tuple[PreemptionCandidate, ...] = ()
    verb_answered: ClassVar[ExtenderVerb] = ExtenderVerb.PREEMPT


class ExtenderCallFailed(PodRecord):
    """A call of an extender failed, or its response was invalid."""

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
    """Why another scheduler may have decided differently on what it had observed."""

    ASSUMED_POD = "assumed-pod"
    """It had placed other pods, with bindings that were observed later."""
    NOMINATED_POD = "nominated-pod"
    """It had nominated a pod, or cleared a nomination."""
    UNSEEN_CHANGE = "unseen-change"
    """It had not observed a change of a node, pod or other object yet."""
    LATER_CHANGE = "later-change"
    """It had observed a change that reached asched later."""
    IMAGE_SIZE = "image-size"
    """Nodes report different sizes of the pod's image, and it used another node's."""
    SAMPLED_NODES = "sampled-nodes"
    """It evaluates only a share of the nodes."""
    UNEXPLAINED = "unexplained"


class LeadershipGained(Record):
    epoch: int


class LeadershipLost(Record):
    epoch: int


class ShadowExplained(PodRecord):
    """The probable cause of the disagreement in :class:`ShadowCompared` ``number``."""

    number: int
    cause: DisagreementCause
    detail: str = ""


# -- decisions --------------------------------------------------------------------------------


class PermitWait(msgspec.Struct, frozen=True, gc=False):
    """A Permit plugin that returned Wait, and its deadline."""

    plugin: str
    deadline_ns: int


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """What a Reserve plugin reserved; a replay passes it to the plugin again."""

    plugin: str
    value: dict[str, Any]


class Assigned(PodRecord):
    """The pod is assumed on this node; its binding follows, after Permit."""

    node: str
    attempt: int
    feasible_nodes: int
    score: int = 0
    """The node's total score; 0 if it was the only feasible node."""
    ties: int = 1
    """The number of nodes with the best score."""
    evaluated_nodes: int = 0
    """Number of nodes evaluated when percentageOfNodesToScore limits the search; 0 if all were."""
    permit_waits: tuple[PermitWait, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    activate: tuple[str, ...] = ()
    """Keys of pods to move to the active queue (``PodsToActivate``)."""
    session: int = 0
    """The number of the deciding batch session (equal to ``attempt``); 0 for none."""
    grouped: bool = False
    """Decided in a group cycle, together with the other members of its group."""
    long_search: int = 0
    """The steps of the longest search for devices on a node; 0 if all were short."""


class Rejected(PodRecord):
    """The pod is unschedulable and waits until something changes."""

    attempt: int
    message: str
    """The text of the pod's ``PodScheduled=False`` condition."""
    unschedulable_plugins: tuple[str, ...] = ()
    """The plugins that rejected it, sorted; their events requeue the pod."""
    pending_plugins: tuple[str, ...] = ()
    nominated_node: str | None = None
    """The node of the preemption; empty clears a nomination, None keeps it."""
    victims: tuple[PodRef, ...] = ()
    evaluated_nodes: int = 0
    """Number of nodes evaluated when percentageOfNodesToScore limits the search; 0 if all were."""
    cleared_nominations: tuple[PodRef, ...] = ()
    """Pending pods of lower priority that lose their nomination to that node."""
    requeue_now: bool = False
    """Pods waiting on Permit release nodes for it, so it is active again immediately."""
    open_circuit: str = ""
    """The plugin with an open circuit that prevented the attempt; empty for none."""
    put_off_until_ns: int = 0
    """The pod was not attempted: its namespace used up its budget. It has its turn at this time."""
    session: int = 0
    """The number of the deciding batch session (equal to ``attempt``); 0 for none."""
    released_claim: ReleasedClaim | None = None
    """A ResourceClaim that is deallocated or deleted for the pod."""
    grouped: bool = False
    """As :attr:`Assigned.grouped`."""
    long_search: int = 0
    """As :attr:`Assigned.long_search`."""
    search_steps: int = 0
    """The counted steps of a search for victims that took long; 0 for others."""


class AttemptFailed(PodRecord):
    """The attempt ended in an error: a plugin raised or returned Error. The pod backs off."""

    attempt: int
    plugin: str
    """The plugin that failed; empty if an object causes it, such as a selector of a claim."""
    message: str
    grouped: bool = False
    """As :attr:`Assigned.grouped`."""
    long_search: int = 0
    """As :attr:`Assigned.long_search`."""


class ExtenderCallRequested(PodRecord):
    """The attempt is paused until these evaluators answer; the pod is in flight."""

    attempt: int
    verb: ExtenderVerb
    extenders: tuple[int, ...]
    """Positions in :attr:`ProfilesLoaded.extenders`, followed by the external plugins of each
    profile. All are called at the same time."""
    nodes: bytes = b""
    """A bit for each row of the node table."""
    candidates: tuple[PreemptionCandidate, ...] = ()
    """For verb PREEMPT."""
    evaluated_nodes: int = 0
    """Number of nodes evaluated when percentageOfNodesToScore limits the search; 0 if all were."""


class ShadowCompared(PodRecord):
    """Shadow mode: a decision of another scheduler, and ours on the state before this record.

    The state does not depend on it.
    """

    number: int
    """Counted from the start of the daemon."""
    node: str = ""
    """The node of the other scheduler's binding; empty if it found none."""
    message: str = ""
    """The other scheduler's ``PodScheduled=False`` message, if it found no node."""
    best: tuple[str, ...] = ()
    """Our best nodes, sorted; empty if there are none."""
    score: int = 0
    """Their total score; 0 for a single feasible node."""
    feasible_nodes: int = 0
    own_message: str = ""
    """Our message, if it differs from the other scheduler's."""
    agreed: bool = False
    """The other scheduler's node is among our best, or the messages are equal."""


class PermitAllowed(PodRecord):
    """A Permit plugin allowed a waiting pod; after the last one the binding follows."""

    plugin: str


class PermitRejected(PodRecord):
    """A plugin rejected a pod that waits on Permit, or the wait timed out."""

    plugin: str
    message: str


Observation = (
    EngineStarted
    | ProfilesLoaded
    | ApiVersionServed
    | ObjectObserved
    | ObjectDeleted
    | PodObserved
    | PodUpdated
    | PodQuarantined
    | TurnStarted
    | Bound
    | BindFailed
    | EvictionSucceeded
    | EvictionFailed
    | ClaimReleaseEnded
    | SessionsLoaded
    | PodGroupStatusWritten
    | PodGroupStatusWriteFailed
    | ExtenderAnswer
    | LeadershipGained
    | LeadershipLost
    | ShadowExplained
    | ClockStepped
    | ConsolidationEnded
)
SessionDecision = SessionExecuted | EvictionDecided | PodGroupStatusDecided
Decision = (
    Assigned
    | Rejected
    | AttemptFailed
    | ExtenderCallRequested
    | PermitAllowed
    | PermitRejected
    | PodGroupAttempted
    | SessionDecision
)
AnyRecord = Observation | Decision | ShadowCompared | ConsolidationDecided

DECISIONS: tuple[type[Record], ...] = get_args(Decision)
