"""The health endpoint: /livez, /readyz and /metrics over HTTP."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from asched.daemon.config_settings import HealthSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Readiness = Callable[[], Sequence[str]]
"""What keeps the daemon from scheduling now, a line each; empty if nothing does."""


class HealthAddressError(Exception):
    """The health endpoint's address cannot be had; the text is one line for the user."""


class Health:
    """What the endpoint shows. It exists before the daemon does, which takes a while to start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """``registry`` is what /metrics shows."""
        self.address = ""
        """``host:port`` that is served; empty while none is."""
        self._registry = registry
        self._readiness: Readiness = _starting

    def attach(self, readiness: Readiness) -> None:
        """From now on /readyz asks ``readiness``."""
        self._readiness = readiness

    @asynccontextmanager
    async def serving(self, settings: HealthSettings) -> AsyncIterator[None]:
        """Serve as long as the block runs; nothing where the settings name no address.

        Raises :class:`HealthAddressError`.
        """
        if not settings.address:
            yield
            return
        app = web.Application()
        for path in ("/livez", "/healthz"):
            app.router.add_get(path, self._live)
        app.router.add_get("/readyz", self._ready)
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
                # Nobody asked for this very port, and a second daemon on a machine is no mistake.
                await web.TCPSite(runner, settings.host, 0).start()
                self.address = _address(runner)
                log.warning(
                    "the default health address is taken", wanted=settings.address,
                    serving=self.address,
                )  # fmt: skip
                return
            # asyncio puts its own words around the system's; the number says which it was.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise HealthAddressError(
                f"cannot serve health on {settings.address}: {why}; health.address in the"
                " configuration names another, or none"
            ) from None
        self.address = _address(runner)

    async def _live(self, _: web.Request) -> web.Response:
        # That somebody answers is the answer: a loop that hangs would not.
        return web.Response(text="ok")

    async def _ready(self, _: web.Request) -> web.Response:
        troubles = self._readiness()
        if troubles:
            return web.Response(status=503, text="\n".join(troubles) + "\n")
        return web.Response(text="ok")

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _address(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"{host}:{port}"


def _starting() -> Sequence[str]:
    return ("starting: the journal is being folded",)
