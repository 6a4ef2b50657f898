"""A proxy in front of the API server that delays, breaks, repeats and falsifies responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from random import Random
from typing import NamedTuple

import aiohttp
import anyio
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict
from yarl import URL

_HOP_BY_HOP = frozenset({"connection", "content-length", "host", "transfer-encoding"})
_MAX_DELAY_S = 2.0


class Lie(StrEnum):
    """What the proxy does with the requests that it selects."""

    NONE = "none"
    DELAY = "delay"
    """Requests wait up to two seconds."""
    RESET = "reset"
    """The connection breaks; the request was not executed."""
    RESET_AFTER = "reset-after"
    """The connection breaks; the request was executed."""
    TRUNCATE = "truncate"
    """The connection breaks in the middle of the response, or of a watch line."""
    DUPLICATE_ANSWER = "duplicate-answer"
    """The response arrives twice."""
    DUPLICATE_REQUEST = "duplicate-request"
    """The request is executed twice; the second response arrives."""
    ERROR_AFTER = "error-after"
    """The request is executed; the response is 500, 502, 503 or 504."""
    STALE_LIST = "stale-list"
    """A list is answered with an earlier response."""
    UNAUTHORIZED = "unauthorized"
    """401, as for a revoked token."""
    BINDINGS_REFUSED = "bindings-refused"
    """Bindings get 503; all else works."""
    BINDINGS_SILENT = "bindings-silent"
    """Bindings get no response and are not executed; all else works."""
    BLACK_HOLE = "black-hole"
    """No response; the request was not executed."""


class Answer(NamedTuple):
    """A complete response of the API server."""

    status: int
    content_type: str
    body: bytes

    def wire_form(self) -> bytes:
        """As the bytes of an HTTP/1.1 response."""
        head = (
            f"HTTP/1.1 {self.status} Injected\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body


class _AlreadySent(web.StreamResponse):
    """Represents a response with bytes that the handler wrote itself."""

    @property
    def keep_alive(self) -> bool:
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


class LyingProxy:
    """Forwards requests to the API server; :attr:`lie` selects what it does to some of them."""

    def __init__(self, server: str, chance: Random) -> None:
        """``server``: URL of the API server."""
        self.lie = Lie.NONE
        self.share = 1.0
        """The share of requests that the lie applies to."""
        self.url = ""
        self.injected: dict[Lie, int] = {}
        """How often each lie was applied."""
        self._server = server
        self._chance = chance
        self._lists: dict[str, Answer] = {}
        self._healed = anyio.Event()

    def set(self, lie: Lie, share: float = 1.0) -> None:
        self.lie, self.share = lie, share

    def heal(self) -> None:
        """Forward all requests unchanged from now on, those that wait included."""
        self.lie = Lie.NONE
        self._healed.set()
        self._healed = anyio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        runner = web.ServerRunner(
            web.Server(self._handle, access_log=None),
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=0.1,
        )
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            timeout=timeout, auto_decompress=False, connector=aiohttp.TCPConnector(limit=0)
        ) as self._session:
            await runner.setup()
            try:
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
                yield
            finally:
                self.heal()
                await runner.cleanup()

    def _selects(self) -> Lie:
        if self.lie is Lie.NONE or self._chance.random() >= self.share:
            return Lie.NONE
        return self.lie

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        lie = self._selects()
        if lie in (Lie.BINDINGS_REFUSED, Lie.BINDINGS_SILENT):
            lie = lie if request.path.endswith("/binding") else Lie.NONE
        if lie is not Lie.NONE:
            self.injected[lie] = self.injected.get(lie, 0) + 1
        try:
            early = await self._before(request, lie)
            if early is not None:
                return early
            if "watch" in request.query:
                return await self._stream(request, lie)
            return await self._exchange(request, lie)
        except (aiohttp.ClientError, ConnectionError):
            return _break(request)

    async def _before(self, request: web.BaseRequest, lie: Lie) -> web.StreamResponse | None:
        if lie is Lie.DELAY:
            await anyio.sleep(self._chance.uniform(0, _MAX_DELAY_S))
        elif lie is Lie.RESET:
            return _break(request)
        elif lie in (Lie.BLACK_HOLE, Lie.BINDINGS_SILENT):
            await self._healed.wait()
            return _break(request)
        elif lie is Lie.BINDINGS_REFUSED:
            return web.json_response({"kind": "Status", "code": 503}, status=503)
        elif lie is Lie.UNAUTHORIZED:
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        return None

    async def _exchange(self, request: web.BaseRequest, lie: Lie) -> web.StreamResponse:
        body = await request.read()
        answer = await self._forward(request, body)
        if lie is Lie.DUPLICATE_REQUEST:
            answer = await self._forward(request, body)
        elif lie is Lie.STALE_LIST:
            answer = self._lists.get(request.path_qs, answer)
        elif request.method == "GET" and answer.status == 200 and b'List"' in answer.body[:200]:
            self._lists.setdefault(request.path_qs, answer)
        if lie is Lie.RESET_AFTER:
            return _break(request)
        if lie is Lie.ERROR_AFTER and request.method != "GET":
            return web.Response(status=self._chance.choice((500, 502, 503, 504)), text="injected")
        if lie in (Lie.TRUNCATE, Lie.DUPLICATE_ANSWER) and request.transport is not None:
            raw = answer.wire_form()
            if lie is Lie.TRUNCATE:
                request.transport.write(raw[: len(raw) - max(1, len(answer.body) // 2)])
                request.transport.close()
                return web.Response(status=500)
            request.transport.write(raw + raw)
            return _AlreadySent()
        headers = {"Content-Type": answer.content_type}
        return web.Response(status=answer.status, body=answer.body, headers=headers)

    async def _forward(self, request: web.BaseRequest, body: bytes) -> Answer:
        async with self._request(request, body) as response:
            content_type = response.headers.get("Content-Type", "application/json")
            return Answer(response.status, content_type, await response.read())

    async def _stream(self, request: web.BaseRequest, lie: Lie) -> web.StreamResponse:
        async with self._request(request, b"") as upstream:
            response = web.StreamResponse(status=upstream.status)
            response.content_type = "application/json"
            await response.prepare(request)
            async for piece in upstream.content.iter_any():
                lie = self._selects()
                if lie is Lie.BLACK_HOLE:
                    await self._healed.wait()
                    return _break(request)
                if lie is Lie.TRUNCATE:
                    await response.write(piece[: len(piece) // 2])
                    return _break(request)
                if lie in (Lie.DUPLICATE_ANSWER, Lie.DUPLICATE_REQUEST) and piece.endswith(b"\n"):
                    # Complete lines: a repeated event, not a malformed one.
                    await response.write(piece)
                if lie is Lie.DELAY:
                    await anyio.sleep(self._chance.uniform(0, _MAX_DELAY_S))
                await response.write(piece)
            return response

    def _request(
        self, request: web.BaseRequest, body: bytes
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = CIMultiDict(
            (name, value)
            for name, value in request.headers.items()
            if name.lower() not in _HOP_BY_HOP
        )
        url = URL(self._server + request.raw_path, encoded=True)
        return self._session.request(request.method, url, data=body or None, headers=headers)


def _break(request: web.BaseRequest) -> web.Response:
    """Abort the connection; the returned response is not sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)
