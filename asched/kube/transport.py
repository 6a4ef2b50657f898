"""The port between the client and the network: one request in, one response out.

:class:`~asched.kube.http.HttpTransport` implements it over HTTP/1.1, tests and simulations in
memory. The other transports here wrap one: to guard writes by a lease, to refuse writes, or to
report requests to an observer.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from asched.kube.errors import NoResponseError
from asched.kube.timing import Clock

JSON = "application/json"


def always() -> bool:
    return True


class Credentials(msgspec.Struct, frozen=True):
    """Where the API server is, and how to authenticate to it."""

    server: str
    """Scheme, host, port and path prefix, without a trailing slash."""
    authorization: str = ""
    """Value of the Authorization header; empty with a client certificate."""
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None
    proxy: str | None = None
    renew_at: datetime | None = None
    """When to load them again; None: only after a 401."""
    expires_at: datetime | None = None
    """When they become invalid; None: unknown."""


class ApiRequest(NamedTuple):
    """One request, without server and credentials."""

    method: str
    path: str
    params: Mapping[str, str] | None
    content_type: str
    body: bytes | None
    timeout_s: float
    may_send: Callable[[], bool] = always
    """Called again after a wait for a connection; nothing is sent if it returns False."""
    urgent: bool = False
    """Gets a free connection before requests that wait and are not urgent."""
    accept: str = JSON
    """The media type of the response."""


class HttpResponse(NamedTuple):
    """A complete response."""

    status: int
    body: bytes
    retry_after: str | None
    """The Retry-After header as received."""
    reusable: bool
    """Whether the connection may carry another request."""


class StreamingResponse(Protocol):
    """A response with a body that is still arriving."""

    @property
    def status(self) -> int: ...

    async def read(self) -> bytes:
        """The next bytes, empty at the end. Raises NoResponseError if the connection breaks."""
        ...

    async def read_all(self) -> HttpResponse:
        """Read the body to its end and release the connection. Raises NoResponseError."""
        ...

    def release(self) -> None:
        """Release the connection. Idempotent."""
        ...


class Transport(Protocol):
    """Carries single requests, without retries or authentication of its own."""

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        """Returns the response, whatever its status. Raises NoResponseError, also if it is late."""
        ...

    async def exchange_pipelined(
        self, credentials: Credentials, requests: Sequence[ApiRequest]
    ) -> list[HttpResponse]:
        """Send idempotent requests; a transport with pipelining waits for no response in between.

        ``timeout_s`` and ``may_send`` of the first apply to all. Raises NoResponseError if a
        response is missing; any of the requests may have been carried out.
        """
        return [await self.exchange(credentials, request) for request in requests]

    async def open(self, credentials: Credentials, request: ApiRequest) -> StreamingResponse:
        """As :meth:`exchange`, with a streaming response, all of it within ``timeout_s``."""
        ...


class LeaseWriteGuard(Protocol):
    """Whether this replica may write, and for how long."""

    def leads(self) -> bool:
        """Whether a request may be sent now."""
        ...

    def lease_left_s(self) -> float:
        """Seconds until every request under way must have ended."""
        ...


class CheckedTransport(Transport):
    """Passes each request through ``check``, which returns it, maybe changed, or raises."""

    def __init__(self, transport: Transport, check: Callable[[ApiRequest], ApiRequest]) -> None:
        self._transport = transport
        self._check = check

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        return await self._transport.exchange(credentials, self._check(request))

    async def exchange_pipelined(
        self, credentials: Credentials, requests: Sequence[ApiRequest]
    ) -> list[HttpResponse]:
        return await self._transport.exchange_pipelined(
            credentials, list(map(self._check, requests))
        )

    async def open(self, credentials: Credentials, request: ApiRequest) -> StreamingResponse:
        return await self._transport.open(credentials, self._check(request))


def guard_writes(guard: LeaseWriteGuard) -> Callable[[ApiRequest], ApiRequest]:
    """A check that allows writes only while the guard leads, each at most until the lease ends. For
    others it raises NoResponseError with nothing sent."""

    def check(request: ApiRequest) -> ApiRequest:
        if request.method == "GET":
            return request
        if not guard.leads():
            raise NoResponseError("not sent: this replica does not lead", sent=False)
        timeout_s = min(request.timeout_s, guard.lease_left_s())
        return request._replace(timeout_s=timeout_s, may_send=guard.leads)

    return check


def refuse_writes(request: ApiRequest) -> ApiRequest:
    """A check that raises PermissionError for every request that is not a GET."""
    if request.method != "GET":
        raise PermissionError(f"{request.method} {request.path}: this client is read-only")
    return request


class RequestObserver(Protocol):
    """Receives every request that was sent, each retry included."""

    def request_finished(self, method: str, host: str, status: int, duration_s: float) -> None:
        """``host`` is host and port of the server's URL; ``status`` 0 means no response."""


class ObservedTransport(Transport):
    """Reports each request to an observer."""

    def __init__(self, transport: Transport, observer: RequestObserver, clock: Clock) -> None:
        self._transport = transport
        self._observer = observer
        self._clock = clock
        self._server = self._host = ""

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        began_s = self._clock.monotonic_s()
        try:
            response = await self._transport.exchange(credentials, request)
        except NoResponseError:
            self._report(credentials, request, 0, began_s)
            raise
        self._report(credentials, request, response.status, began_s)
        return response

    async def exchange_pipelined(
        self, credentials: Credentials, requests: Sequence[ApiRequest]
    ) -> list[HttpResponse]:
        began_s = self._clock.monotonic_s()
        try:
            responses = await self._transport.exchange_pipelined(credentials, requests)
        except NoResponseError:
            for request in requests:
                self._report(credentials, request, 0, began_s)
            raise
        for request, response in zip(requests, responses, strict=True):
            self._report(credentials, request, response.status, began_s)
        return responses

    async def open(self, credentials: Credentials, request: ApiRequest) -> StreamingResponse:
        began_s = self._clock.monotonic_s()
        try:
            response = await self._transport.open(credentials, request)
        except NoResponseError:
            self._report(credentials, request, 0, began_s)
            raise
        self._report(credentials, request, response.status, began_s)
        return response

    def _report(
        self, credentials: Credentials, request: ApiRequest, status: int, began_s: float
    ) -> None:
        if credentials.server != self._server:
            self._server = credentials.server
            self._host = urlsplit(credentials.server).netloc.rpartition("@")[2]
        duration_s = self._clock.monotonic_s() - began_s
        self._observer.request_finished(request.method, self._host, status, duration_s)
