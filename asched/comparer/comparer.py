"""The task that compares in the background."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from asched.kube.timing import Clock


class ComparisonCounts(msgspec.Struct):
    """Counts of one kind of comparison since the start."""

    passes: int = 0
    """Comparisons of everything that ended."""
    compared: int = 0
    """Objects, or records, that were compared."""
    differences: int = 0
    repairs: int = 0
    """Lists that were requested because of differences."""
    failures: int = 0
    """Comparisons that ended early: a request failed, or the watch changed meanwhile."""


class ComparedSource(Protocol):
    """One kind of comparison."""

    counts: ComparisonCounts

    async def compare(self) -> None:
        """Compare once. Differences are logged, counted and repaired where possible."""
        ...


async def compare_periodically(
    comparisons: Sequence[ComparedSource], clock: Clock, interval_s: float
) -> None:
    """Run all comparisons, one after the other, with a pause of ``interval_s`` before each round.
    Never returns."""
    while True:
        await clock.sleep(interval_s)
        for comparison in comparisons:
            await comparison.compare()
