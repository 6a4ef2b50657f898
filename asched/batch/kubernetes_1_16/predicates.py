"""kube-batch's predicates: those of Kubernetes 1.16, called its way.

Node selector, required node affinity, and taints mean what they mean today: asched's built-in plugins
answer for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from asched.batch.kubernetes_1_16.neighbours import LegacyAffinityPredicate
from asched.batch.nodes import SessionNodes, condition, is_usable, where
from asched.batch.session_handle import SessionHandle
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin
from asched.framework.nodes import BoolColumn, Nodes
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.session_objects import Job, Task
from asched.plugins.node_affinity import NodeAffinityArgs, NodeAffinityPlugin
from asched.plugins.taint_toleration import TaintToleration
from asched.state.node_columns import ports_collide

_PRESSURES = {
    "predicate.DiskPressureEnable": "DiskPressure",
    "predicate.PIDPressureEnable": "PIDPressure",
}
_MEMORY_PRESSURE = "predicate.MemoryPressureEnable"
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})


class LegacyPredicates:
    """The predicates of one session."""

    def __init__(
        self,
        handle: SessionHandle,
        nodes: Nodes,
        books: SessionNodes,
        jobs: Iterable[Job],
        arguments: Mapping[str, str],
    ) -> None:
        self._nodes = nodes
        self._books = books
        self._neighbours = LegacyAffinityPredicate(nodes, books, jobs)
        self._selecting: tuple[FilterAllPlugin, ...] = (
            NodeAffinityPlugin(NodeAffinityArgs(), handle),
            TaintToleration(None, handle),
        )
        self._of_shape: dict[PodShape, list[tuple[str, BoolColumn]]] = {}
        refused = [c for a, c in _PRESSURES.items() if arguments.get(a, "") in _TRUE]
        self._usable = where(
            nodes, lambda node: is_usable(node, refused) and not node.spec.unschedulable
        )
        heeds_memory = arguments.get(_MEMORY_PRESSURE, "") in _TRUE
        self._short_of_memory = where(
            nodes, lambda node: heeds_memory and condition(node, "MemoryPressure") == "True"
        )

    def feasible(self, task: Task) -> BoolColumn:
        passed = self._usable.copy()
        for _, where_it_passes in self._checks(task):
            passed &= where_it_passes
        return passed

    def refusals(self, task: Task) -> dict[str, int]:
        """How many nodes are refused for each reason; a node counts for the first."""
        counts: dict[str, int] = {}
        left = self._nodes.alive & self._books.present
        for reason, passed in (("node is not ready", self._usable), *self._checks(task)):
            refused = int(np.count_nonzero(left & ~passed))
            if refused:
                counts[reason] = refused
            left = left & passed
        return counts

    def _checks(self, task: Task) -> Iterator[tuple[str, BoolColumn]]:
        pod = task.info
        yield "too many pods", self._books.counts < self._nodes.allowed_pods
        if _is_best_effort(pod):
            yield "node is short of memory", ~self._short_of_memory
        yield from self._selected(pod)
        if pod.shape.ports:
            yield "host port taken", ~self._port_conflicts(pod)
        yield "pod affinity", self._neighbours.feasible(pod)

    def _selected(self, pod: PodInfo) -> Sequence[tuple[str, BoolColumn]]:
        """What hangs on the nodes themselves, worked out once for each shape."""
        known = self._of_shape.get(pod.shape)
        if known is None:
            known = self._of_shape[pod.shape] = []
            for plugin in self._selecting:
                verdicts = plugin.filter_all(CycleState(), pod, self._nodes)
                reason = verdicts.statuses[0].message if verdicts.statuses else plugin.name
                known.append((reason, verdicts.codes == 0))
        return known

    def _port_conflicts(self, pod: PodInfo) -> BoolColumn:
        conflicts = np.zeros(self._nodes.size, np.bool_)
        for row, tasks in enumerate(self._books.tasks):
            conflicts[row] = any(
                ports_collide(wanted, taken)
                for task in tasks.values()
                for taken in task.info.shape.ports
                for wanted in pod.shape.ports
            )
        return conflicts


def _is_best_effort(pod: PodInfo) -> bool:
    """Quality of service BestEffort: no container names cpu or memory, as request or limit."""
    spec = pod.pod.spec
    return not any(
        name in ("cpu", "memory")
        for container in (*spec.containers, *spec.init_containers)
        for name in (*container.resources.requests, *container.resources.limits)
    )
