"""Limits on the connections of an HTTP server: their number, and the time of each.

A client that sends its request slowly, or never reads the response, holds a descriptor. With all of
them held, the process could neither answer a liveness probe nor open a connection of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from aiohttp.http_exceptions import HttpProcessingError

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
