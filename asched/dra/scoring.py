"""The score of a node: earlier alternatives of requests are better."""

from __future__ import annotations

from asched.dra.outcomes import MAX_ALTERNATIVES, ClaimSolution
from asched.model.resource_claims import AllocationResult, ResourceClaimSpec


def solution_score(solution: ClaimSolution) -> int:
    """The raw score of a claim that is being allocated."""
    return solution.score


def allocation_score(spec: ResourceClaimSpec, allocation: AllocationResult) -> int:
    """The raw score of a claim that is allocated."""
    used = {result.request for result in allocation.devices.results}
    return sum(
        MAX_ALTERNATIVES - index
        for request in spec.devices.requests
        for index, alternative in enumerate(request.first_available)
        if f"{request.name}/{alternative.name}" in used
    )
