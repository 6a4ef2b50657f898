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
from asched.framework.interface import FilterAllPlugin
from asched.framework.nodes import BoolColumn
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.session_objects import Task
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.inter_pod_affinity import InterPodAffinity, InterPodAffinityArgs
from asched.plugins.node_affinity import NodeAffinity, NodeAffinityArgs
from asched.plugins.node_ports import NodePorts
from asched.plugins.node_unschedulable import NodeUnschedulable
from asched.plugins.node_volume_limits import NodeVolumeLimits
from asched.plugins.pod_topology_spread import PodTopologySpread, PodTopologySpreadArgs
from asched.plugins.taint_toleration import TaintToleration
from asched.plugins.volume_binding import VolumeBinding, VolumeBindingArgs
from asched.plugins.volume_restrictions import VolumeRestrictions
from asched.plugins.volume_zone import VolumeZone

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
            NodeAffinity(NodeAffinityArgs(), handle),
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
