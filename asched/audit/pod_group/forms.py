"""The explanation of a pod group, which is also its JSON form (see ``docs/how-to/explain.md``)."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

import msgspec

from asched.audit.explain_job import JobExplanation
from asched.state.group_records import GroupOutcome


class GroupReasonKind(Enum):
    """The dominant reason of a group."""

    RUNS = "runs"
    """Enough members have a node, and none waits for one."""
    FITS = "fits"
    """It fits now and waits for its next attempt."""
    PREEMPTS = "preempts"
    """It fits once victims are gone."""
    NO_POD_GROUP = "noPodGroup"
    NO_PODS = "noPods"
    MISSING_MEMBERS = "missingMembers"
    """Fewer pods exist than it needs."""
    GATED = "gated"
    """Scheduling gates or PreEnqueue plugins hold members back."""
    SCHEDULER_NAMES = "schedulerNames"
    """No profile schedules the members, or several do."""
    BATCH_SESSION = "batchSession"
    """The reason of the job's last batch session."""
    DOMAIN_LABEL = "domainLabel"
    """No node has the label of the topology domain."""
    DOMAIN = "domain"
    """The domain of running members cannot be determined."""
    RESOURCES = "resources"
    DEVICES = "devices"
    TAINTS = "taints"
    CORDONED = "cordoned"
    NODE_AFFINITY = "nodeAffinity"
    POD_AFFINITY = "podAffinity"
    SPREAD = "spread"
    PORTS = "ports"
    VOLUMES = "volumes"
    LIMITS = "limits"
    """Members are above a limit or quarantined, or their namespace used up its budget."""
    PLUGIN = "plugin"
    """Another plugin."""
    NO_NODES = "noNodes"
    ERROR = "error"


class RejectedNodes(msgspec.Struct, frozen=True, rename="camel"):
    """Why a member does not fit on some nodes of a domain."""

    nodes: int
    plugin: str
    reason: str


class DomainShortage(msgspec.Struct, frozen=True, rename="camel"):
    """Domains that lack the same."""

    domains: int
    names: tuple[str, ...]
    """Some of them; empty for a group without topology constraint."""
    nodes: int
    """The nodes of all of them."""
    fits: int
    """How many pending members fit in one of them."""
    lacks: str
    """In words."""
    short: dict[str, int] = {}
    """The missing amounts; cpu in millicores."""
    rejections: tuple[RejectedNodes, ...] = ()
    """Of the first domain, for the first member that does not fit with those that do."""


class GroupChangeKind(Enum):
    """What a change does, in the order of preference among equally small ones."""

    UNGATE = "ungate"
    ADD_PODS = "addPods"
    UNCORDON = "uncordon"
    REMOVE_TAINT = "removeTaint"
    LABEL_NODES = "labelNodes"
    POD_CONSTRAINT = "podConstraint"
    """The members lose a constraint of their own."""
    LOWER_MINIMUM = "lowerMinimum"
    ADD_NODES = "addNodes"
    RAISE_PRIORITY = "raisePriority"
    EVICT_GROUP = "evictGroup"
    """All pods of another group are evicted or finish."""
    EVICT_PODS = "evictPods"


class GroupChange(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A change after which the group is admitted."""

    kind: GroupChangeKind
    summary: str
    size: int
    """How many objects change."""
    domain: str = ""
    nodes: tuple[str, ...] = ()
    """The nodes that change, or the model of those to add."""
    pods: tuple[str, ...] = ()
    """``namespace/name`` of the pods to evict, at most 20."""
    group: str = ""
    """``namespace/name`` of the group to evict."""
    count: int = 0
    """How many nodes or pods to add, or pods to evict."""
    key: str = ""
    """Of the taint, label or gate."""
    value: str | None = None
    effect: str = ""
    minimum: int | None = None
    priority: int | None = None
    violates_budgets: int = 0
    """How many of the evicted pods a PodDisruptionBudget protects."""


class RecordedGroupAttempt(msgspec.Struct, frozen=True, rename="camel"):
    """A recorded attempt to schedule the group as a whole."""

    seq: int
    at: datetime
    outcome: GroupOutcome
    members: int
    """The pending members that were tried."""
    placed: int
    """Those that found a node."""
    domain: str = ""
    domains_tried: int = 0
    message: str = ""
    victims: tuple[str, ...] = ()


class PodGroupExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """Why a group runs or does not run."""

    namespace: str
    name: str
    seq: int
    """The answer holds after this record."""
    at: datetime
    reason: GroupReasonKind
    sentence: str
    """The dominant reason."""
    uid: str = ""
    kind: str = ""
    """The type name of the PodGroup; several API groups have one."""
    mode: str = ""
    """``groupCycle``, ``podByPod`` or ``batchSession``."""
    scheduler_name: str = ""
    minimum: int = 0
    priority: int = 0
    topology_key: str = ""
    pods: int = 0
    with_node: int = 0
    pending: int = 0
    gated: int = 0
    """Pending members that PreEnqueue holds back."""
    missing: int = 0
    """How many more members need a node."""
    domains_tried: int = 0
    domains: tuple[DomainShortage, ...] = ()
    """The domain in which most members fit comes first."""
    changes: tuple[GroupChange, ...] | None = None
    """Each of them alone admits the group; the smallest first. None if not searched."""
    attempt: RecordedGroupAttempt | None = None
    """The last recorded attempt of the whole group."""
    reproduced: bool | None = None
    """Whether the recomputed attempt equals the recorded one. None if not recomputed."""
    job: JobExplanation | None = None
    notes: tuple[str, ...] = ()
