"""Filters by single fields: NodeName, NodeUnschedulable and NodePorts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.interface import (
    EnqueueExtensions,
    FilterAllPlugin,
    PreFilterPlugin,
    PreFilterResult,
    Scope,
)
from asched.framework.nodes import FilterResult, Nodes
from asched.framework.pod_info import ANY_IP, HostPort, PodInfo, shape_of
from asched.framework.status import Status
from asched.model.meta import Object
from asched.model.node import NO_SCHEDULE, UNSCHEDULABLE_TAINT, Node, Taint
from asched.model.pod import Pod
from asched.plugins.shared import PROCEED, SKIP, is_tolerated, queue_if

OTHER_NODE = Status.unresolvable("node(s) didn't match the requested node name")
UNSCHEDULABLE = Status.unresolvable("node(s) were unschedulable")
_CORDON = Taint(key=UNSCHEDULABLE_TAINT, effect=NO_SCHEDULE)
PORT_TAKEN = Status.unschedulable("node(s) didn't have free ports for the requested pod ports")


class NodeName(FilterAllPlugin, EnqueueExtensions):
    """Rejects every node except the one in ``spec.nodeName``, if that is set."""

    name: ClassVar[str] = "NodeName"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE_OBJECT

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        wanted = pod.pod.spec.node_name
        if not wanted:
            return FilterResult.passing(nodes.size)
        codes = np.ones(nodes.size, np.int16)
        row = nodes.row_of(wanted)
        if row is not None:
            codes[row] = 0
        return FilterResult(codes, (OTHER_NODE,))

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (ClusterEventWithHint.on(EventResource.NODE, ActionType.ADD, named_node_added),)


def named_node_added(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    return queue_if(new is not None and new.name == pod.spec.node_name)


class NodeUnschedulable(FilterAllPlugin, EnqueueExtensions):
    """Rejects nodes with ``spec.unschedulable``, unless the pod tolerates the taint
    ``node.kubernetes.io/unschedulable:NoSchedule``."""

    name: ClassVar[str] = "NodeUnschedulable"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE_OBJECT

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        cordoned = nodes.unschedulable
        if not np.count_nonzero(cordoned) or is_tolerated(_CORDON, pod.shape.tolerations):
            return FilterResult.passing(nodes.size)
        return FilterResult.reject(cordoned, UNSCHEDULABLE)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        on = ClusterEventWithHint.on
        changed = ActionType.ADD | ActionType.UPDATE_NODE_TAINT
        return (
            on(EventResource.NODE, changed, became_schedulable),
            on(EventResource.TARGET_POD, ActionType.UPDATE_POD_TOLERATION, now_tolerates_cordon),
        )


def became_schedulable(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue if the node is schedulable and was new or cordoned before."""
    before = isinstance(old, Node) and not old.spec.unschedulable
    now = isinstance(new, Node) and not new.spec.unschedulable
    return queue_if(now and not before)


def now_tolerates_cordon(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    if not isinstance(new, Pod) or new.uid != pod.uid:
        return QueueingHint.SKIP
    return queue_if(is_tolerated(_CORDON, new.spec.tolerations))


class NodePorts(PreFilterPlugin, FilterAllPlugin, EnqueueExtensions):
    """Rejects nodes on which a host port of the pod is in use."""

    name: ClassVar[str] = "NodePorts"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        return PROCEED if pod.shape.ports else SKIP

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        if not pod.shape.ports:
            return FilterResult.passing(nodes.size)
        return FilterResult.reject(nodes.port_conflicts(pod.shape.ports), PORT_TAKEN)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (
            ClusterEventWithHint.on(EventResource.ASSIGNED_POD, ActionType.DELETE, pod_freed_port),
            ClusterEventWithHint.on(EventResource.NODE, ActionType.ADD),
        )


def pod_freed_port(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue if the deleted pod was assigned and used a host port of the pod."""
    if not isinstance(old, Pod) or not old.spec.node_name:
        return QueueingHint.SKIP
    freed, wanted = shape_of(old).ports, shape_of(pod).ports
    return queue_if(any(_conflict(one, other) for one in freed for other in wanted))


def _conflict(one: HostPort, other: HostPort) -> bool:
    """``HostPortInfo.CheckConflict``: the address 0.0.0.0 means all addresses."""
    same_port = one.port == other.port and one.protocol == other.protocol
    return same_port and (one.ip == other.ip or ANY_IP in (one.ip, other.ip))
