"""The structured allocator: devices for all claims of a pod on a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from asched.dra.candidates import RequestCandidates, candidates_of
from asched.dra.constraints import Constraint, constraint_state
from asched.dra.devices import NodeView
from asched.dra.inventory import Inventory
from asched.dra.pools import PoolView
from asched.dra.requests import (
    MAX_DEVICES_PER_CLAIM,
    ClaimError,
    RequestedDevices,
    requested_devices,
)
from asched.dra.results import ShareIds, allocation_result, node_selector
from asched.dra.search import Search, SearchBudgetExceededError, SearchInput, TakenDevice
from asched.model.resource_claims import AllocationResult, ResourceClaim, ResourceClaimSpec

CANNOT_ALLOCATE: Final = "cannot allocate all claims"
INVALID_POOLS: Final = "invalid resource pools were encountered"

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
            return self._search(request.specs, self.inventory.pools_of(node), node.name)
        except ClaimError as error:
            raise AllocationError(error.describe(request.claim_keys)) from None

    def _search(
        self, specs: Sequence[ResourceClaimSpec], pools: Sequence[PoolView], node_name: str
    ) -> Allocated | NotAllocated:
        claims = [self._prepare(index, spec, pools) for index, spec in enumerate(specs)]
        search = Search(
            SearchInput(
                claims=claims,
                constraints=[_constraints(index, spec) for index, spec in enumerate(specs)],
                candidates=candidates_of(pools),
                usage=self.inventory.usage,
                max_steps=self._max_steps_per_node,
            )
        )
        try:
            found = search.run()
        except SearchBudgetExceededError:
            return NotAllocated(f"node {node_name}: timed out trying to allocate devices")
        if found is None:
            return NotAllocated(
                INVALID_POOLS if any(pool.invalid for pool in pools) else CANNOT_ALLOCATE
            )
        return Allocated(
            tuple(
                ClaimSolution(spec, _chosen(requests, taken), tuple(taken))
                for spec, requests, taken in zip(specs, claims, found, strict=True)
            )
        )

    def _prepare(
        self, claim: int, spec: ResourceClaimSpec, pools: Sequence[PoolView]
    ) -> list[list[RequestCandidates]]:
        requests: list[list[RequestCandidates]] = []
        inventory = self.inventory
        fewest = 0
        for index in range(len(spec.devices.requests)):
            options = []
            for wanted in requested_devices(spec, claim, index, inventory.classes):
                option = RequestCandidates(wanted, inventory.selectors)
                option.prepare(pools, inventory.usage)
                options.append(option)
            fewest += min(option.count for option in options)
            requests.append(options)
        if fewest > MAX_DEVICES_PER_CLAIM:
            raise ClaimError(
                f": number of requested devices {fewest} exceeds the claim limit of"
                f" {MAX_DEVICES_PER_CLAIM}",
                claim,
            )
        return requests


def _constraints(claim: int, spec: ResourceClaimSpec) -> list[Constraint]:
    states: list[Constraint] = []
    for index, constraint in enumerate(spec.devices.constraints):
        state = constraint_state(constraint)
        if state is None:
            raise ClaimError(
                f", constraint #{index}: empty constraint (unsupported constraint type?)", claim
            )
        states.append(state)
    return states


def _chosen(
    requests: Sequence[Sequence[RequestCandidates]], taken: Sequence[TakenDevice]
) -> tuple[RequestedDevices, ...]:
    """The requests of a claim, with alternatives replaced by the chosen one."""
    used = {id(device.wanted) for device in taken}
    return tuple(
        next((option.wanted for option in options if id(option) in used), options[0].wanted)
        for options in requests
    )
