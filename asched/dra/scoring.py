"""The score of a node: earlier alternatives of requests are better."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from asched.dra.allocator import ClaimSolution
from asched.model.resource_claims import AllocationResult, ResourceClaimSpec

MAX_ALTERNATIVES: Final = 8


def solution_score(solution: ClaimSolution) -> int:
    """The raw score of a claim that is being allocated."""
    used = {device.option.wanted.reference for device in solution.devices}
    return _score(solution.spec, used)


def allocation_score(spec: ResourceClaimSpec, allocation: AllocationResult) -> int:
    """The raw score of a claim that is allocated."""
    return _score(spec, {result.request for result in allocation.devices.results})


def _score(spec: ResourceClaimSpec, used: Iterable[str]) -> int:
    return sum(
        MAX_ALTERNATIVES - index
        for request in spec.devices.requests
        for index, alternative in enumerate(request.first_available)
        if f"{request.name}/{alternative.name}" in used
    )
