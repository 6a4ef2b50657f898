"""Parts of a search that cannot succeed, and that can be left out without changing its answer.

That is possible where the bookkeeping of kube-scheduler leaves no traces of devices that were
tried: the state of a search then depends only on the devices that are allocated. In such a search

- a choice fails if fewer devices are left than are needed,
- a device fails if a device that is like it in all respects has failed in its place,
- everything fails if no assignment of devices to requests exists (a bipartite matching, found
  with augmenting paths). That also holds for other searches: traces only rule out more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from asched.dra.constraints import DistinctAttribute, MatchAttribute, attribute_value
from asched.dra.devices import Usage, untolerated
from asched.dra.ledger import available_counters
from asched.dra.pools import Bits, Counters, PoolView
from asched.dra.preparation import ConstraintState, Option, has_capacity
from asched.dra.requests import ClaimError
from asched.dra.sites import Site


class Demand(NamedTuple):
    """A number of devices out of a set, each for one demand only."""

    number: int
    devices: Bits


def is_assignable(demands: Sequence[Demand]) -> bool:
    """Whether all demands can be satisfied at the same time."""
    owned: list[Bits] = [0] * len(demands)
    free: Bits = 0
    for demand in demands:
        free |= demand.devices
    for index, demand in enumerate(demands):
        for _ in range(demand.number):
            taken = _augment(demands, owned, index, free)
            if not taken:
                return False
            free &= ~taken
    return True


def _augment(demands: Sequence[Demand], owned: list[Bits], start: int, free: Bits) -> Bits:
    """Give one more device to a demand, moving others if needed. Returns the device, or nothing."""
    came_from: dict[int, tuple[int, Bits]] = {}
    visited = {start}
    waiting = [start]
    while waiting:
        index = waiting.pop()
        found = demands[index].devices & free
        if found:
            device = found & -found
            _shift(owned, came_from, index, device)
            return device
        for other, devices in enumerate(owned):
            movable = devices & demands[index].devices
            if movable and other not in visited:
                visited.add(other)
                came_from[other] = (index, movable & -movable)
                waiting.append(other)
    return 0


def _shift(
    owned: list[Bits], came_from: dict[int, tuple[int, Bits]], index: int, device: Bits
) -> None:
    owned[index] |= device
    while index in came_from:
        receiver, moved = came_from[index]
        owned[index] &= ~moved
        owned[receiver] |= moved
        index = receiver


Claims = Sequence[Sequence[Sequence[Option]]]


class Pruning:
    """What can be left out of one search."""

    def __init__(
        self,
        claims: Claims,
        constraints: Sequence[Sequence[ConstraintState]],
        site: Site,
        usage: Usage,
    ) -> None:
        self._claims = claims
        self._options = [option for claim in claims for options in claim for option in options]
        self._constraints = constraints
        self._site = site
        self._usage = usage
        self._likeness: dict[int, object] = {}
        self._counting_pools = Counter(p.pool_id.pool for p in site.pools if p.counters)
        """Pools with counters, by name. Those of one name share a table."""
        self.is_exact = self._leaves_no_traces()
        """Whether parts of the search may be left out."""
        self.fails_without_error = not any(map(self._may_end_with_error, self._options))
        """Whether an impossible search fails without an error."""

    @property
    def proof_steps(self) -> int:
        """Steps of a proof that the search is impossible."""
        options, devices = len(self._options), len(self._site.candidates)
        constraints = sum(map(len, self._constraints))
        return options * devices + (options * options * (1 + constraints) >> 4)

    # -- traces -----------------------------------------------------------------------------------

    def _leaves_no_traces(self) -> bool:
        return all(
            self._constraint_is_exact(option) and self._counters_are_exact(option)
            for option in self._options
        )

    def _may_end_with_error(self, option: Option) -> bool:
        """Whether it may be an error that a constraint forbids one of all devices."""
        if not option.positions or not self._applicable(option):
            return False
        first = 1 << option.positions[0]
        in_use = 0 if option.wanted.admin_access else self._site.in_use(self._usage)
        device = self._site.candidates[option.positions[0]].device
        # The first device is turned down before constraints are checked.
        return not (
            first & in_use
            or untolerated(device.taints, option.wanted.tolerations) is not None
            or not self._counters_suffice(option.positions[:1])
        )

    def _applicable(self, option: Option) -> list[ConstraintState]:
        wanted = option.wanted
        return [
            constraint
            for constraint in self._constraints[wanted.claim]
            if constraint.applies_to(wanted.name, wanted.alternative_name)
        ]

    def _constraint_is_exact(self, option: Option) -> bool:
        applicable = self._applicable(option)
        if option.positions is not None:
            return not applicable
        return option.count <= 1 or not any(
            isinstance(constraint, DistinctAttribute) for constraint in applicable
        )

    def _counters_are_exact(self, option: Option) -> bool:
        """Whether no device is refused after its counters were booked, and whether the table of
        counters does not depend on which device is examined first."""
        offered = option.offered
        counting = self._site.counting & ~(offered.known & ~offered.matching)
        if not counting:
            return True
        if self._applicable(option):
            return False
        candidates = (self._site.candidates[position] for position in positions_of(counting))
        return all(
            not device.multiple
            and untolerated(device.taints, option.wanted.tolerations) is None
            and self._has_own_table(pool)
            for device, pool in candidates
        )

    def _has_own_table(self, pool: PoolView) -> bool:
        return self._counting_pools[pool.pool_id.pool] == 1

    # -- masks ------------------------------------------------------------------------------------

    def violating(self, option: Option) -> Bits:
        """Devices that the constraints forbid, given the devices that are allocated."""
        allowed: Bits = -1
        for constraint in self._applicable(option):
            if isinstance(constraint, MatchAttribute):
                value = constraint.common_value
                if value is not None:
                    allowed &= self._site.with_value(constraint.attribute, value)
        return option.offered.known & ~allowed

    # -- likeness ---------------------------------------------------------------------------------

    def likeness(self, position: int) -> object:
        """Equal for devices that differ for no request, constraint, taint, counter or capacity."""
        known = self._likeness.get(position)
        if known is None:
            try:
                known = self._compare(position)
            except ClaimError:
                known = position
            self._likeness[position] = known
        return known

    def _compare(self, position: int) -> object:
        device = self._site.candidates[position].device
        use = self._usage.of(device.pool_id, device.name)
        return (
            tuple(option.offered.selects(position) for option in self._options),
            tuple(
                untolerated(device.taints, option.wanted.tolerations) is None
                for option in self._options
            ),
            tuple(
                attribute_value(device.device, device.driver, constraint.attribute)
                for claim in self._constraints
                for constraint in claim
            ),
            (device.pool_id, device.counters) if device.counters else None,
            device.multiple,
            device.capacity_content,
            bool(use.exclusive),
            frozenset(use.consumed.items()),
        )

    # -- impossibility ----------------------------------------------------------------------------

    def is_impossible(self) -> bool:
        """Whether the requests without alternatives provably cannot all be satisfied."""
        try:
            for option in self._options:
                option.offered.evaluate((1 << len(self._site.candidates)) - 1)
            offers = {
                option: self._obtainable(option)
                for claim in self._claims
                for options in claim
                if len(options) == 1
                for option in options
            }
        except ClaimError:
            return False
        if not self._assignable(offers, list(offers)):
            return True
        if not all(self._counters_suffice(option.positions or ()) for option in offers):
            return True
        return any(
            not self._can_match(offers, claim, constraint)
            for claim, constraints in enumerate(self._constraints)
            for constraint in constraints
            if isinstance(constraint, MatchAttribute)
        )

    def _can_match(
        self, offers: dict[Option, Bits], claim: int, constraint: MatchAttribute
    ) -> bool:
        bound = [
            option
            for option in offers
            if option.wanted.claim == claim
            and constraint.applies_to(option.wanted.name, option.wanted.alternative_name)
        ]
        return not bound or any(
            self._assignable({option: offers[option] & bits for option in bound}, bound)
            for bits in self._site.values(constraint.attribute).values()
        )

    def _assignable(self, offers: dict[Option, Bits], options: list[Option]) -> bool:
        multiple = self._multiple()
        demands: list[Demand] = []
        for option in options:
            bits = offers[option]
            if bits.bit_count() < option.count:
                return False
            if not option.wanted.admin_access:
                shared = (bits & multiple).bit_count()
                demands.append(Demand(max(0, option.count - shared), bits & ~multiple))
        return is_assignable(demands)

    def _multiple(self) -> Bits:
        return sum(
            1 << position
            for position, candidate in enumerate(self._site.candidates)
            if candidate.device.multiple
        )

    def _obtainable(self, option: Option) -> Bits:
        """The devices that a request could have if it were alone."""
        bits = option.offered.matching
        if not option.wanted.admin_access:
            bits &= ~self._site.in_use(self._usage)
        applicable = self._applicable(option)
        return sum(
            1 << position
            for position in positions_of(bits)
            if self._is_obtainable(option, position, applicable)
        )

    def _is_obtainable(
        self, option: Option, position: int, applicable: list[ConstraintState]
    ) -> bool:
        device = self._site.candidates[position].device
        return (
            untolerated(device.taints, option.wanted.tolerations) is None
            and has_capacity(option.offered, position, self._usage)
            and self._counters_suffice((position,))
            and all(
                attribute_value(device.device, device.driver, constraint.attribute) is not None
                for constraint in applicable
            )
        )

    def _counters_suffice(self, positions: Sequence[int]) -> bool:
        """Whether the pools have the counters for all of these devices if nothing else is booked.

        Pools that share their name with another one are left out, as their tables are mixed.
        """
        needed: dict[PoolView, Counters] = {}
        for device, pool in (self._site.candidates[position] for position in positions):
            if device.counters and not device.multiple and self._has_own_table(pool):
                of_pool = needed.setdefault(pool, {})
                for counter_set, counter, amount in device.counters:
                    key = (counter_set, counter)
                    of_pool[key] = of_pool.get(key, 0) + amount
        return all(
            of_pool.get(key, 0) <= amount
            for pool, of_pool in needed.items()
            for key, amount in available_counters(pool, self._usage).items()
        )


def positions_of(bits: Bits) -> list[int]:
    """The positions in a set, ascending."""
    positions: list[int] = []
    while bits:
        lowest = bits & -bits
        positions.append(lowest.bit_length() - 1)
        bits ^= lowest
    return positions
