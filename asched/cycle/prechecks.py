"""Rejections before an attempt: pods that no plugin looks at, now or ever."""

from __future__ import annotations

from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.status import Status
from asched.model.limits import POD_LIMITS, node_requirement_count, term_count, too_expensive
from asched.state.attempt_cost import attempt_cost, is_cheap
from asched.state.cluster import ClusterState
from asched.state.records import Rejected

QUARANTINED = "quarantined: the scheduler died twice while it decided on this pod"


def precheck(cluster: ClusterState, queued: QueuedPod, number: int) -> Rejected | None:
    """The decision for a pod that must not be attempted now; None for all others."""
    info = queued.info
    status = refusal(cluster, info)
    if status is not None:
        return Rejected(
            info.key, info.uid, number, status.message, unschedulable_plugins=(status.plugin,)
        )
    turn_ns = _turn_ns(cluster, queued)
    if turn_ns <= cluster.now_ns:
        return None
    return Rejected(info.key, info.uid, number, _put_off_message(info), put_off_until_ns=turn_ns)


def refusal(cluster: ClusterState, info: PodInfo) -> Status | None:
    """Why the pod must not be attempted until it changes."""
    excess = info.pod.spec.oversized
    if excess:
        return Status.unschedulable(too_expensive(excess)).by(POD_LIMITS)
    if cluster.quarantined and cluster.quarantined.get(info.key) == info.uid:
        return Status.unschedulable(QUARANTINED).by(POD_LIMITS)
    return None


def _turn_ns(cluster: ClusterState, queued: QueuedPod) -> int:
    """When the pod may be attempted; 0 for now."""
    info = queued.info
    if is_cheap(info.pod) or info.key in cluster.pending_evaluations:
        return 0  # free, or an attempt that continues
    if queued.turn_ns:
        return queued.turn_ns
    turn_ns = cluster.attempt_budgets.turn_ns(info.namespace, cluster.now_ns)
    return turn_ns if turn_ns and attempt_cost(cluster, info.pod, preemption=True) else 0


def _put_off_message(info: PodInfo) -> str:
    count = term_count(info.pod.spec)
    what = "affinity terms and spread constraints"
    if not count:
        count, what = node_requirement_count(info.pod.spec), "requirements of node affinity"
    return (
        f"put off: {count} {what} take long in this cluster, and namespace {info.namespace} used up"
        " its share of decision time"
    )
