"""NodePorts: filters by the host ports that pods on the node use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

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
from asched.framework.status import SUCCESS, Status
from asched.model.meta import Object
from asched.model.pod import Pod

PORT_TAKEN = Status.unschedulable("node(s) didn't have free ports for the requested pod ports")

_PROCEED = PreFilterResult(SUCCESS)
_SKIP = PreFilterResult(Status.skip())


class NodePorts(PreFilterPlugin, FilterAllPlugin, EnqueueExtensions):
    """Rejects nodes on which a host port of the pod is in use."""

    name: ClassVar[str] = "NodePorts"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        return _PROCEED if pod.shape.ports else _SKIP

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
    conflict = any(_conflict(one, other) for one in freed for other in wanted)
    return QueueingHint.QUEUE if conflict else QueueingHint.SKIP


def _conflict(one: HostPort, other: HostPort) -> bool:
    """``HostPortInfo.CheckConflict``: the address 0.0.0.0 means all addresses."""
    same_port = one.port == other.port and one.protocol == other.protocol
    return same_port and (one.ip == other.ip or ANY_IP in (one.ip, other.ip))
