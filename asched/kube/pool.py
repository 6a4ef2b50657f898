"""Kept-alive connections for short requests.

A general HTTP client spends most of a request's CPU (aiohttp: some 165 us) on what a scheduler that
binds thousands of pods a second has no use for: cookies, redirects, compression, streaming bodies.
Here a request is one write and its answer one parse by llhttp, some 60 us with everything around
them. Watches, and all requests through a proxy, go over aiohttp.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from asched.kube.errors import NoResponseError
from asched.kube.http1 import AnswerParser, HttpAnswer, MalformedHttpError
from asched.kube.transport import always


class Endpoint(NamedTuple):
    """Where connections go, and as whom."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    tls_server_name: str | None

    @classmethod
    def of(cls, url: str, tls: ssl.SSLContext | None, tls_server_name: str | None) -> Endpoint:
        """``tls`` None with an https URL means the certificates of the system."""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        if secure and tls is None:
            tls = ssl.create_default_context()
        port = parts.port or (443 if secure else 80)
        return cls(parts.hostname or "", port, tls if secure else None, tls_server_name)


class _Connection(asyncio.Protocol):
    """One connection: one request at a time, or one line of them."""

    def __init__(self, pool: ConnectionPool, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.used_at_s = 0.0
        """When its last answer came, by the clock of the event loop."""
        self._pool = pool
        self._loop = pool.loop
        self._transport: asyncio.Transport | None = None
        self._parser = AnswerParser()
        self._answers: asyncio.Future[list[HttpAnswer]] | None = None
        self._due = 0
        """So many are waited for."""

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, requests: bytes, due: int, timeout_s: float) -> list[HttpAnswer]:
        """Raises NoAnswerError; the connection is then of no more use."""
        transport = self._transport
        assert self._answers is None, "one line at a time"
        if transport is None or transport.is_closing():
            raise NoResponseError("the connection was closed", sent=False)
        answers: asyncio.Future[list[HttpAnswer]] = self._loop.create_future()
        self._answers, self._due = answers, due
        timer = self._loop.call_later(timeout_s, self._fail, f"timed out after {timeout_s:g} s")
        transport.write(requests)
        try:
            return await answers
        except asyncio.CancelledError:
            # Its answer is still to come, and would be taken for that to the next request.
            self.abort()
            raise
        finally:
            timer.cancel()
            self._answers = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, why: str) -> None:
        self.abort()
        if self._answers is not None and not self._answers.done():
            self._answers.set_exception(NoResponseError(why, sent=True))

    # -- what the event loop tells --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of this class but do not inherit from it.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        waiting = self._answers
        if waiting is None or waiting.done():
            self.abort()  # nobody asked
            return
        try:
            answers = self._parser.feed(data, self._due)
        except MalformedHttpError as error:
            self._fail(f"not understood: {error}")
            return
        if answers is not None:
            if not answers[-1].reusable:
                self.abort()
            waiting.set_result(answers)

    def connection_lost(self, exc: Exception | None) -> None:
        waiting = self._answers
        if waiting is not None and not waiting.done():
            answers = None if exc is not None else self._parser.end(self._due)
            if answers is None:
                self._fail(describe(exc) if exc is not None else "the connection was closed")
            else:
                waiting.set_result(answers)
        self._pool.lost(self)


class ConnectionPool:
    """At most ``limit`` connections to the endpoint that was asked for last. Made in the event loop that
    it is used in."""

    def __init__(self, limit: int, keepalive_s: float) -> None:
        """A connection that was silent for longer than ``keepalive_s`` is not used again, and closed
        when others come back."""
        # Kept: before Python 3.12 each look for the running loop asks the kernel who we are.
        self.loop = asyncio.get_running_loop()
        self._limit = limit
        self._keepalive_s = keepalive_s
        self._endpoint: Endpoint | None = None
        self._idle: list[_Connection] = []
        """The one used last is the last one: the others may fall silent."""
        self._waiting: deque[asyncio.Future[_Connection | None]] = deque()
        """Those for whom all connections were busy; given one, or None where there is room for a
        new one."""
        self._connections: set[_Connection] = set()
        self._connecting = 0

    @property
    def idle(self) -> int:
        """Connections that wait for their next request."""
        return len(self._idle)

    async def exchange(
        self,
        endpoint: Endpoint,
        request: bytes,
        timeout_s: float,
        may_send: Callable[[], bool] = always,
    ) -> HttpAnswer:
        """Send a whole request, head and body, and wait for its answer.

        Raises NoAnswerError where none came within ``timeout_s``; the wait for a free connection
        counts. After such a wait ``may_send`` is asked: a lease that was good before may have run out.
        """
        (answer,) = await self.exchange_line(endpoint, request, 1, timeout_s, may_send)
        return answer

    async def exchange_line(
        self,
        endpoint: Endpoint,
        requests: bytes,
        due: int,
        timeout_s: float,
        may_send: Callable[[], bool] = always,
    ) -> list[HttpAnswer]:
        """Send ``due`` whole requests at once, one after the other, and wait for their answers, which
        come in the same order (pipelining, RFC 9112, 9.3.2).

        Raises NoAnswerError as :meth:`exchange`, also where some were answered.
        """
        connection = self._take(endpoint)
        if connection is None:
            ends_s = self.loop.time() + timeout_s
            connection = await self._wait_for_one(endpoint, ends_s)
            timeout_s = ends_s - self.loop.time()
            late = timeout_s <= 0
            if late or not may_send():
                self._put_back(connection)
                why = "no connection was free in time" if late else "no longer permitted"
                raise NoResponseError(f"not sent: {why}", sent=False)
        try:
            return await connection.ask(requests, due, timeout_s)
        finally:
            self._put_back(connection)

    async def close(self) -> None:
        """Break all connections."""
        for connection in tuple(self._connections):
            connection.abort()
        # The event loop closes the sockets in its next round.
        await asyncio.sleep(0)

    def lost(self, connection: _Connection) -> None:
        """Told by a connection that has ended."""
        self._connections.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)
        self._give(None)

    def _take(self, endpoint: Endpoint) -> _Connection | None:
        """A connection that is free now."""
        if endpoint != self._endpoint:
            self._endpoint = endpoint
            for connection in tuple(self._idle):
                connection.abort()
            self._idle.clear()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                silent_s = self.loop.time() - connection.used_at_s
                if silent_s <= self._keepalive_s:
                    return connection
                connection.abort()
        return None

    def _put_back(self, connection: _Connection) -> None:
        if not connection.usable:
            return  # told as lost in a moment, or already
        if connection.endpoint != self._endpoint:
            connection.abort()
            return
        now_s = connection.used_at_s = self.loop.time()
        if self._give(connection):
            return
        self._idle.append(connection)
        # The one that has been silent longest: what a burst needed does not stay for ever.
        if now_s - self._idle[0].used_at_s > self._keepalive_s:
            self._idle.pop(0).abort()

    def _give(self, connection: _Connection | None) -> bool:
        """To who has waited longest. False where nobody waits."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(connection)
                return True
        return False

    async def _wait_for_one(self, endpoint: Endpoint, ends_s: float) -> _Connection:
        try:
            while len(self._connections) + self._connecting >= self._limit:
                connection = await self._in_turn(ends_s)
                if connection is not None and connection.usable:
                    return connection
            async with asyncio.timeout_at(ends_s):
                return await self._connect(endpoint)
        except TimeoutError as error:
            where = f"{endpoint.host}:{endpoint.port}"
            raise NoResponseError(
                f"no connection to {where}: {describe(error)}", sent=False
            ) from None

    async def _in_turn(self, ends_s: float) -> _Connection | None:
        turn: asyncio.Future[_Connection | None] = self.loop.create_future()
        self._waiting.append(turn)
        timer = self.loop.call_at(ends_s, _in_vain, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                given = turn.result()
                if given is None:
                    self._give(None)
                else:
                    self._put_back(given)
            raise
        finally:
            timer.cancel()

    async def _connect(self, endpoint: Endpoint) -> _Connection:
        self._connecting += 1
        connected = False
        try:
            _, connection = await self.loop.create_connection(
                lambda: _Connection(self, endpoint),
                endpoint.host,
                endpoint.port,
                ssl=endpoint.tls,
                server_hostname=endpoint.tls_server_name if endpoint.tls is not None else None,
            )
            connected = True
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            where = f"{endpoint.host}:{endpoint.port}"
            why = f"cannot connect to {where}: {describe(error)}"
            raise NoResponseError(why, sent=False) from None
        finally:
            self._connecting -= 1
            if not connected:
                self._give(None)
        self._connections.add(connection)
        return connection


def _in_vain(turn: asyncio.Future[_Connection | None]) -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())


def describe(error: Exception) -> str:
    """An error of the connection in one line."""
    if isinstance(error, TimeoutError):
        return f"timed out ({type(error).__name__})"
    return " ".join(str(error).split()) or type(error).__name__
