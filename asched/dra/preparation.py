"""What a search needs to know of its claims before it starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asched.dra.candidates import MAX_POOL_STEPS, RequestCandidates, RequestMatcher
from asched.dra.capacity import fits
from asched.dra.constraints import DistinctAttribute, MatchAttribute, constraint_state
from asched.dra.inventory import Inventory
from asched.dra.requests import (
    MAX_DEVICES_PER_CLAIM,
    ClaimError,
    RequestedDevices,
    requested_devices,
)
from asched.dra.sites import Site
from asched.dra.steps import CHARACTERS_PER_STEP, OPTIONS_PER_STEP, StepMeter
from asched.dra.usage import Usage
from asched.model.resource_claims import (
    ALL_DEVICES,
    EXACT_COUNT,
    DeviceConstraint,
    ResourceClaimSpec,
)

ConstraintState = MatchAttribute | DistinctAttribute


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """A request, or an alternative of one, in one search."""

    wanted: RequestedDevices
    offered: RequestCandidates
    count: int
    """How many devices."""
    positions: tuple[int, ...] | None = None
    """The devices of a request for all devices; None for an exact count."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedClaim:
    """A claim whose requests were read, or the error that reading one ends with."""

    index: int
    spec: ResourceClaimSpec
    requests: tuple[tuple[RequestMatcher, ...] | ClaimError, ...]
    """The alternatives of each request."""
    constraints: tuple[DeviceConstraint, ...]
    problem: ClaimError | None

    @property
    def option_count(self) -> int:
        """The requests, or their alternatives."""
        return sum(1 if isinstance(each, ClaimError) else len(each) for each in self.requests)


def option_count(spec: ResourceClaimSpec) -> int:
    """The requests, or their alternatives, of a claim."""
    return sum(len(request.first_available) or 1 for request in spec.devices.requests)


def expression_steps(specs: Sequence[ResourceClaimSpec]) -> int:
    """The steps of compiling all expressions of claims, whether or not they are known."""
    expressions = {
        selector.cel.expression
        for spec in specs
        for request in spec.devices.requests
        for body in (request.exactly, *request.first_available)
        if body is not None
        for selector in body.selectors
        if selector.cel is not None
    }
    return sum(map(len, expressions)) // CHARACTERS_PER_STEP


def plan_claim(index: int, spec: ResourceClaimSpec, inventory: Inventory) -> PlannedClaim:
    """What does not depend on the node."""
    requests: list[tuple[RequestMatcher, ...] | ClaimError] = []
    pool_steps = MAX_POOL_STEPS // max(1, option_count(spec))
    for number in range(len(spec.devices.requests)):
        try:
            requests.append(
                tuple(
                    RequestMatcher(wanted, inventory.selectors, pool_steps)
                    for wanted in requested_devices(spec, index, number, inventory.classes)
                )
            )
        except ClaimError as error:
            requests.append(error)
    problem = next(
        (
            ClaimError(
                f", constraint #{number}: empty constraint (unsupported constraint type?)", index
            )
            for number, constraint in enumerate(spec.devices.constraints)
            if constraint_state(constraint) is None
        ),
        None,
    )
    return PlannedClaim(index, spec, tuple(requests), spec.devices.constraints, problem)


def prepare(
    claims: Sequence[PlannedClaim], site: Site, usage: Usage, meter: StepMeter
) -> list[list[list[Option]]]:
    """The options of each request of each claim.

    Raises ClaimError and SearchBudgetExceededError.
    """
    meter.add(sum(claim.option_count for claim in claims) // OPTIONS_PER_STEP)
    return [
        _prepare_claim(claim, lambda matcher: RequestCandidates(matcher, site, meter), usage)
        for claim in claims
    ]


def _prepare_claim(
    claim: PlannedClaim, offer: Callable[[RequestMatcher], RequestCandidates], usage: Usage
) -> list[list[Option]]:
    requests: list[list[Option]] = []
    for request in claim.requests:
        if isinstance(request, ClaimError):
            raise request.with_traceback(None)
        requests.append([_option(offer(matcher), usage) for matcher in request])
    fewest = sum(min(option.count for option in options) for options in requests)
    if fewest > MAX_DEVICES_PER_CLAIM:
        raise ClaimError(
            f": number of requested devices {fewest} exceeds the claim limit of"
            f" {MAX_DEVICES_PER_CLAIM}",
            claim.index,
        )
    if claim.problem is not None:
        raise claim.problem.with_traceback(None)
    return requests


def _option(offered: RequestCandidates, usage: Usage) -> Option:
    wanted = offered.wanted
    if wanted.mode == EXACT_COUNT:
        return Option(wanted, offered, wanted.count)
    if wanted.mode != ALL_DEVICES:
        raise ClaimError(
            f", request {wanted.own_name}: unsupported count mode {wanted.mode}", wanted.claim
        )
    positions: list[int] = []
    start = 0
    for pool in offered.site.pools:
        if not pool.usable:
            state = "being updated" if pool.incomplete else "invalid"
            raise ClaimError(
                f", request {wanted.own_name}: asks for all devices, but resource pool"
                f" {pool.pool_id} is currently {state}",
                wanted.claim,
            )
        end = start + len(pool.devices)
        offered.count_steps(end - start)
        positions += [
            position
            for position in range(start, end)
            if offered.selects(position) and has_capacity(offered, position, usage)
        ]
        start = end
    return Option(wanted, offered, len(positions), tuple(positions))


def has_capacity(offered: RequestCandidates, position: int, usage: Usage) -> bool:
    """Whether the other claims leave enough capacity of the device."""
    device = offered.site.candidates[position].device
    needed = offered.consumption(device)
    if needed is None:
        return False
    if not needed.amounts:
        return True
    consumed = usage.of(device.pool_id, device.name).consumed
    return fits(needed.amounts, device.device.capacity, consumed)


def constraint_states(claims: Sequence[PlannedClaim]) -> list[list[ConstraintState]]:
    """The constraints of each claim, before any device is allocated."""
    return [
        [state for item in claim.constraints if (state := constraint_state(item)) is not None]
        for claim in claims
    ]
