"""What a daemon has of the machine that it runs on, given to it in one place.

Waiting between tries, for no longer than the daemon runs.

How the daemon's threads share the interpreter.

The event loop gives the interpreter away at each system call, and gets it back from a thread that
computes (say the last checkpoint of a stop, or a plugin that was given one) only when that thread's interval is
over. At the 5 ms which are usual every message to the API server would wait that long.

The garbage collector of a process that holds a cluster.

What a daemon keeps (pods, nodes, their columns) holds no cycles, and there is a lot of it: a collector
that walks through it all every few thousand allocations would take a tenth of the daemon's time and
find nothing.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
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


SWITCH_INTERVAL_S = 0.0005


def set_switch_interval() -> None:
    """For the start of a daemon's process: who computes aside hands over after half a millisecond."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


YOUNG_OBJECTS = 20_000
"""So many new objects that have not been freed are looked at together."""
YOUNG_ROUNDS = 20
MIDDLE_ROUNDS = 50


def tune_gc() -> None:
    """For the start of a daemon's process: look for garbage among what is new, and only rarely among
    all that is there."""
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, MIDDLE_ROUNDS)


def freeze_gc() -> None:
    """After the caches were filled: take what is there now out of the collector's sight."""
    gc.collect()
    gc.freeze()
