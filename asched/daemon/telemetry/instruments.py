"""Prometheus metrics for hot paths.

The Prometheus client takes a lock and looks labels up for each observation, some four microseconds.
These take a tenth of that, and must be used in the event loop's thread, which also serves /metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from asched.model.quantity import NS_PER_S


class FastHistogram(Collector):
    """Durations by labels."""

    def __init__(
        self,
        name: str,
        text: str,
        *,
        labels: Sequence[str],
        buckets_s: Sequence[float],
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds_ns = [bound * NS_PER_S for bound in buckets_s]
        self._shown_bounds = [*map(floatToGoString, buckets_s), "+Inf"]
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums_ns: dict[tuple[str, ...], int] = {}
        if registry is not None:
            registry.register(self)

    def observe(self, labels: tuple[str, ...], duration_ns: int) -> None:
        """``labels``: values in the order of the names."""
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * len(self._shown_bounds)
            self._sums_ns[labels] = 0
        counts[bisect_left(self._bounds_ns, duration_ns)] += 1
        self._sums_ns[labels] += duration_ns

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, counts in sorted(self._counts.items()):
            buckets = [*zip(self._shown_bounds, accumulate(counts), strict=True)]
            family.add_metric(labels, buckets, self._sums_ns[labels] / NS_PER_S)
        yield family


class FastCounter(Collector):
    """Counts by labels."""

    def __init__(
        self,
        name: str,
        text: str,
        *,
        labels: Sequence[str],
        registry: CollectorRegistry | None = None,
    ) -> None:
        """``name``: without the suffix ``_total``."""
        self._name = name
        self._text = text
        self._labels = labels
        self._counts: dict[tuple[str, ...], int] = {}
        if registry is not None:
            registry.register(self)

    def inc(self, labels: tuple[str, ...]) -> None:
        """``labels``: values in the order of the names."""
        self._counts[labels] = self._counts.get(labels, 0) + 1

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in sorted(self._counts.items()):
            family.add_metric(labels, count)
        yield family


def exponential_buckets(start: float, factor: float, count: int) -> tuple[float, ...]:
    """As ``ExponentialBuckets`` of Prometheus' Go client, rounded to nine digits."""
    return tuple(float(f"{start * factor**n:.9g}") for n in range(count))
