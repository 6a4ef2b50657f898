"""The transport over HTTP/1.1.

Short requests use kept-alive connections (:mod:`asched.kube.pool`). Watches, and all requests
through a proxy, use aiohttp.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from urllib.parse import quote, urlencode, urlsplit

import aiohttp

from asched.kube.errors import NoResponseError, ResponseTooLargeError
from asched.kube.pool import BODY_LIMIT_BYTES, ConnectionPool, Endpoint, describe
from asched.kube.transport import ApiRequest, Credentials, HttpResponse, Transport

_JSON = "application/json"
_CONNECT_TIMEOUT_S = 30.0
_PATH_CHARACTERS = "/:@!$&'()*+,;=-._~"
"""Characters that a path may hold unquoted (RFC 3986, 3.3)."""
_NEEDS_NO_QUOTING = re.compile(r"[A-Za-z0-9/.-]*").fullmatch
"""A check that is faster than quoting."""


class _Route:
    """The part of requests that is the same for one server and one set of credentials."""

    def __init__(self, credentials: Credentials, user_agent: str) -> None:
        server = urlsplit(credentials.server)
        self.credentials = credentials
        self.endpoint = Endpoint.of(
            credentials.server, credentials.tls, credentials.tls_server_name
        )
        self._prefix = server.path
        fields = [
            f"Host: {server.netloc.rpartition('@')[2]}",
            f"User-Agent: {user_agent}",
            f"Accept: {_JSON}",
            # Compression costs the scheduler more CPU than it saves on the network of a cluster.
            "Accept-Encoding: identity",
        ]
        if credentials.authorization:
            fields.append(f"Authorization: {credentials.authorization}")
        self._fields = "\r\n".join(fields)

    def request(self, request: ApiRequest) -> bytes:
        """The complete request as bytes."""
        target = self._prefix + request.path
        if not _NEEDS_NO_QUOTING(request.path):
            target = self._prefix + quote(request.path, safe=_PATH_CHARACTERS)
        if request.params:
            target = f"{target}?{urlencode(request.params)}"
        head = f"{request.method} {target} HTTP/1.1\r\n{self._fields}\r\n"
        if request.body is None:
            return f"{head}\r\n".encode("latin-1")
        head = (
            f"{head}Content-Type: {request.content_type}\r\n"
            f"Content-Length: {len(request.body)}\r\n\r\n"
        )
        return head.encode("latin-1") + request.body


class _AiohttpResponse:
    """A :class:`~asched.kube.transport.StreamingResponse`."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise NoResponseError(describe(error), sent=True) from None

    async def read_all(self) -> HttpResponse:
        body = bytearray()
        try:
            async for piece in self._response.content.iter_any():
                body += piece
                if len(body) > BODY_LIMIT_BYTES:
                    raise ResponseTooLargeError(BODY_LIMIT_BYTES)
        except (aiohttp.ClientError, OSError) as error:
            raise NoResponseError(describe(error), sent=True) from None
        finally:
            self.release()
        retry_after = self._response.headers.get("Retry-After")
        return HttpResponse(self.status, bytes(body), retry_after, reusable=True)

    def release(self) -> None:
        # aiohttp closes the connection if the body was not read to its end.
        self._response.release()


class HttpTransport(Transport):
    """Over HTTP/1.1."""

    def __init__(self, session: aiohttp.ClientSession, pool: ConnectionPool) -> None:
        """The caller closes both. The session's headers hold the user agent."""
        self._session = session
        self._pool = pool
        self._route: _Route | None = None

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        if credentials.proxy is not None:
            return await (await self.open(credentials, request)).read_all()
        route = self._route_of(credentials)
        (response,) = await self._pool.exchange(
            route.endpoint,
            route.request(request),
            1,
            request.timeout_s,
            request.may_send,
            urgent=request.urgent,
        )
        return response

    async def exchange_pipelined(
        self, credentials: Credentials, requests: Sequence[ApiRequest]
    ) -> list[HttpResponse]:
        if credentials.proxy is not None:
            return await super().exchange_pipelined(credentials, requests)
        route = self._route_of(credentials)
        pipeline = b"".join(map(route.request, requests))
        first = requests[0]
        return await self._pool.exchange(
            route.endpoint, pipeline, len(requests), first.timeout_s, first.may_send
        )

    def _route_of(self, credentials: Credentials) -> _Route:
        route = self._route
        if route is None or route.credentials is not credentials:
            route = self._route = _Route(credentials, self._session.headers["User-Agent"])
        return route

    async def open(self, credentials: Credentials, request: ApiRequest) -> _AiohttpResponse:
        headers = {"Accept": _JSON}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if credentials.authorization:
            headers["Authorization"] = credentials.authorization
        limits = aiohttp.ClientTimeout(
            total=request.timeout_s, sock_connect=min(request.timeout_s, _CONNECT_TIMEOUT_S)
        )
        try:
            response = await self._session.request(
                request.method,
                credentials.server + request.path,
                params=request.params,
                data=request.body,
                headers=headers,
                timeout=limits,
                ssl=credentials.tls if credentials.tls is not None else True,
                server_hostname=credentials.tls_server_name,
                proxy=credentials.proxy,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NoResponseError(describe(error), sent=False) from None
        except (aiohttp.ClientError, OSError) as error:
            raise NoResponseError(describe(error), sent=True) from None
        _enable_keepalive(response)
        return _AiohttpResponse(response)


def _enable_keepalive(response: aiohttp.ClientResponse) -> None:
    """Enable TCP keepalive: without it a watch on a lost connection hangs for minutes."""
    transport = response.connection.transport if response.connection is not None else None
    peer = transport.get_extra_info("socket") if transport is not None else None
    if peer is None:
        return
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
