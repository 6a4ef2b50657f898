"""Answers small GET requests over HTTP/1.1, one on each connection.

A general HTTP server takes 0.15 s to import, which every start of a daemon would wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple, cast
from urllib.parse import parse_qs, unquote, urlsplit

import structlog
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# A client that sends its request slowly, or never reads the response, holds a descriptor. With all
# of them held, the process could neither answer a liveness probe nor open a connection of its own.
MAX_CONNECTIONS: Final = 64
"""Number of open connections. A new one closes the oldest, so that a probe is always answered."""
CONNECTION_TIMEOUT_S: Final = 10.0
"""Time from the connection to the end of its response."""
REQUEST_LIMIT_BYTES: Final = 8 * 1024
"""Size of a request without its body, which is not read."""


class ProbeResponse(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    @classmethod
    def error(cls, status: HTTPStatus) -> ProbeResponse:
        return cls(status, f"{status.value}: {status.phrase}".encode())


Respond = Callable[[str, Mapping[str, Sequence[str]]], ProbeResponse]
"""From the path and the values of each query parameter. Must be quick."""


class Responder:
    """A factory of protocols for :meth:`asyncio.loop.create_server`."""

    def __init__(
        self,
        respond: Respond,
        limit: int = MAX_CONNECTIONS,
        timeout_s: float = CONNECTION_TIMEOUT_S,
    ) -> None:
        self.respond = respond
        self.limit = limit
        self.timeout_s = timeout_s
        self.open: dict[_Connection, None] = {}
        """The open connections, oldest first."""

    def __call__(self) -> asyncio.Protocol:
        return _Connection(self)

    def close(self) -> None:
        """Abort all connections."""
        for connection in tuple(self.open):
            connection.abort()


class _Connection(asyncio.Protocol):
    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self._parser = HttpRequestParser(self)
        self._target = b""
        self._received_bytes = self._head_bytes = 0
        self._head_complete = self._responded = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        self._responder.open.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        responder = self._responder
        if len(responder.open) >= responder.limit:
            next(iter(responder.open)).abort()
        responder.open[self] = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(responder.timeout_s, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._responder.open.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._responded:
            return
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            if not self._head_complete:
                self._send(ProbeResponse.error(HTTPStatus.BAD_REQUEST))
                return
        size = self._head_bytes if self._head_complete else self._received_bytes
        if size > REQUEST_LIMIT_BYTES:
            self._send(ProbeResponse.error(HTTPStatus.BAD_REQUEST))
        elif self._head_complete:
            self._send(self._response())

    def on_url(self, part: bytes) -> None:
        self._target += part
        self._head_bytes += len(part)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        self._head_complete = True

    def _response(self) -> ProbeResponse:
        if self._parser.get_method() not in (b"GET", b"HEAD"):
            return ProbeResponse.error(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            target = urlsplit(self._target.decode("ascii"))
            query = parse_qs(target.query, keep_blank_values=True)
        except ValueError:
            return ProbeResponse.error(HTTPStatus.BAD_REQUEST)
        try:
            return self._responder.respond(unquote(target.path), query)
        except Exception as error:
            log.error("request failed", path=target.path, exc_info=error)
            return ProbeResponse.error(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, response: ProbeResponse) -> None:
        assert self._transport is not None
        self._responded = True
        head = (
            f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n"
            f"Content-Type: {response.content_type}\r\n"
            f"Content-Length: {len(response.body)}\r\nConnection: close\r\n\r\n"
        )
        body = b"" if self._parser.get_method() == b"HEAD" else response.body
        self._transport.write(head.encode() + body)
        self._transport.close()
