"""What a soak shows: figures by the minute, and whether anything grows that should not."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

SETTLING_MIN = 5
"""Minutes at the beginning that do not count: caches fill, and the first pods are to be deleted."""
MOST_MEMORY_GROWTH = 0.05
_SLACK = 0.05
_SLACK_NUMBER = 64
"""Tasks and connections follow the load, which is not the same in every minute. A leak shows all the
same: where one pod in a thousand left something behind, it would be hundreds in half an hour."""


class Sample(msgspec.Struct, frozen=True):
    """The daemon at one moment."""

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
    """Medians of a minute's samples; rates over the whole of it."""

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
    """The longest."""


_WHOLE_S = 45.0
"""A minute of which less was seen is none."""


def by_minute(samples: Sequence[Sample]) -> list[Minute]:
    """A row for each whole minute, the first being 1."""
    rows = []
    minutes: dict[int, list[Sample]] = {}
    for sample in samples:
        minutes.setdefault(int(sample.at_s // 60) + 1, []).append(sample)
    for number, here in sorted(minutes.items()):
        # What a minute begins with is what the one before ended with.
        before = minutes.get(number - 1, here)[-1] if number - 1 in minutes else here[0]
        passed_s = here[-1].at_s - before.at_s
        if passed_s < _WHOLE_S:
            continue  # the last one, that was not whole
        rows.append(
            Minute(
                number,
                round(median(s.rss_mib for s in here), 1),
                round(100 * (here[-1].cpu_s - before.cpu_s) / passed_s, 1),
                round(median(s.open_fds for s in here)),
                round(median(s.connections for s in here)),
                round(median(s.tasks for s in here)),
                round(here[-1].journal_mib, 1),
                round(median(s.pods for s in here)),
                round(median(s.pending for s in here)),
                round((here[-1].bound - before.bound) / passed_s, 1),
                round(max(s.lag_s for s in here) * 1000, 1),
            )
        )
    return rows


class Verdict(msgspec.Struct, frozen=True):
    """Whether a soak was passed, and what speaks against it."""

    memory_growth: float | None
    """From the minute after settling to the last, as a share; None where it was too short to say."""
    troubles: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.memory_growth is not None and not self.troubles


def judge(minutes: Sequence[Minute], rate: float) -> Verdict:
    """``rate`` is how many pods a second were to be bound."""
    settled = [row for row in minutes if row.minute > SETTLING_MIN]
    if len(settled) < 2:
        return Verdict(None, ("it was too short to say",))
    growth = settled[-1].rss_mib / settled[0].rss_mib - 1
    troubles = []
    if growth >= MOST_MEMORY_GROWTH:
        troubles.append(f"memory grew by {growth:.1%} after the first {SETTLING_MIN} minutes")
    third = max(1, len(settled) // 3)
    for name in ("tasks", "connections", "open_fds", "pods"):
        before = median(getattr(row, name) for row in settled[:third])
        after = median(getattr(row, name) for row in settled[-third:])
        if after > before * (1 + _SLACK) + _SLACK_NUMBER:
            troubles.append(f"{name.replace('_', ' ')} grew from {before:.0f} to {after:.0f}")
    bound_per_s = sum(row.bound_per_s for row in settled) / len(settled)
    if bound_per_s < 0.95 * rate:
        troubles.append(f"only {bound_per_s:.0f} pods/s of {rate:.0f} were bound")
    return Verdict(growth, tuple(troubles))
