"""The answer of ``asched fit``, which is also its JSON form (see ``docs/how-to/fit.md``)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from asched.audit.explanation import Explanation
from asched.audit.pod_group.forms import PodGroupExplanation

MAX_BEST: Final = 10
"""Best nodes that are named."""


class NodeCopies(msgspec.Struct, frozen=True, rename="camel"):
    """How many pods a node gets."""

    node: str
    pods: int


class FitVictim(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that would be evicted."""

    namespace: str
    name: str
    priority: int
    node: str
    preemptor: str
    """``namespace/name`` of the pod for which it is evicted."""


class WorkloadFit(msgspec.Struct, frozen=True, rename="camel"):
    """The pods of one object of the manifest."""

    object: str
    """Such as ``Deployment default/web``."""
    pods: int
    placed: int
    """How many of them get a node, after evictions if necessary."""
    evicting: int
    """How many of those only after evictions."""
    nodes: tuple[NodeCopies, ...]
    """Sorted by name."""
    message: str = ""
    """Why the first pod that gets none does not."""


class FitChange(msgspec.Struct, frozen=True, rename="camel"):
    """A change after which more pods of the manifest run."""

    summary: str
    node: str = ""
    """The node that changes, or is the model of new ones; empty if it concerns no node."""
    runs: str = "next"
    """``all``: all pods run then. ``group``: the PodGroup is admitted. ``next``: the first pod
    without a node passes all filters."""
    nodes: int = 0
    """Number of nodes like ``node`` that are added."""


class FitCosts(msgspec.Struct, frozen=True, rename="camel"):
    """Costs in the currency of the prices."""

    pods_per_hour: float
    """What the pods with a node account for, of the prices of their nodes."""
    waits_per_hour: float
    """What an hour costs in which the others wait."""
    change_per_hour: float | None = None
    """The price of the added nodes, if the smallest change adds some."""
    waits_at_most: float | None = None
    """The cost of the others' waits until the estimated median start of the last pod. None without
    an estimate, and if that start is after the horizon."""
    currency: str = ""


class StartEstimate(msgspec.Struct, frozen=True, rename="camel"):
    """When all pods of the manifest run, by simulation with sampled lifetimes of running pods."""

    samples: int
    started: int
    """Samples in which all pods started before the horizon."""
    horizon_s: float
    median_s: float | None
    """Half of the samples started until then, in seconds from the state's time. None: after the
    horizon."""
    low_s: float | None
    """A tenth of the samples started until then."""
    high_s: float | None
    """Nine tenths did."""
    arrivals: bool
    """Whether new pods arrive in the simulation as they did before."""
    seed: int
    notes: tuple[str, ...] = ()


class FitAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Whether the pods of a manifest would run."""

    seq: int
    """The record after which the objects would be observed; 0 for the state of a cluster."""
    at: datetime
    fits: bool
    """Whether every pod gets a node, after evictions if necessary."""
    sentence: str
    nodes: tuple[str, ...]
    """The best nodes for the first pod; any of them may be chosen. At most :data:`MAX_BEST`; empty
    if it fits only after evictions, or not at all."""
    workloads: tuple[WorkloadFit, ...]
    victims: tuple[FitVictim, ...]
    change: FitChange | None
    """The smallest verified change that helps; None if all pods run, or if none was found."""
    notes: tuple[str, ...]
    explanation: Explanation
    """As ``asched explain -o json`` for a pod without attempts: the first pod without a node, or
    the first pod."""
    groups: tuple[PodGroupExplanation, ...] = ()
    """The PodGroups of the pods without a node."""
    estimate: StartEstimate | None = None
    """None if all pods run now, or if none was asked for."""
    costs: FitCosts | None = None
    """None without prices."""
