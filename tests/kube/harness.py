"""A manual clock, a recording sink, and a scripted server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel
import msgspec
from aiohttp import web

from asched.core.inputs import Batch, Deleted, Listed
from asched.kube.client import ApiClient, CredentialSource
from asched.kube.connection import open_client
from asched.kube.timing import Clock, RequestBudget, RetryPolicy
from asched.kube.transport import Credentials
from asched.model.resources import AnyObject, Resource, WatchedResource

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUT_S = 60.0
"""Timeout of waits; only a failing test reaches it."""


class FixedCredentials:
    """Credentials that never change."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def load(self, now: datetime) -> Credentials:
        return self._credentials


class ManualClock(Clock):
    """A sleep advances the clock immediately; one beyond the horizon never ends."""

    def __init__(self, horizon_s: float = float("inf")) -> None:
        self.now_s = 0.0
        self.sleeps_s: list[float] = []
        self.horizon_s = horizon_s
        self.horizon_reached = anyio.Event()

    def time_ns(self) -> int:
        return int(self.utc().timestamp() * 1e9)

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def monotonic_s(self) -> float:
        return self.now_s

    def utc(self) -> datetime:
        return BEGIN + timedelta(seconds=self.now_s)

    async def sleep(self, delay_s: float) -> None:
        assert delay_s > 0, "a sleep without duration is a busy loop"
        if self.now_s + delay_s > self.horizon_s:
            self.horizon_reached.set()
            await anyio.sleep_forever()
        self.now_s += delay_s
        self.sleeps_s.append(delay_s)
        await anyio.lowlevel.checkpoint()

    def block(self, delay_s: float) -> None:
        self.now_s += delay_s


class View:
    """A sink that applies changes to its known objects, as the engine does."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.listed: list[WatchedResource] = []
        self._objects: dict[WatchedResource, dict[str, AnyObject]] = {r: {} for r in Resource}
        self._news = anyio.Event()

    def put_changes(self, batch: Batch) -> None:
        assert batch, "an empty batch"
        self.batches.append(batch)
        for change in batch:
            known = self._objects[change.resource]
            if isinstance(change, Listed):
                self.listed.append(change.resource)
                kept = {key: known[key] for key in change.unreadable if key in known}
                known.clear()
                known.update(kept)
                known.update((item.key, item) for item in change.objects)
            elif isinstance(change, Deleted):
                known.pop(change.object.key, None)
            else:
                known[change.object.key] = change.object
        self._news.set()
        self._news = anyio.Event()

    async def wait_for_capacity(self) -> None:
        """There is always room."""

    def of(self, resource: WatchedResource) -> dict[str, AnyObject]:
        return self._objects[resource]

    def names(self, resource: WatchedResource) -> set[str]:
        return {item.name for item in self.of(resource).values()}

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for batches until the condition holds."""
        with anyio.fail_after(TIMEOUT_S):
            while not holds():
                await self._news.wait()


class Asked(NamedTuple):
    """A request as the server received it."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "1"


class Answer(msgspec.Struct):
    """One response of the script."""

    status: int = 200
    body: bytes | list[bytes] = b""
    """A list is sent as chunks."""
    headers: dict[str, str] = {}
    drop: bool = False
    """Break the connection, after the chunks if there are any."""
    hang: bool = False
    """Never finish the response, after the chunks if there are any."""


Script = Callable[[Asked], Answer]


def json_bytes(value: Any) -> bytes:
    return msgspec.json.encode(value)


def event_line(event_type: str, item: Any) -> bytes:
    return json_bytes({"type": event_type, "object": item}) + b"\n"


def listing(items: Iterable[Any], version: str, continue_token: str = "") -> Answer:
    meta = {"resourceVersion": version}
    if continue_token:
        meta["continue"] = continue_token
    return Answer(body=json_bytes({"metadata": meta, "items": list(items)}))


def refusal(status: int, reason: str, message: str = "no", **headers: str) -> Answer:
    body = {"kind": "Status", "reason": reason, "message": message, "code": status}
    return Answer(
        status, json_bytes(body), {name.replace("_", "-"): v for name, v in headers.items()}
    )


class ScriptedServer:
    """Responds as scripted and records requests."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.asked: list[Asked] = []
        self.url = ""

    @asynccontextmanager
    async def run(self) -> AsyncIterator[ScriptedServer]:
        server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = Asked(
            request.method,
            request.path,
            dict(request.query),
            dict(request.headers),
            await request.read(),
        )
        self.asked.append(asked)
        answer = self._script(asked)
        if isinstance(answer.body, bytes) and not answer.hang and not answer.drop:
            return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        if isinstance(answer.body, list):
            response.enable_chunked_encoding()
            await response.prepare(request)
            for chunk in answer.body:
                await response.write(chunk)
        if answer.hang:
            await anyio.sleep_forever()
        if answer.drop and request.transport is not None:
            request.transport.close()
        return response


def in_turn(*answers: Answer) -> Script:
    """The responses one after the other, the last one repeatedly."""
    left = list(answers)

    def script(_asked: Asked) -> Answer:
        return left.pop(0) if len(left) > 1 else left[0]

    return script


@asynccontextmanager
async def client_for(
    url: str,
    clock: ManualClock,
    *,
    seed: int = 0,
    token: str = "",
    retry: RetryPolicy | None = None,
    source: CredentialSource | None = None,
    budget: RequestBudget | None = None,
) -> AsyncIterator[ApiClient]:
    """A client with time and randomness controlled by the test."""
    authorization = f"Bearer {token}" if token else ""
    source = source or FixedCredentials(Credentials(url, authorization))
    async with open_client(
        source, clock=clock, random=Random(seed), retry=retry, budget=budget
    ) as client:
        yield client


@asynccontextmanager
async def running(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run an endless task during the block."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        yield
        tasks.cancel_scope.cancel()
