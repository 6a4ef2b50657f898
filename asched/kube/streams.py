"""Responses that are read while they arrive: watches. Each has a connection of its own."""

from __future__ import annotations

import asyncio
import socket

from asched.kube.errors import NoResponseError, ResponseTooLargeError
from asched.kube.pool import describe
from asched.kube.response_parser import BODY_LIMIT_BYTES, MalformedHttpError, StreamParser
from asched.kube.transport import HttpResponse

_BUFFER_BYTES = 256 * 1024
"""From this number of unread bytes on, receiving pauses."""


class ResponseStream(asyncio.Protocol):
    """A :class:`~asched.kube.transport.StreamingResponse` on a connection that it closes."""

    def __init__(self, transport: asyncio.Transport, timeout_s: float) -> None:
        """``timeout_s``: until the end of the response. One task reads."""
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._parser = StreamParser()
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._reading = True
        """Whether the transport receives."""
        self._error: NoResponseError | None = None
        self._waiter: asyncio.Future[None] | None = None
        late = f"timed out after {timeout_s:g} s"
        self._timer = self._loop.call_later(timeout_s, self._fail, late)
        transport.set_protocol(self)

    @classmethod
    async def open(
        cls, transport: asyncio.Transport, request: bytes, timeout_s: float
    ) -> ResponseStream:
        """Send a complete request and wait for the head of its response. Raises NoResponseError."""
        stream = cls(transport, timeout_s)
        transport.write(request)
        try:
            while not stream.status:
                await stream._wait()
        except BaseException:
            stream.release()
            raise
        return stream

    @property
    def status(self) -> int:
        return self._parser.status

    async def read(self) -> bytes:
        while not self._unread:
            if self._parser.complete:
                return b""
            await self._wait()
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        if not self._reading and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()
        return data

    async def read_all(self) -> HttpResponse:
        body = bytearray()
        try:
            while piece := await self.read():
                body += piece
                if len(body) > BODY_LIMIT_BYTES:
                    raise ResponseTooLargeError(BODY_LIMIT_BYTES)
        finally:
            self.release()
        return HttpResponse(self.status, bytes(body), self._parser.retry_after, reusable=False)

    def release(self) -> None:
        self._timer.cancel()
        self._transport.abort()

    async def _wait(self) -> None:
        """Until something arrives. Raises NoResponseError."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, why: str) -> None:
        if self._error is None and not self._parser.complete:
            self._error = NoResponseError(why, sent=True)
        self.release()
        self._wake()

    def data_received(self, data: bytes) -> None:
        try:
            pieces = self._parser.feed_stream(data)
        except MalformedHttpError as error:
            self._fail(f"malformed response: {error}")
            return
        self._unread.extend(pieces)
        self._unread_bytes += sum(map(len, pieces))
        if self._unread_bytes > _BUFFER_BYTES and self._reading:
            self._reading = False
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self._parser.close():
            self.release()
            self._wake()
        else:
            self._fail(describe(exc) if exc is not None else "the connection was closed")


def enable_keepalive(transport: asyncio.BaseTransport) -> None:
    """Enable TCP keepalive: without it a watch on a lost connection hangs for minutes."""
    peer = transport.get_extra_info("socket")
    if peer is None:
        return
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
