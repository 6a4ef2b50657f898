"""The cost of an attempt in the present cluster, which its namespace is charged for."""

from __future__ import annotations

from asched.model.pod import Pod
from asched.state.attempt_budget import attempt_steps, preemption_steps
from asched.state.cluster import ClusterState


def is_cheap(pod: Pod) -> bool:
    """Whether the pod has no affinity and no constraints: its attempts are free."""
    return pod.spec.affinity is None and not pod.spec.topology_spread_constraints


def attempt_cost(cluster: ClusterState, pod: Pod, *, preemption: bool) -> int:
    """The estimated steps of an attempt; 0 if it is free. With ``preemption``, those of a search
    for victims are included if there can be any."""
    nodes = cluster.nodes.cluster_size
    steps = attempt_steps(pod, nodes, len(cluster.pods))
    if preemption and (further := preemption_steps(pod, nodes)):
        lowest = cluster.lowest_priority
        if lowest is not None and lowest < pod.spec.priority:
            steps += further
    return steps
