"""A watch without a network: late, broken, silent, expired, repeated, as drawn."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from random import Random
from typing import NamedTuple

import anyio

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import StatusError, too_old
from asched.apiserver.handlers import selected
from asched.apiserver.listing import parse_revision
from asched.apiserver.requests import parse_request
from asched.apiserver.store import encode, watch_line
from asched.apiserver.watch import ServedEvent
from asched.kube.errors import NoResponseError
from asched.kube.http1 import HttpAnswer
from asched.kube.transport import ApiRequest
from tests.fault_simulation.mixes import WatchFaults
from tests.fault_simulation.ports import Ports
from tests.fault_simulation.trace import Trace
from tests.fault_simulation.virtual_time import VirtualLoop

_BOOKMARK_INTERVAL_S = 60.0
_GARBLED = b'{"type":"MODIFIED","object":{"kind":\n'


class _Trouble(Enum):
    BROKEN = "broken"
    SILENT = "silent"
    ENDED = "ended"
    EXPIRED = "expired"


class WatchPlan(NamedTuple):
    """Where a watch gets its fortune from."""

    loop: VirtualLoop
    chance: Random
    faults: Callable[[], WatchFaults]


class SimulatedWatch:
    """An :class:`~asched.kube.transport.OpenAnswer` with the events of a resource.

    Raises ApiError and PathNotServedError when it is made, where the server refuses.
    """

    status = 200

    def __init__(
        self,
        name: str,
        cluster: EmbeddedCluster,
        request: ApiRequest,
        ports: Ports,
        trace: Trace,
        plan: WatchPlan,
    ) -> None:
        params = request.params or {}
        info = parse_request(cluster.api.registry, request.method, request.path, params)
        self._name = f"{name} watch {info.resource.plural}"
        self._kind = info.resource
        self._cluster = cluster
        self._ports = ports
        self._trace = trace
        self._plan = plan
        now_s = plan.loop.time()
        self._ends_s = now_s + float(params["timeoutSeconds"])
        self._given_up_s = now_s + request.timeout_s
        self._bookmark_s = now_s + _BOOKMARK_INTERVAL_S
        self._watcher = cluster.api.watcher(info.resource, info.namespace, selected(info))
        self._rest = b""
        self._broken = False
        self._expired: StatusError | None = None
        self.is_silent = False
        self.is_over = False
        try:
            self._watcher.begin_from(parse_revision(params.get("resourceVersion", "")))
        except StatusError as error:
            if error.code != 410:
                raise
            self._expired = error

    async def whole(self) -> HttpAnswer:
        raise NotImplementedError("a watch that was opened is read")

    def release(self) -> None:
        self.is_over = True
        self._watcher.close()

    def break_off(self) -> None:
        """The connection is gone, with what was under way."""
        self._broken = True
        self._watcher.close()

    async def read(self) -> bytes:
        await self._ports.through()
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        if self._expired is not None:
            return self._expire(self._expired)
        chunk = await self._next_chunk()
        await self._ports.through()
        return chunk

    async def _next_chunk(self) -> bytes:
        loop = self._plan.loop
        while True:
            self._look_whether_broken()
            now_s = loop.time()
            if now_s >= self._ends_s:
                self._trace(self._name, "ended")
                return b""
            events = await self._watcher.next_batch(min(self._ends_s, self._bookmark_s) - now_s)
            self._look_whether_broken()
            if not events and loop.time() < self._bookmark_s:
                continue
            fault = self._drawn()
            if fault is not None:
                self._trace(self._name, f"{fault.value}, with {len(events)} events")
                return await self._meet(fault)
            if events:
                return await self._arrived(events)
            self._bookmark_s = loop.time() + _BOOKMARK_INTERVAL_S
            return self._bookmark()

    def _look_whether_broken(self) -> None:
        if self._broken:
            raise NoResponseError("connection reset by peer", sent=True)

    def _drawn(self) -> _Trouble | None:
        faults, drawn = self._plan.faults(), self._plan.chance.random()
        for trouble, share in (
            (_Trouble.BROKEN, faults.broken),
            (_Trouble.SILENT, faults.silent),
            (_Trouble.ENDED, faults.ended),
            (_Trouble.EXPIRED, faults.expired),
        ):
            if drawn < share:
                return trouble
            drawn -= share
        return None

    async def _meet(self, trouble: _Trouble) -> bytes:
        """The events that were there are lost; they come again with the next watch, or a list."""
        match trouble:
            case _Trouble.BROKEN:
                self.break_off()
                raise NoResponseError("connection reset by peer", sent=True)
            case _Trouble.SILENT:
                self.is_silent = True
                await self._silence()
                raise NoResponseError("timed out", sent=True)
            case _Trouble.ENDED:
                return b""
            case _Trouble.EXPIRED:
                self._cluster.expire_history()
                return self._expire(too_old(1, self._cluster.revision))

    async def _silence(self) -> None:
        """Until the client gives up, or keepalive finds out."""
        self._watcher.drain()
        while not self._broken:
            left_s = self._given_up_s - self._plan.loop.time()
            if left_s <= 0:
                return
            await self._watcher.next_batch(left_s)

    def _expire(self, error: StatusError) -> bytes:
        self._trace(self._name, "expired")
        return watch_line("ERROR", encode(error.status()))

    def _bookmark(self) -> bytes:
        bookmark = {
            "kind": self._kind.kind,
            "apiVersion": self._kind.group_version,
            "metadata": {"resourceVersion": str(self._cluster.revision)},
        }
        return watch_line("BOOKMARK", encode(bookmark))

    async def _arrived(self, events: list[ServedEvent]) -> bytes:
        """The events as they come out of the connection, after some time on the way."""
        faults, chance = self._plan.faults(), self._plan.chance
        late_s = chance.uniform(0.0, 0.01)
        if chance.random() < faults.late:
            late_s = chance.uniform(0.05, 8.0)
        await anyio.sleep(late_s)
        self._look_whether_broken()
        lines = [event.line() for event in events]
        if chance.random() < faults.repeated:
            lines.append(lines[-1])
        if chance.random() < faults.garbled:
            lines.insert(chance.randrange(len(lines) + 1), _GARBLED)
        chunk = b"".join(lines)
        last = events[-1].stored
        self._trace(self._name, f"{len(lines)} lines, last {last.key} {last.rv}")
        if chance.random() < faults.torn:
            cut = chance.randrange(1, len(chunk))
            chunk, self._rest = chunk[:cut], chunk[cut:]
        return chunk
