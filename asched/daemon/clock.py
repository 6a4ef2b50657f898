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
