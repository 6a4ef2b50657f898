"""Amounts of several resources, with the arithmetic and thresholds of kube-batch's ``Resource``.

cpu is in thousandths, memory in bytes, any other resource (a *scalar*) in thousandths. A missing
map of scalars differs from an empty one: see :meth:`ResourceVector.less` and
:meth:`ResourceVector.minimum`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

CPU = "cpu"
MEMORY = "memory"


class Tolerance(NamedTuple):
    """Amounts that differ by less than this are equal."""

    milli_cpu: float
    memory_bytes: float
    scalar: float

    def of(self, resource: str) -> float:
        """The amount of a resource that makes a difference."""
        if resource == CPU:
            return self.milli_cpu
        return self.memory_bytes if resource == MEMORY else self.scalar


TOLERANT = Tolerance(milli_cpu=10.0, memory_bytes=10.0 * 1024 * 1024, scalar=10.0)
"""kube-batch's thresholds."""
EXACT = Tolerance(0.0, 0.0, 0.0)
"""No tolerance: amounts are compared as they are."""


class ResourceVector:
    """A vector of resource amounts. :meth:`add` and :meth:`sub` change it in place."""

    __slots__ = ("memory_bytes", "milli_cpu", "scalars")

    def __init__(
        self,
        milli_cpu: float = 0.0,
        memory_bytes: float = 0.0,
        scalars: dict[str, float] | None = None,
    ) -> None:
        self.milli_cpu = milli_cpu
        self.memory_bytes = memory_bytes
        self.scalars = scalars

    @classmethod
    def of(cls, amounts: Mapping[str, float]) -> ResourceVector:
        """From amounts by name in the units of this module. Without scalars, the map is missing."""
        scalars = {name: number for name, number in amounts.items() if name not in (CPU, MEMORY)}
        return cls(amounts.get(CPU, 0.0), amounts.get(MEMORY, 0.0), scalars or None)

    def copy(self) -> ResourceVector:
        """The same amounts, in a vector of its own."""
        scalars = None if self.scalars is None else dict(self.scalars)
        return ResourceVector(self.milli_cpu, self.memory_bytes, scalars)

    def names(self) -> Iterator[str]:
        """The names of its resources, cpu and memory first."""
        yield CPU
        yield MEMORY
        yield from self.scalars or ()

    def get(self, resource: str) -> float:
        """The amount of a resource, 0 if it has none."""
        if resource == CPU:
            return self.milli_cpu
        if resource == MEMORY:
            return self.memory_bytes
        return self.scalars.get(resource, 0.0) if self.scalars else 0.0

    def amounts(self) -> dict[str, float]:
        """The amounts by name."""
        return {CPU: self.milli_cpu, MEMORY: self.memory_bytes, **(self.scalars or {})}

    def add(self, other: ResourceVector) -> ResourceVector:
        """Add in place. Returns this vector."""
        self.milli_cpu += other.milli_cpu
        self.memory_bytes += other.memory_bytes
        if other.scalars:
            if self.scalars is None:
                self.scalars = {}
            for name, number in other.scalars.items():
                self.scalars[name] = self.scalars.get(name, 0.0) + number
        return self

    def sub(self, other: ResourceVector) -> ResourceVector:
        """Subtract without a check for negative amounts. A missing map stays missing."""
        self.milli_cpu -= other.milli_cpu
        self.memory_bytes -= other.memory_bytes
        if other.scalars and self.scalars is not None:
            for name, number in other.scalars.items():
                self.scalars[name] = self.scalars.get(name, 0.0) - number
        return self

    def is_empty(self, tolerance: Tolerance = TOLERANT) -> bool:
        """Whether every amount is below its threshold, or zero with :data:`EXACT`."""
        for name, number in self.amounts().items():
            threshold = tolerance.of(name)
            if number >= threshold if threshold else number > 0:
                return False
        return True

    def less_equal(self, other: ResourceVector, tolerance: Tolerance = TOLERANT) -> bool:
        """Whether every amount is at most that of ``other`` within the tolerance. Scalars that do
        not exceed the tolerance are ignored."""
        cpu = self.milli_cpu - other.milli_cpu
        if cpu >= tolerance.milli_cpu and cpu > 0:
            return False
        memory = self.memory_bytes - other.memory_bytes
        if memory >= tolerance.memory_bytes and memory > 0:
            return False
        if not self.scalars:
            return True
        theirs = other.scalars or {}
        for name, number in self.scalars.items():
            if number <= tolerance.scalar:
                continue
            excess = number - theirs.get(name, 0.0)
            if excess >= tolerance.scalar and excess > 0:
                return False
        return True

    def less(self, other: ResourceVector) -> bool:
        """Whether every amount is strictly less than that of ``other``. If this vector has no map
        of scalars, every scalar of ``other`` must exceed its threshold."""
        if not (self.milli_cpu < other.milli_cpu and self.memory_bytes < other.memory_bytes):
            return False
        if self.scalars is None:
            return all(number > TOLERANT.scalar for number in (other.scalars or {}).values())
        if other.scalars is None:
            return False
        theirs = other.scalars
        return all(number < theirs.get(name, 0.0) for name, number in self.scalars.items())

    def minimum(self, other: ResourceVector) -> ResourceVector:
        """The minimum of each amount. Scalars of this vector only; none if a map is missing."""
        scalars: dict[str, float] | None = None
        if self.scalars is not None and other.scalars is not None:
            scalars = {
                name: min(number, other.scalars.get(name, 0.0))
                for name, number in self.scalars.items()
            }
        return ResourceVector(
            min(self.milli_cpu, other.milli_cpu),
            min(self.memory_bytes, other.memory_bytes),
            scalars,
        )

    def multiplied(self, factor: float) -> ResourceVector:
        scalars = self.scalars
        return ResourceVector(
            self.milli_cpu * factor,
            self.memory_bytes * factor,
            None if scalars is None else {name: n * factor for name, n in scalars.items()},
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ResourceVector):
            return NotImplemented
        return self.amounts() == other.amounts()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"ResourceVector({self.amounts()})"


def share(part: float, whole: float) -> float:
    """``part / whole``; with ``whole`` 0, 0 or 1 (``Share`` of kube-batch)."""
    if whole == 0:
        return 0.0 if part == 0 else 1.0
    return part / whole
