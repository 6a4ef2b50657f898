"""Searches the domains that can be freed together.

Freeing is whole or nothing. A *pass* cordons the nodes of a set of domains and moves their pods in
order; a domain with a pod that finds no node is undone, becomes a target for those after it, and
leaves the set. A set is proved by a pass from the beginning in which no domain fails, so its moves
are possible in their order.

The first set has as many of the cheapest domains as other nodes have free amounts for: not one of
the cheapest in addition can be freed. Then each dearer domain is tried on top of the moves of
the proved set, and those that pass are proved together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from asched.consolidation.candidates import DomainCandidate
from asched.consolidation.trial import MoveTrial
from asched.framework.runtime.profile import PluginLoader
from asched.model.requests import CPU, MEMORY
from asched.state.cluster import ClusterState
from asched.state.consolidation_records import PodMove


class SearchProgress(NamedTuple):
    """How far one step of the search is."""

    step: int
    """From 1. The number of steps is not known before."""
    done: int
    domains: int
    """Domains of this step."""


ProgressListener = Callable[[SearchProgress], None]


class ProvedSet(NamedTuple):
    """Domains that can be freed together."""

    domains: tuple[DomainCandidate, ...] = ()
    moves: tuple[tuple[PodMove, ...], ...] = ()
    """By domain."""


class _Pass(NamedTuple):
    """What one pass over a set found."""

    succeeded: ProvedSet
    failed: dict[str, str]
    """By domain, why it is not free. The set is proved if this is empty."""
    trial: MoveTrial


class FreedDomainSearch:
    """Tries sets of domains, each from the same state."""

    def __init__(
        self,
        checkpoint: bytes,
        load: PluginLoader,
        trials: int,
        progress: ProgressListener | None = None,
    ) -> None:
        self._begin = partial(MoveTrial, checkpoint, load)
        self._trials = trials
        self._progress = progress or (lambda _: None)
        self._steps = 0

    def each_of(self, named: Sequence[DomainCandidate]) -> tuple[ProvedSet, dict[str, str]]:
        """Frees named domains in their order; without the first that fails and those after it."""
        if not any(each.reason for each in named):
            every = self._pass(named)
            if not every.failed:
                return every.succeeded, {}
        found = ProvedSet()
        for candidate in named:
            reason = candidate.reason
            if not reason:
                tried = self._pass((*found.domains, candidate))
                reason = next(iter(tried.failed.values()), "")
            if reason:
                return found, {each.name: reason for each in named[len(found.domains) :]}
            found = tried.succeeded
        return found, {}

    def best_of(
        self, state: ClusterState, candidates: Sequence[DomainCandidate], limit: int
    ) -> tuple[ProvedSet, dict[str, str]]:
        """As many of the cheapest as can be freed together, then those of the others that can be
        freed, too; and why the others stay. ``state`` is that of the checkpoint."""
        kept = {each.name: each.reason for each in candidates if each.reason}
        free = [each for each in candidates if not each.reason]
        limit = limit or len(free)
        proved = self._shrunk(free[: min(limit, cheapest_with_room(state, free))])
        if proved is None:
            return ProvedSet(), kept | {each.name: _NOT_TRIED for each in free}
        while True:
            found = proved.succeeded
            names = {each.name for each in found.domains}
            others = [each for each in free if each.name not in names]
            added, reasons = self._on_top(proved, others, limit - len(names))
            more = self._shrunk((*found.domains, *added)) if added else None
            if more is None or len(_nodes_of(more.succeeded)) <= len(_nodes_of(found)):
                break
            proved = more
        kept |= {each.name: reasons.get(each.name, _NOT_TOGETHER) for each in others}
        return found, kept

    def _pass(self, domains: Sequence[DomainCandidate]) -> _Pass:
        self._trials -= 1
        self._steps += 1
        trial = self._begin()
        freed = {name for domain in domains for name in domain.nodes}
        trial.cordon(sorted(freed))
        succeeded: list[DomainCandidate] = []
        moves: list[tuple[PodMove, ...]] = []
        failed: dict[str, str] = {}
        for number, domain in enumerate(domains):
            self._progress(SearchProgress(self._steps, number, len(domains)))
            made = trial.free(domain.nodes, freed)
            if isinstance(made, str):
                failed[domain.name] = made
                freed.difference_update(domain.nodes)
            else:
                succeeded.append(domain)
                moves.append(made)
        return _Pass(ProvedSet(tuple(succeeded), tuple(moves)), failed, trial)

    def _shrunk(self, domains: Sequence[DomainCandidate]) -> _Pass | None:
        """A pass in which no domain fails, after those that do are left out. None if the trials
        end before."""
        while self._trials > 0:
            tried = self._pass(domains)
            if not tried.failed:
                return tried
            domains = tried.succeeded.domains
        return None

    def _on_top(
        self, proved: _Pass, others: Sequence[DomainCandidate], limit: int
    ) -> tuple[list[DomainCandidate], dict[str, str]]:
        """The domains that can be freed after the moves of a proved set, at most ``limit``, and why
        others cannot. A pod that was moved there moves again, so this proves nothing yet."""
        self._steps += 1
        freed = {name for domain in proved.succeeded.domains for name in domain.nodes}
        added: list[DomainCandidate] = []
        reasons: dict[str, str] = {}
        total = limit + len(proved.succeeded.domains)
        for number, candidate in enumerate(others):
            self._progress(SearchProgress(self._steps, number, len(others)))
            if len(added) >= limit:
                reasons[candidate.name] = f"the limit of {total} is reached"
                continue
            if self._trials <= 0:
                reasons[candidate.name] = _NOT_TRIED
                continue
            freed.update(candidate.nodes)
            made = proved.trial.free(candidate.nodes, freed)
            if isinstance(made, str):
                reasons[candidate.name] = made
                freed.difference_update(candidate.nodes)
            else:
                added.append(candidate)
        return added, reasons


def _nodes_of(found: ProvedSet) -> list[str]:
    return [name for domain in found.domains for name in domain.nodes]


_NOT_TRIED = "not tried: the limit of trials is reached"
_NOT_TOGETHER = "it cannot be freed together with the others"


def cheapest_with_room(state: ClusterState, free: Sequence[DomainCandidate]) -> int:
    """How many of the first domains request at most what is free on all other nodes.

    Counts CPU, memory and numbers of pods. More can only be freed if no filter counts these.
    """
    table = state.nodes
    usable = table.alive & ~table.unschedulable
    columns = [
        (table.allocatable(CPU), table.requested(CPU)),
        (table.allocatable(MEMORY), table.requested(MEMORY)),
        (table.allowed_pods, table.pod_count),
    ]
    room = np.array([np.where(usable, np.maximum(a - r, 0), 0) for a, r in columns])
    left = room.sum(axis=1)
    for number, domain in enumerate(free):
        for name in domain.nodes:
            row = table.row_of(name)
            if row is not None:
                left = left - room[:, row]
        for pod in domain.pods:
            requests = pod.shape.requests
            left = left - np.array([requests.get(CPU, 0), requests.get(MEMORY, 0), 1])
        # A domain without pods needs no room.
        if (left < 0).any() and domain.pods:
            return number
    return len(free)
