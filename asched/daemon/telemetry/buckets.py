"""Bounds of histograms."""

from __future__ import annotations


def exponential(start: float, factor: float, count: int) -> tuple[float, ...]:
    """As ``ExponentialBuckets`` of Prometheus' Go client, in numbers that are short to read."""
    return tuple(float(f"{start * factor**n:.9g}") for n in range(count))
