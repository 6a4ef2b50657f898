"""Where a task may go, by the built-in filter plugins of the pod-by-pod profiles.

What they say of a node itself is asked once for each shape of pods; what hangs on the pods on nodes
is asked for each task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from asched.batch.node_conditions import condition, is_usable, where
from asched.batch.session_handle import SessionHandle
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin, PreFilterPlugin
from asched.framework.nodes import BoolColumn
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.session_objects import Task
from asched.plugins.inter_pod_affinity import InterPodAffinity, InterPodAffinityArgs
from asched.plugins.node_affinity import NodeAffinity, NodeAffinityArgs
from asched.plugins.node_ports import NodePorts
from asched.plugins.node_unschedulable import NodeUnschedulable
from asched.plugins.pod_topology_spread import PodTopologySpread, PodTopologySpreadArgs
from asched.plugins.taint_toleration import TaintToleration

TOO_MANY_PODS = "Too many pods"
NOT_READY = "node(s) were not ready"

_PRESSURES = {
    "predicate.MemoryPressureEnable": "MemoryPressure",
    "predicate.DiskPressureEnable": "DiskPressure",
    "predicate.PIDPressureEnable": "PIDPressure",
}
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})


class BuiltInPredicates:
    """The predicates of one session."""

    def __init__(self, handle: SessionHandle, arguments: Mapping[str, str]) -> None:
        self._cluster = handle.cluster
        self._fixed: tuple[FilterAllPlugin, ...] = (
            NodeUnschedulable(None, handle),
            NodeAffinity(NodeAffinityArgs(), handle),
            TaintToleration(None, handle),
        )
        self._ports = NodePorts(None, handle)
        self._neighbours = InterPodAffinity(InterPodAffinityArgs(), handle)
        self._spread = PodTopologySpread(PodTopologySpreadArgs(), handle)
        refused = [c for a, c in _PRESSURES.items() if arguments.get(a, "") in _TRUE]
        self._usable = where(
            self._cluster.nodes,
            lambda node: is_usable(node) and not any(condition(node, c) == "True" for c in refused),
        )
        self._of_shape: dict[PodShape, BoolColumn] = {}

    def feasible(self, task: Task) -> BoolColumn:
        pod, nodes = task.info, self._cluster.nodes
        passed = self._fixed_of(pod) & (nodes.pod_count < nodes.allowed_pods)
        for plugin, state in self._moving(pod):
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

    def _moving(self, pod: PodInfo) -> list[tuple[FilterAllPlugin, CycleState]]:
        """The plugins that have something to say about the pods on nodes, prepared for this one."""
        concerned: list[tuple[FilterAllPlugin, CycleState]] = []
        if pod.shape.ports:
            concerned.append((self._ports, CycleState()))
        affinity = pod.shape.affinity
        own_terms = affinity is not None and (affinity.pod_affinity or affinity.pod_anti_affinity)
        if own_terms or self._cluster.has_term_holders:
            self._prepare(self._neighbours, pod, concerned)
        if pod.pod.spec.topology_spread_constraints:
            self._prepare(self._spread, pod, concerned)
        return concerned

    def _prepare(
        self,
        plugin: InterPodAffinity | PodTopologySpread,
        pod: PodInfo,
        concerned: list[tuple[FilterAllPlugin, CycleState]],
    ) -> None:
        state = CycleState()
        preparing: PreFilterPlugin = plugin
        if preparing.pre_filter(state, pod, self._cluster.nodes).status.is_success:
            concerned.append((plugin, state))

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
        for plugin, state in [*((p, CycleState()) for p in self._fixed), *self._moving(pod)]:
            verdicts = plugin.filter_all(state, pod, nodes)
            for number, status in enumerate(verdicts.statuses, 1):
                refused = open_rows & (verdicts.codes == number)
                counts[status.message] += int(np.count_nonzero(refused))
            open_rows &= verdicts.codes == 0
        return {reason: count for reason, count in counts.items() if count}
