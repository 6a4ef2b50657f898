"""What systemd is told of a service of ``Type=notify``: ready, alive, stopping (``sd_notify(3)``).

The protocol is a datagram of ``NAME=value`` lines to the Unix socket that ``$NOTIFY_SOCKET`` names.
Without the variable, as in a pod or a shell, nothing is told and nothing is different.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

import anyio
import structlog

from asched.model.quantity import US_PER_S

START_EXTENSION_S = 60.0
"""How much longer a start may take, told again twice as often while the event loop lives: folding a long
journal and waiting for the API server take their time, and only a start that hangs is to be ended."""
PATIENCE_FOR_ROOM_S = 0.5
"""How long a word waits for room in the manager's queue, which is ten long at the least. A sign of life does
not: the next one does as well."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ServiceManager:
    """The service manager that started this process, if one did and wants to hear of it."""

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        """``address``: path of the socket, or ``@`` and its abstract name; empty tells nobody.
        ``watchdog_s``: without a sign of life for this long the process is ended; None where there
        is no watchdog."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_s = watchdog_s
        self._hangs: Callable[[], bool] = _does_not_hang
        self._ready = anyio.Event()
        self._failing = False
        self._status = ""
        """What it was last, but for reloads."""

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] = os.environ, pid: int | None = None
    ) -> ServiceManager:
        """As ``sd_notify(3)`` and ``sd_watchdog_enabled(3)`` read the environment: a watchdog that is
        meant for another process than ``pid``, by default this one, is none of ours."""
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        period_us = environment.get("WATCHDOG_USEC", "")
        meant_for = environment.get("WATCHDOG_PID", "")
        ours = not meant_for or meant_for == str(os.getpid() if pid is None else pid)
        if ours and period_us.isdecimal() and int(period_us) > 0:
            return cls(address, int(period_us) / US_PER_S)
        return cls(address)

    def attach(self, hangs: Callable[[], bool]) -> None:
        """From now on there are no signs of life while ``hangs`` says so."""
        self._hangs = hangs

    def ready(self, status: str) -> None:
        """The service does what it is for. Its start is over."""
        self._status = status
        self._tell("READY=1", f"STATUS={status}")
        self._ready.set()

    def reloading(self, monotonic_us: int) -> None:
        """A new configuration is looked at; :meth:`reloaded` ends that. ``monotonic_us`` is the time
        of ``CLOCK_MONOTONIC``, by which ``Type=notify-reload`` knows the answer to its own signal. Not
        said during a start, which is not over before :meth:`ready`."""
        if self._ready.is_set():
            self._tell("RELOADING=1", f"MONOTONIC_USEC={monotonic_us}", "STATUS=reloading")

    def reloaded(self, trouble: str = "") -> None:
        """The configuration was looked at; ``trouble`` says so where it cannot be used."""
        if self._ready.is_set():
            self._tell("READY=1", f"STATUS={trouble or self._status}")

    def stopping(self) -> None:
        """The end has begun; what is under way is brought to its own."""
        self._tell("STOPPING=1", "STATUS=finishing what is under way")

    async def run(self) -> None:
        """Signs of life until cancelled: every half of what is granted, as systemd recommends."""
        if not self._address:
            return
        while not self._ready.is_set():
            microseconds = round(START_EXTENSION_S * US_PER_S)
            self._tell(f"EXTEND_TIMEOUT_USEC={microseconds}", "STATUS=starting")
            with anyio.move_on_after(START_EXTENSION_S / 2):
                await self._ready.wait()
        while self._watchdog_s is not None:
            if not self._hangs():
                self._tell("WATCHDOG=1", patience_s=0)
            await anyio.sleep(self._watchdog_s / 2)

    def _tell(self, *lines: str, patience_s: float = PATIENCE_FOR_ROOM_S) -> None:
        """Never fails: a service manager that does not listen is its own trouble."""
        if not self._address:
            return
        message = "\n".join(lines).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(patience_s)
                # Only a connected socket waits for the room of the other end; any other has room of its own.
                sender.connect(self._address)
                sender.send(message)
        except OSError as error:
            if not self._failing:
                log.warning("the service manager cannot be told", error=str(error))
            self._failing = True
        else:
            self._failing = False


def _does_not_hang() -> bool:
    return False
