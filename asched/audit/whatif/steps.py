"""Quantities that change at points in time, keep their value in between, and are weighed by time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Int64s: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


class Steps:
    """A step function over a window of time.

    What is said of a moment last is what holds from it on: values that were overtaken within the
    same nanosecond never held.
    """

    __slots__ = ("at_ns", "end_ns", "values")

    def __init__(
        self, at_ns: Sequence[int] | Int64s, values: Sequence[float] | Floats, end_ns: int
    ) -> None:
        """``values[i]`` holds from ``at_ns[i]`` on, the last one until ``end_ns``.

        Raises ValueError for no value, and for times that run backwards or past the end.
        """
        times = np.asarray(at_ns, np.int64)
        if not len(times) or len(times) != len(values):
            raise ValueError(f"{len(times)} times and {len(values)} values")
        if (np.diff(times) < 0).any() or times[-1] > end_ns:
            raise ValueError("times run backwards or past the end")
        lasts = np.append(np.flatnonzero(np.diff(times)), len(times) - 1)
        self.at_ns: Int64s = times[lasts]
        self.values: Floats = np.asarray(values, np.float64)[lasts]
        self.end_ns = end_ns

    @property
    def start_ns(self) -> int:
        return int(self.at_ns[0])

    @property
    def durations_ns(self) -> Int64s:
        """How long each value held."""
        return np.diff(np.append(self.at_ns, self.end_ns))

    @property
    def mean(self) -> float:
        """Weighed by time; the last value where no time passed at all."""
        durations = self.durations_ns
        total = int(durations.sum())
        if not total:
            return float(self.values[-1])
        return float((self.values * durations).sum() / total)

    @property
    def peak(self) -> float:
        """The highest value that held for any time, or holds at the end."""
        return float(self.values[(self.durations_ns > 0) | self._is_last].max())

    @property
    def _is_last(self) -> NDArray[np.bool_]:
        last = np.zeros(len(self.values), np.bool_)
        last[-1] = True
        return last

    def integral(self, until_ns: Int64s) -> Floats:
        """Value times nanoseconds, from the start until each of these times within the window."""
        sums = np.concatenate([[0.0], np.cumsum(self.values[:-1] * np.diff(self.at_ns))])
        index = np.searchsorted(self.at_ns, until_ns, side="right") - 1
        held: Floats = sums[index] + self.values[index] * (until_ns - self.at_ns[index])
        return held

    def thinned(self, most: int) -> Steps:
        """At most ``most`` steps: where there are more, means of equal parts of the window."""
        span_ns = self.end_ns - self.start_ns
        if len(self.values) <= most or span_ns < most:
            return self
        edges = self.start_ns + (span_ns * np.arange(most + 1, dtype=np.float64) / most).astype(
            np.int64
        )
        edges[-1] = self.end_ns
        means = np.diff(self.integral(edges)) / np.diff(edges)
        return Steps(edges[:-1], means, self.end_ns)


def percentile(ordered: Sequence[int], percent: float) -> int | None:
    """The nearest-rank percentile of values in ascending order: the smallest of them that so many
    per cent do not exceed. None where there are no values.

    >>> percentile([10, 20, 30, 40], 50)
    20
    """
    if not ordered:
        return None
    rank = -int(-len(ordered) * percent // 100)
    return ordered[max(1, rank) - 1]


def mean(values: Iterable[int]) -> float | None:
    """The arithmetic mean, or None of nothing."""
    known = [*values]
    return sum(known) / len(known) if known else None
