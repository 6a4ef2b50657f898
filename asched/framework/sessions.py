"""Batch sessions as the journal keeps them: what a session is asked to do, and what came of it.

A session is held every period on the state as it then is: it opens, its actions run in order, it
closes. Configuration and words are those of kube-batch.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Compatibility(StrEnum):
    """Whose behaviour a session has."""

    NONE = "none"
    """asched's own: kube-batch's, with corrected what hurts its users (``docs/batch-corrections.md``)."""
    KUBE_BATCH = "kube-batch"
    """Exactly what kube-batch does, oddities included."""


class Callback(StrEnum):
    """What a session plugin may take part in. The value is the flag that switches it off."""

    JOB_ORDER = "enableJobOrder"
    JOB_READY = "enableJobReady"
    JOB_PIPELINED = "enableJobPipelined"
    TASK_ORDER = "enableTaskOrder"
    PREEMPTABLE = "enablePreemptable"
    RECLAIMABLE = "enableReclaimable"
    QUEUE_ORDER = "enableQueueOrder"
    PREDICATE = "enablePredicate"
    NODE_ORDER = "enableNodeOrder"


class PluginOption(msgspec.Struct, frozen=True, omit_defaults=True):
    """One plugin's place in a tier."""

    name: str
    disabled: tuple[Callback, ...] = ()
    """The callbacks that are switched off at this place."""
    arguments: dict[str, str] = {}


Tier = tuple[PluginOption, ...]


class SessionSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a profile that is served by sessions does, names resolved, defaults filled in."""

    scheduler_name: str
    actions: tuple[str, ...]
    """In the order in which they run."""
    tiers: tuple[Tier, ...]
    default_queue: str = "default"
    """The queue of PodGroups that name none and of pods without a PodGroup."""
    compatibility: Compatibility = Compatibility.NONE
    period_s: float = 1.0
    """From the start of one session to the start of the next."""


# -- what a session came to -------------------------------------------------------------------


class EvictionReason(StrEnum):
    """The action that wants a pod gone."""

    PREEMPT = "preempt"
    RECLAIM = "reclaim"


class SessionBind(msgspec.Struct, frozen=True, gc=False):
    """A pod that is to be bound."""

    pod: str
    """``namespace/name``, as everywhere in a session's records."""
    uid: str
    node: str


class SessionEviction(msgspec.Struct, frozen=True, gc=False):
    """A pod that is to be evicted, and the pending pod that gets its room."""

    pod: str
    uid: str
    node: str
    reason: EvictionReason
    preemptor: str
    preemptor_uid: str


class PodGroupPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    UNKNOWN = "Unknown"


class SessionPodGroupCondition(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A condition of a PodGroup as it is to be written."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    transition_id: str = ""
    """The session that set it: see :func:`session_id`."""


class PodGroupOutcome(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The whole status of a PodGroup after a session. Shadow groups have none."""

    group: str
    phase: PodGroupPhase
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[SessionPodGroupCondition, ...] = ()
    native: bool = False
    """It is Kubernetes' own PodGroup, not a custom resource."""


class UnschedulablePod(msgspec.Struct, frozen=True, gc=False):
    """A pod whose condition PodScheduled becomes False, reason Unschedulable."""

    pod: str
    uid: str
    message: str


class SessionEventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class SessionEvent(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An Event to be posted about a pod or a PodGroup."""

    kind: str
    """``Pod`` or ``PodGroup``."""
    key: str
    type: SessionEventType
    reason: str
    message: str
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.key} {self.type} {self.reason}: {self.message}"


class ActionCounts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What one action of a session did, in numbers."""

    action: str
    tasks: int = 0
    """Tasks that it tried to place."""
    allocated: int = 0
    pipelined: int = 0
    bound: int = 0
    evicted: int = 0
    discarded: int = 0
    """Operations that were undone."""


class PluginCounts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How often one plugin was asked, by callback, and how often it decided against."""

    plugin: str
    calls: dict[str, int] = {}
    refusals: dict[str, int] = {}


class IgnoredJob(msgspec.Struct, frozen=True, gc=False):
    """A job that did not enter the session."""

    job: str
    reason: str


class SessionOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that follows from a session, as data."""

    number: int
    binds: tuple[SessionBind, ...] = ()
    """In the order in which they were decided."""
    evictions: tuple[SessionEviction, ...] = ()
    pipelined: tuple[SessionBind, ...] = ()
    """Pods that wait on a node for room that is being released. Not to be bound."""
    groups: tuple[PodGroupOutcome, ...] = ()
    unschedulable: tuple[UnschedulablePod, ...] = ()
    events: tuple[SessionEvent, ...] = ()
    ignored_jobs: tuple[IgnoredJob, ...] = ()
    actions: tuple[ActionCounts, ...] = ()
    plugins: tuple[PluginCounts, ...] = ()


def session_id(scheduler_name: str, number: int) -> str:
    """The transition id of the conditions that a session sets."""
    return f"{scheduler_name}-{number}"
