"""What a daemon needs of its machine: time, threads and a name. Simulations provide their own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import anyio

from asched.kube.timing import Clock, SystemClock

T = TypeVar("T")


class RunInThread(Protocol):
    """Runs a long computation without blocking the event loop."""

    async def __call__(self, compute: Callable[[], T], /) -> T: ...


async def run_in_thread(compute: Callable[[], T], /) -> T:
    """A :class:`RunInThread` that uses a worker thread."""
    return await anyio.to_thread.run_sync(compute)


class Runtime(NamedTuple):
    """Clock, threads and name of a process.

    A simulation provides its own, and an :class:`~asched.kube.client.ApiClient` with the same
    clock. Apart from the event loop, nothing in a daemon uses another clock.
    """

    clock: Clock
    run_in_thread: RunInThread
    instance: str
    """Identifies this process among replicas, in the journal and in Events."""

    @classmethod
    def of_this_process(cls) -> Runtime:
        return cls(SystemClock(), run_in_thread, f"{socket.gethostname()}_{os.getpid()}")


class SteadyTime:
    """A wall clock that never runs backwards.

    After the system clock is set back, time continues at the pace of the monotonic clock until the
    system clock has caught up. So records stay in order, and a backoff does not take an hour
    longer.
    """

    def __init__(self, clock: Clock, not_before_ns: int) -> None:
        """``not_before_ns``: time of the last record in the journal."""
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


class StoppableSleep:
    """Delays between retries. A stopping daemon ends all of them: the next start resumes from the
    journal what was not completed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._scopes: set[anyio.CancelScope] = set()
        self._stopped = False

    async def pause(self, delay_s: float) -> bool:
        """Sleep ``delay_s``. Returns False if the daemon stops: do not retry."""
        if self._stopped:
            return False
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                await self._clock.sleep(delay_s)
            finally:
                self._scopes.discard(scope)
        return not scope.cancelled_caught

    def end(self) -> None:
        """End the current and all later delays."""
        self._stopped = True
        for scope in tuple(self._scopes):
            scope.cancel()
