"""What the explanation of an attempt contains, which is also its JSON form."""

from __future__ import annotations

from datetime import datetime

import msgspec

from asched.audit.devices import DeviceRequestExplanation
from asched.audit.pod_group.forms import PodGroupExplanation
from asched.audit.preemption import PreemptionExplanation
from asched.audit.unblock import NodeUnblocking
from asched.pricing.alternatives import DecisionCosts


class NodeRejection(msgspec.Struct, frozen=True, rename="camel"):
    """A plugin's rejection of a node."""

    plugin: str
    code: str
    reasons: tuple[str, ...]


class NodeScore(msgspec.Struct, frozen=True, rename="camel"):
    plugin: str
    raw: int
    normalized: int
    weight: int
    weighted: int


class NodeExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """Filter and score results of one node."""

    name: str
    feasible: bool
    rejected_by: tuple[NodeRejection, ...] = ()
    """Every plugin that rejects the node, the decisive one first."""
    scores: tuple[NodeScore, ...] = ()
    total: int | None = None
    rank: int | None = None
    """By total, from 1; equal totals share a rank."""
    requests: tuple[DeviceRequestExplanation, ...] = ()
    """What the requests of the pod's claims find, if DynamicResources rejects the node."""
    device_problems: tuple[str, ...] = ()
    """Pools that cannot be used, and errors in claims."""


class ReasonCount(msgspec.Struct, frozen=True, rename="camel"):
    """A decisive reason and its number of nodes."""

    nodes: int
    plugin: str
    reason: str


class RecordedDecision(msgspec.Struct, frozen=True, rename="camel"):
    """The decision that ended the attempt."""

    kind: str
    """``assigned``, ``rejected`` or ``failed``; ``none`` for a pod without attempts."""
    seq: int = 0
    at: datetime | None = None
    attempt: int = 0
    node: str = ""
    score: int = 0
    feasible: int = 0
    ties: int = 0
    message: str = ""
    devices: tuple[str, ...] = ()
    """The devices that the pod got: ``claim/request: driver/pool/device``."""
    released_claim: str = ""
    """The ResourceClaim that is deallocated or deleted for the pod."""


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """The explanation of one attempt, which is also its JSON form (``docs/how-to/explain.md``)."""

    namespace: str
    name: str
    uid: str
    profile: str
    attempts: tuple[int, ...]
    """The numbers of all attempts for this pod."""
    decision: RecordedDecision
    reproduced: bool | None
    """Whether the recomputed decision equals the recorded one. None if none is recorded."""
    outcome: str
    message: str
    nodes_total: int
    feasible: int
    pre_filter: tuple[NodeRejection, ...]
    """Rejections of the pod before the filters ran, by PreFilter or an earlier step."""
    only_nodes: tuple[str, ...] | None
    """The nodes that PreFilter allows; None for all."""
    skipped_filters: tuple[str, ...]
    skipped_scores: tuple[str, ...]
    reasons: tuple[ReasonCount, ...]
    """Most frequent first."""
    nodes: tuple[NodeExplanation, ...]
    """Feasible nodes by rank, then the others by the number of plugins that reject them."""
    notes: tuple[str, ...] = ()
    unblocking: tuple[NodeUnblocking, ...] | None = None
    """For a pod without a feasible node: the changes that would help. None if not computed."""
    preemption: PreemptionExplanation | None = None
    """For an attempt that nominated a node by preemption."""
    group: PodGroupExplanation | None = None
    """For a pod without a node in a PodGroup: the reason of the group, without changes."""
    costs: DecisionCosts | None = None
    """The price of the chosen node, or of the best one without attempts, and of alternatives. None
    without prices or without such a node."""
