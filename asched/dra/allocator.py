"""The structured allocator: devices for all claims of a pod on a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from asched.dra.devices import NodeView
from asched.dra.inventory import Inventory
from asched.dra.ledger import TakenDevice
from asched.dra.preparation import Option, constraint_states, offers_for, plan_claim, prepare
from asched.dra.requests import ClaimError, RequestedDevices
from asched.dra.results import ShareIds, allocation_result, node_selector
from asched.dra.search import Search, SearchBudgetExceededError, SearchInput
from asched.dra.sites import Site
from asched.model.resource_claims import AllocationResult, ResourceClaim, ResourceClaimSpec

CANNOT_ALLOCATE: Final = "cannot allocate all claims"
INVALID_POOLS: Final = "invalid resource pools were encountered"

TOO_EXPENSIVE: Final = "search for devices stopped: too many combinations"

MAX_STEPS_PER_NODE: Final = 200_000


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """Claims that are allocated together, in this order."""

    claims: tuple[ResourceClaim, ...]

    @property
    def claim_keys(self) -> tuple[str, ...]:
        return tuple(claim.key for claim in self.claims)

    @property
    def specs(self) -> tuple[ResourceClaimSpec, ...]:
        return tuple(claim.spec for claim in self.claims)


@dataclass(frozen=True, slots=True)
class ClaimSolution:
    """The devices of one claim."""

    spec: ResourceClaimSpec
    requests: tuple[RequestedDevices, ...]
    """Its requests, or the chosen alternatives."""
    devices: tuple[TakenDevice, ...]


@dataclass(frozen=True, slots=True)
class Allocated:
    """All claims can be allocated."""

    claims: tuple[ClaimSolution, ...]

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


class AllocationError(Exception):
    """An error that ends the whole attempt."""


class Allocator:
    """Allocates devices of an inventory."""

    def __init__(self, inventory: Inventory, max_steps_per_node: int = MAX_STEPS_PER_NODE) -> None:
        self.inventory = inventory
        self._max_steps_per_node = max_steps_per_node

    def allocate(self, request: AllocationRequest, node: NodeView) -> Allocated | NotAllocated:
        """The devices for all claims on a node. Raises AllocationError."""
        try:
            return self._search(request.specs, Site(self.inventory.pools_of(node)))
        except ClaimError as error:
            raise AllocationError(error.describe(request.claim_keys)) from None

    def _search(self, specs: Sequence[ResourceClaimSpec], site: Site) -> Allocated | NotAllocated:
        inventory = self.inventory
        plans = [plan_claim(index, spec, inventory) for index, spec in enumerate(specs)]
        claims = prepare(plans, offers_for(plans, site, inventory), inventory.usage)
        search = Search(
            SearchInput(
                claims=claims,
                constraints=constraint_states(plans),
                site=site,
                usage=inventory.usage,
                max_steps=self._max_steps_per_node,
            )
        )
        try:
            found = search.run()
        except SearchBudgetExceededError:
            return NotAllocated(TOO_EXPENSIVE)
        if found is None:
            return NotAllocated(INVALID_POOLS if site.has_invalid_pool else CANNOT_ALLOCATE)
        return Allocated(
            tuple(
                ClaimSolution(spec, _chosen(requests, taken), tuple(taken))
                for spec, requests, taken in zip(specs, claims, found, strict=True)
            )
        )


def _chosen(
    requests: Sequence[Sequence[Option]], taken: Sequence[TakenDevice]
) -> tuple[RequestedDevices, ...]:
    """The requests of a claim, with alternatives replaced by the chosen one."""
    used = {device.option for device in taken}
    return tuple(
        next((option.wanted for option in options if option in used), options[0].wanted)
        for options in requests
    )
