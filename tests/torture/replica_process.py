"""Runs ``asched`` commands with a wall clock that the harness can step.

The file named by ``TORTURE_CLOCK`` holds the offset in nanoseconds, as eight bytes.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from asched.kube.timing import SystemClock
from asched.model.quantity import NS_PER_S

CLOCK_ENV = "TORTURE_CLOCK"
_OFFSET = struct.Struct("q")


class ClockOffset:
    """The offset of one replica's wall clock, shared through a file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_OFFSET.pack(0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _OFFSET.size)

    @property
    def ns(self) -> int:
        (offset,) = _OFFSET.unpack_from(self._memory)
        return int(offset)

    @ns.setter
    def ns(self, offset: int) -> None:
        _OFFSET.pack_into(self._memory, 0, offset)


def step_system_clock(offset: ClockOffset) -> None:
    """Add the offset to every reading of the wall clock."""

    def time_ns(_: SystemClock) -> int:
        return time.time_ns() + offset.ns

    def utc(clock: SystemClock) -> datetime:
        return datetime.fromtimestamp(clock.time_ns() / NS_PER_S, UTC)

    replaced: dict[str, Callable[[SystemClock], object]] = {"time_ns": time_ns, "utc": utc}
    for name, function in replaced.items():
        setattr(SystemClock, name, function)


def prepare() -> None:
    """Commands of a runner (``tests.daemon.forked_commands``) have this clock."""
    step_system_clock(ClockOffset(Path(os.environ[CLOCK_ENV])))
