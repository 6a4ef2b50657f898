"""Score: earlier alternatives of ``firstAvailable`` are better."""

from __future__ import annotations

from asched.dra.scoring import allocation_score, solution_score
from asched.plugins.dynamic_resources.node_filter import NodeAllocation, PodDevices


def has_alternatives(data: PodDevices) -> bool:
    """Whether any request of the pod's claims has alternatives."""
    return any(
        request.first_available for claim in data.claims for request in claim.spec.devices.requests
    )


def node_score(data: PodDevices, answer: NodeAllocation) -> int:
    """The raw score of a node; 0 if nothing is allocated there (``computeScore``)."""
    if not answer.claims:
        return 0
    score = sum(solution_score(claim) for claim in answer.solution.claims)
    for claim in data.claims:
        allocation = claim.status.allocation
        if allocation is not None:
            score += allocation_score(claim.spec, allocation)
    return score
