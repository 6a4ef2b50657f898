"""What an allocation on a node comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from asched.dra.ledger import TakenDevice
from asched.dra.requests import RequestedDevices
from asched.dra.results import ShareIds, allocation_result, node_selector
from asched.model.resource_claims import AllocationResult, ResourceClaimSpec

CANNOT_ALLOCATE: Final = "cannot allocate all claims"
INVALID_POOLS: Final = "invalid resource pools were encountered"
TOO_EXPENSIVE: Final = "search for devices stopped: too many combinations"

MAX_ALTERNATIVES: Final = 8


@dataclass(frozen=True, slots=True)
class ClaimSolution:
    """The devices of one claim."""

    spec: ResourceClaimSpec
    requests: tuple[RequestedDevices, ...]
    """Its requests, or the chosen alternatives."""
    devices: tuple[TakenDevice, ...]

    @property
    def score(self) -> int:
        """The raw score: earlier alternatives of requests are better."""
        used = {device.option.wanted for device in self.devices}
        return sum(
            MAX_ALTERNATIVES - request.alternative
            for request in self.requests
            if request.alternative_name and request in used
        )


@dataclass(frozen=True, slots=True)
class Allocated:
    """All claims can be allocated."""

    claims: tuple[ClaimSolution, ...]

    @property
    def score(self) -> int:
        """The raw score of the claims."""
        return sum(claim.score for claim in self.claims)

    def results(self, node_name: str, share_ids: ShareIds) -> tuple[AllocationResult, ...]:
        """The allocations as they are written. Raises AllocationError."""
        return tuple(
            allocation_result(
                claim.spec,
                claim.requests,
                claim.devices,
                node_selector(claim.devices, node_name),
                share_ids,
            )
            for claim in self.claims
        )


@dataclass(frozen=True, slots=True)
class NotAllocated:
    """Not all claims can be allocated on the node."""

    reason: str


@dataclass(frozen=True, slots=True)
class AllocationFailed:
    """An error that ends the whole attempt."""

    error: str


Outcome = Allocated | NotAllocated


class AllocationError(Exception):
    """An error that ends the whole attempt."""
