"""Sites: the pools that a node sees. Nodes that see the same pools share a site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from asched.dra.constraints import AttributeValue, attribute_value
from asched.dra.pools import Bits, Candidate, PoolView
from asched.dra.usage import Usage

__all__ = ["Bits", "Candidate", "Site"]


class Site:
    """The devices that some nodes see, in the order in which they are tried.

    Devices of incomplete and invalid pools are not among the candidates.
    """

    __slots__ = ("_in_use", "_values", "_versions", "candidates", "counting", "elsewhere", "pools")

    def __init__(self, pools: Sequence[PoolView]) -> None:
        self.pools = tuple(pools)
        self.candidates = [
            candidate for pool in pools if pool.usable for candidate in pool.candidates
        ]
        self.elsewhere: Bits = 0
        """The candidates that are not for these nodes."""
        for offset, pool in self.offsets():
            self.elsewhere |= pool.elsewhere << offset
        self.counting: Bits = sum(
            1 << position
            for position, candidate in enumerate(self.candidates)
            if candidate.device.counters
        )
        """The candidates that consume counters."""
        self._versions: tuple[int, ...] | None = None
        self._in_use: Bits = 0
        self._values: dict[str, dict[AttributeValue, Bits]] = {}

    def offsets(self) -> Iterator[tuple[int, PoolView]]:
        """The usable pools, with the position of their first device."""
        offset = 0
        for pool in self.pools:
            if pool.usable:
                yield offset, pool
                offset += len(pool.devices)

    @property
    def has_invalid_pool(self) -> bool:
        return any(pool.invalid for pool in self.pools)

    def in_use(self, usage: Usage) -> Bits:
        """The candidates that are allocated as a whole."""
        versions = tuple(usage.version(pool.pool_id) for pool in self.pools)
        if versions != self._versions:
            self._versions = versions
            self._in_use = self._count_in_use(usage)
        return self._in_use

    def _count_in_use(self, usage: Usage) -> Bits:
        in_use = 0
        for offset, pool in self.offsets():
            for name, use in usage.devices(pool.pool_id).items():
                position = pool.positions.get(name)
                if position is not None and use.exclusive:
                    in_use |= 1 << (offset + position)
        return in_use

    def with_value(self, attribute: str, value: AttributeValue) -> Bits:
        """The candidates with this value of an attribute."""
        values = self._values.get(attribute)
        if values is None:
            values = self._values[attribute] = self._values_of(attribute)
        return values.get(value, 0)

    def values(self, attribute: str) -> dict[AttributeValue, Bits]:
        """The candidates by their value of an attribute."""
        self.with_value(attribute, ("", ""))
        return self._values[attribute]

    def _values_of(self, attribute: str) -> dict[AttributeValue, Bits]:
        values: dict[AttributeValue, Bits] = {}
        for position, candidate in enumerate(self.candidates):
            device = candidate.device
            value = attribute_value(device.device, device.driver, attribute)
            if value is not None:
                values[value] = values.get(value, 0) | 1 << position
        return values
