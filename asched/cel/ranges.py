"""Ranges of sizes and costs, which end at 2**64 - 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MAXIMUM: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the greatest value."""

    low: int
    high: int

    def plus(self, other: Range) -> Range:
        """The sum."""
        return Range(min(self.low + other.low, MAXIMUM), min(self.high + other.high, MAXIMUM))

    def times(self, other: Range) -> Range:
        """The product."""
        return Range(min(self.low * other.low, MAXIMUM), min(self.high * other.high, MAXIMUM))

    def scaled(self, factor: float) -> Range:
        """The product with a factor, rounded up."""
        return Range(_scaled(self.low, factor), _scaled(self.high, factor))

    def union(self, other: Range) -> Range:
        """The range that covers both."""
        return Range(min(self.low, other.low), max(self.high, other.high))

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class CallEstimate:
    """The cost of a call without its arguments, and the size of its result if known."""

    cost: Range
    size: Range | None = None


def fixed(value: int) -> Range:
    """The range of one value."""
    return Range(value, value)


def _scaled(value: int, factor: float) -> int:
    if value > 0 and factor > 0 and float(value) > MAXIMUM / factor:
        return MAXIMUM
    return min(math.ceil(float(value) * factor), MAXIMUM)


ZERO: Final = fixed(0)
ONE: Final = fixed(1)
UNKNOWN: Final = Range(0, MAXIMUM)
NOTHING: Final = Range(MAXIMUM, 0)
