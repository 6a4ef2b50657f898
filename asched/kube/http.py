"""The transport over HTTP/1.1.

Short requests use kept-alive connections (:mod:`asched.kube.pool`), watches one each
(:mod:`asched.kube.streams`). Requests through a proxy use aiohttp.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from asched.kube.pool import CONNECT_TIMEOUT_S, ConnectionPool, Endpoint
from asched.kube.streams import ResponseStream, enable_keepalive
from asched.kube.transport import (
    JSON,
    ApiRequest,
    Credentials,
    HttpResponse,
    StreamingResponse,
    Transport,
)

if TYPE_CHECKING:
    from asched.kube.proxied import ProxyTransport

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
            f"Accept: {JSON}",
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
        fields = self._fields
        if request.accept != JSON:
            fields = fields.replace(f"Accept: {JSON}", f"Accept: {request.accept}", 1)
        head = f"{request.method} {target} HTTP/1.1\r\n{fields}\r\n"
        if request.body is None:
            return f"{head}\r\n".encode("latin-1")
        head = (
            f"{head}Content-Type: {request.content_type}\r\n"
            f"Content-Length: {len(request.body)}\r\n\r\n"
        )
        return head.encode("latin-1") + request.body


class HttpTransport(Transport):
    """Over HTTP/1.1."""

    def __init__(self, pool: ConnectionPool, user_agent: str) -> None:
        """The caller closes both this and the pool."""
        self._pool = pool
        self._user_agent = user_agent
        self._route: _Route | None = None
        self._proxied: ProxyTransport | None = None

    async def close(self) -> None:
        if self._proxied is not None:
            await self._proxied.close()

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        if credentials.proxy is not None:
            return await self._through_proxy().exchange(credentials, request)
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
            route = self._route = _Route(credentials, self._user_agent)
        return route

    async def open(self, credentials: Credentials, request: ApiRequest) -> StreamingResponse:
        if credentials.proxy is not None:
            return await self._through_proxy().open(credentials, request)
        route = self._route_of(credentials)
        connect_timeout_s = min(request.timeout_s, CONNECT_TIMEOUT_S)
        transport = await self._pool.take_out(route.endpoint, connect_timeout_s)
        enable_keepalive(transport)
        return await ResponseStream.open(transport, route.request(request), request.timeout_s)

    def _through_proxy(self) -> ProxyTransport:
        if self._proxied is None:
            # Its import takes 0.1 s, and few clusters are behind a proxy.
            from asched.kube.proxied import ProxyTransport

            self._proxied = ProxyTransport(
                self._user_agent, self._pool.limit, self._pool.keepalive_s
            )
        return self._proxied
