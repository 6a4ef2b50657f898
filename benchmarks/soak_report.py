"""Evaluates a soak test: figures by minute, and whether resource usage grows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

WARM_UP_MIN = 5
"""Minutes at the beginning that do not count: caches fill, and no pods are deleted yet."""
MAX_MEMORY_GROWTH = 0.05
_SLACK = 0.05
_SLACK_NUMBER = 64
"""Allowed growth of numbers that vary with the load, such as tasks and connections. A leak for one
pod in a thousand exceeds it within half an hour."""


class Sample(msgspec.Struct, frozen=True):
    """Resource usage of the daemon at one time."""

    at_s: float
    rss_mib: float
    cpu_s: float
    """Since its start."""
    open_fds: int
    connections: int
    tasks: int
    journal_mib: float
    pods: int
    pending: int
    bound: int
    """Since its start."""
    lag_s: float


class Minute(msgspec.Struct, frozen=True):
    """Medians of the samples of a minute, and rates over the minute."""

    minute: int
    rss_mib: float
    cpu_percent: float
    open_fds: int
    connections: int
    tasks: int
    journal_mib: float
    pods: int
    pending: int
    bound_per_s: float
    lag_ms: float
    """Maximum."""


_COMPLETE_S = 45.0
"""Minimum time between first and last sample of a complete minute."""


def by_minute(samples: Sequence[Sample]) -> list[Minute]:
    """A row for each complete minute, beginning with 1."""
    rows = []
    minutes: dict[int, list[Sample]] = {}
    for sample in samples:
        minutes.setdefault(int(sample.at_s // 60) + 1, []).append(sample)
    for number, here in sorted(minutes.items()):
        before = minutes.get(number - 1, here)[-1] if number - 1 in minutes else here[0]
        passed_s = here[-1].at_s - before.at_s
        if passed_s < _COMPLETE_S:
            continue
        rows.append(
            Minute(
                minute=number,
                rss_mib=round(median(s.rss_mib for s in here), 1),
                cpu_percent=round(100 * (here[-1].cpu_s - before.cpu_s) / passed_s, 1),
                open_fds=round(median(s.open_fds for s in here)),
                connections=round(median(s.connections for s in here)),
                tasks=round(median(s.tasks for s in here)),
                journal_mib=round(here[-1].journal_mib, 1),
                pods=round(median(s.pods for s in here)),
                pending=round(median(s.pending for s in here)),
                bound_per_s=round((here[-1].bound - before.bound) / passed_s, 1),
                lag_ms=round(max(s.lag_s for s in here) * 1000, 1),
            )
        )
    return rows


class SoakResult(msgspec.Struct, frozen=True):
    """Whether a soak test passed, and the reasons if not."""

    memory_growth: float | None
    """Relative growth after the warm-up; None if the run was too short."""
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.memory_growth is not None and not self.failures


def evaluate(minutes: Sequence[Minute], rate: float) -> SoakResult:
    """``rate``: expected bindings per second."""
    settled = [row for row in minutes if row.minute > WARM_UP_MIN]
    if len(settled) < 2:
        return SoakResult(None, ("the run was too short",))
    growth = settled[-1].rss_mib / settled[0].rss_mib - 1
    failures = []
    if growth >= MAX_MEMORY_GROWTH:
        failures.append(f"memory grew by {growth:.1%} after the first {WARM_UP_MIN} minutes")
    third = max(1, len(settled) // 3)
    for name in ("tasks", "connections", "open_fds", "pods"):
        before = median(getattr(row, name) for row in settled[:third])
        after = median(getattr(row, name) for row in settled[-third:])
        if after > before * (1 + _SLACK) + _SLACK_NUMBER:
            failures.append(f"{name.replace('_', ' ')} grew from {before:.0f} to {after:.0f}")
    bound_per_s = sum(row.bound_per_s for row in settled) / len(settled)
    if bound_per_s < 0.95 * rate:
        failures.append(f"only {bound_per_s:.0f} pods/s of {rate:.0f} were bound")
    return SoakResult(growth, tuple(failures))
