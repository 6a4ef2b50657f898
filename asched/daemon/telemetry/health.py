"""The HTTP endpoint for /livez, /readyz, /healthz and /metrics.

The first three respond like those of Kubernetes components: ``ok``; with ``?verbose``, or if a
check fails, a line for each check. ``?exclude=NAME`` skips a check, ``/readyz/NAME`` runs a single
one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from asched.config.settings import HealthSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Check(NamedTuple):
    """One health check."""

    name: str
    """In lower case with hyphens, like Kubernetes' own."""
    problem: Callable[[], str]
    """Returns what is wrong now, in one line; empty if nothing is. Must be quick."""


PING = Check("ping", lambda: "")
"""Fails by timeout if the event loop hangs."""


def failed_checks(checks: Sequence[Check]) -> list[str]:
    """What is wrong now, a line for each failed check."""
    return [problem for check in checks if (problem := check.problem())]


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
        """Serve during the block, if the settings have an address.

        Raises :class:`HealthAddressError`.
        """
        if not settings.address:
            yield
            return
        app = web.Application()
        for name in ("livez", "healthz", "readyz"):
            app.router.add_get(f"/{name}", partial(self._check, name))
            app.router.add_get(f"/{name}/{{check}}", partial(self._check, name))
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await self._listen(runner, settings)
            yield
        finally:
            self.address = ""
            await runner.cleanup()

    async def _listen(self, runner: web.AppRunner, settings: HealthSettings) -> None:
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
        except OSError as error:
            if error.errno == errno.EADDRINUSE and settings == HealthSettings():
                # The port is the default: a second daemon on a machine takes another one.
                await web.TCPSite(runner, settings.host, 0).start()
                self.address = _address(runner)
                log.warning(
                    "default health address in use", wanted=settings.address, serving=self.address
                )
                return
            # asyncio wraps the system's message; errno has the original.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise HealthAddressError(
                f"cannot serve health on {settings.address}: {why}; health.address in the"
                " configuration names another, or none"
            ) from None
        self.address = _address(runner)

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


def _address(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"{host}:{port}"


_STARTING = Check("started", lambda: "the journal is being folded")
