"""What a daemon has of the machine that it runs on, given to it in one place."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import anyio

from asched.daemon.clock import EngineClock, SystemEngineClock

T = TypeVar("T")


class Aside(Protocol):
    """Runs what computes for long without holding up the event loop."""

    async def __call__(self, compute: Callable[[], T], /) -> T: ...


async def in_a_thread(compute: Callable[[], T], /) -> T:
    """An :class:`Aside`: in a thread of its own."""
    return await anyio.to_thread.run_sync(compute)


class Machine(NamedTuple):
    """Time, threads and a name.

    A simulation gives its own, and an :class:`~asched.kube.client.ApiClient` whose clock shows the
    same time: nothing else of a daemon looks at a clock, but for the event loop.
    """

    clock: EngineClock
    aside: Aside
    instance: str
    """Tells this process from its replicas, in the journal and in Events."""

    @classmethod
    def of_this_process(cls) -> Machine:
        return cls(SystemEngineClock(), in_a_thread, f"{socket.gethostname()}_{os.getpid()}")
