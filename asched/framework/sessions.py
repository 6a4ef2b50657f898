"""Specification and outcome of batch sessions, as recorded in the journal.

A session runs once per period on a snapshot of the cluster: it opens, its actions run in order, it
closes. Configuration and terms are those of kube-batch.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Compatibility(StrEnum):
    NONE = "none"
    """kube-batch with corrections (``docs/reference/batch-corrections.md``)."""
    KUBE_BATCH = "kube-batch"
    """Exactly as kube-batch."""


class Callback(StrEnum):
    """A callback of session plugins. The value is the configuration flag that disables it."""

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
    name: str
    disabled: tuple[Callback, ...] = ()
    arguments: dict[str, str] = {}


Tier = tuple[PluginOption, ...]


class SessionSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The specification of a profile with batch sessions, with defaults applied."""

    scheduler_name: str
    actions: tuple[str, ...]
    """In running order."""
    tiers: tuple[Tier, ...]
    default_queue: str = "default"
    """The queue of PodGroups without one, and of pods without a PodGroup."""
    compatibility: Compatibility = Compatibility.NONE
    period_s: float = 1.0
    """From the start of one session to the start of the next."""


class EvictionReason(StrEnum):
    PREEMPT = "preempt"
    RECLAIM = "reclaim"


class SessionBind(msgspec.Struct, frozen=True, gc=False):
    pod: str
    """``namespace/name``."""
    uid: str
    node: str


class SessionEviction(msgspec.Struct, frozen=True, gc=False):
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
    """A condition to be written to a PodGroup."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    transition_id: str = ""
    """The session that set it: see :func:`session_id`."""


class PodGroupOutcome(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The complete status of a PodGroup after a session. Shadow groups have none."""

    group: str
    phase: PodGroupPhase
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[SessionPodGroupCondition, ...] = ()
    native: bool = False
    """True for ``scheduling.k8s.io``, False for a custom resource."""


class UnschedulablePod(msgspec.Struct, frozen=True, gc=False):
    """A pod that gets the condition PodScheduled=False with reason Unschedulable."""

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
    action: str
    tasks: int = 0
    """Tasks that it tried to schedule."""
    allocated: int = 0
    pipelined: int = 0
    bound: int = 0
    evicted: int = 0
    discarded: int = 0
    """Operations that were rolled back."""


class PluginCounts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How often a plugin was called and how often it rejected, by callback."""

    plugin: str
    calls: dict[str, int] = {}
    rejections: dict[str, int] = {}


class IgnoredJob(msgspec.Struct, frozen=True, gc=False):
    job: str
    reason: str


class SessionOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    number: int
    binds: tuple[SessionBind, ...] = ()
    """In order of decision."""
    evictions: tuple[SessionEviction, ...] = ()
    pipelined: tuple[SessionBind, ...] = ()
    """Pods that wait for resources that are being released; not bound yet."""
    groups: tuple[PodGroupOutcome, ...] = ()
    unschedulable: tuple[UnschedulablePod, ...] = ()
    events: tuple[SessionEvent, ...] = ()
    ignored_jobs: tuple[IgnoredJob, ...] = ()
    actions: tuple[ActionCounts, ...] = ()
    plugins: tuple[PluginCounts, ...] = ()


def session_id(scheduler_name: str, number: int) -> str:
    """The transition id of conditions that the session sets."""
    return f"{scheduler_name}-{number}"
