"""What a process provides: clock, threads, safe output to terminals.

Names, labels and messages come from pod authors, API servers and plugins. Control characters in
them could clear the screen, hide a line or change the title, so they are escaped.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, TextIO, TypeVar

import anyio

from asched.kube.timing import Clock, SystemClock

T = TypeVar("T")


class RunInThread(Protocol):
    """Runs a long computation without blocking the event loop."""

    async def __call__(self, compute: Callable[[], T], /) -> T: ...


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
        return cls(SystemClock(), anyio.to_thread.run_sync, f"{socket.gethostname()}_{os.getpid()}")


SWITCH_INTERVAL_S: Final = 0.0005


def limit_blas_threads() -> None:
    """Let numpy start no threads, unless the environment has a number. Before numpy's import.

    Matrices are too small for threads, and starting them takes 50 ms of CPU.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@contextmanager
def import_hidden(name: str) -> Iterator[None]:
    """Let imports in the block not find the optional module ``name``, unless it is loaded."""
    hidden = name not in sys.modules
    if hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules[name]


def set_switch_interval() -> None:
    """Let a computing thread yield the interpreter after half a millisecond instead of 5 ms.

    The event loop releases the interpreter at each system call. While a thread encodes a
    checkpoint, every request to the API server would wait for a whole interval.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)


_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 except tab and newline, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"  # direction, other line ends
)


def escape_control(text: str) -> str:
    r"""``text`` with control characters written as in JSON (``\u001b``), which keeps JSON valid."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class EscapingStream:
    """A text stream that escapes control characters; otherwise the wrapped stream."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """rich writes its own control characters here; it prints escaped text only."""

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(escape_control(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def unescaped(stream: TextIO) -> TextIO:
    """The wrapped stream, for writers that escape foreign text themselves."""
    below: TextIO = getattr(stream, "rich_proxied_file", stream)
    return below
