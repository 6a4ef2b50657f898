"""Explains a preemption: the nodes that it could have used, the victims there, and the choice."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from asched.cycle.attempt import Attempt
from asched.cycle.post_filter import RejectedNodeStatuses
from asched.cycle.shape_cache import ShapeCache
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code
from asched.plugins.default_preemption.plugin import DefaultPreemption
from asched.plugins.default_preemption.victims import Candidate
from asched.state.cluster import ClusterState


class PreemptionCriterion(StrEnum):
    """Which criterion of ``pickOneNodeForPreemption`` decided between the two best candidates."""

    ONLY = "the only candidate"
    BUDGETS = "fewest violated disruption budgets"
    HIGHEST_PRIORITY = "lowest priority of the most important victim"
    PRIORITIES = "lowest sum of priorities"
    VICTIMS = "fewest victims"
    START = "latest start of the most important victims"
    ORDER = "first of equal candidates"


_IN_ORDER: Final = (
    PreemptionCriterion.BUDGETS,
    PreemptionCriterion.HIGHEST_PRIORITY,
    PreemptionCriterion.PRIORITIES,
    PreemptionCriterion.VICTIMS,
    PreemptionCriterion.START,
)


class Victim(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that a preemption evicts."""

    pod: str
    """``namespace/name``."""
    priority: int


class PreemptionNode(msgspec.Struct, frozen=True, rename="camel"):
    """A candidate of a preemption."""

    node: str
    victims: tuple[Victim, ...]
    """The most important first."""
    budget_violations: int


class PreemptionExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """Why an attempt preempted these pods on this node."""

    node: str
    criterion: PreemptionCriterion
    """What distinguishes the node from the next best one."""
    examined: int
    """Nodes where evictions could help; the search ends when it has enough candidates."""
    candidates: tuple[PreemptionNode, ...]
    """The best first, :attr:`node` among them."""


def explain_preemption(
    state: ClusterState, profile: Profile, pod: PodInfo, node: str
) -> PreemptionExplanation | None:
    """Explains the preemption on ``node`` that an attempt on this state makes for ``pod``.

    None without DefaultPreemption in the profile, and if the node is not a candidate, for example
    because an extender or another PostFilter plugin selected it.
    """
    plugin = profile.plugins.get(DefaultPreemption.name)
    if not isinstance(plugin, DefaultPreemption):
        return None
    found = Attempt(state, profile, pod, ShapeCache(state.nodes)).find_feasible_nodes(
        limit_nodes=False
    )
    possible = RejectedNodeStatuses(state, found).rows(Code.UNSCHEDULABLE)
    rows, limit = plugin.examined(pod, possible)
    search = plugin.dry_run(found.state, pod, rows, limit)
    candidates = search.shortlist(limit) if search.candidates else []
    chosen = next((one for one in candidates if one.node == node), None)
    if chosen is None:
        return None
    others = sorted((one for one in candidates if one is not chosen), key=lambda one: one.cost)
    return PreemptionExplanation(
        node=node,
        criterion=_criterion(chosen, others[0]) if others else PreemptionCriterion.ONLY,
        examined=len(rows),
        candidates=tuple(map(_explained, [chosen, *others])),
    )


def _criterion(chosen: Candidate, other: Candidate) -> PreemptionCriterion:
    for criterion, one, two in zip(_IN_ORDER, chosen.cost, other.cost, strict=True):
        if one != two:
            return criterion
    return PreemptionCriterion.ORDER


def _explained(candidate: Candidate) -> PreemptionNode:
    victims = tuple(Victim(victim.key, victim.priority) for victim in candidate.victims)
    return PreemptionNode(candidate.node, victims, candidate.pdb_violations)
