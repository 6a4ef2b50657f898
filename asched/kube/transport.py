"""How requests get to an API server and answers back.

:class:`~asched.kube.http.HttpTransport` does it over the network. A simulation that is to be the same
each time gives a client another one, which needs no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from asched.kube.credentials import Credentials
from asched.kube.http1 import HttpAnswer


class ApiRequest(NamedTuple):
    """One request, without what says where to and as whom."""

    method: str
    path: str
    params: Mapping[str, str] | None
    content_type: str
    body: bytes | None
    timeout_s: float


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

    async def open(self, credentials: Credentials, request: ApiRequest) -> OpenAnswer:
        """Send a request whose answer goes on for a while. ``timeout_s`` bounds all of it.

        Raises NoAnswerError.
        """
        ...
