"""The clocks of the engine; tests and simulation drive their own."""

from __future__ import annotations

import time
from typing import Protocol

import anyio


class EngineClock(Protocol):
    def time_ns(self) -> int:
        """Wall clock: nanoseconds since the epoch."""

    def monotonic_ns(self) -> int:
        """A clock that never runs backwards, for time slices."""

    async def sleep(self, delay_s: float) -> None: ...


class SystemEngineClock:
    """The machine's own clocks."""

    def time_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    async def sleep(self, delay_s: float) -> None:
        await anyio.sleep(delay_s)


class SteadyTime:
    """The wall clock as it would be if nobody ever set it back.

    Where the wall clock jumps back, time goes on at the pace of the monotonic clock until the wall
    clock has caught up: records stay in order, and no backoff takes an hour because of a jump.
    """

    def __init__(self, clock: EngineClock, not_before_ns: int) -> None:
        """``not_before_ns`` is the time of the last record that is in the journal already."""
        self._clock = clock
        self._now_ns = not_before_ns
        self._monotonic_ns = clock.monotonic_ns()

    def now_ns(self) -> int:
        """Nanoseconds since the epoch; never less than before."""
        monotonic_ns = self._clock.monotonic_ns()
        passed_ns = monotonic_ns - self._monotonic_ns
        self._monotonic_ns = monotonic_ns
        self._now_ns = max(self._clock.time_ns(), self._now_ns + passed_ns)
        return self._now_ns
