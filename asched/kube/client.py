"""Requests to the API server: bytes in, bytes out, retried where that is safe."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random

import anyio
import structlog

from asched.kube.credentials import Credentials, CredentialSource
from asched.kube.errors import ApiError, KubeConfigError, NoResponseError
from asched.kube.http1 import HttpAnswer
from asched.kube.lease_guard import GuardedTransport, LeaseWriteGuard
from asched.kube.timing import Backoff, Clock, RequestBudget, RetryPolicy
from asched.kube.transport import ApiRequest, OpenAnswer, Transport

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

REQUEST_TIMEOUT_S = 30.0
RENEWAL_INTERVAL_S = 10.0
"""Credentials are not loaded again more often than this however often they are refused."""
NO_RETRY = RetryPolicy(attempts=1)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ApiClient:
    """Requests to one API server. Made by :func:`asched.kube.connection.connect`."""

    def __init__(
        self,
        transport: Transport,
        source: CredentialSource,
        credentials: Credentials,
        *,
        clock: Clock,
        random: Random,
        budget: RequestBudget | None,
        retry: RetryPolicy,
    ) -> None:
        self._transport = transport
        self._source = source
        self._credentials = credentials
        self._renewing = anyio.Lock()
        self._renew_not_before_s = clock.monotonic_s()
        self._budget = budget
        self._retry = retry
        self._permit: LeaseWriteGuard | None = None
        self.clock = clock
        self.random = random

    @property
    def server(self) -> str:
        """The API server's URL, for messages."""
        return self._credentials.server

    def read_only(self) -> ApiClient:
        """The same connections, for reading: whatever is not a GET raises PermissionError."""
        return _ReadOnlyClient(
            self._transport,
            self._source,
            self._credentials,
            clock=self.clock,
            random=self.random,
            budget=self._budget,
            retry=self._retry,
        )

    def permitted(self, permit: LeaseWriteGuard) -> ApiClient:
        """The same connections; whatever is not a GET is only sent while ``permit`` allows it."""
        client = ApiClient(
            GuardedTransport(self._transport, permit),
            self._source,
            self._credentials,
            clock=self.clock,
            random=self.random,
            budget=self._budget,
            retry=self._retry,
        )
        client._permit = permit
        return client

    @property
    def may_write(self) -> bool:
        """Whether what is not a GET would be sent now."""
        return self._permit is None or self._permit.leads()

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
        wanted: Callable[[], bool] = lambda: True,
    ) -> bytes:
        """Send one request and return the body of its answer.

        A request that the server put off (429) or that never reached it is sent again in any case;
        one that failed with 5xx or without an answer only if it is ``idempotent`` (by default: if
        it is a GET), because it may have been carried out. Before each repetition ``wanted`` is asked
        whether it still makes sense. Raises ApiError for the server's
        refusal and NoAnswerError where no answer came, both after the last attempt.
        """
        policy = retry or self._retry
        repeatable = method == "GET" if idempotent is None else idempotent
        backoff: Backoff | None = None
        request = ApiRequest(method, path, params, content_type, body, timeout_s)
        for attempts_left in range(policy.attempts - 1, -1, -1):
            try:
                return await self._send(request)
            except ApiError as error:
                failed: ApiError | NoResponseError = error
                put_off = error.status == 429
                if not attempts_left or not (put_off or (repeatable and error.status >= 500)):
                    raise
                at_least_s = error.retry_after_s
            except NoResponseError as error:
                failed = error
                if not attempts_left or (error.sent and not repeatable):
                    raise
                at_least_s = None
            backoff = backoff or Backoff(policy, self.random)
            await self.clock.sleep(backoff.next_s(at_least_s))
            if not wanted():
                raise failed
        raise AssertionError("the last attempt returns or raises")

    async def request_line(self, requests: Sequence[ApiRequest]) -> list[bytes | ApiError]:
        """Send requests that repeat without harm in one go, once each; per request the body of its
        answer, or the server's refusal.

        Raises NoAnswerError where one has no answer: any of them may have been carried out.
        """
        credentials = self._credentials
        if self._are_stale(credentials):
            credentials = await self._renew(credentials)
        for request in requests:
            self._allow(request)
            if self._budget is not None:
                await self._budget.take()
        answers = await self._transport.exchange_line(credentials, requests)
        return [answer.body if answer.status < 300 else _failure(answer) for answer in answers]

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], *, timeout_s: float
    ) -> AsyncIterator[OpenAnswer]:
        """Open a watch, once: reopening is the caller's. ``timeout_s`` bounds its whole life.

        Raises ApiError and NoAnswerError.
        """
        request = ApiRequest("GET", path, params, JSON, None, timeout_s)
        credentials = self._credentials
        if self._are_stale(credentials):
            credentials = await self._renew(credentials)
        answer = await self._open(credentials, request)
        try:
            if answer.status == 401:
                renewed = await self._renew_after_refusal(credentials)
                if renewed is not credentials:
                    answer.release()
                    answer = await self._open(renewed, request)
            if answer.status >= 300:
                raise _failure(await answer.whole())
            yield answer
        finally:
            answer.release()

    async def _send(self, request: ApiRequest) -> bytes:
        """The body of a successful answer. A 401 renews the credentials, once."""
        credentials = self._credentials
        if self._are_stale(credentials):
            credentials = await self._renew(credentials)
        answer = await self._exchange(credentials, request)
        if answer.status == 401:
            renewed = await self._renew_after_refusal(credentials)
            if renewed is not credentials:
                answer = await self._exchange(renewed, request)
        if answer.status >= 300:
            raise _failure(answer)
        return answer.body

    async def _exchange(self, credentials: Credentials, request: ApiRequest) -> HttpAnswer:
        self._allow(request)
        if self._budget is not None:
            await self._budget.take()
        return await self._transport.exchange(credentials, request)

    async def _open(self, credentials: Credentials, request: ApiRequest) -> OpenAnswer:
        self._allow(request)
        if self._budget is not None:
            await self._budget.take()
        return await self._transport.open(credentials, request)

    def _allow(self, request: ApiRequest) -> None:
        """Every request goes through here, whoever makes it, before anything of it is sent."""

    def _are_stale(self, credentials: Credentials) -> bool:
        return credentials.renew_at is not None and self.clock.utc() >= credentials.renew_at

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
    def _allow(self, request: ApiRequest) -> None:
        if request.method != "GET":
            raise PermissionError(f"{request.method} {request.path}: this client only reads")


def _failure(answer: HttpAnswer) -> ApiError:
    return ApiError.from_response(answer.status, answer.body, answer.retry_after)
