"""A clock that advances when all tasks wait, and a transport without a network."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import count
from random import Random

import anyio
import anyio.lowlevel
from anyio import wait_all_tasks_blocked

from asched.kube.client import ApiClient, RenewingCredentials
from asched.kube.errors import NoResponseError
from asched.kube.timing import Clock, RetryPolicy
from asched.kube.transport import ApiRequest, Credentials, HttpResponse, Transport
from tests.kube.harness import BEGIN, Answer, Asked, FixedCredentials, Script


class VirtualClock(Clock):
    """A clock for any number of sleepers; made by :func:`virtual_clock`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._sleepers: list[tuple[float, int, anyio.Event]] = []
        self._numbers = count()

    def time_ns(self) -> int:
        return int(self.utc().timestamp() * 1e9)

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def monotonic_s(self) -> float:
        return self.now_s

    def utc(self) -> datetime:
        return BEGIN + timedelta(seconds=self.now_s)

    async def sleep(self, delay_s: float) -> None:
        woken = anyio.Event()
        heapq.heappush(self._sleepers, (self.now_s + delay_s, next(self._numbers), woken))
        await woken.wait()

    def block(self, delay_s: float) -> None:
        self.now_s += delay_s

    async def run(self) -> None:
        """Wake the next sleeper whenever all tasks wait, until cancelled."""
        while True:
            await wait_all_tasks_blocked()
            if not self._sleepers:
                await anyio.lowlevel.checkpoint()
                continue
            at_s, _, woken = heapq.heappop(self._sleepers)
            self.now_s = max(self.now_s, at_s)
            woken.set()


@asynccontextmanager
async def virtual_clock() -> AsyncIterator[VirtualClock]:
    """Runs during the block."""
    clock = VirtualClock()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.run)
        yield clock
        tasks.cancel_scope.cancel()


class _SilentStream:
    """A response without any data."""

    status = 200

    async def read(self) -> bytes:
        await anyio.sleep_forever()
        return b""

    async def read_all(self) -> HttpResponse:
        raise AssertionError("an endless response is never read completely")

    def release(self) -> None:
        """Nothing to release."""


class ScriptTransport(Transport):
    """Answers what a script says; streams are silent. An answer that hangs times out in virtual
    time."""

    def __init__(self, script: Script, clock: VirtualClock) -> None:
        self._script = script
        self._clock = clock
        self.pipelines: list[int] = []
        """The number of requests of each pipeline."""

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        answer = self._script(
            Asked(request.method, request.path, request.params or {}, {}, request.body or b"")
        )
        if answer.hang:
            await self._clock.sleep(request.timeout_s)
            raise NoResponseError(f"timed out after {request.timeout_s:g} s", sent=True)
        assert isinstance(answer.body, bytes)
        return HttpResponse(answer.status, answer.body, None, reusable=True)

    async def exchange_pipelined(
        self, credentials: Credentials, requests: Sequence[ApiRequest]
    ) -> list[HttpResponse]:
        self.pipelines.append(len(requests))
        return await super().exchange_pipelined(credentials, requests)

    async def open(self, credentials: Credentials, request: ApiRequest) -> _SilentStream:
        return _SilentStream()


def scripted_client(script: Script, clock: VirtualClock) -> ApiClient:
    """A client of a script, without a network."""
    return client_over(ScriptTransport(script, clock), clock)


def client_over(transport: ScriptTransport, clock: VirtualClock) -> ApiClient:
    credentials = Credentials("http://script", "")
    return ApiClient(
        transport,
        RenewingCredentials(FixedCredentials(credentials), credentials, clock),
        clock=clock,
        random=Random(0),
        retry=RetryPolicy(),
    )


HANGS = Answer(hang=True)
