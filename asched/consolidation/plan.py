"""Plans a consolidation: the domains to free, and the moves in order.

Freeing is whole or nothing: the nodes of a set of domains are cordoned first, then each pod is
moved by the scheduling cycle in order. If one move fails, the set is dropped with all its moves. A
binary search finds how many of the cheapest domains can be freed together, as Karpenter's
multi-node consolidation does. Then each dearer domain is tried in addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import msgspec

from asched.consolidation.candidates import DomainCandidate, candidates_of
from asched.consolidation.trial import MoveTrial
from asched.framework.runtime.profile import PluginLoader
from asched.model.node import Node
from asched.model.quantity import NS_PER_S
from asched.state.checkpoint import checkpoint_of
from asched.state.cluster import ClusterState
from asched.state.consolidation_records import ConsolidationSettings, FreedDomain, PodMove


class ConsolidationError(Exception):
    """Settings that do not fit the cluster. The text is one line for the user."""


class KeptDomain(msgspec.Struct, frozen=True, rename="camel"):
    """A node or domain that cannot be freed."""

    name: str
    reason: str
    cost: float


class ConsolidationPlan(msgspec.Struct, frozen=True, rename="camel"):
    """The plan in its JSON form (``docs/consolidation.md``)."""

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
    state: ClusterState, load: PluginLoader, settings: ConsolidationSettings
) -> ConsolidationPlan:
    """The plan for a state, which is left as it is. The same state and settings give the same plan.

    Raises :class:`ConsolidationError` if no node has the label, or if a domain of the settings does
    not exist.
    """
    settled = MoveTrial(checkpoint_of(state), load)
    placed_first = settled.settle()
    candidates = candidates_of(settled.state, settings)
    _check(settings, candidates)
    search = _Search(checkpoint_of(settled.state), load, settings.trials)
    if settings.domains:
        by_name = {each.name: each for each in candidates}
        candidates = [by_name[name] for name in settings.domains]
        found, kept = search.each_of(candidates)
    else:
        found, kept = search.best_of(candidates, settings.max_domains)
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


class _Found(NamedTuple):
    """A proven set of domains."""

    domains: tuple[DomainCandidate, ...] = ()
    moves: tuple[tuple[PodMove, ...], ...] = ()
    """By domain."""


class _Search:
    """Tries sets of domains, each from the same state."""

    def __init__(self, checkpoint: bytes, load: PluginLoader, trials: int) -> None:
        self._begin = partial(MoveTrial, checkpoint, load)
        self._trials = trials
        self._on_top: tuple[tuple[DomainCandidate, ...], MoveTrial] | None = None
        """The last set that was proved, and its trial."""

    def each_of(self, named: Sequence[DomainCandidate]) -> tuple[_Found, dict[str, str]]:
        """Frees named domains in their order; without the first that fails and those after it."""
        kept: dict[str, str] = {}
        found = _Found()
        for candidate in named:
            tried = candidate.reason or self._prove((*found.domains, candidate))
            if isinstance(tried, str):
                kept = {each.name: tried for each in named[len(found.domains) :]}
                break
            found = tried
        return found, kept

    def best_of(
        self, candidates: Sequence[DomainCandidate], limit: int
    ) -> tuple[_Found, dict[str, str]]:
        """As many of the cheapest as can be freed together, then each of the others."""
        kept = {each.name: each.reason for each in candidates if each.reason}
        free = [each for each in candidates if not each.reason]
        limit = limit or len(free)
        found, reason = self._longest_prefix(free[:limit])
        for candidate in free[len(found.domains) :]:
            if len(found.domains) >= limit:
                kept[candidate.name] = f"the limit of {limit} is reached"
            elif reason:
                kept[candidate.name], reason = reason, ""
            elif isinstance(added := self._added(found, candidate), str):
                kept[candidate.name] = added
            else:
                found = added
        return found, kept

    def _added(self, found: _Found, candidate: DomainCandidate) -> _Found | str:
        """The set with another domain, or why it cannot be added.

        A trial on top of the moves of the set is quick, and excludes most domains. One that passes
        is proved from the beginning: pods that were moved to it need other nodes then.
        """
        if self._trials <= 0:
            return "not tried: the limit of trials is reached"
        if self._on_top is None or self._on_top[0] != found.domains:
            self._prove(found.domains)
        assert self._on_top is not None, "the set was proved before"
        nodes = frozenset(candidate.nodes)
        reason = self._on_top[1].attempt(nodes, nodes | _nodes_of(found.domains))
        if reason:
            return reason
        self._on_top = None
        return self._prove((*found.domains, candidate))

    def _longest_prefix(self, free: Sequence[DomainCandidate]) -> tuple[_Found, str]:
        """The most of the first domains that can be freed together, by binary search; and why the
        next one cannot be added, if that is known."""
        found, known = _Found(), ""
        low, high = 0, len(free)
        while low < high and self._trials > 0:
            middle = (low + high + 1) // 2
            tried = self._prove(tuple(free[:middle]))
            if isinstance(tried, str):
                high = middle - 1
                if middle == low + 1:
                    known = tried
            else:
                low, found, known = middle, tried, ""
        return found, known

    def _prove(self, domains: tuple[DomainCandidate, ...]) -> _Found | str:
        """Cordon the nodes of all domains and move their pods; or why one of them stays."""
        self._trials -= 1
        trial = self._begin()
        freed = _nodes_of(domains)
        trial.cordon(sorted(freed))
        moves: list[tuple[PodMove, ...]] = []
        for domain in domains:
            made: list[PodMove] = []
            for pod in domain.pods:
                moved = trial.move(pod, trial.state.pods[pod.key].node, freed)
                if isinstance(moved, str):
                    return moved
                made.append(moved)
            moves.append(tuple(made))
        self._on_top = domains, trial
        return _Found(domains, tuple(moves))


def _nodes_of(domains: Sequence[DomainCandidate]) -> frozenset[str]:
    return frozenset(name for domain in domains for name in domain.nodes)


def _plan(
    state: ClusterState,
    by: str,
    found: _Found,
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
