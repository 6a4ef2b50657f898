"""What asched does otherwise than kube-batch, and why: one name for each correction.

A session in compatibility mode makes none of them, every other session makes all.
``docs/batch-corrections.md`` quotes the reasons below; a test shows each.
"""

from __future__ import annotations

from enum import Enum

from asched.framework.sessions import Compatibility


class Correction(Enum):
    """The value is the reason: what kube-batch does, and whom that hurts."""

    ROLL_BACK_GANGS = (
        "a gang that does not become ready gives back what allocate took for it; in kube-batch it"
        " holds the room for the rest of the session and keeps others out"
    )
    DROP_INVALID_JOBS = (
        "a job with fewer pods than its gang needs is left out, and its PodGroup says so; kube-batch"
        " asks whether jobs are valid before anybody can answer, and tries them all"
    )
    EXACT_FIT = (
        "a pod fits if there is room for all it asks; kube-batch lets every pod overdraw a node by"
        " nearly 10m of cpu and 10Mi of memory, takes pods that ask less than that to ask nothing,"
        " and the kubelet then refuses them"
    )
    COUNT_ALL_REQUESTS = (
        "a pod asks what kube-scheduler says it asks: init containers, sidecars, overhead, ephemeral"
        " storage; in kube-batch a pod of which only an init container asks for anything is placed"
        " by no action"
    )
    COUNT_FOREIGN_PODS = (
        "a pod bound by another scheduler uses its node's room as soon as it is bound; kube-batch"
        " does not see it while it is Pending, and counts no pod that does not fit any more"
    )
    LEAVE_OTHERS_ALONE = (
        "a job of which every pod is another scheduler's is left to that: it is not placed, evicted"
        " or given a status; kube-batch counts every PodGroup as its own"
    )
    READY_NODES_ONLY = (
        "a node that says it is not Ready is left out; kube-batch divides it among queues and jobs"
        " with the others, and only its predicates plugin keeps pods away from it"
    )
    SPARE_GANGS = (
        "victims are counted: two victims of a gang with one member to spare break it, so only one"
        " is taken; kube-batch looks at each victim as if it were the only one"
    )
    ROOM_BEFORE_VICTIMS = (
        "preempt and reclaim evict only for what is lacking: where there is room, or there will be,"
        " nobody has to go; kube-batch evicts even where the task would fit"
    )
    IDLE_BEFORE_WAITING = (
        "a task waits for room that is being released only where no node has any idle; in kube-batch"
        " it waits on the node with the best score while others stand empty"
    )
    RECLAIM_FOR_GANGS = (
        "reclaim takes as many tasks of a job as its gang needs, and evicts nobody for a gang that"
        " cannot start even so; kube-batch reclaims for one task of a job in a session, whatever"
        " becomes of it"
    )
    HONOUR_CAPABILITY = (
        "a queue's spec.capability is the most that its jobs get together; kube-batch ignores it"
    )
    CONSENT_OF_ALL_TIERS = (
        "a victim needs the consent of every plugin that speaks, whatever tier it is in; in"
        " kube-batch the first tier alone decides, so that drf and proportion protect nobody"
    )
    DESERVED_BY_RESOURCE = (
        "a queue deserves no more of a resource than it asks for, what it leaves is shared out, and"
        " reclaim leaves it what it deserves of what its victims use; in kube-batch a queue that asks"
        " much of one resource keeps its part of all, and nobody can reclaim from it"
    )
    PREEMPT_UPWARDS = (
        "within a job only a more important task evicts, and after every queue had its turn;"
        " kube-batch evicts tasks of the same job for others that are no better, and forgets those"
        " that it tried against other jobs"
    )
    REAL_PLACES = (
        "predicates and scores see pods where they are, those placed in this session too, and are"
        " those of asched's pod-by-pod profiles: each required anti-affinity term is enforced by"
        " itself, tolerations count for cordoned nodes; kube-batch's are of Kubernetes 1.16 and"
        " look for a pod placed in this session on any node"
    )
    NODES_IN_MESSAGES = (
        "the message of a gang that does not fit says how many nodes refused it and why; kube-batch"
        " says '0 nodes are available' whatever the reason"
    )
    ORDERED_QUEUES = (
        "jobs and queues are taken in order; kube-batch changes what it sorts by while they are"
        " sorted, and looks at its maps in random order"
    )


ALL_CORRECTIONS = frozenset(Correction)
NO_CORRECTIONS: frozenset[Correction] = frozenset()


def corrections_of(compatibility: Compatibility) -> frozenset[Correction]:
    return NO_CORRECTIONS if compatibility is Compatibility.KUBE_BATCH else ALL_CORRECTIONS
