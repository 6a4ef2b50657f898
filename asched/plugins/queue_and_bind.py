"""Small plugins at both ends of scheduling: SchedulingGates, PrioritySort and DefaultBinder."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import ClassVar

from asched.framework.binding import BindingClient
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource
from asched.framework.interface import (
    BindPlugin,
    EnqueueExtensions,
    PreEnqueuePlugin,
    QueueSortPlugin,
)
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.status import SUCCESS, Status
from asched.plugins.shared import own_pod_updated


class SchedulingGates(PreEnqueuePlugin, EnqueueExtensions):
    """Gates a pod until its ``spec.schedulingGates`` are all removed."""

    name: ClassVar[str] = "SchedulingGates"
    api_version: ClassVar[int] = 1

    def pre_enqueue(self, pod: PodInfo) -> Status:
        gates = pod.pod.spec.scheduling_gates
        if not gates:
            return SUCCESS
        names = " ".join(gate.name for gate in gates)
        return Status.unresolvable(f"waiting for scheduling gates: [{names}]")

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        eliminated = ActionType.UPDATE_POD_SCHEDULING_GATES_ELIMINATED
        return (ClusterEventWithHint.on(EventResource.TARGET_POD, eliminated, own_pod_updated),)


class PrioritySort(QueueSortPlugin):
    """Orders the queue by priority, then by the time when the pod entered a queue."""

    name: ClassVar[str] = "PrioritySort"
    api_version: ClassVar[int] = 1

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return self.sort_key(first) < self.sort_key(second)

    def sort_key(self, pod: QueuedPod) -> tuple[int, int]:
        return -pod.info.priority, pod.timestamp_ns


class DefaultBinder(BindPlugin):
    """Binds a pod by posting its Binding to the API server."""

    name: ClassVar[str] = "DefaultBinder"
    api_version: ClassVar[int] = 1
    awaits_client_only: ClassVar[bool] = True

    @property
    def time_limit_s(self) -> float:
        return inf  # the client has timeouts of its own

    async def bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        return await client.bind(pod, node_name)
