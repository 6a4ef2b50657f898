"""How requests get to an API server and answers back.

:class:`~asched.kube.http.HttpTransport` does it over the network. A simulation that is to be the same
each time gives a client another one, which needs no network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from asched.kube.credentials import Credentials
from asched.kube.errors import NoResponseError
from asched.kube.http1 import HttpAnswer
from asched.kube.timing import Clock


def always() -> bool:
    return True


class ApiRequest(NamedTuple):
    """One request, without what says where to and as whom."""

    method: str
    path: str
    params: Mapping[str, str] | None
    content_type: str
    body: bytes | None
    timeout_s: float
    may_send: Callable[[], bool] = always
    """Asked once more after any wait for a connection. Where it says no nothing is sent."""


class OpenAnswer(Protocol):
    """An answer whose body is still to come."""

    @property
    def status(self) -> int: ...

    async def read(self) -> bytes:
        """What has arrived of the body, at least one byte; empty at its end.

        Raises NoAnswerError where it breaks off.
        """
        ...

    async def whole(self) -> HttpAnswer:
        """With all of its body; nothing is left to be released. Raises NoAnswerError."""
        ...

    def release(self) -> None:
        """No more of it is wanted. Idempotent."""
        ...


class Transport(Protocol):
    """Carries single requests: no retries, no credentials of its own."""

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpAnswer:
        """Send a short request and wait for its answer, whatever its status.

        Raises NoAnswerError, also where none came within the request's ``timeout_s``.
        """
        ...

    async def exchange_line(
        self, credentials: Credentials, requests: Sequence[ApiRequest]
    ) -> list[HttpAnswer]:
        """Send short requests without waiting for the answers in between; ``timeout_s`` and ``may_send``
        of the first are for all. For what repeats without harm.

        Raises NoAnswerError where one has no answer: which were carried out is unknown then.
        """
        ...

    async def open(self, credentials: Credentials, request: ApiRequest) -> OpenAnswer:
        """Send a request whose answer goes on for a while. ``timeout_s`` bounds all of it.

        Raises NoAnswerError.
        """
        ...


async def one_by_one(
    transport: Transport, credentials: Credentials, requests: Sequence[ApiRequest]
) -> list[HttpAnswer]:
    """A transport's ``exchange_line`` where it has no better one."""
    return [await transport.exchange(credentials, request) for request in requests]


class RequestWatcher(Protocol):
    """Is told of every request, those that are repeated each time."""

    def answered(self, method: str, host: str, status: int, duration_s: float) -> None:
        """``host`` as in the server's URL, with its port; ``status`` 0 where no answer came."""


class WatchedTransport:
    """A :class:`Transport` that tells a watcher of what goes through it."""

    def __init__(self, transport: Transport, watcher: RequestWatcher, clock: Clock) -> None:
        self._transport = transport
        self._watcher = watcher
        self._clock = clock
        self._server = self._host = ""

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpAnswer:
        began_s = self._clock.monotonic_s()
        try:
            answer = await self._transport.exchange(credentials, request)
        except NoResponseError:
            self._tell(credentials, request, 0, began_s)
            raise
        self._tell(credentials, request, answer.status, began_s)
        return answer

    async def exchange_line(
        self, credentials: Credentials, requests: Sequence[ApiRequest]
    ) -> list[HttpAnswer]:
        began_s = self._clock.monotonic_s()
        try:
            answers = await self._transport.exchange_line(credentials, requests)
        except NoResponseError:
            for request in requests:
                self._tell(credentials, request, 0, began_s)
            raise
        for request, answer in zip(requests, answers, strict=True):
            self._tell(credentials, request, answer.status, began_s)
        return answers

    async def open(self, credentials: Credentials, request: ApiRequest) -> OpenAnswer:
        began_s = self._clock.monotonic_s()
        try:
            answer = await self._transport.open(credentials, request)
        except NoResponseError:
            self._tell(credentials, request, 0, began_s)
            raise
        self._tell(credentials, request, answer.status, began_s)
        return answer

    def _tell(
        self, credentials: Credentials, request: ApiRequest, status: int, began_s: float
    ) -> None:
        if credentials.server != self._server:
            self._server = credentials.server
            self._host = urlsplit(credentials.server).netloc.rpartition("@")[2]
        duration_s = self._clock.monotonic_s() - began_s
        self._watcher.answered(request.method, self._host, status, duration_s)
