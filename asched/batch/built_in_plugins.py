"""Where a task may go, by the built-in filter plugins of the pod-by-pod profiles.

What they say of a node itself is asked once for each shape of pods; what hangs on the pods on nodes
is asked for each task.

How good nodes are for a task, by the built-in score plugins of the pod-by-pod profiles.

What hangs on a node's own row is kept for each shape of pods, and worked out again for the rows that
changed since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from asched.batch.nodes import condition, is_usable, where
from asched.batch.session_handle import SessionHandle
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin
from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.session_objects import Task
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.inter_pod_affinity.plugin import InterPodAffinity, InterPodAffinityArgs
from asched.plugins.node_affinity import NodeAffinityArgs, NodeAffinityPlugin
from asched.plugins.node_ports import NodePorts
from asched.plugins.node_resources.balanced_allocation import (
    NodeResourcesBalancedAllocation,
    NodeResourcesBalancedAllocationArgs,
)
from asched.plugins.node_resources.fit import (
    NodeResourcesFit,
    NodeResourcesFitArgs,
    ScoringStrategy,
)
from asched.plugins.node_unschedulable import NodeUnschedulable
from asched.plugins.node_volume_limits import NodeVolumeLimits
from asched.plugins.pod_topology_spread.plugin import PodTopologySpread, PodTopologySpreadArgs
from asched.plugins.taint_toleration import TaintToleration
from asched.plugins.volume_binding.plugin import VolumeBinding, VolumeBindingArgs
from asched.plugins.volume_restrictions import VolumeRestrictions
from asched.plugins.volume_zone import VolumeZone
from asched.state.node_table import NodeTable

TOO_MANY_PODS = "Too many pods"
NOT_READY = "node(s) were not ready"

_PRESSURES = {
    "predicate.MemoryPressureEnable": "MemoryPressure",
    "predicate.DiskPressureEnable": "DiskPressure",
    "predicate.PIDPressureEnable": "PIDPressure",
}
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})


_Moving = (
    InterPodAffinity
    | PodTopologySpread
    | VolumeRestrictions
    | NodeVolumeLimits
    | VolumeBinding
    | VolumeZone
    | DynamicResources
)


class BuiltInPredicates:
    """The predicates of one session."""

    def __init__(self, handle: SessionHandle, arguments: Mapping[str, str]) -> None:
        self._cluster = handle.cluster
        self._fixed: tuple[FilterAllPlugin, ...] = (
            NodeUnschedulable(None, handle),
            NodeAffinityPlugin(NodeAffinityArgs(), handle),
            TaintToleration(None, handle),
        )
        self._ports = NodePorts(None, handle)
        self._moving: tuple[_Moving, ...] = (
            InterPodAffinity(InterPodAffinityArgs(), handle),
            PodTopologySpread(PodTopologySpreadArgs(), handle),
            VolumeRestrictions(None, handle),
            NodeVolumeLimits(None, handle),
            VolumeBinding(VolumeBindingArgs(), handle),
            VolumeZone(None, handle),
            DynamicResources(None, handle),
        )
        refused = [c for a, c in _PRESSURES.items() if arguments.get(a, "") in _TRUE]
        self._usable = where(
            self._cluster.nodes,
            lambda node: is_usable(node) and not any(condition(node, c) == "True" for c in refused),
        )
        self._of_shape: dict[PodShape, BoolColumn] = {}

    def feasible(self, task: Task) -> BoolColumn:
        pod, nodes = task.info, self._cluster.nodes
        passed = self._fixed_of(pod) & (nodes.pod_count < nodes.allowed_pods)
        concerned, problem = self._concerned(pod)
        if problem:
            passed[:] = False
        for plugin, state in concerned:
            passed &= plugin.filter_all(state, pod, nodes).codes == 0
        return passed

    def _fixed_of(self, pod: PodInfo) -> BoolColumn:
        """What the nodes themselves allow, the same for all pods of a shape."""
        known = self._of_shape.get(pod.shape)
        if known is None:
            known = self._usable.copy()
            for plugin in self._fixed:
                known &= plugin.filter_all(CycleState(), pod, self._cluster.nodes).codes == 0
            self._of_shape[pod.shape] = known
        return known

    def _concerned(self, pod: PodInfo) -> tuple[list[tuple[FilterAllPlugin, CycleState]], str]:
        """(The plugins that have something to say about what is on nodes, prepared for this pod, and
        why no node at all will do, if that is so)."""
        concerned: list[tuple[FilterAllPlugin, CycleState]] = []
        if pod.shape.ports:
            concerned.append((self._ports, CycleState()))
        for plugin in self._moving:
            if not plugin.concerns(pod):
                continue
            state = CycleState()
            status = plugin.pre_filter(state, pod, self._cluster.nodes).status
            if status.is_success:
                concerned.append((plugin, state))
            elif not status.is_skip:
                return [], status.message
        return concerned, ""

    def refusals(self, task: Task) -> dict[str, int]:
        """How many nodes are refused for each reason; a node counts for the first."""
        pod, nodes = task.info, self._cluster.nodes
        counts: Counter[str] = Counter()
        open_rows = nodes.alive.copy()
        for reason, refused in (
            (NOT_READY, ~self._usable),
            (TOO_MANY_PODS, nodes.pod_count >= nodes.allowed_pods),
        ):
            counts[reason] += int(np.count_nonzero(open_rows & refused))
            open_rows &= ~refused
        concerned, problem = self._concerned(pod)
        if problem:
            counts[problem] += int(np.count_nonzero(open_rows))
            return {reason: count for reason, count in counts.items() if count}
        for plugin, state in [*((p, CycleState()) for p in self._fixed), *concerned]:
            verdicts = plugin.filter_all(state, pod, nodes)
            for number, status in enumerate(verdicts.statuses, 1):
                refused = open_rows & (verdicts.codes == number)
                counts[status.message] += int(np.count_nonzero(refused))
            open_rows &= verdicts.codes == 0
        return {reason: count for reason, count in counts.items() if count}


_FEW_ROWS = 4
"""Up to so many rows, going through them one by one costs less than numpy's overhead."""

_RowScorer = NodeResourcesFit | NodeResourcesBalancedAllocation


class BuiltInWeights(NamedTuple):
    """What each score counts, by kube-batch's argument names."""

    least_requested: int = 1
    most_requested: int = 0
    node_affinity: int = 1
    pod_affinity: int = 1
    balanced_resource: int = 1

    @classmethod
    def of(cls, arguments: Mapping[str, str]) -> BuiltInWeights:
        """What does not read as an integer is the default."""
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

    def __init__(self, handle: SessionHandle, table: NodeTable, weights: BuiltInWeights) -> None:
        self._table = table
        self._cluster = handle.cluster
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
        self._neighbours = InterPodAffinity(InterPodAffinityArgs(), handle)
        self._boards: dict[PodShape, _Board] = {}

    def scores(self, task: Task, rows: RowArray) -> Int64Column:
        pod = task.info
        board = self._boards.get(pod.shape)
        if board is None:
            board = self._boards[pod.shape] = _Board(self._table, self._row_scorers, pod)
        total = board.scores(pod)
        total = total.copy() if len(rows) == len(total) else total.take(rows)
        for scaled, weight in (
            (self._affinity(board, pod, rows), self._weights.node_affinity),
            (self._neighbourhood(pod, rows), self._weights.pod_affinity),
        ):
            if scaled is not None and weight:
                total += scaled * np.int64(weight)
        return total

    def _affinity(self, board: _Board, pod: PodInfo, rows: RowArray) -> Int64Column | None:
        """Scaled over the rows in question; None where the pod does not care."""
        if board.preferences is None:
            board.preferences = np.zeros(0, np.int64)
            state = CycleState()
            if self._node_affinity.pre_score(state, pod, self._table).is_success:
                board.preferences = self._node_affinity.score_all(state, pod, self._table)
        if not len(board.preferences):
            return None
        return self._node_affinity.normalize(CycleState(), pod, board.preferences[rows])

    def _neighbourhood(self, pod: PodInfo, rows: RowArray) -> Int64Column | None:
        affinity = pod.shape.affinity
        own_terms = affinity is not None and (affinity.pod_affinity or affinity.pod_anti_affinity)
        state = CycleState()
        if not (own_terms or self._cluster.has_term_holders) or (
            not self._neighbours.pre_score(state, pod, self._table).is_success
        ):
            return None
        raw = self._neighbours.score_all(state, pod, self._table)[rows]
        return self._neighbours.normalize(state, pod, raw)


class _Board:
    """The scores of one shape that hang on a node's own row."""

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
        """What the shape prefers of nodes, before scaling; empty where it prefers nothing."""

    def _sum(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        nodes = self._table.take(rows)
        total = np.zeros(len(rows), np.int64)
        for plugin, weight, state in self._scorers:
            total += plugin.score_all(state, pod, nodes) * np.int64(weight)
        return total

    def scores(self, pod: PodInfo) -> Int64Column:
        """By row of the table. Not to be changed."""
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
