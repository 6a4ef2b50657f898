"""Counters for what happens several times for each pod.

A counter of prometheus_client takes a lock each time, which costs more than what is counted here. All
that is counted here is counted in the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class Tally(Collector):
    """Counts by labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        """``name`` without the ending ``_total``."""
        self._name = name
        self._text = text
        self._labels = labels
        self._counts: dict[tuple[str, ...], int] = {}

    def inc(self, labels: tuple[str, ...]) -> None:
        """``labels`` are values in the order of the names."""
        self._counts[labels] = self._counts.get(labels, 0) + 1

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in sorted(self._counts.items()):
            family.add_metric(labels, count)
        yield family
