"""What a daemon has of the machine that it runs on, given to it in one place.

Waiting between tries, for no longer than the daemon runs.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import anyio

from asched.daemon.engine.clock import EngineClock, SystemEngineClock
from asched.kube.timing import Clock

T = TypeVar("T")


class RunInThread(Protocol):
    """Runs what computes for long without holding up the event loop."""

    async def __call__(self, compute: Callable[[], T], /) -> T: ...


async def in_a_thread(compute: Callable[[], T], /) -> T:
    """An :class:`RunInThread`: in a thread of its own."""
    return await anyio.to_thread.run_sync(compute)


class Runtime(NamedTuple):
    """Time, threads and a name.

    A simulation gives its own, and an :class:`~asched.kube.client.ApiClient` whose clock shows the
    same time: nothing else of a daemon looks at a clock, but for the event loop.
    """

    clock: EngineClock
    aside: RunInThread
    instance: str
    """Tells this process from its replicas, in the journal and in Events."""

    @classmethod
    def of_this_process(cls) -> Runtime:
        return cls(SystemEngineClock(), in_a_thread, f"{socket.gethostname()}_{os.getpid()}")


class StoppableSleep:
    """All pauses of effects that will be tried again. A daemon that stops ends them at once: what
    was not done by then is in the journal, and the next start takes it up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._scopes: set[anyio.CancelScope] = set()
        self._over = False

    async def pause(self, delay_s: float) -> bool:
        """Sleep ``delay_s``. False where there is no more time: do not try again."""
        if self._over:
            return False
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                await self._clock.sleep(delay_s)
            finally:
                self._scopes.discard(scope)
        return not scope.cancelled_caught

    def end(self) -> None:
        """End the present pauses, and let none begin."""
        self._over = True
        for scope in tuple(self._scopes):
            scope.cancel()
