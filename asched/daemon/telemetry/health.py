"""Reports the state of the process: health checks and metrics over HTTP, notifications to systemd.

The paths /livez, /readyz and /healthz respond like those of Kubernetes components: ``ok``; with
``?verbose``, or if a check fails, a line for each check. ``?exclude=NAME`` skips a check,
``/readyz/NAME`` runs a single one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple, cast

import anyio
import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from asched.config.settings import HealthSettings
from asched.model.quantity import US_PER_S

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# -- limits -------------------------------------------------------------------------------------
# A client that sends its request slowly, or never reads the response, holds a descriptor. With all
# of them held, the process could neither answer a liveness probe nor open a connection of its own.

MAX_CONNECTIONS: Final = 64
"""Number of open connections. A new one closes the oldest, so that a probe is always answered."""
CONNECTION_TIMEOUT_S: Final = 10.0
"""Time from the connection to the end of its response. There is one response per connection."""


class LimitedConnections:
    """A factory of protocols that wraps another one."""

    def __init__(
        self,
        factory: Callable[[], asyncio.Protocol],
        limit: int = MAX_CONNECTIONS,
        timeout_s: float = CONNECTION_TIMEOUT_S,
    ) -> None:
        self.limit = limit
        self.timeout_s = timeout_s
        self.open: dict[_Connection, None] = {}
        """The open connections, oldest first."""
        self._factory = factory

    def __call__(self) -> asyncio.Protocol:
        return _Connection(self, self._factory())


class _Connection(asyncio.Protocol):
    """Passes everything to the wrapped protocol until the connection is closed."""

    def __init__(self, limits: LimitedConnections, inner: asyncio.Protocol) -> None:
        self._limits = limits
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        self._limits.open.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        limits = self._limits
        if len(limits.open) >= limits.limit:
            next(iter(limits.open)).abort()
        limits.open[self] = None
        self._timer = asyncio.get_running_loop().call_later(limits.timeout_s, self.abort)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.open.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        self._inner.connection_lost(exc)


class _NoClientErrors(logging.Filter):
    """Drops records about requests that are not HTTP: any client could fill the log with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError | ConnectionError)


server_logger = logging.getLogger("asched.health")
"""The logger for an HTTP server: it logs failures of our own code only."""
server_logger.addFilter(_NoClientErrors())


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
        app = web.Application(middlewares=[_close_after_response])
        for name in ("livez", "healthz", "readyz"):
            app.router.add_get(f"/{name}", partial(self._check, name))
            app.router.add_get(f"/{name}/{{check}}", partial(self._check, name))
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=1.0,
            logger=server_logger,
            lingering_time=0.0,
        )
        await runner.setup()
        assert runner.server is not None
        listener: asyncio.Server | None = None
        try:
            listener = await self._listen(LimitedConnections(runner.server), settings)
            yield
        finally:
            self.address = ""
            if listener is not None:
                listener.close()
            await runner.cleanup()

    async def _listen(
        self, connections: LimitedConnections, settings: HealthSettings
    ) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        try:
            listener = await loop.create_server(connections, settings.host, settings.port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and settings == HealthSettings():
                # The port is the default: a second daemon on a machine takes another one.
                listener = await loop.create_server(connections, settings.host, 0)
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

    async def _check(self, endpoint: str, request: web.Request) -> web.Response:
        checks = self._ready if endpoint == "readyz" else self._alive
        only, excluded = request.match_info.get("check"), request.query.getall("exclude", [])
        if only is not None:
            checks = tuple(check for check in checks if check.name == only)
            if not checks:
                raise web.HTTPNotFound
        lines, failed = [], False
        for check in checks:
            if check.name in excluded:
                lines.append(f"[+]{check.name} excluded: ok")
                continue
            problem = check.problem()
            failed |= bool(problem)
            lines.append(f"[-]{check.name} failed: {problem}" if problem else f"[+]{check.name} ok")
        if not failed and "verbose" not in request.query:
            return web.Response(text="ok")
        lines.append(f"{endpoint} check {'failed' if failed else 'passed'}")
        return web.Response(status=503 if failed else 200, text="\n".join(lines) + "\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


@web.middleware
async def _close_after_response(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as refusal:
        refusal.force_close()
        raise
    response.force_close()
    return response


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
