"""The domains that could be freed, what freeing them costs, and why others cannot be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from asched.framework.pod_info import PodInfo
from asched.model.node import Node
from asched.model.requests import CPU, MEMORY
from asched.model.workloads import PodDisruptionBudget
from asched.plugins.default_preemption.budgets import Budgets
from asched.state.cluster import ClusterState, PlacementState, PodEntry
from asched.state.consolidation_records import ConsolidationSettings

_CONTROL_PLANE_LABELS: Final = (
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
)
_STAYING_OWNERS: Final = ("DaemonSet", "Node")
"""Controllers of pods that belong to their node: those of a DaemonSet, and static pods."""
_MAX_EVICTION_COST: Final = 10.0


class DomainCandidate(NamedTuple):
    """Nodes that are freed together."""

    name: str
    """The node, or the value of the label."""
    nodes: tuple[str, ...]
    pods: tuple[PodInfo, ...]
    """The pods to move, in this order."""
    cost: float
    """Sum of the eviction costs."""
    slack: float
    """The least number of disruptions that a PodDisruptionBudget of the pods allows now."""
    price_per_hour: float
    """Of all nodes; 0 if the price of one is unknown."""
    reason: str
    """Why it cannot be freed; empty if that has to be tried."""


def candidates_of(state: ClusterState, settings: ConsolidationSettings) -> list[DomainCandidate]:
    """All domains, the cheapest to free first.

    The order is by cost, or by cost per price where prices are known; then the most slack of
    PodDisruptionBudgets, then the name.
    """
    survey = _Survey(state, settings)
    found = [survey.candidate(name, nodes) for name, nodes in _domains(state, settings).items()]
    return sorted(found, key=_order)


def eviction_cost(pod: PodInfo, deletion_cost: int = 0) -> float:
    """1 for a pod of priority 0, at most 10 and at least -10: Karpenter's ``EvictionCost``, which
    adds ``deletion_cost / 2**27`` and ``priority / 2**25``."""
    cost = 1.0 + deletion_cost / 2**27 + pod.pod.spec.priority / 2**25
    return max(-_MAX_EVICTION_COST, min(cost, _MAX_EVICTION_COST))


def moving_pods(entries: Iterable[PodEntry]) -> list[PodInfo]:
    """The pods to move among these, in the order of their evictions: high priorities come first,
    then large requests, because they are hard to place."""
    return sorted((e.info for e in entries if not _stays(e.info)), key=_eviction_order)


def _order(candidate: DomainCandidate) -> tuple[float, float, str]:
    price = candidate.price_per_hour
    return candidate.cost / price if price else candidate.cost, -candidate.slack, candidate.name


def _domains(state: ClusterState, settings: ConsolidationSettings) -> Mapping[str, list[Node]]:
    """The nodes of each domain. Nodes without the label are in none."""
    found: dict[str, list[Node]] = {}
    for name, node in sorted(state.objects(Node).items()):
        labels = node.metadata.labels
        domain = labels.get(settings.by, "") if settings.by else name
        if domain and all(labels.get(key) == value for key, value in settings.selector.items()):
            found.setdefault(domain, []).append(node)
    return found


class _Survey:
    """Looks at the pods of all nodes."""

    def __init__(self, state: ClusterState, settings: ConsolidationSettings) -> None:
        self._state = state
        self._settings = settings
        self._budgets = Budgets(state.objects(PodDisruptionBudget).values())
        self._on_node: dict[str, list[PodEntry]] = {}
        for entry in state.pods.values():
            if entry.node:
                self._on_node.setdefault(entry.node, []).append(entry)

    def candidate(self, name: str, nodes: list[Node]) -> DomainCandidate:
        names = tuple(node.name for node in nodes)
        entries = [entry for node in names for entry in self._on_node.get(node, ())]
        moving = moving_pods(entries)
        reasons = (*self._of_nodes(nodes), *self._of_pods(entries))
        costs = self._settings.deletion_costs
        return DomainCandidate(
            name=name,
            nodes=names,
            pods=tuple(moving),
            cost=round(sum(eviction_cost(pod, costs.get(pod.uid, 0)) for pod in moving), 6),
            slack=min(map(self._slack, moving), default=math.inf),
            price_per_hour=self._price(nodes),
            reason=next(iter(reasons), ""),
        )

    def _price(self, nodes: list[Node]) -> float:
        return sum(self._settings.prices.get(node.name, 0.0) for node in nodes)

    def _of_nodes(self, nodes: list[Node]) -> Iterator[str]:
        settings, nominated = self._settings, self._state.nominator.by_node
        for node in nodes:
            if any(label in node.metadata.labels for label in _CONTROL_PLANE_LABELS):
                yield f"node {node.name} is of the control plane"
            if node.name in settings.unmovable_nodes:
                yield f"node {node.name} {settings.unmovable_nodes[node.name]}"
            if node.spec.unschedulable and not settings.domains:
                yield f"node {node.name} is cordoned"
            if nominated.get(node.name):
                yield f"a pending pod is nominated to node {node.name}"

    def _of_pods(self, entries: list[PodEntry]) -> Iterator[str]:
        for entry in entries:
            if not _stays(entry.info) and (reason := self._immovable(entry)):
                yield f"pod {entry.info.key} {reason}"

    def _immovable(self, entry: PodEntry) -> str:
        """Why a pod cannot be moved; empty if it can."""
        info, spec = entry.info, entry.info.pod.spec
        if entry.placement_state is not PlacementState.BOUND:
            return "is not bound yet"
        if info.pod.metadata.controller is None:
            return "has no controller that would replace it"
        if info.uid in self._settings.unmovable_pods:
            return self._settings.unmovable_pods[info.uid]
        if spec.scheduler_name not in self._state.profiles:
            return f"is scheduled by {spec.scheduler_name}, which no profile serves"
        if spec.resource_claims:
            return "has devices of ResourceClaims"
        if any(volume.ephemeral is not None for volume in spec.volumes):
            return "has an ephemeral volume"
        protecting = self._budgets.protecting(info)
        if len(protecting) > 1:
            return "is protected by several PodDisruptionBudgets, so it cannot be evicted"
        if protecting and protecting[0].status.disruptions_allowed < 1:
            return f"is protected by PodDisruptionBudget {protecting[0].key}, which allows none"
        return ""

    def _slack(self, pod: PodInfo) -> float:
        allowed = [b.status.disruptions_allowed for b in self._budgets.protecting(pod)]
        return min(allowed, default=math.inf)


def _stays(pod: PodInfo) -> bool:
    """Whether the pod belongs to its node, or leaves it anyway."""
    owner = pod.pod.metadata.controller
    terminating = pod.pod.metadata.deletion_timestamp is not None
    return terminating or (owner is not None and owner.kind in _STAYING_OWNERS)


def _eviction_order(pod: PodInfo) -> tuple[int, int, int, str]:
    requests = pod.shape.requests
    return -pod.pod.spec.priority, -requests.get(CPU, 0), -requests.get(MEMORY, 0), pod.key
