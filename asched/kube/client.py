"""Requests to the API server: bytes in, bytes out, retried where that is safe."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import NamedTuple

import aiohttp
import anyio
import structlog

from asched.kube.credentials import Credentials, CredentialSource
from asched.kube.errors import ApiError, KubeConfigError, NoAnswerError
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
    headers: dict[str, str]
    body: bytes | None
    timeout: aiohttp.ClientTimeout


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
            raise NoAnswerError(_describe(error), sent=True) from None


class ApiClient:
    """One connection pool to one API server. Made by :func:`asched.kube.connection.connect`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        source: CredentialSource,
        credentials: Credentials,
        *,
        clock: Clock,
        random: Random,
        budget: RequestBudget | None,
        retry: RetryPolicy,
    ) -> None:
        self._session = session
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
        backoff = Backoff(policy, self.random)
        headers = {"Accept": JSON}
        if body is not None:
            headers["Content-Type"] = content_type
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        request = _Request(method, path, params, headers, body, timeout)
        for attempts_left in range(policy.attempts - 1, -1, -1):
            try:
                return await self._send(request)
            except ApiError as error:
                put_off = error.status == 429
                if not attempts_left or not (put_off or (repeatable and error.status >= 500)):
                    raise
                pause_s = backoff.next_s(error.retry_after_s)
            except NoAnswerError as error:
                if not attempts_left or (error.sent and not repeatable):
                    raise
                pause_s = backoff.next_s()
            await self.clock.sleep(pause_s)
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
        request = _Request("GET", path, params, {"Accept": JSON}, None, timeout)
        async with self._open(request) as response:
            _probe_when_idle(response)
            yield Stream(response)

    async def _send(self, request: _Request) -> bytes:
        async with self._open(request) as response:
            try:
                return await response.read()
            except (aiohttp.ClientError, OSError) as error:
                raise NoAnswerError(_describe(error), sent=True) from None

    @asynccontextmanager
    async def _open(self, request: _Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful response, its body unread. A 401 renews the credentials, once."""
        credentials = await self._fresh_credentials()
        response = await self._start(credentials, request)
        try:
            if response.status == 401:
                renewed = await self._renew_after_refusal(credentials)
                if renewed is not credentials:
                    response.release()
                    response = await self._start(renewed, request)
            if response.status >= 300:
                raise await _failure(response)
            yield response
        finally:
            # Returns the connection to the pool, or closes it where the body was not read to its end.
            response.release()

    async def _start(self, credentials: Credentials, request: _Request) -> aiohttp.ClientResponse:
        if self._budget is not None:
            await self._budget.take()
        headers = request.headers
        if credentials.authorization:
            headers = {**headers, "Authorization": credentials.authorization}
        try:
            return await self._session.request(
                request.method,
                credentials.server + request.path,
                params=request.params,
                data=request.body,
                headers=headers,
                timeout=request.timeout,
                ssl=credentials.tls if credentials.tls is not None else True,
                server_hostname=credentials.tls_server_name,
                proxy=credentials.proxy,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NoAnswerError(_describe(error), sent=False) from None
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswerError(_describe(error), sent=True) from None

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
    async def _start(self, credentials: Credentials, request: _Request) -> aiohttp.ClientResponse:
        # Every request goes through here, whoever makes it.
        if request.method != "GET":
            raise PermissionError(f"{request.method} {request.path}: this client only reads")
        return await super()._start(credentials, request)


async def _failure(response: aiohttp.ClientResponse) -> ApiError:
    try:
        body = await response.read()
    except (aiohttp.ClientError, OSError):
        body = b""
    return ApiError.from_response(response.status, body, response.headers.get("Retry-After"))


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


def _describe(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"timed out ({type(error).__name__})"
    return " ".join(str(error).split()) or type(error).__name__
