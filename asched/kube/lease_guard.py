"""Writes that must end before somebody else may write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from asched.kube.credentials import Credentials
from asched.kube.errors import NoResponseError
from asched.kube.http1 import HttpAnswer
from asched.kube.transport import ApiRequest, OpenAnswer, Transport


class LeaseWriteGuard(Protocol):
    """Whether to write, and until when."""

    def leads(self) -> bool:
        """Whether a request may be sent now."""
        ...

    def lease_left_s(self) -> float:
        """Seconds until every request that was sent has to be over."""
        ...


class GuardedTransport:
    """Carries what only reads as it comes, and what writes only while a permit allows it.

    A request under way is given up when the permit would end, however slow its answer is.
    """

    def __init__(self, transport: Transport, permit: LeaseWriteGuard) -> None:
        self._transport = transport
        self._permit = permit

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpAnswer:
        """As :class:`Transport`; NoAnswerError, and nothing is sent, where it is not permitted."""
        return await self._transport.exchange(credentials, self._bounded(request))

    async def exchange_line(
        self, credentials: Credentials, requests: Sequence[ApiRequest]
    ) -> list[HttpAnswer]:
        """As :meth:`exchange`."""
        permitted = [self._bounded(request) for request in requests]
        return await self._transport.exchange_line(credentials, permitted)

    def _bounded(self, request: ApiRequest) -> ApiRequest:
        if request.method == "GET":
            return request
        if not self._permit.leads():
            raise NoResponseError("not sent: this replica does not lead", sent=False)
        left_s = self._permit.lease_left_s()
        return request._replace(
            timeout_s=min(request.timeout_s, left_s), may_send=self._permit.leads
        )

    async def open(self, credentials: Credentials, request: ApiRequest) -> OpenAnswer:
        return await self._transport.open(credentials, request)
