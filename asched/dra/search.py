"""The search for devices on one node: the first solution in the order of kube-scheduler 1.36.

Claims, their requests and the devices of a request are allocated one after the other, depth first.
Within a request, devices are tried in ascending order. The stack is explicit, so the number of
claims is not limited by the interpreter's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from asched.dra.candidates import Candidate, CandidateList, RequestCandidates
from asched.dra.capacity import Consumption, fits
from asched.dra.constraints import Constraint, attribute_value
from asched.dra.counters import CounterBooks
from asched.dra.devices import PooledDevice
from asched.dra.requests import MAX_DEVICES_PER_CLAIM, ClaimError
from asched.dra.taints import untolerated
from asched.dra.usage import Usage


class SearchBudgetExceededError(Exception):
    """The search took more steps than it may."""


@dataclass(frozen=True, slots=True, eq=False)
class TakenDevice:
    """A device that a search allocates to a request."""

    wanted: RequestCandidates
    candidate: Candidate
    consumption: Consumption | None
    """What is consumed of a device that allows several allocations."""


class _Verdict(Enum):
    FOUND = auto()
    FAILED = auto()
    TOO_MANY = auto()
    """All that can be tried exceeds the number of devices of a claim."""
    DESCEND = auto()


@dataclass(slots=True, eq=False)
class _EndOfClaim:
    """Between two claims."""


@dataclass(slots=True, eq=False)
class _Alternatives:
    """The choice among the alternatives of a request."""

    options: Sequence[RequestCandidates]
    tried: int = 0
    all_too_many: bool = True


@dataclass(slots=True, eq=False)
class _DeviceChoice:
    """The choice of one device of a request."""

    wanted: RequestCandidates
    index: int
    position: int
    taken: TakenDevice | None = None


@dataclass(slots=True)
class SearchInput:
    """What a search reads."""

    claims: Sequence[Sequence[Sequence[RequestCandidates]]]
    """For each claim and request the alternatives."""
    constraints: Sequence[Sequence[Constraint]]
    candidates: CandidateList
    usage: Usage
    max_steps: int


@dataclass(slots=True)
class _State:
    """What is allocated on the way to a solution."""

    books: CounterBooks
    allocating: dict[PooledDevice, set[int]] = field(default_factory=dict)
    consumed: dict[PooledDevice, dict[str, int]] = field(default_factory=dict)
    results: list[list[TakenDevice]] = field(default_factory=list)


class Search:
    """One search. It can be run once."""

    def __init__(self, given: SearchInput) -> None:
        self._given = given
        self._state = _State(CounterBooks(given.usage), results=[[] for _ in given.claims])
        self._stack: list[_EndOfClaim | _Alternatives | _DeviceChoice] = []
        self._next: tuple[RequestCandidates, int, int] | None = None
        self.steps = 0

    def run(self) -> list[list[TakenDevice]] | None:
        """The devices of each claim, None if there is no solution.

        Raises ClaimError and SearchBudgetExceededError.
        """
        verdict = self._enter_request(0, 0)
        while verdict is not _Verdict.FOUND:
            self._count_step()
            if verdict is _Verdict.DESCEND:
                verdict = self._descend()
            elif self._stack:
                verdict = self._resume(verdict)
            else:
                return None
        return self._state.results

    def _count_step(self) -> None:
        self.steps += 1
        if self.steps > self._given.max_steps:
            raise SearchBudgetExceededError

    def _enter_request(self, claim: int, request: int) -> _Verdict:
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
        self._next = (options[0], 0, 0)
        return _Verdict.DESCEND

    def _next_alternative(self) -> _Verdict:
        choice = self._stack[-1]
        assert isinstance(choice, _Alternatives)
        if choice.tried == len(choice.options):
            self._stack.pop()
            return _Verdict.TOO_MANY if choice.all_too_many else _Verdict.FAILED
        self._next = (choice.options[choice.tried], 0, 0)
        choice.tried += 1
        return _Verdict.DESCEND

    def _resume(self, verdict: _Verdict) -> _Verdict:
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
        self._give_back(choice.taken)
        if verdict is _Verdict.TOO_MANY or choice.wanted.all_devices is not None:
            self._stack.pop()
            return verdict
        return self._next_device(choice)

    def _descend(self) -> _Verdict:
        assert self._next is not None
        wanted, index, position = self._next
        if wanted.all_devices is not None and not wanted.all_devices:
            return _Verdict.FAILED
        request = wanted.wanted
        if index >= wanted.count:
            return self._enter_request(request.claim, request.request + 1)
        allocated = len(self._state.results[request.claim])
        if allocated + wanted.count - index > MAX_DEVICES_PER_CLAIM:
            return _Verdict.TOO_MANY
        choice = _DeviceChoice(wanted, index, position)
        self._stack.append(choice)
        if wanted.all_devices is not None:
            return self._the_device(choice, wanted.all_devices[index])
        return self._next_device(choice)

    def _the_device(self, choice: _DeviceChoice, candidate: Candidate) -> _Verdict:
        choice.taken = self._take(choice.wanted, candidate)
        if choice.taken is None:
            self._stack.pop()
            return _Verdict.FAILED
        self._next = (choice.wanted, choice.index + 1, 0)
        return _Verdict.DESCEND

    def _next_device(self, choice: _DeviceChoice) -> _Verdict:
        candidates, wanted = self._given.candidates, choice.wanted
        while choice.position < len(candidates):
            candidate = candidates[choice.position]
            choice.position += 1
            self._count_step()
            if not self._may_try(wanted, candidate):
                continue
            taken = self._take(wanted, candidate)
            if taken is not None:
                choice.taken = taken
                self._next = (wanted, choice.index + 1, choice.position)
                return _Verdict.DESCEND
        self._stack.pop()
        return _Verdict.FAILED

    # -- one device -------------------------------------------------------------------------------

    def _may_try(self, wanted: RequestCandidates, candidate: Candidate) -> bool:
        device = candidate.device
        if wanted.wanted.admin_access:
            if wanted.wanted.claim in self._state.allocating.get(device, ()):
                return False
        elif self._is_in_use(device):
            return False
        return wanted.selects(candidate) and self._has_capacity(wanted, device)

    def _is_in_use(self, device: PooledDevice) -> bool:
        use = self._given.usage.of(device.pool_id, device.name)
        return use.exclusive > 0 or bool(self._state.allocating.get(device))

    def _has_capacity(self, wanted: RequestCandidates, device: PooledDevice) -> bool:
        consumption = wanted.consumption(device)
        if consumption is None:
            return False
        use = self._given.usage.of(device.pool_id, device.name)
        own = self._state.consumed.get(device, {})
        return fits(consumption.amounts, device.device.capacity, use.consumed, own)

    def _take(self, wanted: RequestCandidates, candidate: Candidate) -> TakenDevice | None:
        device, request = candidate.device, wanted.wanted
        must = wanted.all_devices is not None
        if must and not self._may_still_take(wanted, device):
            return None
        if not self._book_counters(candidate):
            return None
        if untolerated(device.taints, request.tolerations) is not None:
            return None
        if not self._add_to_constraints(wanted, device):
            if must:
                raise ClaimError(
                    f", request {request.own_name}: cannot add device {device} because"
                    " a claim constraint would not be satisfied",
                    request.claim,
                )
            return None
        if not device.multiple:
            self._state.allocating.setdefault(device, set()).add(request.claim)
        if must and not self._has_capacity(wanted, device):
            # As in kube-scheduler, constraints keep the device.
            return None
        taken = TakenDevice(wanted, candidate, self._consume(wanted, device))
        self._state.results[request.claim].append(taken)
        return taken

    def _may_still_take(self, wanted: RequestCandidates, device: PooledDevice) -> bool:
        if not wanted.wanted.admin_access:
            return not self._is_in_use(device)
        return device.multiple or wanted.wanted.claim not in self._state.allocating.get(device, ())

    def _book_counters(self, candidate: Candidate) -> bool:
        device = candidate.device
        if not device.counters or (device.multiple and self._capacity_in_use(device)):
            return True
        return self._state.books.book(device, candidate.pool)

    def _capacity_in_use(self, device: PooledDevice) -> bool:
        use = self._given.usage.of(device.pool_id, device.name)
        return use.capacity_shares > 0 or device in self._state.consumed

    def _add_to_constraints(self, wanted: RequestCandidates, device: PooledDevice) -> bool:
        request = wanted.wanted
        constraints = self._given.constraints[request.claim]
        for added, constraint in enumerate(constraints):
            value = attribute_value(device.device, device.driver, constraint.attribute)
            if not constraint.add(request.name, request.alternative_name, value):
                if wanted.all_devices is None:
                    for earlier in constraints[:added]:
                        earlier.remove(request.name, request.alternative_name)
                return False
        return True

    def _consume(self, wanted: RequestCandidates, device: PooledDevice) -> Consumption | None:
        if not device.multiple:
            return None
        consumption = wanted.consumption(device)
        assert consumption is not None
        own = self._state.consumed.setdefault(device, {})
        for name, amount in consumption.amounts.items():
            own[name] = own.get(name, 0) + amount
        return consumption

    def _give_back(self, taken: TakenDevice) -> None:
        request, device = taken.wanted.wanted, taken.candidate.device
        for constraint in self._given.constraints[request.claim]:
            constraint.remove(request.name, request.alternative_name)
        if taken.consumption is not None:
            self._give_back_capacity(device, taken.consumption)
        else:
            self._state.allocating[device].discard(request.claim)
            if device.counters:
                self._state.books.release(device)
        self._state.results[request.claim].pop()

    def _give_back_capacity(self, device: PooledDevice, consumption: Consumption) -> None:
        # A device without capacities stays "in use", as in kube-scheduler.
        if not consumption.amounts:
            return
        own = self._state.consumed.get(device)
        if own is None:
            return
        for name, amount in consumption.amounts.items():
            own[name] -= amount
        if not any(own.values()):
            del self._state.consumed[device]
