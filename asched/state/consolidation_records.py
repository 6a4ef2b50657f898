"""Record types of consolidation, a part of :mod:`asched.state.records`.

They are in the journal of ``asched consolidate --apply``, between the observations of the cluster.
"""

from __future__ import annotations

import msgspec

from asched.state.stored_form import Record


class ConsolidationSettings(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a plan is made for. Facts that the cluster state does not hold are settings."""

    by: str = ""
    """A node label: nodes with the same value are freed together. Empty: node by node."""
    selector: dict[str, str] = {}
    """Labels of the nodes that may be freed; empty for all nodes."""
    domains: tuple[str, ...] = ()
    """Frees these nodes, or values of the label, in this order. Empty: searches."""
    max_domains: int = 0
    """Frees at most so many; 0 for no limit."""
    trials: int = 200
    """How many sets of domains are tried at most."""
    unmovable_pods: dict[str, str] = {}
    """Why pods must not be evicted, by uid, from fields that scheduling does not read."""
    unmovable_nodes: dict[str, str] = {}
    """Why nodes must not be freed, by name."""
    deletion_costs: dict[str, int] = {}
    """``controller.kubernetes.io/pod-deletion-cost``, by uid."""
    prices: dict[str, float] = {}
    """Price of each node per hour, by name; empty if prices are unknown."""


class PodMove(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A pod is evicted, and its replacement is scheduled."""

    pod: str
    """``namespace/name``."""
    uid: str
    node: str
    """From here."""
    target: str
    """Where the scheduling cycle places the replacement."""


class FreedDomain(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A node, or the nodes with one value of a label, without movable pods after its moves."""

    name: str
    nodes: tuple[str, ...]
    moves: tuple[PodMove, ...]
    """In order."""
    cost: float
    """Sum of the eviction costs of its pods."""
    price_per_hour: float = 0.0
    """Of its nodes; 0 if unknown."""


class ConsolidationDecided(Record):
    """Domains are going to be freed. The plan follows from the state before this record."""

    settings: ConsolidationSettings
    freed: tuple[FreedDomain, ...]


class ConsolidationEnded(Record):
    """The moves of a domain are over."""

    domain: str
    evicted: int
    """Pods that were evicted."""
    deviation: str = ""
    """What differed from the plan; empty if the domain is free."""
