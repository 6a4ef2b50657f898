"""Notifies systemd about a service of ``Type=notify`` (``sd_notify(3)``).

A notification is a datagram of ``NAME=value`` lines to the Unix socket in ``$NOTIFY_SOCKET``.
Without that variable, as in a pod or a shell, nothing is sent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

import anyio
import structlog

from asched.model.quantity import US_PER_S

START_EXTENSION_S = 60.0
"""Start timeout, renewed twice as often while the event loop runs. Folding a long journal takes
time; only a start that hangs is to be killed."""
SEND_TIMEOUT_S = 0.5
"""How long a notification waits for room in systemd's queue. Watchdog pings do not wait."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ServiceManager:
    """The service manager that started this process, if any."""

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        """``address``: path of the socket, or ``@`` and its abstract name; empty for no manager.
        ``watchdog_s``: the process is killed if it sends no ping for this long; None without a
        watchdog."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_s = watchdog_s
        self._is_stuck: Callable[[], bool] = lambda: False
        self._ready = anyio.Event()
        self._failing = False
        self._status = ""
        """The last one apart from reloads."""

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] = os.environ, pid: int | None = None
    ) -> ServiceManager:
        """As ``sd_notify(3)`` and ``sd_watchdog_enabled(3)`` read the environment. A watchdog for
        another process than ``pid``, by default this one, is ignored."""
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        period_us = environment.get("WATCHDOG_USEC", "")
        meant_for = environment.get("WATCHDOG_PID", "")
        ours = not meant_for or meant_for == str(os.getpid() if pid is None else pid)
        if ours and period_us.isdecimal() and int(period_us) > 0:
            return cls(address, int(period_us) / US_PER_S)
        return cls(address)

    def attach(self, is_stuck: Callable[[], bool]) -> None:
        """Send no watchdog pings while ``is_stuck`` returns True."""
        self._is_stuck = is_stuck

    def ready(self, status: str) -> None:
        """The start is complete."""
        self._status = status
        self._notify("READY=1", f"STATUS={status}")
        self._ready.set()

    def reloading(self, monotonic_us: int) -> None:
        """A configuration reload begins; :meth:`reloaded` ends it. ``monotonic_us``: time of
        ``CLOCK_MONOTONIC``, which ``Type=notify-reload`` compares with its signal. Not sent before
        :meth:`ready`."""
        if self._ready.is_set():
            self._notify("RELOADING=1", f"MONOTONIC_USEC={monotonic_us}", "STATUS=reloading")

    def reloaded(self, error: str = "") -> None:
        """The reload ended, with an ``error`` if the configuration was rejected."""
        if self._ready.is_set():
            self._notify("READY=1", f"STATUS={error or self._status}")

    def stopping(self) -> None:
        """The shutdown begins."""
        self._notify("STOPPING=1", "STATUS=completing effects in flight")

    async def run(self) -> None:
        """Extend the start timeout, then send watchdog pings, until cancelled. The period is half
        of the limit, as systemd recommends."""
        if not self._address:
            return
        while not self._ready.is_set():
            microseconds = round(START_EXTENSION_S * US_PER_S)
            self._notify(f"EXTEND_TIMEOUT_USEC={microseconds}", "STATUS=starting")
            with anyio.move_on_after(START_EXTENSION_S / 2):
                await self._ready.wait()
        while self._watchdog_s is not None:
            if not self._is_stuck():
                self._notify("WATCHDOG=1", timeout_s=0)
            await anyio.sleep(self._watchdog_s / 2)

    def _notify(self, *lines: str, timeout_s: float = SEND_TIMEOUT_S) -> None:
        """Never raises."""
        if not self._address:
            return
        message = "\n".join(lines).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(timeout_s)
                # Only a connected socket waits for room at the other end.
                sender.connect(self._address)
                sender.send(message)
        except OSError as error:
            if not self._failing:
                log.warning("notifying systemd failed", error=str(error))
            self._failing = True
        else:
            self._failing = False
