"""SchedulingGates: a pod with gates does not enter the active queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.framework.interface import EnqueueExtensions, PreEnqueuePlugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.model.meta import Object
from asched.model.pod import Pod


class SchedulingGates(PreEnqueuePlugin, EnqueueExtensions):
    """Hold a pod back until its ``spec.schedulingGates`` are all removed."""

    name: ClassVar[str] = "SchedulingGates"
    api_version: ClassVar[int] = 1

    def pre_enqueue(self, pod: PodInfo) -> Status:
        gates = pod.pod.spec.scheduling_gates
        if not gates:
            return SUCCESS
        names = " ".join(gate.name for gate in gates)
        return Status.unresolvable(f"waiting for scheduling gates: [{names}]")

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        eliminated = ClusterEvent(
            EventResource.TARGET_POD, ActionType.UPDATE_POD_SCHEDULING_GATES_ELIMINATED
        )
        return (ClusterEventWithHint(eliminated, own_gates_eliminated),)


def own_gates_eliminated(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Only the pod's own update helps it."""
    return QueueingHint.QUEUE if new is not None and new.uid == pod.uid else QueueingHint.SKIP
