"""Rejections before an attempt: pods that no plugin looks at."""

from __future__ import annotations

from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.model.limits import POD_LIMITS, too_expensive
from asched.model.pod import Pod
from asched.state.records import Rejected


def precheck(info: PodInfo, number: int) -> Rejected | None:
    """The decision for a pod that must not be attempted; None for all others."""
    status = refusal(info.pod)
    if status is None:
        return None
    return Rejected(
        info.key, info.uid, number, status.message, unschedulable_plugins=(status.plugin,)
    )


def refusal(pod: Pod) -> Status | None:
    """Why the pod must not be attempted, under the name of what it waits for."""
    excess = pod.spec.oversized
    return Status.unschedulable(too_expensive(excess)).by(POD_LIMITS) if excess else None
