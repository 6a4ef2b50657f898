"""Requests to the API server, retried if that is safe, and whether any succeed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from datetime import datetime
from random import Random
from typing import Final, NamedTuple, Protocol

import anyio
import structlog

from asched.kube.errors import (
    ApiError,
    KubeConfigError,
    NoResponseError,
    ResponseTooLargeError,
)
from asched.kube.timing import Backoff, Clock, RequestBudget, RetryPolicy
from asched.kube.transport import (
    JSON,
    ApiRequest,
    CheckedTransport,
    Credentials,
    HttpResponse,
    LeaseWriteGuard,
    RequestObserver,
    StreamingResponse,
    Transport,
    always,
    guard_writes,
    refuse_writes,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

UNUSABLE_AFTER_S: Final = 10.0
"""Time without a successful request after which the daemon is not ready."""


class RequestHealth(RequestObserver):
    """Remembers since when every request failed.

    Failures are a missing response, 401 and 5xx: with other responses the API server works.
    """

    def __init__(self, clock: Clock, then: RequestObserver | None = None) -> None:
        """``then`` receives the requests, too."""
        self._clock = clock
        self._then = then
        self._failing_since_s: float | None = None

    def request_finished(self, method: str, host: str, status: int, duration_s: float) -> None:
        if status and status != 401 and status < 500:
            self._failing_since_s = None
        elif self._failing_since_s is None:
            self._failing_since_s = self._clock.monotonic_s() - duration_s
        if self._then is not None:
            self._then.request_finished(method, host, status, duration_s)

    def problem(self) -> str:
        """What is wrong, in one line; empty if a request succeeded within the limit."""
        if self._failing_since_s is None:
            return ""
        failing_s = self._clock.monotonic_s() - self._failing_since_s
        if failing_s < UNUSABLE_AFTER_S:
            return ""
        return f"no request to the API server has succeeded for {failing_s:.0f} s"


MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

REQUEST_TIMEOUT_S = 30.0
RENEWAL_INTERVAL_S = 10.0
"""Minimum time between two renewals of credentials after a 401."""
MIN_RENEWAL_INTERVAL_S = 1.0
"""Minimum time after a renewal, for credentials that expire at once."""
RENEWAL_RETRY = RetryPolicy(initial_s=1.0, max_s=60.0)
"""Delays after failed renewals."""
NO_RETRY = RetryPolicy(attempts=1)


class CredentialSource(Protocol):
    """Loads credentials, any number of times."""

    async def load(self, now: datetime) -> Credentials:
        """Raises KubeConfigError."""
        ...


class RenewingCredentials:
    """The current credentials of a client, reloaded from their source when they expire.

    Credentials that are still valid are renewed in the background. Only without valid ones do
    requests wait, and after a failure they do not wait again until a growing delay has passed.
    """

    def __init__(
        self,
        source: CredentialSource,
        loaded: Credentials,
        clock: Clock,
        random: Random | None = None,
    ) -> None:
        self.current = loaded
        self._source = source
        self._clock = clock
        self._backoff = Backoff(RENEWAL_RETRY, random or Random())
        self._renewal: asyncio.Task[None] | None = None
        self._failed = False
        """Whether the last renewal failed."""
        self._renew_not_before_s = 0.0
        self._rejected_not_before_s = clock.monotonic_s()
        """When a rejection may cause the next renewal."""
        self._waiting_since_s: float | None = None
        """When the first request began to wait for the present renewal."""

    async def valid(self) -> Credentials:
        """The current credentials, renewed if they have expired."""
        current = self.current
        if current.renew_at is None or self._clock.utc() < current.renew_at:
            return current
        if self._renewal is None and self._clock.monotonic_s() < self._renew_not_before_s:
            return current
        renewal = self._begin_renewal()
        if current.expires_at is None or self._clock.utc() >= current.expires_at:
            await self._wait(renewal)
        return self.current

    async def renew_after_401(self, refused: Credentials) -> Credentials:
        """New credentials, or ``refused`` if the last renewal failed or is too recent."""
        if self.current is not refused:
            return self.current
        if self._renewal is None:
            now_s = self._clock.monotonic_s()
            if now_s < max(self._rejected_not_before_s, self._renew_not_before_s):
                return refused
            self._rejected_not_before_s = now_s + RENEWAL_INTERVAL_S
        await self._wait(self._begin_renewal())
        return self.current

    def problem(self) -> str:
        """Why no request can be authenticated; empty if one can, or may soon."""
        now_s, expires_at = self._clock.monotonic_s(), self.current.expires_at
        if self._waiting_since_s is not None and now_s - self._waiting_since_s >= UNUSABLE_AFTER_S:
            return "requests wait for credentials"
        if self._failed and expires_at is not None and self._clock.utc() >= expires_at:
            return "the credentials have expired and cannot be renewed"
        return ""

    async def close(self) -> None:
        """End a renewal in progress."""
        if self._renewal is not None:
            self._renewal.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._renewal])

    def _begin_renewal(self) -> asyncio.Task[None]:
        """The renewal in progress, or a new one. It outlives the request that caused it."""
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().create_task(self._renew())
        return self._renewal

    async def _wait(self, renewal: asyncio.Task[None]) -> None:
        if self._waiting_since_s is None:
            self._waiting_since_s = self._clock.monotonic_s()
        await asyncio.wait([renewal])

    async def _renew(self) -> None:
        """Renew once. Never raises."""
        delay_s, error = MIN_RENEWAL_INTERVAL_S, ""
        try:
            self.current = await self._source.load(self._clock.utc())
        except KubeConfigError as failure:
            error = str(failure)
        except Exception as failure:  # noqa: BLE001  an error of a library; its text may be secret
            error = type(failure).__name__
        finally:
            self._renewal = self._waiting_since_s = None
        if error:
            # The old credentials may still be valid; if not, the server answers 401.
            delay_s = self._backoff.next_s()
            log.warning("credentials not renewed", error=error, retry_after_s=round(delay_s, 1))
        else:
            self._backoff.reset()
            if self._failed:
                log.info("credentials renewed")
        self._failed = bool(error)
        self._renew_not_before_s = self._clock.monotonic_s() + delay_s


class RequestOptions(NamedTuple):
    """How a request is retried."""

    idempotent: bool | None = None
    """Whether it may be repeated after a 5xx or without a response; None: if it is a GET."""
    retry: RetryPolicy | None = None
    """None: the client's."""
    timeout_s: float = REQUEST_TIMEOUT_S
    """For each attempt."""
    should_retry: Callable[[], bool] = always
    """Called before each repetition."""
    urgent: bool = False
    """As :attr:`ApiRequest.urgent`: the request ends work that others wait for."""
    accept: str = JSON
    """As :attr:`ApiRequest.accept`."""


_DEFAULT_OPTIONS = RequestOptions()


class ApiClient:
    """Requests to one API server. Made by :func:`asched.kube.connection.connect`."""

    def __init__(
        self,
        transport: Transport,
        credentials: RenewingCredentials,
        *,
        clock: Clock,
        random: Random,
        budget: RequestBudget | None = None,
        retry: RetryPolicy,
        health: RequestHealth | None = None,
    ) -> None:
        self._transport = transport
        self._credentials = credentials
        self._budget = budget
        self._retry = retry
        self._may_write: Callable[[], bool] = always
        self._health = health
        self.clock = clock
        self.random = random

    @property
    def server(self) -> str:
        """The API server's URL, for messages."""
        return self._credentials.current.server

    def read_only(self) -> ApiClient:
        """A client on the same connections that raises PermissionError for writes."""
        return self._checked(refuse_writes, lambda: False)

    def guarded_by(self, guard: LeaseWriteGuard) -> ApiClient:
        """A client on the same connections that writes only while ``guard`` allows it."""
        return self._checked(guard_writes(guard), guard.leads)

    def _checked(
        self, check: Callable[[ApiRequest], ApiRequest], may_write: Callable[[], bool]
    ) -> ApiClient:
        client, transport = copy(self), CheckedTransport(self._transport, check)
        vars(client).update(_transport=transport, _may_write=may_write)
        return client

    def problem(self) -> str:
        """Why no request succeeds at present, in one line without names; empty if some do."""
        found = self._credentials.problem()
        if not found and self._health is not None:
            found = self._health.problem()
        return found

    @property
    def may_write(self) -> bool:
        """Whether a write would be sent now."""
        return self._may_write()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        options: RequestOptions = _DEFAULT_OPTIONS,
    ) -> bytes:
        """Send one request and return the body of the response.

        A request that was throttled (429) or never reached the server is always retried. After a
        5xx or without a response it is retried only if it is idempotent, because it may have been
        carried out. Raises ApiError for a failure response and NoResponseError if none arrived,
        both after the last attempt.
        """
        policy = options.retry or self._retry
        repeatable = method == "GET" if options.idempotent is None else options.idempotent
        backoff: Backoff | None = None
        timeout_s, urgent, accept = options.timeout_s, options.urgent, options.accept
        request = ApiRequest(
            method, path, params, content_type, body, timeout_s, urgent=urgent, accept=accept
        )
        for attempts_left in range(policy.attempts - 1, -1, -1):
            try:
                return await self._send(request)
            except ApiError as error:
                failed: ApiError | NoResponseError = error
                throttled = error.status == 429
                if not attempts_left or not (throttled or (repeatable and error.status >= 500)):
                    raise
                at_least_s = error.retry_after_s
            except ResponseTooLargeError:
                raise
            except NoResponseError as error:
                failed = error
                if not attempts_left or (error.sent and not repeatable):
                    raise
                at_least_s = None
            backoff = backoff or Backoff(policy, self.random)
            await self.clock.sleep(backoff.next_s(at_least_s))
            if not options.should_retry():
                raise failed
        raise AssertionError("the last attempt returns or raises")

    async def request_pipelined(self, requests: Sequence[ApiRequest]) -> list[bytes | ApiError]:
        """Send idempotent requests at once, without retries. Returns a body or failure for each.
        Raises NoResponseError if one is missing: any may have been carried out."""
        credentials = await self._credentials.valid()
        if self._budget is not None:
            for _ in requests:
                await self._budget.take()
        responses = await self._transport.exchange_pipelined(credentials, requests)
        return [r.body if r.status < 300 else _failure(r) for r in responses]

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], *, timeout_s: float
    ) -> AsyncIterator[StreamingResponse]:
        """Open a watch of at most ``timeout_s``, once. Raises ApiError and NoResponseError."""
        request = ApiRequest("GET", path, params, JSON, None, timeout_s)
        credentials = await self._credentials.valid()
        response = await self._open(credentials, request)
        try:
            if response.status == 401:
                renewed = await self._credentials.renew_after_401(credentials)
                if renewed is not credentials:
                    response.release()
                    response = await self._open(renewed, request)
            if response.status >= 300:
                raise _failure(await response.read_all())
            yield response
        finally:
            response.release()

    async def _send(self, request: ApiRequest) -> bytes:
        """The body of a successful response. A 401 renews the credentials, once."""
        credentials = await self._credentials.valid()
        # Before the transport's checks: the wait may outlast a lease.
        if self._budget is not None:
            await self._budget.take()
        response = await self._transport.exchange(credentials, request)
        if response.status == 401:
            renewed = await self._credentials.renew_after_401(credentials)
            if renewed is not credentials:
                if self._budget is not None:
                    await self._budget.take()
                response = await self._transport.exchange(renewed, request)
        if response.status >= 300:
            raise _failure(response)
        return response.body

    async def _open(self, credentials: Credentials, request: ApiRequest) -> StreamingResponse:
        if self._budget is not None:
            await self._budget.take()
        return await self._transport.open(credentials, request)


def _failure(response: HttpResponse) -> ApiError:
    return ApiError.from_response(response.status, response.body, response.retry_after)
