"""Predicates and scores of sessions, from the built-in plugins of pod-by-pod profiles.

Results that depend on a node alone are cached by pod shape; scores are refreshed for changed rows.
Results that depend on other pods are computed for each task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from asched.batch.nodes import is_usable, where
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin
from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.session_objects import Task
from asched.plugins.inter_pod_affinity.plugin import InterPodAffinity, InterPodAffinityArgs
from asched.plugins.node_affinity import NodeAffinityArgs, NodeAffinityPlugin
from asched.plugins.node_filters import NodePorts, NodeUnschedulable
from asched.plugins.node_resources.balanced_allocation import (
    NodeResourcesBalancedAllocation,
    NodeResourcesBalancedAllocationArgs,
)
from asched.plugins.node_resources.fit import (
    NodeResourcesFit,
    NodeResourcesFitArgs,
    ScoringStrategy,
)
from asched.plugins.node_volume_limits import NodeVolumeLimits
from asched.plugins.pod_topology_spread.plugin import PodTopologySpread, PodTopologySpreadArgs
from asched.plugins.taint_toleration import TaintToleration
from asched.plugins.volume_binding.plugin import VolumeBinding, VolumeBindingArgs
from asched.plugins.volume_restrictions import VolumeRestrictions
from asched.plugins.volume_zone import VolumeZone
from asched.state.cluster import ProfileHandle
from asched.state.node_table import NodeTable

TOO_MANY_PODS = "Too many pods"
NOT_READY = "node(s) were not ready"

MEMORY_PRESSURE = "MemoryPressure"
_PRESSURES = {
    "predicate.MemoryPressureEnable": MEMORY_PRESSURE,
    "predicate.DiskPressureEnable": "DiskPressure",
    "predicate.PIDPressureEnable": "PIDPressure",
}
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})


def refused_pressures(arguments: Mapping[str, str]) -> set[str]:
    """The node conditions that the arguments of the predicates plugin exclude."""
    return {pressure for key, pressure in _PRESSURES.items() if arguments.get(key, "") in _TRUE}


_PodDependentPlugin = (
    InterPodAffinity
    | PodTopologySpread
    | VolumeRestrictions
    | NodeVolumeLimits
    | VolumeBinding
    | VolumeZone
)


class BuiltInPredicates:
    """The predicates of one session."""

    def __init__(self, handle: ProfileHandle, arguments: Mapping[str, str]) -> None:
        self._cluster = handle.cluster
        self._node_plugins: tuple[FilterAllPlugin, ...] = (
            NodeUnschedulable(None, handle),
            NodeAffinityPlugin(NodeAffinityArgs(), handle),
            TaintToleration(None, handle),
        )
        self._ports = NodePorts(None, handle)
        self._pod_plugins: tuple[_PodDependentPlugin, ...] = (
            InterPodAffinity(InterPodAffinityArgs(), handle),
            PodTopologySpread(PodTopologySpreadArgs(), handle),
            VolumeRestrictions(None, handle),
            NodeVolumeLimits(None, handle),
            VolumeBinding(VolumeBindingArgs(), handle),
            VolumeZone(None, handle),
        )
        refused = refused_pressures(arguments)
        self._usable = where(self._cluster.nodes, lambda node: is_usable(node, refused))
        self._of_shape: dict[PodShape, BoolColumn] = {}

    def feasible(self, task: Task) -> BoolColumn:
        pod, nodes = task.info, self._cluster.nodes
        passed = self._by_shape(pod) & (nodes.pod_count < nodes.allowed_pods)
        prepared, problem = self._prepared(pod)
        if problem:
            passed[:] = False
        for plugin, state in prepared:
            passed &= plugin.filter_all(state, pod, nodes).codes == 0
        return passed

    def _by_shape(self, pod: PodInfo) -> BoolColumn:
        """The rows that pass the checks of node objects."""
        known = self._of_shape.get(pod.shape)
        if known is None:
            known = self._usable.copy()
            for plugin in self._node_plugins:
                known &= plugin.filter_all(CycleState(), pod, self._cluster.nodes).codes == 0
            self._of_shape[pod.shape] = known
        return known

    def _prepared(self, pod: PodInfo) -> tuple[list[tuple[FilterAllPlugin, CycleState]], str]:
        """(The pod-dependent plugins that apply, after PreFilter, and the message of a plugin that
        rejected the pod in PreFilter)."""
        claims = pod.pod.spec.resource_claims
        if claims:
            names = ", ".join(claim.name for claim in claims)
            return [], f"batch sessions do not support ResourceClaims: the pod asks for {names}"
        prepared: list[tuple[FilterAllPlugin, CycleState]] = []
        if pod.shape.ports:
            prepared.append((self._ports, CycleState()))
        for plugin in self._pod_plugins:
            if not plugin.applies_to(pod):
                continue
            state = CycleState()
            status = plugin.pre_filter(state, pod, self._cluster.nodes).status
            if status.is_success:
                prepared.append((plugin, state))
            elif not status.is_skip:
                return [], status.message
        return prepared, ""

    def rejections(self, task: Task) -> dict[str, int]:
        """The number of rejected nodes by reason; a node counts for the first one."""
        pod, nodes = task.info, self._cluster.nodes
        counts: Counter[str] = Counter()
        open_rows = nodes.alive.copy()
        for reason, refused in (
            (NOT_READY, ~self._usable),
            (TOO_MANY_PODS, nodes.pod_count >= nodes.allowed_pods),
        ):
            counts[reason] += int(np.count_nonzero(open_rows & refused))
            open_rows &= ~refused
        prepared, problem = self._prepared(pod)
        if problem:
            counts[problem] += int(np.count_nonzero(open_rows))
            return {reason: count for reason, count in counts.items() if count}
        for plugin, state in [*((p, CycleState()) for p in self._node_plugins), *prepared]:
            results = plugin.filter_all(state, pod, nodes)
            for number, status in enumerate(results.statuses, 1):
                refused = open_rows & (results.codes == number)
                counts[status.message] += int(np.count_nonzero(refused))
            open_rows &= results.codes == 0
        return {reason: count for reason, count in counts.items() if count}


_FEW_ROWS = 4
"""Up to this number of rows, a loop is faster than numpy."""

_RowScorer = NodeResourcesFit | NodeResourcesBalancedAllocation


class NodeOrderWeights(NamedTuple):
    """The weights of the scores, by kube-batch's argument names."""

    least_requested: int = 1
    most_requested: int = 0
    node_affinity: int = 1
    pod_affinity: int = 1
    balanced_resource: int = 1

    @classmethod
    def of(cls, arguments: Mapping[str, str]) -> NodeOrderWeights:
        """Ignores values that are not integers."""
        given = {}
        for field in cls._fields:
            text = arguments.get(f"{field.replace('_', '')}.weight")
            if text is not None:
                try:
                    given[field] = int(text)
                except ValueError:
                    continue
        return cls(**given)


class BuiltInScores:
    """The scores of one session."""

    def __init__(self, handle: ProfileHandle, weights: NodeOrderWeights) -> None:
        self._table = handle.cluster.nodes
        self._weights = weights
        most = NodeResourcesFitArgs(scoring_strategy=ScoringStrategy(type="MostAllocated"))
        balanced = NodeResourcesBalancedAllocationArgs()
        candidates: list[tuple[_RowScorer, int]] = [
            (NodeResourcesFit(NodeResourcesFitArgs(), handle), weights.least_requested),
            (NodeResourcesFit(most, handle), weights.most_requested),
            (NodeResourcesBalancedAllocation(balanced, handle), weights.balanced_resource),
        ]
        self._row_scorers = [(plugin, weight) for plugin, weight in candidates if weight]
        self._node_affinity = NodeAffinityPlugin(NodeAffinityArgs(), handle)
        self._pod_affinity = InterPodAffinity(InterPodAffinityArgs(), handle)
        self._of_shape: dict[PodShape, _RowScores] = {}

    def scores(self, task: Task, rows: RowArray) -> Int64Column:
        pod = task.info
        known = self._of_shape.get(pod.shape)
        if known is None:
            known = self._of_shape[pod.shape] = _RowScores(self._table, self._row_scorers, pod)
        total = known.scores(pod)
        total = total.copy() if len(rows) == len(total) else total.take(rows)
        for normalized, weight in (
            (self._node_affinity_scores(known, pod, rows), self._weights.node_affinity),
            (self._pod_affinity_scores(pod, rows), self._weights.pod_affinity),
        ):
            if normalized is not None and weight:
                total += normalized * np.int64(weight)
        return total

    def _node_affinity_scores(
        self, known: _RowScores, pod: PodInfo, rows: RowArray
    ) -> Int64Column | None:
        """Normalized over ``rows``; None if the pod has no preferences."""
        if known.preferences is None:
            known.preferences = np.zeros(0, np.int64)
            state = CycleState()
            if self._node_affinity.pre_score(state, pod, self._table).is_success:
                known.preferences = self._node_affinity.score_all(state, pod, self._table)
        if not len(known.preferences):
            return None
        return self._node_affinity.normalize(CycleState(), pod, known.preferences[rows])

    def _pod_affinity_scores(self, pod: PodInfo, rows: RowArray) -> Int64Column | None:
        state = CycleState()
        if not self._pod_affinity.applies_to(pod) or (
            not self._pod_affinity.pre_score(state, pod, self._table).is_success
        ):
            return None
        raw = self._pod_affinity.score_all(state, pod, self._table)[rows]
        return self._pod_affinity.normalize(state, pod, raw)


class _RowScores:
    """The node-local scores of one shape, refreshed for changed rows."""

    __slots__ = ("_cursor", "_scorers", "_table", "_total", "preferences")

    def __init__(
        self, table: NodeTable, scorers: list[tuple[_RowScorer, int]], pod: PodInfo
    ) -> None:
        self._table = table
        self._scorers: list[tuple[_RowScorer, int, CycleState]] = []
        for plugin, weight in scorers:
            state = CycleState()
            if plugin.pre_score(state, pod, table).is_success:
                self._scorers.append((plugin, weight, state))
        self._total = self._sum(pod, np.arange(table.size, dtype=np.intp))
        self._cursor = table.cursor
        self.preferences: Int64Column | None = None
        """Raw node affinity scores; empty if the shape has no preferences."""

    def _sum(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        nodes = self._table.take(rows)
        total = np.zeros(len(rows), np.int64)
        for plugin, weight, state in self._scorers:
            total += plugin.score_all(state, pod, nodes) * np.int64(weight)
        return total

    def scores(self, pod: PodInfo) -> Int64Column:
        """By row of the table; read-only."""
        changed = self._table.changed_since(self._cursor)
        self._cursor = self._table.cursor
        if changed is None:
            self._total = self._sum(pod, np.arange(self._table.size, dtype=np.intp))
        elif len(changed) > _FEW_ROWS:
            rows = np.array(changed, np.intp)
            self._total[rows] = self._sum(pod, rows)
        else:
            for row in changed:
                node = self._table.info(row)
                self._total[row] = sum(
                    plugin.score(state, pod, node) * weight
                    for plugin, weight, state in self._scorers
                )
        return self._total
