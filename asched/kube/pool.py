"""HTTP/1.1 over kept-alive connections, for short requests.

A general HTTP client spends most of a request's CPU time (aiohttp: some 165 us) on cookies,
redirects, compression and streaming bodies. A scheduler that binds thousands of pods a second needs
none of them. Here a request is one write and its response one parse by llhttp: some 60 us with
everything around them. Requests through a proxy use aiohttp.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from asched.kube.errors import NoResponseError, ResponseTooLargeError, one_line
from asched.kube.response_parser import (
    BODY_LIMIT_BYTES,
    BodyTooLargeError,
    MalformedHttpError,
    ResponseParser,
)
from asched.kube.transport import HttpResponse, always


class Endpoint(NamedTuple):
    """The address of connections, and how they are secured."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    tls_server_name: str | None

    @classmethod
    def of(cls, url: str, tls: ssl.SSLContext | None, tls_server_name: str | None) -> Endpoint:
        """``tls`` None with an https URL means the system's certificate authorities."""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        if secure and tls is None:
            tls = ssl.create_default_context()
        port = parts.port or (443 if secure else 80)
        return cls(parts.hostname or "", port, tls if secure else None, tls_server_name)

    @property
    def address(self) -> str:
        """For messages."""
        return f"{self.host}:{self.port}"


class _Connection(asyncio.Protocol):
    """One connection. It carries one request, or one pipeline of requests, at a time."""

    def __init__(self, pool: ConnectionPool, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.used_at_s = 0.0
        """Time of its last response, by the clock of the event loop."""
        self._pool = pool
        self._loop = pool.loop
        self._transport: asyncio.Transport | None = None
        self._parser = ResponseParser()
        self._waiter: asyncio.Future[list[HttpResponse]] | None = None
        self._expected = 0

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, requests: bytes, expected: int, timeout_s: float) -> list[HttpResponse]:
        """Returns the responses. Raises NoResponseError; the connection is unusable then."""
        transport = self._transport
        assert self._waiter is None, "one pipeline at a time"
        if transport is None or transport.is_closing():
            raise NoResponseError("the connection was closed", sent=False)
        waiter: asyncio.Future[list[HttpResponse]] = self._loop.create_future()
        self._waiter, self._expected = waiter, expected
        timer = self._loop.call_later(timeout_s, self._fail, f"timed out after {timeout_s:g} s")
        transport.write(requests)
        try:
            return await waiter
        except asyncio.CancelledError:
            # A late response would be taken for that to the next request.
            self.abort()
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def detach(self) -> asyncio.Transport:
        """The transport of a usable connection, which gets another protocol."""
        transport, self._transport = self._transport, None
        assert transport is not None
        return transport

    def _fail(self, why: str) -> None:
        self._fail_with(NoResponseError(why, sent=True))

    def _fail_with(self, error: NoResponseError) -> None:
        self.abort()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of this class but do not inherit from it.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            self.abort()  # unsolicited data
            return
        try:
            responses = self._parser.feed(data, self._expected)
        except BodyTooLargeError:
            self._fail_with(ResponseTooLargeError(BODY_LIMIT_BYTES))
            return
        except MalformedHttpError as error:
            self._fail(f"malformed response: {error}")
            return
        if responses is not None:
            if not responses[-1].reusable:
                self.abort()
            waiter.set_result(responses)

    def connection_lost(self, exc: Exception | None) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            responses = None if exc is not None else self._parser.end(self._expected)
            if responses is None:
                self._fail(describe(exc) if exc is not None else "the connection was closed")
            else:
                waiter.set_result(responses)
        self._pool.lost(self)


_Line = deque[asyncio.Future[_Connection | None]]
_MAX_CONNECTING = 4
"""Connections that are being opened at the same time. Meanwhile a burst uses those that are open: a
TLS handshake costs as much CPU as several requests, and the API server pays even more."""
CONNECT_TIMEOUT_S = 30.0
"""Limit for a new connection of a long response, and for one through a proxy."""
_MAX_URGENT_IN_ROW = 3
"""So urgent requests delay others, and never stop them."""
_KEPT_IDLE = 2
"""Idle connections that are not taken out, so that the next requests find one."""
_FRESH_S = 1.0
"""A connection with a response that recent is not one that hangs."""


class ConnectionPool:
    """At most ``limit`` connections to the latest request's endpoint, in one event loop."""

    def __init__(self, limit: int, keepalive_s: float) -> None:
        """A connection idle for longer than ``keepalive_s`` is not reused. It is closed when
        another one is returned."""
        # Before Python 3.12 each lookup of the running loop makes a system call.
        self.loop = asyncio.get_running_loop()
        self.limit = limit
        self.keepalive_s = keepalive_s
        self._endpoint: Endpoint | None = None
        self._idle: list[_Connection] = []
        """The most recently used one is last, and taken first."""
        self._waiters: _Line = deque()
        """Requests that wait for a connection; None as result: there is room for a new one."""
        self._urgent_waiters: _Line = deque()
        self._urgent_in_row = 0
        """Urgent requests that got a connection since one of the others did."""
        self._connections: set[_Connection] = set()
        self._connecting = 0

    @property
    def idle(self) -> int:
        """Number of idle connections."""
        return len(self._idle)

    async def exchange(
        self,
        endpoint: Endpoint,
        requests: bytes,
        expected: int,
        timeout_s: float,
        may_send: Callable[[], bool] = always,
        *,
        urgent: bool = False,
    ) -> list[HttpResponse]:
        """Send ``expected`` complete requests at once and return their responses in order
        (pipelining, RFC 9112, 9.3.2).

        ``urgent`` requests get a free connection before others, apart from each fourth one.
        ``timeout_s`` includes the wait for a free connection. After such a wait ``may_send`` is
        called again, because a lease may have run out. Raises NoResponseError, also if only some
        requests have a response.
        """
        connection = self._take(endpoint)
        if connection is None:
            ends_s = self.loop.time() + timeout_s
            line = self._urgent_waiters if urgent else self._waiters
            connection = await self._wait_for_one(endpoint, ends_s, line)
            timeout_s = ends_s - self.loop.time()
            why = ""
            if timeout_s <= 0:
                why = "no connection was free in time"
            elif connection.endpoint != endpoint:
                # A token for one server is not sent to another one.
                why = "the server or its certificates changed meanwhile"
            elif not may_send():
                why = "no longer permitted"
            if why:
                self._put_back(connection)
                raise NoResponseError(f"not sent: {why}", sent=False)
        try:
            return await connection.send(requests, expected, timeout_s)
        finally:
            self._put_back(connection)

    async def take_out(self, endpoint: Endpoint, timeout_s: float) -> asyncio.Transport:
        """A connection that leaves the pool, for a response that takes long. The caller sets its
        protocol at once, and closes it. Raises NoResponseError.

        It is a new one, or one that carried a response a moment ago: others may hang.
        """
        connection = None
        if endpoint == self._endpoint and len(self._idle) > _KEPT_IDLE:
            newest = self._idle[-1]
            if newest.usable and self.loop.time() - newest.used_at_s <= _FRESH_S:
                connection = self._idle.pop()
        if connection is None:
            try:
                async with asyncio.timeout(timeout_s):
                    connection = await self._connect(endpoint)
            except TimeoutError as error:
                raise NoResponseError(
                    f"no connection to {endpoint.address}: {describe(error)}", sent=False
                ) from None
        self._connections.discard(connection)
        return connection.detach()

    async def close(self) -> None:
        """Abort all connections."""
        for connection in tuple(self._connections):
            connection.abort()
        # The event loop closes the sockets in its next iteration.
        await asyncio.sleep(0)

    def lost(self, connection: _Connection) -> None:
        """Called by a connection that has ended."""
        self._connections.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)
        self._give(None)

    def _take(self, endpoint: Endpoint) -> _Connection | None:
        """An idle connection, if there is one."""
        if endpoint != self._endpoint:
            self._endpoint = endpoint
            for connection in tuple(self._idle):
                connection.abort()
            self._idle.clear()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                idle_s = self.loop.time() - connection.used_at_s
                if idle_s <= self.keepalive_s:
                    return connection
                connection.abort()
        return None

    def _put_back(self, connection: _Connection) -> None:
        if not connection.usable:
            return  # :meth:`lost` is called for it
        if connection.endpoint != self._endpoint:
            connection.abort()
            return
        now_s = connection.used_at_s = self.loop.time()
        if self._give(connection):
            return
        self._idle.append(connection)
        # Connections that a burst needed are closed one by one.
        if now_s - self._idle[0].used_at_s > self.keepalive_s:
            self._idle.pop(0).abort()

    def _give(self, connection: _Connection | None) -> bool:
        """Wake the longest waiter of the line that has its turn. Returns False if there is none."""
        while self._waiters or self._urgent_waiters:
            urgent = not self._waiters or self._urgent_in_row < _MAX_URGENT_IN_ROW
            urgent = urgent and bool(self._urgent_waiters)
            waiter = (self._urgent_waiters if urgent else self._waiters).popleft()
            if not waiter.done():
                self._urgent_in_row = self._urgent_in_row + 1 if urgent else 0
                waiter.set_result(connection)
                return True
        return False

    async def _wait_for_one(self, endpoint: Endpoint, ends_s: float, line: _Line) -> _Connection:
        try:
            while not self._may_connect():
                connection = await self._wait_in_line(ends_s, line)
                if connection is not None and connection.usable:
                    return connection
            async with asyncio.timeout_at(ends_s):
                return await self._connect(endpoint)
        except TimeoutError as error:
            raise NoResponseError(
                f"no connection to {endpoint.address}: {describe(error)}", sent=False
            ) from None

    def _may_connect(self) -> bool:
        below_limit = len(self._connections) + self._connecting < self.limit
        return below_limit and self._connecting < _MAX_CONNECTING

    async def _wait_in_line(self, ends_s: float, line: _Line) -> _Connection | None:
        waiter: asyncio.Future[_Connection | None] = self.loop.create_future()
        line.append(waiter)
        timer = self.loop.call_at(ends_s, _time_out, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                given = waiter.result()
                if given is None:
                    self._give(None)
                else:
                    self._put_back(given)
            raise
        finally:
            timer.cancel()

    async def _connect(self, endpoint: Endpoint) -> _Connection:
        self._connecting += 1
        try:
            _, connection = await self.loop.create_connection(
                lambda: _Connection(self, endpoint),
                endpoint.host,
                endpoint.port,
                ssl=endpoint.tls,
                server_hostname=endpoint.tls_server_name if endpoint.tls is not None else None,
            )
            self._connections.add(connection)
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            why = f"cannot connect to {endpoint.address}: {describe(error)}"
            raise NoResponseError(why, sent=False) from None
        finally:
            self._connecting -= 1
            if self._may_connect():
                self._give(None)
        return connection


def _time_out(waiter: asyncio.Future[_Connection | None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


def describe(error: Exception) -> str:
    """A connection error in one line."""
    if isinstance(error, TimeoutError):
        return f"timed out ({type(error).__name__})"
    return one_line(error)
