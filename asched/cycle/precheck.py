"""Rejections of pods that must not be attempted, now or until they change: no plugin is called."""

from __future__ import annotations

from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.status import Status
from asched.model.limits import POD_LIMITS, node_requirement_count, term_count, too_expensive
from asched.state.attempt_budget import FREE_REQUIREMENTS
from asched.state.attempt_costs import AttemptCosts
from asched.state.cluster import ClusterState
from asched.state.records import Rejected

QUARANTINED = "quarantined: the scheduler died twice while it decided on this pod"


def precheck(cluster: ClusterState, queued: QueuedPod, number: int) -> Rejected | None:
    """The decision for a pod that must not be attempted now; None for all others."""
    info = queued.info
    if info.pod.spec.oversized or cluster.guards.quarantined:
        status = refusal(cluster, info)
        if status is not None:
            return Rejected(
                info.key, info.uid, number, status.message, unschedulable_plugins=(status.plugin,)
            )
    turn_ns = _turn_ns(cluster, queued)
    if turn_ns <= cluster.now_ns:
        return None
    message = _put_off_message(cluster.guards.costs, info)
    return Rejected(info.key, info.uid, number, message, put_off_until_ns=turn_ns)


def refusal(cluster: ClusterState, info: PodInfo) -> Status | None:
    """Why the pod must not be attempted until it changes."""
    excess = info.pod.spec.oversized
    if excess:
        return Status.unschedulable(too_expensive(excess)).by(POD_LIMITS)
    if cluster.guards.quarantined and cluster.guards.quarantined.get(info.key) == info.uid:
        return Status.unschedulable(QUARANTINED).by(POD_LIMITS)
    return None


def _turn_ns(cluster: ClusterState, queued: QueuedPod) -> int:
    """When the pod may be attempted; 0 for now."""
    info = queued.info
    costs, budgets = cluster.guards.costs, cluster.guards.budgets
    owes = budgets.owes(info.namespace, cluster.now_ns)
    is_free = costs.is_cheap(info) and not (owes and costs.is_charged(info))
    if is_free or info.key in cluster.pending_evaluations:
        return 0  # free, or an attempt that continues
    if queued.turn_ns:
        if queued.yields and not costs.is_limited(info):
            return 0
        if queued.turn_ns > cluster.now_ns:
            return queued.turn_ns
        # Searches for victims may take longer than when the pod was put off.
        steps = costs.of_attempt(info, preemption=True)
        rose = steps > 2 * queued.charged_steps and costs.is_limited(info)
        return budgets.turn_ns(info.namespace, steps, cluster.now_ns) if rose and owes else 0
    # Pods with claims or terms like those of a pod that was put off share its turn.
    shared_ns = costs.shared_turn_ns(info)
    if shared_ns > cluster.now_ns:
        return shared_ns
    if not owes or not costs.is_limited(info):
        return 0
    steps = costs.of_attempt(info, preemption=True) + costs.of_first(info)
    return budgets.turn_ns(info.namespace, steps, cluster.now_ns) if steps else 0


def _put_off_message(costs: AttemptCosts, info: PodInfo) -> str:
    count = term_count(info.pod.spec)
    what = "affinity terms and spread constraints"
    requirements = node_requirement_count(info.pod.spec)
    if not count and requirements > FREE_REQUIREMENTS:
        count, what = requirements, "requirements of node selector and affinity"
    if not count:
        count, what = len(info.pod.spec.resource_claims), "resource claims"
    if not count and costs.yields(info):
        return (
            "put off: searching for pods to evict takes long in this cluster, pods of other"
            f" namespaces wait, and namespace {info.namespace} used up its share of decision time"
        )
    if not count and costs.is_cheap(info):
        what_for = "searching for pods to evict"
        if costs.checks_gang(info):
            what_for = "checking whether preemption completes the gang"
        return (
            f"put off: {what_for} takes long in this cluster, and namespace {info.namespace} used"
            " up its share of decision time"
        )
    if not count:
        count, what = max(
            (len(info.shape.requests), "requests for resources of devices"),
            (len(info.shape.ports), "host ports"),
            (len(info.pod.spec.volumes), "volumes"),
        )
    return (
        f"put off: {count} {what} take long in this cluster, and namespace {info.namespace} used up"
        " its share of decision time"
    )
