"""Plans a consolidation: the domains to free, and the moves in order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from asched.consolidation.candidates import DomainCandidate, candidates_of
from asched.consolidation.search import FreedDomainSearch, ProgressListener, ProvedSet
from asched.consolidation.trial import MoveTrial
from asched.framework.runtime.profile import PluginLoader
from asched.model.node import Node
from asched.model.quantity import NS_PER_S
from asched.state.checkpoint import checkpoint_of
from asched.state.cluster import ClusterState
from asched.state.consolidation_records import ConsolidationSettings, FreedDomain


class ConsolidationError(Exception):
    """Settings that do not fit the cluster. The text is one line for the user."""


class KeptDomain(msgspec.Struct, frozen=True, rename="camel"):
    """A node or domain that cannot be freed."""

    name: str
    reason: str
    cost: float


class ConsolidationPlan(msgspec.Struct, frozen=True, rename="camel"):
    """The plan in its JSON form (``docs/how-to/consolidation.md``)."""

    at: datetime
    by: str
    nodes: int
    """Number of nodes in the cluster."""
    freed: tuple[FreedDomain, ...]
    """In order: the nodes of all of them are cordoned before the first move."""
    kept: tuple[KeptDomain, ...]
    placed_first: int
    """Pending pods that get a node before the first move."""
    evictions: int
    cost: float
    """Sum of the costs of the freed domains."""
    cost_per_node: float
    """By freed node; 0 if none is freed."""
    price_per_hour: float
    """Of the freed nodes with a known price."""


def plan_consolidation(
    state: ClusterState,
    load: PluginLoader,
    settings: ConsolidationSettings,
    progress: ProgressListener | None = None,
) -> ConsolidationPlan:
    """The plan for a state, which is left as it is. The same state and settings give the same plan.

    ``progress`` is called for each domain that is tried.

    Raises :class:`ConsolidationError` if no node has the label, or if a domain of the settings does
    not exist.
    """
    settled = MoveTrial(checkpoint_of(state), load)
    placed_first = settled.settle()
    candidates = candidates_of(settled.state, settings)
    _check(settings, candidates)
    search = FreedDomainSearch(checkpoint_of(settled.state), load, settings.trials, progress)
    if settings.domains:
        by_name = {each.name: each for each in candidates}
        candidates = [by_name[name] for name in settings.domains]
        found, kept = search.each_of(candidates)
    else:
        found, kept = search.best_of(settled.state, candidates, settings.max_domains)
    reasons = tuple(
        KeptDomain(each.name, kept[each.name], each.cost)
        for each in candidates
        if each.name in kept
    )
    return _plan(state, settings.by, found, reasons, placed_first)


def _check(settings: ConsolidationSettings, candidates: Sequence[DomainCandidate]) -> None:
    if not candidates:
        of = f" has label {settings.by}" if settings.by else " exists"
        chosen = ",".join(f"{key}={value}" for key, value in settings.selector.items())
        raise ConsolidationError(f"no node{f' with {chosen}' if chosen else ''}{of}")
    known = {each.name for each in candidates}
    for name in settings.domains:
        if name not in known:
            what = f"value {name} of label {settings.by}" if settings.by else f"node {name}"
            raise ConsolidationError(f"{what} is not in the cluster")


def _plan(
    state: ClusterState,
    by: str,
    found: ProvedSet,
    kept: tuple[KeptDomain, ...],
    placed_first: int,
) -> ConsolidationPlan:
    freed = tuple(
        FreedDomain(domain.name, domain.nodes, moves, domain.cost, domain.price_per_hour)
        for domain, moves in zip(found.domains, found.moves, strict=True)
    )
    cost = round(sum(domain.cost for domain in freed), 6)
    nodes = sum(len(domain.nodes) for domain in freed)
    return ConsolidationPlan(
        at=datetime.fromtimestamp(state.date_ns / NS_PER_S, UTC),
        by=by,
        nodes=len(state.objects(Node)),
        freed=freed,
        kept=kept,
        placed_first=placed_first,
        evictions=sum(len(domain.moves) for domain in freed),
        cost=cost,
        cost_per_node=round(cost / nodes, 6) if nodes else 0.0,
        price_per_hour=round(sum(domain.price_per_hour for domain in freed), 6),
    )
