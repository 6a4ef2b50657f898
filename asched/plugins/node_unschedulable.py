"""NodeUnschedulable: filters cordoned nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from asched.framework.cycle_state import CycleState
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.interface import EnqueueExtensions, FilterAllPlugin, Scope
from asched.framework.nodes import FilterResult, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.model.meta import Object
from asched.model.node import NO_SCHEDULE, UNSCHEDULABLE_TAINT, Node, Taint
from asched.model.pod import Pod, Toleration

UNSCHEDULABLE = Status.unresolvable("node(s) were unschedulable")

_CORDON = Taint(key=UNSCHEDULABLE_TAINT, effect=NO_SCHEDULE)


class NodeUnschedulable(FilterAllPlugin, EnqueueExtensions):
    """Rejects nodes with ``spec.unschedulable``, unless the pod tolerates the taint
    ``node.kubernetes.io/unschedulable:NoSchedule``."""

    name: ClassVar[str] = "NodeUnschedulable"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE_OBJECT

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        cordoned = nodes.unschedulable
        if not cordoned.any() or _tolerates_cordon(pod.shape.tolerations):
            return FilterResult.passing(nodes.size)
        return FilterResult.reject(cordoned, UNSCHEDULABLE)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (
            ClusterEventWithHint.on(
                EventResource.NODE,
                ActionType.ADD | ActionType.UPDATE_NODE_TAINT,
                became_schedulable,
            ),
            ClusterEventWithHint.on(
                EventResource.TARGET_POD, ActionType.UPDATE_POD_TOLERATION, now_tolerates_cordon
            ),
        )


def _tolerates_cordon(tolerations: Sequence[Toleration]) -> bool:
    return any(toleration.tolerates(_CORDON) for toleration in tolerations)


def became_schedulable(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue if the node is schedulable and was new or cordoned before."""
    before = isinstance(old, Node) and not old.spec.unschedulable
    now = isinstance(new, Node) and not new.spec.unschedulable
    return QueueingHint.QUEUE if now and not before else QueueingHint.SKIP


def now_tolerates_cordon(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue if the pod itself tolerates the taint now."""
    own = isinstance(new, Pod) and new.uid == pod.uid and _tolerates_cordon(new.spec.tolerations)
    return QueueingHint.QUEUE if own else QueueingHint.SKIP
