"""Whether devices can be assigned to requests at all: a bipartite matching (augmenting paths)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asched.dra.sites import Bits


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
