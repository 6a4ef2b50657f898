"""The deviations from kube-batch: one name for each, with its reason.

Compatibility mode makes none of them, the default mode makes all. ``docs/batch-corrections.md``
quotes the reasons, and ``tests/batch/test_corrections.py`` shows each.
"""

from __future__ import annotations

from enum import Enum

from asched.framework.sessions import Compatibility


class Correction(Enum):
    """The value is the reason: the corrected behavior, then kube-batch's."""

    ROLL_BACK_GANGS = (
        "A gang that does not become ready returns what allocate reserved for it. In kube-batch"
        " it keeps the resources for the rest of the session and blocks other jobs."
    )
    DROP_INVALID_JOBS = (
        "A job with fewer pods than its gang needs is skipped, and its PodGroup says so."
        " kube-batch validates jobs before any plugin is open, so it tries all of them."
    )
    EXACT_FIT = (
        "A pod fits if the node has all resources that it requests. kube-batch lets every pod"
        " overcommit a node by nearly 10m of cpu and 10Mi of memory, and treats smaller requests"
        " as no request. The kubelet then rejects such pods."
    )
    COUNT_ALL_REQUESTS = (
        "A pod's requests are those that kube-scheduler computes: with init containers,"
        " sidecars, overhead and ephemeral storage. In kube-batch no action places a pod with"
        " requests in an init container only."
    )
    COUNT_FOREIGN_PODS = (
        "A pod bound by another scheduler uses its node's resources at once. kube-batch ignores"
        " it while it is Pending, and ignores pods that do not fit."
    )
    LEAVE_OTHERS_ALONE = (
        "A job with pods of other schedulers only is ignored: it is not placed or evicted, and"
        " gets no status. kube-batch treats every PodGroup as its own."
    )
    READY_NODES_ONLY = (
        "A node that reports NotReady is ignored. kube-batch divides its resources among queues"
        " and jobs, and only its predicates plugin keeps pods off it."
    )
    SPARE_GANGS = (
        "Victims of one gang are counted together: a gang with one spare member loses only one."
        " kube-batch checks each victim as if it were the only one, and may break the gang."
    )
    ROOM_BEFORE_VICTIMS = (
        "preempt and reclaim evict only for missing resources. They evict nothing if the task"
        " fits now or after current releases. kube-batch evicts even if the task would fit."
    )
    IDLE_BEFORE_WAITING = (
        "A task waits for resources that are being released only if no node has enough idle"
        " ones. In kube-batch it waits on the node with the best score while other nodes are"
        " empty."
    )
    RECLAIM_FOR_GANGS = (
        "reclaim takes as many tasks of a job as its gang needs, and evicts nothing for a gang"
        " that cannot start even then. kube-batch reclaims for one task per job and session,"
        " without regard to the gang."
    )
    HONOUR_CAPABILITY = (
        "A queue's spec.capability is the maximum for all of its jobs. kube-batch ignores it."
    )
    CONSENT_OF_ALL_TIERS = (
        "A victim needs the consent of every plugin in every tier. In kube-batch the first tier"
        " alone decides, so drf and proportion protect no task."
    )
    DESERVED_BY_RESOURCE = (
        "A queue deserves at most the amount of a resource that it requests; the rest is divided"
        " among other queues, and reclaim leaves a queue its deserved share of the victims'"
        " resources."
        " In kube-batch a queue with a large request for one resource keeps its share of all of"
        " them, and no other queue can reclaim from it."
    )
    SMALLER_SHARE_RECLAIMS = (
        "A queue reclaims from another only while it precedes the other in queue order. In"
        " kube-batch a queue with a larger share evicts tasks, and the next session gives their"
        " resources back to the other queue, without end."
    )
    PREEMPT_UPWARDS = (
        "Within a job only a task of higher priority evicts, after all queues had their turn."
        " kube-batch evicts tasks for others of the same job without comparing priorities, and"
        " skips the tasks that it tried against other jobs."
    )
    REAL_PLACES = (
        "Predicates and scores see pods on their actual nodes, including placements of this"
        " session, and are those of asched's pod-by-pod profiles: each required anti-affinity"
        " term applies by itself, and tolerations apply to cordoned nodes. kube-batch's are"
        " those of Kubernetes 1.16 and assume an arbitrary node for a pod placed in this"
        " session."
    )
    NODES_IN_MESSAGES = (
        "The message of a gang that does not fit contains the number of nodes for each reason."
        " kube-batch's message is always '0 nodes are available'."
    )
    ORDERED_QUEUES = (
        "Jobs and queues are taken in order. kube-batch changes sort keys of elements in a"
        " heap, and iterates over maps in random order."
    )


ALL_CORRECTIONS = frozenset(Correction)
NO_CORRECTIONS: frozenset[Correction] = frozenset()


def corrections_of(compatibility: Compatibility) -> frozenset[Correction]:
    return NO_CORRECTIONS if compatibility is Compatibility.KUBE_BATCH else ALL_CORRECTIONS
