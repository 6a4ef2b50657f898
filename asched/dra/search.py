"""The search for devices on one site: the first solution in the order of kube-scheduler 1.36.

Claims, their requests and the devices of a request are allocated one after the other, depth first.
Within a request, devices are tried in ascending order. The stack is explicit, so the number of
claims is not limited by the interpreter's.

What cannot succeed is left out where that changes no answer (:mod:`asched.dra.pruning`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from asched.dra.devices import Usage
from asched.dra.ledger import Ledger, TakenDevice
from asched.dra.outcomes import (
    CANNOT_ALLOCATE,
    INVALID_POOLS,
    TOO_EXPENSIVE,
    Allocated,
    ClaimSolution,
    NotAllocated,
    node_selector,
)
from asched.dra.pools import Bits
from asched.dra.preparation import ConstraintState, Option, PlannedClaim, constraint_states, prepare
from asched.dra.pruning import Pruning
from asched.dra.requests import MAX_DEVICES_PER_CLAIM, ClaimError, RequestedDevices
from asched.dra.sites import Site
from asched.dra.steps import (
    CONSTRAINTS_PER_STEP,
    OPTIONS_PER_STEP,
    SITE_STEPS,
    SearchBudgetExceededError,
    StepMeter,
)

STEPS_BEFORE_PROOF: Final = 1_000
"""Searches that take this long, and longer than the proof, are examined for being impossible."""


class _Verdict(Enum):
    FOUND = auto()
    FAILED = auto()
    TOO_MANY = auto()
    """Every choice exceeds the number of devices of a claim."""


@dataclass(slots=True, eq=False)
class _EndOfClaim:
    """Between two claims."""


@dataclass(slots=True, eq=False)
class _Alternatives:
    """The choice among the alternatives of a request."""

    options: Sequence[Option]
    tried: int = 0
    all_too_many: bool = True


@dataclass(slots=True, eq=False)
class _DeviceChoice:
    """The choice of one device of a request."""

    option: Option
    index: int
    next_position: int
    taken: TakenDevice | None = None
    failed: set[object] = field(default_factory=set)
    """What the devices that failed here have in common with others."""


class _NextDevice(NamedTuple):
    """The device that is chosen next."""

    option: Option
    chosen: int
    """How many devices of the request are chosen before it."""
    position: int = 0
    """The first candidate that it may be."""


_State = _NextDevice | _Verdict


@dataclass(slots=True)
class SearchInput:
    """What a search reads."""

    claims: Sequence[Sequence[Sequence[Option]]]
    """For each claim and request the alternatives."""
    constraints: Sequence[Sequence[ConstraintState]]
    """They are changed by the search."""
    site: Site
    usage: Usage
    meter: StepMeter


class Search:
    """One search. It can be run once."""

    def __init__(self, given: SearchInput) -> None:
        self._given = given
        self._ledger = Ledger(given.site, given.usage, given.constraints)
        self._stack: list[_EndOfClaim | _Alternatives | _DeviceChoice] = []
        self._all: Bits = (1 << len(given.site.candidates)) - 1
        self._pruning: Pruning | None = None
        self._examined = False
        self._meter = given.meter
        most = max(map(len, given.constraints), default=0)
        self._steps = 1 + most // CONSTRAINTS_PER_STEP
        """Of one device that is tried."""

    def run(self) -> list[list[TakenDevice]] | None:
        """The devices of each claim, None if there is no solution.

        Raises ClaimError and SearchBudgetExceededError.
        """
        state = self._enter_request(0, 0)
        while state is not _Verdict.FOUND:
            self._meter.add(self._steps)
            if isinstance(state, _NextDevice):
                state = self._descend(state)
            elif self._stack:
                state = self._resume(state)
            else:
                return None
            if self._is_impossible():
                return None
        return self._ledger.results

    def _enter_request(self, claim: int, request: int) -> _State:
        claims = self._given.claims
        while claim < len(claims) and request >= len(claims[claim]):
            self._stack.append(_EndOfClaim())
            claim, request = claim + 1, 0
        if claim >= len(claims):
            return _Verdict.FOUND
        options = claims[claim][request]
        if options[0].wanted.alternative_name:
            self._stack.append(_Alternatives(options))
            return self._next_alternative()
        return _NextDevice(options[0], 0)

    def _next_alternative(self) -> _State:
        choice = self._stack[-1]
        assert isinstance(choice, _Alternatives)
        if choice.tried == len(choice.options):
            self._stack.pop()
            return _Verdict.TOO_MANY if choice.all_too_many else _Verdict.FAILED
        choice.tried += 1
        return _NextDevice(choice.options[choice.tried - 1], 0)

    def _resume(self, verdict: _Verdict) -> _State:
        """Continue with the latest choice after everything behind it failed."""
        choice = self._stack[-1]
        if isinstance(choice, _Alternatives):
            if verdict is _Verdict.FAILED:
                choice.all_too_many = False
            return self._next_alternative()
        if isinstance(choice, _EndOfClaim):
            self._stack.pop()
            return _Verdict.FAILED
        assert choice.taken is not None
        self._ledger.give_back(choice.taken)
        if verdict is _Verdict.TOO_MANY or choice.option.positions is not None:
            self._stack.pop()
            return verdict
        pruning = self._prune()
        if pruning is not None and self._ledger.is_untouched(choice.taken.position):
            choice.failed.add(pruning.likeness(choice.taken.position))
        return self._next_device(choice)

    def _descend(self, following: _NextDevice) -> _State:
        option, index, position = following
        if option.positions is not None and not option.positions:
            return _Verdict.FAILED
        wanted = option.wanted
        if index >= option.count:
            return self._enter_request(wanted.claim, wanted.request + 1)
        allocated = len(self._ledger.results[wanted.claim])
        if allocated + option.count - index > MAX_DEVICES_PER_CLAIM:
            return _Verdict.TOO_MANY
        choice = _DeviceChoice(option, index, position)
        self._stack.append(choice)
        if option.positions is not None:
            found = self._try(choice, option.positions[index])
            return self._fail() if found is None else found
        return self._next_device(choice)

    def _fail(self) -> _Verdict:
        self._stack.pop()
        return _Verdict.FAILED

    def _try(self, choice: _DeviceChoice, position: int) -> _NextDevice | None:
        """Take a device and continue with the next one; None if it cannot be had."""
        choice.taken = self._ledger.take(choice.option, position)
        if choice.taken is None:
            return None
        return _NextDevice(choice.option, choice.index + 1, position + 1)

    def _next_device(self, choice: _DeviceChoice) -> _State:
        option = choice.option
        while left := self._left(choice):
            if self._has_too_few(choice, left):
                choice.option.offered.evaluate(left)  # Errors count.
                break
            position = (left & -left).bit_length() - 1
            choice.next_position = position + 1
            self._meter.add(self._steps)
            if (
                option.offered.selects(position)
                and self._ledger.has_capacity(option, position)
                and not self._has_failed(choice, position)
            ):
                found = self._try(choice, position)
                if found is not None:
                    return found
        return self._fail()

    def _left(self, choice: _DeviceChoice) -> Bits:
        """The devices that remain to be tried."""
        option = choice.option
        offered = option.offered
        bits = self._all & ~self._ledger.blocked(option) & ~(offered.known & ~offered.matching)
        if self._pruning is not None and self._pruning.is_exact:
            bits &= ~self._pruning.violating(option)
        return bits >> choice.next_position << choice.next_position

    # -- what is left out -------------------------------------------------------------------------

    def _prune(self) -> Pruning | None:
        """What can be left out, once the search had to go back."""
        if self._pruning is None:
            self._pruning = self._new_pruning()
        return self._pruning if self._pruning.is_exact else None

    def _new_pruning(self) -> Pruning:
        given = self._given
        options = sum(len(options) for claim in given.claims for options in claim)
        self._meter.add(options * self._steps // OPTIONS_PER_STEP)
        return Pruning(given.claims, given.constraints, given.site, given.usage)

    def _has_too_few(self, choice: _DeviceChoice, left: Bits) -> bool:
        """Whether fewer devices are left than the request still needs."""
        needed = choice.option.count - choice.index
        return self._pruning is not None and self._pruning.is_exact and left.bit_count() < needed

    def _has_failed(self, choice: _DeviceChoice, position: int) -> bool:
        """Whether a device that is like this one failed in its place."""
        return (
            bool(choice.failed)
            and self._pruning is not None
            and self._ledger.is_untouched(position)
            and self._pruning.likeness(position) in choice.failed
        )

    def _is_impossible(self) -> bool:
        """Whether a search that went back often has no solution. Examined once."""
        if self._examined or self._pruning is None:
            return False
        proof_steps = self._pruning.proof_steps
        if self._meter.steps < STEPS_BEFORE_PROOF + proof_steps:
            return False
        self._examined = True
        self._meter.add(proof_steps)
        pruning = self._pruning = self._new_pruning()
        return pruning.fails_without_error and pruning.is_impossible()


SearchResult = Allocated | NotAllocated | ClaimError


def search_site(
    plans: Sequence[PlannedClaim], site: Site, usage: Usage, meter: StepMeter
) -> SearchResult:
    """Devices for all claims on a site, or why there are none. A ClaimError is returned, so that
    callers can keep it as an answer."""
    try:
        meter.add(SITE_STEPS)
        claims = prepare(plans, site, usage, meter)
        found = Search(
            SearchInput(
                claims=claims,
                constraints=constraint_states(plans),
                site=site,
                usage=usage,
                meter=meter,
            )
        ).run()
        for taken in found or ():
            node_selector(taken, node_name="")  # Its errors count.
    except SearchBudgetExceededError:
        return NotAllocated(TOO_EXPENSIVE)
    except ClaimError as error:
        return error
    if found is None:
        reason = INVALID_POOLS if site.has_invalid_pool else CANNOT_ALLOCATE
        return NotAllocated(reason)
    solutions = tuple(
        ClaimSolution(plan.spec, _chosen(requests, taken), tuple(taken))
        for plan, requests, taken in zip(plans, claims, found, strict=True)
    )
    return Allocated(solutions)


def _chosen(
    requests: Sequence[Sequence[Option]], taken: Sequence[TakenDevice]
) -> tuple[RequestedDevices, ...]:
    """The requests of a claim, with alternatives replaced by the chosen one."""
    used = {device.option for device in taken}
    return tuple(
        next((option.wanted for option in options if option in used), options[0].wanted)
        for options in requests
    )
