"""What a search needs of its claims before it starts, such as the devices a request can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from asched.dra.capacity import Consumption, consumption, fits
from asched.dra.constraints import DistinctAttribute, MatchAttribute, constraint_state
from asched.dra.devices import PooledDevice, Usage
from asched.dra.inventory import Inventory
from asched.dra.pools import Bits, DeviceCandidate, PoolView
from asched.dra.requests import (
    MAX_DEVICES_PER_CLAIM,
    ClaimError,
    RequestedDevices,
    requested_devices,
)
from asched.dra.selectors import SelectorAnswers
from asched.dra.sites import Site
from asched.dra.steps import (
    CHARACTERS_PER_STEP,
    CHEAP_SELECTOR_COST,
    OPTIONS_PER_STEP,
    AttemptMeter,
    StepMeter,
    selector_steps,
)
from asched.model.resource_claims import (
    ALL_DEVICES,
    EXACT_COUNT,
    DeviceConstraint,
    ResourceClaimSpec,
)

MAX_POOL_STEPS: Final = 400_000
"""For the evaluation of all devices of a pool by all requests of a claim."""
DEVICES_PER_STEP: Final = 8
"""Devices with known answers that are looked at in one step."""


class MatchAnswer(NamedTuple):
    """Whether a request can have the devices that selectors and policies see alike."""

    match: bool
    evaluations: Mapping[int, int]
    """The steps of each evaluation, by identity."""
    expensive_steps: int = 0
    """Of the evaluations that are expensive."""
    error: ClaimError | None = None


class _Expression(NamedTuple):
    """A selector of a request or of its class."""

    text: str
    number: int
    of_class: str
    """``class NAME``; empty for a selector of the request itself."""


def _expressions(wanted: RequestedDevices) -> Iterator[_Expression]:
    """The selectors in the order of their evaluation."""
    device_class = wanted.device_class
    for of_class, selectors in (
        (f"class {device_class.name}", device_class.spec.selectors),
        ("", wanted.selectors),
    ):
        for number, selector in enumerate(selectors):
            text = selector.cel.expression if selector.cel is not None else ""
            yield _Expression(text, number, of_class)


class RequestMatcher:
    """Answers for one request, or one alternative of a request, by content of devices."""

    __slots__ = (
        "_answers",
        "_consumption",
        "_failing",
        "_pool_steps",
        "_selectors",
        "_shared",
        "wanted",
    )

    def __init__(
        self,
        wanted: RequestedDevices,
        selectors: SelectorAnswers,
        pool_steps: int = MAX_POOL_STEPS,
    ) -> None:
        """``pool_steps``: limit for :meth:`failing`."""
        self.wanted = wanted
        self._pool_steps = pool_steps
        self._selectors = selectors
        self._answers: dict[int, MatchAnswer] = {}
        self._shared: dict[tuple[bool, tuple[int, ...]], MatchAnswer] = {}
        """By result and evaluations: devices with equal answers share the object."""
        self._consumption: dict[int, Consumption | None] = {}
        self._failing: dict[int, Bits] = {}

    def answer(self, device: PooledDevice) -> MatchAnswer:
        """Whether selectors and policies allow the device."""
        known = self._answers.get(device.content)
        if known is None:
            known = self._answers[device.content] = self._evaluate(device)
        return known

    def consumption(self, device: PooledDevice) -> Consumption | None:
        """What the request consumes of the device; None if it cannot have it."""
        content = device.capacity_content
        if content not in self._consumption:
            self._consumption[content] = consumption(self.wanted.capacity, device.device.capacity)
        return self._consumption[content]

    def failing(self, pool: PoolView) -> Bits:
        """The devices of a pool for which selectors have errors or are expensive; all of them if
        finding out takes too long."""
        failing = self._failing.get(pool.base)
        if failing is None:
            failing = self._failing[pool.base] = self._find_failing(pool)
        return failing

    def _find_failing(self, pool: PoolView) -> Bits:
        meter = AttemptMeter(self._pool_steps)
        meter.add(len(pool.devices) // DEVICES_PER_STEP)
        failing: Bits = 0
        for position, device in enumerate(pool.devices):
            answer = self.answer(device)
            meter.add(0, (answer,))
            if meter.is_exceeded:
                return (1 << len(pool.devices)) - 1
            if answer.error is not None or answer.expensive_steps:
                failing |= 1 << position
        return failing

    def refused_by(self, device: PooledDevice) -> str:
        """Which selector does not match a device; empty if none of them."""
        for each in _expressions(self.wanted):
            if not self._selectors.answer(each.text, device).match:
                origin = each.of_class or "the request"
                return f"not selected by selector #{each.number} of {origin}"
        return ""

    def _evaluate(self, device: PooledDevice) -> MatchAnswer:
        evaluations: dict[int, int] = {}
        expensive_steps = 0
        for each in _expressions(self.wanted):
            answer = self._selectors.answer(each.text, device)
            steps = evaluations[id(answer)] = selector_steps(answer.cost)
            expensive_steps += steps if answer.cost > CHEAP_SELECTOR_COST else 0
            if answer.error:
                text = f"{each.of_class}: selector #{each.number}: {answer.error}"
                error = ClaimError(text, None if each.of_class else self.wanted.claim)
                return MatchAnswer(False, evaluations, expensive_steps, error)
            if not answer.match:
                return self._share(MatchAnswer(False, evaluations, expensive_steps))
        match = self.consumption(device) is not None
        return self._share(MatchAnswer(match, evaluations, expensive_steps))

    def _share(self, answer: MatchAnswer) -> MatchAnswer:
        return self._shared.setdefault((answer.match, tuple(answer.evaluations)), answer)


class RequestCandidates:
    """A request, or an alternative of one, on one site during one search.

    Selectors are evaluated when the search comes to a device, because an error counts only then.
    """

    __slots__ = ("_matcher", "_meter", "known", "matching", "site", "wanted")

    def __init__(self, matcher: RequestMatcher, site: Site, meter: StepMeter) -> None:
        self._matcher = matcher
        self._meter = meter
        self.wanted = matcher.wanted
        self.site = site
        self.known: Bits = self._certainly_elsewhere()
        """The candidates that were compared with the request."""
        self.matching: Bits = 0
        """Those of them that the request can have."""

    def _certainly_elsewhere(self) -> Bits:
        """Candidates for other nodes. Those with errors are left out, because errors count."""
        bits = self.site.elsewhere
        if bits:
            for offset, pool in self.site.offsets():
                if pool.elsewhere:
                    bits &= ~(self._matcher.failing(pool) << offset)
        return bits

    def selects(self, position: int) -> bool:
        """Whether selectors, nodes and policies allow the device. Raises ClaimError."""
        bit = 1 << position
        if not self.known & bit:
            if self._selects(self.site.candidates[position]) and not self.site.elsewhere & bit:
                self.matching |= bit
            self.known |= bit
        return bool(self.matching & bit)

    def evaluate(self, positions: Bits) -> None:
        """Evaluate the selectors of these candidates in their order. Raises ClaimError."""
        unknown = positions & ~self.known
        while unknown:
            lowest = unknown & -unknown
            self.selects(lowest.bit_length() - 1)
            unknown ^= lowest

    def count_steps(self, steps: int) -> None:
        """Raises SearchBudgetExceededError if the search takes too many steps."""
        self._meter.add(steps)

    def consumption(self, device: PooledDevice) -> Consumption | None:
        """What the request consumes of the device; None if it cannot have it."""
        return self._matcher.consumption(device)

    def _selects(self, candidate: DeviceCandidate) -> bool:
        device = candidate.device
        answer = self._matcher.answer(device)
        self._meter.add_evaluated(answer)
        if answer.error is not None:
            raise answer.error.with_traceback(None)
        return answer.match


ConstraintState = MatchAttribute | DistinctAttribute


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """A request, or an alternative of one, in one search: what is wanted and what a site offers."""

    wanted: RequestedDevices
    offered: RequestCandidates
    count: int
    """How many devices."""
    positions: tuple[int, ...] | None = None
    """The devices of a request for all devices; None for an exact count."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedClaim:
    """The requests of a claim, or the error with which reading one of them ends."""

    index: int
    spec: ResourceClaimSpec
    requests: tuple[tuple[RequestMatcher, ...] | ClaimError, ...]
    """The alternatives of each request."""
    constraints: tuple[DeviceConstraint, ...]
    problem: ClaimError | None
    option_count: int
    """How many requests there are; each alternative counts."""


def _option_count(spec: ResourceClaimSpec) -> int:
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
    """The part of the preparation that all nodes share. Errors count once a search meets them."""
    requests: list[tuple[RequestMatcher, ...] | ClaimError] = []
    option_count = _option_count(spec)
    pool_steps = MAX_POOL_STEPS // max(1, option_count)
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
    return PlannedClaim(
        index, spec, tuple(requests), spec.devices.constraints, problem, option_count=option_count
    )


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
