"""Reports the state of the process: health checks and metrics over HTTP, notifications to systemd.

The paths /livez, /readyz and /healthz respond like those of Kubernetes components: ``ok``; with
``?verbose``, or if a check fails, a line for each check. ``?exclude=NAME`` skips a check,
``/readyz/NAME`` runs a single one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import NamedTuple

import anyio
import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from asched.config.settings import HealthSettings
from asched.daemon.telemetry.responder import ProbeResponse, Responder
from asched.model.quantity import US_PER_S

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# -- checks -------------------------------------------------------------------------------------


class Check(NamedTuple):
    """One health check."""

    name: str
    """In lower case with hyphens, like Kubernetes' own."""
    problem: Callable[[], str]
    """Returns what is wrong now, in one line; empty if nothing is. Must be quick.

    Every client of the port can read the text, so it holds no paths, hosts or names of users.
    """


PING = Check("ping", lambda: "")
"""Fails by timeout if the event loop hangs."""


class HealthAddressError(Exception):
    """The health endpoint's address is not available; the text is one line."""


class Health:
    """The endpoint. It is served before the daemon, which takes a while to start, exists."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """``registry``: the metrics to serve."""
        self.address = ""
        """The served ``host:port``; empty if not serving."""
        self._registry = registry
        self._alive: tuple[Check, ...] = (PING,)
        self._ready: tuple[Check, ...] = (PING, _STARTING)

    def attach(self, ready: Sequence[Check], *, alive: Sequence[Check] = ()) -> None:
        """Run these checks from now on: ``ready`` for /readyz, ``alive`` for all three paths."""
        self._alive = (PING, *alive)
        self._ready = (PING, *alive, *ready)

    @asynccontextmanager
    async def serving(self, settings: HealthSettings) -> AsyncIterator[None]:
        """Serve during the block, if the settings have an address. Raises
        :class:`HealthAddressError`."""
        if not settings.address:
            yield
            return
        responder = Responder(self._respond)
        listener = await self._listen(responder, settings)
        try:
            yield
        finally:
            self.address = ""
            listener.close()
            responder.close()

    async def _listen(self, responder: Responder, settings: HealthSettings) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        try:
            listener = await loop.create_server(responder, settings.host, settings.port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and settings == HealthSettings():
                # The port is the default: a second daemon on a machine takes another one.
                listener = await loop.create_server(responder, settings.host, 0)
                self.address = _address(listener)
                log.warning(
                    "default health address in use", wanted=settings.address, serving=self.address
                )
                return listener
            # asyncio wraps the system's message; errno has the original.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise HealthAddressError(
                f"cannot serve health on {settings.address}: {why}; health.address in the"
                " configuration names another, or none"
            ) from None
        self.address = _address(listener)
        return listener

    def _respond(self, path: str, query: Mapping[str, Sequence[str]]) -> ProbeResponse:
        endpoint, slash, name = path.removeprefix("/").partition("/")
        if path == "/metrics":
            return ProbeResponse(
                HTTPStatus.OK, generate_latest(self._registry), CONTENT_TYPE_LATEST
            )
        if endpoint not in ("livez", "healthz", "readyz"):
            return ProbeResponse.error(HTTPStatus.NOT_FOUND)
        checks = self._ready if endpoint == "readyz" else self._alive
        if slash:
            checks = tuple(check for check in checks if check.name == name)
            if not checks:
                return ProbeResponse.error(HTTPStatus.NOT_FOUND)
        lines, failed = [], False
        for check in checks:
            if check.name in query.get("exclude", ()):
                lines.append(f"[+]{check.name} excluded: ok")
                continue
            problem = check.problem()
            failed |= bool(problem)
            lines.append(f"[-]{check.name} failed: {problem}" if problem else f"[+]{check.name} ok")
        if not failed and "verbose" not in query:
            return ProbeResponse(HTTPStatus.OK, b"ok")
        lines.append(f"{endpoint} check {'failed' if failed else 'passed'}")
        status = HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK
        return ProbeResponse(status, ("\n".join(lines) + "\n").encode())


def _address(listener: asyncio.Server) -> str:
    host, port = listener.sockets[0].getsockname()[:2]
    return f"{host}:{port}"


_STARTING = Check("started", lambda: "the journal is being folded")


# -- systemd --------------------------------------------------------------------------------------

START_EXTENSION_S = 60.0
"""Start timeout, renewed twice as often while the event loop runs. Folding a long journal takes
time; only a start that hangs is to be killed."""
SEND_TIMEOUT_S = 0.5
"""How long a notification waits for room in systemd's queue. Watchdog pings do not wait."""


class ServiceManager:
    """The service manager that started this process, if any: systemd for ``Type=notify``.

    A notification (``sd_notify(3)``) is a datagram of ``NAME=value`` lines to the Unix socket in
    ``$NOTIFY_SOCKET``. Without that variable, as in a pod or a shell, nothing is sent.
    """

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        """``address``: path of the socket, or ``@`` and its abstract name; empty for no manager.
        ``watchdog_s``: limit between two pings, or the process is killed; None for no watchdog."""
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
        """A configuration reload begins. ``monotonic_us``: time of ``CLOCK_MONOTONIC``, which
        ``Type=notify-reload`` compares with its signal. Not sent before :meth:`ready`."""
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
