"""The utilization of a whole placement, as NodeResourcesFit scores it (``scorePlacement``)."""

from __future__ import annotations

from collections.abc import Sequence

from asched.framework.nodes import MAX_NODE_SCORE, Nodes
from asched.framework.placements import GroupAssignments
from asched.model.requests import CPU, EPHEMERAL_STORAGE, MEMORY
from asched.plugins.node_resources.scoring import ResourceWeight, usage


def placement_utilization(
    assignments: GroupAssignments, resources: Sequence[ResourceWeight], nodes: Nodes
) -> int:
    """0 to 100: the share that is in use once the members run, as MostAllocated scores a node.

    Extended resources that no member requests are omitted.
    """
    rows = assignments.placement.rows
    total = weights = 0
    for name, weight in ((resource.name, resource.weight) for resource in resources):
        asked = sum(member.pod.shape.scoring_asks.get(name, 0) for member in assignments.members)
        if not asked and name not in (CPU, MEMORY, EPHEMERAL_STORAGE):
            continue
        capacity = sum(nodes.allocatable(name)[rows].tolist())
        if not capacity:
            continue
        used = asked + sum(usage(name, nodes)[rows].tolist())
        total += MAX_NODE_SCORE * min(used, capacity) // capacity * weight
        weights += weight
    return total // weights if weights else 0
