"""Requests to the API server: bytes in, bytes out, retried where that is safe."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import anyio
import structlog

from asched.kube.credentials import Credentials, CredentialSource
from asched.kube.errors import ApiError, KubeConfigError, NoAnswerError
from asched.kube.http1 import HttpAnswer
from asched.kube.pool import ConnectionPool, Endpoint, describe
from asched.kube.timing import Backoff, Clock, RequestBudget, RetryPolicy

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

REQUEST_TIMEOUT_S = 30.0
RENEWAL_INTERVAL_S = 10.0
"""Credentials are not loaded again more often than this however often they are refused."""
NO_RETRY = RetryPolicy(attempts=1)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Request(NamedTuple):
    method: str
    path: str
    params: Mapping[str, str] | None
    content_type: str
    body: bytes | None
    timeout_s: float


class _Route:
    """How requests are put to one server under one set of credentials: all of them that repeats."""

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

    def request(self, request: _Request) -> bytes:
        """The whole request as it goes over the connection."""
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


_PATH_CHARACTERS = "/:@!$&'()*+,;=-._~"
"""What a path may hold as it is (RFC 3986, 3.3)."""


class Stream:
    """An open watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def read(self) -> bytes:
        """What has arrived, at least one byte; empty at the end of the stream.

        Raises NoAnswerError where it breaks off.
        """
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswerError(describe(error), sent=True) from None


class ApiClient:
    """Requests to one API server. Made by :func:`asched.kube.connection.connect`.

    Short requests have connections of their own (:mod:`asched.kube.pool`). Watches, and everything
    where there is a proxy, go over aiohttp.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        pool: ConnectionPool,
        source: CredentialSource,
        credentials: Credentials,
        *,
        clock: Clock,
        random: Random,
        budget: RequestBudget | None,
        retry: RetryPolicy,
    ) -> None:
        self._session = session
        self._pool = pool
        self._route: _Route | None = None
        self._source = source
        self._credentials = credentials
        self._renewing = anyio.Lock()
        self._renew_not_before_s = clock.monotonic_s()
        self._budget = budget
        self._retry = retry
        self.clock = clock
        self.random = random

    @property
    def server(self) -> str:
        """The API server's URL, for messages."""
        return self._credentials.server

    def read_only(self) -> ApiClient:
        """The same connections, for reading: whatever is not a GET raises PermissionError."""
        return _ReadOnlyClient(
            self._session,
            self._pool,
            self._source,
            self._credentials,
            clock=self.clock,
            random=self.random,
            budget=self._budget,
            retry=self._retry,
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        idempotent: bool | None = None,
        retry: RetryPolicy | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> bytes:
        """Send one request and return the body of its answer.

        A request that the server put off (429) or that never reached it is sent again in any case;
        one that failed with 5xx or without an answer only if it is ``idempotent`` (by default: if
        it is a GET), because it may have been carried out. Raises ApiError for the server's
        refusal and NoAnswerError where no answer came, both after the last attempt.
        """
        policy = retry or self._retry
        repeatable = method == "GET" if idempotent is None else idempotent
        backoff: Backoff | None = None
        request = _Request(method, path, params, content_type, body, timeout_s)
        for attempts_left in range(policy.attempts - 1, -1, -1):
            try:
                return await self._send(request)
            except ApiError as error:
                put_off = error.status == 429
                if not attempts_left or not (put_off or (repeatable and error.status >= 500)):
                    raise
                at_least_s = error.retry_after_s
            except NoAnswerError as error:
                if not attempts_left or (error.sent and not repeatable):
                    raise
                at_least_s = None
            backoff = backoff or Backoff(policy, self.random)
            await self.clock.sleep(backoff.next_s(at_least_s))
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], *, timeout_s: float
    ) -> AsyncIterator[Stream]:
        """Open a watch, once: reopening is the caller's. ``timeout_s`` bounds its whole life.

        Raises ApiError and NoAnswerError.
        """
        timeout = aiohttp.ClientTimeout(
            total=timeout_s, sock_connect=min(timeout_s, REQUEST_TIMEOUT_S)
        )
        request = _Request("GET", path, params, JSON, None, timeout_s)
        credentials = await self._fresh_credentials()
        response = await self._open(credentials, request, timeout)
        try:
            if response.status == 401:
                renewed = await self._renew_after_refusal(credentials)
                if renewed is not credentials:
                    response.release()
                    response = await self._open(renewed, request, timeout)
            if response.status >= 300:
                raise _failure(await _whole(response))
            _probe_when_idle(response)
            yield Stream(response)
        finally:
            # Returns the connection to the pool, or closes it where the body was not read to its end.
            response.release()

    async def _send(self, request: _Request) -> bytes:
        """The body of a successful answer. A 401 renews the credentials, once."""
        credentials = await self._fresh_credentials()
        answer = await self._exchange(credentials, request)
        if answer.status == 401:
            renewed = await self._renew_after_refusal(credentials)
            if renewed is not credentials:
                answer = await self._exchange(renewed, request)
        if answer.status >= 300:
            raise _failure(answer)
        return answer.body

    async def _exchange(self, credentials: Credentials, request: _Request) -> HttpAnswer:
        if credentials.proxy is not None:
            limits = aiohttp.ClientTimeout(total=request.timeout_s)
            return await _whole(await self._open(credentials, request, limits))
        await self._admit(request)
        route = self._route
        if route is None or route.credentials is not credentials:
            route = self._route = _Route(credentials, self._session.headers["User-Agent"])
        return await self._pool.exchange(route.endpoint, route.request(request), request.timeout_s)

    async def _open(
        self, credentials: Credentials, request: _Request, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """A response of aiohttp, its body unread."""
        await self._admit(request)
        headers = {"Accept": JSON}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if credentials.authorization:
            headers["Authorization"] = credentials.authorization
        try:
            return await self._session.request(
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
            raise NoAnswerError(describe(error), sent=False) from None
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswerError(describe(error), sent=True) from None

    async def _admit(self, request: _Request) -> None:
        """Every request goes through here, whoever makes it, before anything of it is sent."""
        if self._budget is not None:
            await self._budget.take()

    async def _fresh_credentials(self) -> Credentials:
        credentials = self._credentials
        if credentials.renew_at is None or self.clock.utc() < credentials.renew_at:
            return credentials
        return await self._renew(credentials)

    async def _renew_after_refusal(self, refused: Credentials) -> Credentials:
        """New credentials after a 401, unless the last renewal is too recent to try another."""
        if self._credentials is refused:
            now_s = self.clock.monotonic_s()
            if now_s < self._renew_not_before_s:
                return refused
            self._renew_not_before_s = now_s + RENEWAL_INTERVAL_S
        return await self._renew(refused)

    async def _renew(self, stale: Credentials) -> Credentials:
        """Load the credentials again, once for all who found the same ones stale."""
        async with self._renewing:
            if self._credentials is not stale:
                return self._credentials
            try:
                self._credentials = await self._source.load(self.clock.utc())
            except KubeConfigError as error:
                # What we hold may still be good; if not, the server says so.
                log.warning("credentials not renewed", error=str(error))
            return self._credentials


class _ReadOnlyClient(ApiClient):
    async def _admit(self, request: _Request) -> None:
        if request.method != "GET":
            raise PermissionError(f"{request.method} {request.path}: this client only reads")
        await super()._admit(request)


async def _whole(response: aiohttp.ClientResponse) -> HttpAnswer:
    try:
        body = await response.read()
    except (aiohttp.ClientError, OSError) as error:
        raise NoAnswerError(describe(error), sent=True) from None
    finally:
        response.release()
    return HttpAnswer(response.status, body, response.headers.get("Retry-After"), reusable=True)


def _failure(answer: HttpAnswer) -> ApiError:
    return ApiError.from_response(answer.status, answer.body, answer.retry_after)


def _probe_when_idle(response: aiohttp.ClientResponse) -> None:
    """Let the kernel notice a peer that vanished: a silent watch would otherwise hang for minutes."""
    transport = response.connection.transport if response.connection is not None else None
    peer = transport.get_extra_info("socket") if transport is not None else None
    if peer is None:
        return
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
