"""What a search has allocated so far, with the bookkeeping of kube-scheduler 1.36.

Tables of shared counters are keyed by the name of a pool alone: pools of different drivers with one
name share them, and the pool that is examined first provides the available amounts. A device that
fits is booked before other conditions are checked, and stays booked if one of those rejects it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asched.dra.capacity import Consumption, fits
from asched.dra.constraints import attribute_value
from asched.dra.devices import PooledDevice, Usage, untolerated
from asched.dra.pools import Bits, Counters, DeviceCandidate, PoolView
from asched.dra.preparation import ConstraintState, Option
from asched.dra.requests import ClaimError
from asched.dra.sites import Site


class BookedCounters:
    """Available and booked amounts, by pool name."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self._available: dict[str, Counters] = {}
        self._booked: dict[str, Counters] = {}

    def book(self, device: PooledDevice, pool: PoolView) -> bool:
        """Book a device, unless any counter of the pool would be overdrawn."""
        name = pool.pool_id.pool
        available = self._available.get(name)
        if available is None:
            available = self._available[name] = available_counters(pool, self._usage)
        booked = self._booked.setdefault(name, {})
        _add(booked, device, 1)
        for counter, amount in available.items():
            if amount < booked.get(counter, 0):
                _add(booked, device, -1)
                return False
        return True

    def release(self, device: PooledDevice) -> None:
        """Undo :meth:`book`."""
        _add(self._booked.setdefault(device.pool_id.pool, {}), device, -1)


def available_counters(pool: PoolView, usage: Usage) -> Counters:
    """The counters of a pool minus what its allocated devices consume."""
    available = dict(pool.counters)
    for device in pool.consumers:
        if not usage.of(device.pool_id, device.name).is_empty:
            for counter_set, counter, amount in device.counters:
                available[counter_set, counter] -= amount
    return available


def _add(booked: Counters, device: PooledDevice, sign: int) -> None:
    for counter_set, counter, amount in device.counters:
        key = (counter_set, counter)
        booked[key] = booked.get(key, 0) + sign * amount


@dataclass(frozen=True, slots=True, eq=False)
class TakenDevice:
    """A device that a search allocates to a request."""

    option: Option
    position: int
    candidate: DeviceCandidate
    consumption: Consumption | None
    """What is consumed of a device that allows several allocations."""


class Ledger:
    """What is allocated so far: devices, counters, capacity, and the state of constraints.

    :meth:`take` and :meth:`give_back` are called like push and pop.
    """

    def __init__(
        self, site: Site, usage: Usage, constraints: Sequence[Sequence[ConstraintState]]
    ) -> None:
        self.results: list[list[TakenDevice]] = [[] for _ in constraints]
        self._site = site
        self._usage = usage
        self._constraints = constraints
        self._in_use = site.in_use(usage)
        self._counters = BookedCounters(usage)
        self._of_claim: list[Bits] = [0] * len(constraints)
        """Devices that are allocated to each claim as a whole."""
        self._of_any: Bits = 0
        self._consumed: dict[PooledDevice, dict[str, int]] = {}
        self._refused: dict[Option, Bits] = {}

    def blocked(self, option: Option) -> Bits:
        """The devices that a request cannot have now, or whatever else is allocated."""
        refused = self._refused.get(option, 0)
        if option.wanted.admin_access:
            return refused | self._of_claim[option.wanted.claim]
        return refused | self._in_use | self._of_any

    def is_untouched(self, position: int) -> bool:
        """Whether the search has allocated nothing of the device."""
        device = self._site.candidates[position].device
        return not self._of_any >> position & 1 and device not in self._consumed

    def has_capacity(self, option: Option, position: int) -> bool:
        """Whether there is enough capacity left of a device that the request can have."""
        device = self._site.candidates[position].device
        needed = option.offered.consumption(device)
        if needed is None:
            return False
        if not needed.amounts:
            return True
        consumed = self._usage.of(device.pool_id, device.name).consumed
        own = self._consumed.get(device)
        if own:
            return fits(needed.amounts, device.device.capacity, consumed, own)
        if fits(needed.amounts, device.device.capacity, consumed):
            return True
        self._refuse(option, position)
        return False

    def _refuse(self, option: Option, position: int) -> None:
        """Remember that the device is out of question during this search."""
        self._refused[option] = self._refused.get(option, 0) | 1 << position

    def take(self, option: Option, position: int) -> TakenDevice | None:
        """Allocate a device; None if something prevents that. Raises ClaimError."""
        candidate, must = self._site.candidates[position], option.positions is not None
        device, wanted = candidate.device, option.wanted
        if must and not self._may_still_take(option, position):
            return None
        if not self._book_counters(candidate):
            return None
        if untolerated(device.taints, wanted.tolerations) is not None:
            if not device.counters:
                self._refuse(option, position)
            return None
        if not self._add_to_constraints(option, device):
            if must:
                raise ClaimError(
                    f", request {wanted.own_name}: cannot add device {device} because"
                    " a claim constraint would not be satisfied",
                    wanted.claim,
                )
            return None
        if not device.multiple:
            self._of_claim[wanted.claim] |= 1 << position
            self._of_any |= 1 << position
        elif must and not self.has_capacity(option, position):
            # As in kube-scheduler, constraints keep the device.
            return None
        taken = TakenDevice(option, position, candidate, self._consume(option, device))
        self.results[wanted.claim].append(taken)
        return taken

    def give_back(self, taken: TakenDevice) -> None:
        """Undo the latest :meth:`take`."""
        wanted, device = taken.option.wanted, taken.candidate.device
        for constraint in self._constraints[wanted.claim]:
            constraint.remove(wanted.name, wanted.alternative_name)
        if taken.consumption is not None:
            self._give_back_capacity(device, taken.consumption)
        else:
            bit = 1 << taken.position
            self._of_claim[wanted.claim] &= ~bit
            if not any(bits & bit for bits in self._of_claim):
                self._of_any &= ~bit
            if device.counters:
                self._counters.release(device)
        self.results[wanted.claim].pop()

    def _may_still_take(self, option: Option, position: int) -> bool:
        if option.wanted.admin_access:
            return not self._of_claim[option.wanted.claim] >> position & 1
        return not (self._in_use | self._of_any) >> position & 1

    def _book_counters(self, candidate: DeviceCandidate) -> bool:
        device = candidate.device
        if not device.counters or (device.multiple and self._is_shared(device)):
            return True
        return self._counters.book(device, candidate.pool)

    def _is_shared(self, device: PooledDevice) -> bool:
        use = self._usage.of(device.pool_id, device.name)
        return use.capacity_shares > 0 or device in self._consumed

    def _add_to_constraints(self, option: Option, device: PooledDevice) -> bool:
        wanted = option.wanted
        constraints = self._constraints[wanted.claim]
        for added, constraint in enumerate(constraints):
            value = attribute_value(device.device, device.driver, constraint.attribute)
            if not constraint.add(wanted.name, wanted.alternative_name, value):
                for earlier in constraints[:added]:
                    earlier.remove(wanted.name, wanted.alternative_name)
                return False
        return True

    def _consume(self, option: Option, device: PooledDevice) -> Consumption | None:
        if not device.multiple:
            return None
        consumption = option.offered.consumption(device)
        assert consumption is not None
        own = self._consumed.setdefault(device, {})
        for name, amount in consumption.amounts.items():
            own[name] = own.get(name, 0) + amount
        return consumption

    def _give_back_capacity(self, device: PooledDevice, consumption: Consumption) -> None:
        # A device without capacities stays shared, as in kube-scheduler.
        own = self._consumed.get(device)
        if not consumption.amounts or own is None:
            return
        for name, amount in consumption.amounts.items():
            own[name] -= amount
        if not any(own.values()):
            del self._consumed[device]
