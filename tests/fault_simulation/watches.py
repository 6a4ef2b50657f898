"""A simulated watch with injected faults."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from random import Random
from typing import NamedTuple

import anyio

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import StatusError, too_old
from asched.apiserver.handlers import selection_predicate
from asched.apiserver.listing import parse_revision
from asched.apiserver.requests import parse_request
from asched.apiserver.storage import ServedWatchEvent, encode, watch_line
from asched.kube.errors import NoResponseError
from asched.kube.transport import ApiRequest, HttpResponse
from tests.fault_simulation.mixes import WatchFaults
from tests.fault_simulation.ports import Ports
from tests.fault_simulation.trace import Trace
from tests.fault_simulation.virtual_time import VirtualLoop

_BOOKMARK_INTERVAL_S = 60.0
_INVALID_LINE = b'{"type":"MODIFIED","object":{"kind":\n'


class _WatchFault(Enum):
    BROKEN = "broken"
    SILENT = "silent"
    ENDED = "ended"
    EXPIRED = "expired"


class WatchPlan(NamedTuple):
    """Sources of time, randomness and fault rates of a watch."""

    loop: VirtualLoop
    chance: Random
    faults: Callable[[], WatchFaults]


class SimulatedWatch:
    """An :class:`~asched.kube.transport.StreamingResponse` with the events of a resource.

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
        self._client_timeout_s = now_s + request.timeout_s
        self._bookmark_s = now_s + _BOOKMARK_INTERVAL_S
        self._watcher = cluster.api.watcher(
            info.resource, info.namespace, selection_predicate(info)
        )
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

    async def read_all(self) -> HttpResponse:
        raise NotImplementedError("an open watch is read in chunks")

    def release(self) -> None:
        self.is_over = True
        self._watcher.close()

    def disconnect(self) -> None:
        """Break the connection, with the loss of events in flight."""
        self._broken = True
        self._watcher.close()

    async def read(self) -> bytes:
        await self._ports.wait()
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        if self._expired is not None:
            return self._expire(self._expired)
        chunk = await self._next_chunk()
        await self._ports.wait()
        return chunk

    async def _next_chunk(self) -> bytes:
        loop = self._plan.loop
        while True:
            self._check_connection()
            now_s = loop.time()
            if now_s >= self._ends_s:
                self._trace(self._name, "ended")
                return b""
            events = await self._watcher.next_batch(min(self._ends_s, self._bookmark_s) - now_s)
            self._check_connection()
            if not events and loop.time() < self._bookmark_s:
                continue
            fault = self._draw_fault()
            if fault is not None:
                self._trace(self._name, f"{fault.value}, with {len(events)} events")
                return await self._inject(fault)
            if events:
                chunk = await self._deliver(events)
                if not chunk:
                    continue  # an empty chunk would end the watch
                return chunk
            self._bookmark_s = loop.time() + _BOOKMARK_INTERVAL_S
            return self._bookmark()

    def _check_connection(self) -> None:
        if self._broken:
            raise NoResponseError("connection reset by peer", sent=True)

    def _draw_fault(self) -> _WatchFault | None:
        faults, drawn = self._plan.faults(), self._plan.chance.random()
        for fault, share in (
            (_WatchFault.BROKEN, faults.broken),
            (_WatchFault.SILENT, faults.silent),
            (_WatchFault.ENDED, faults.ended),
            (_WatchFault.EXPIRED, faults.expired),
        ):
            if drawn < share:
                return fault
            drawn -= share
        return None

    async def _inject(self, fault: _WatchFault) -> bytes:
        """Inject a fault. Buffered events are lost until the next watch or list."""
        match fault:
            case _WatchFault.BROKEN:
                self.disconnect()
                raise NoResponseError("connection reset by peer", sent=True)
            case _WatchFault.SILENT:
                self.is_silent = True
                await self._stay_silent()
                raise NoResponseError("timed out", sent=True)
            case _WatchFault.ENDED:
                return b""
            case _WatchFault.EXPIRED:
                self._cluster.expire_history()
                return self._expire(too_old(1, self._cluster.revision))

    async def _stay_silent(self) -> None:
        """Wait for the client's timeout or keepalive."""
        self._watcher.drain()
        while not self._broken:
            left_s = self._client_timeout_s - self._plan.loop.time()
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

    async def _deliver(self, events: list[ServedWatchEvent]) -> bytes:
        """The received bytes of the events, after a drawn delay."""
        faults, chance = self._plan.faults(), self._plan.chance
        late_s = chance.uniform(0.0, 0.01)
        if chance.random() < faults.late:
            late_s = chance.uniform(0.05, 8.0)
        await anyio.sleep(late_s)
        self._check_connection()
        lines = [event.line(self._kind.view) for event in events]
        if faults.lost and chance.random() < faults.lost:
            lost = chance.randrange(len(lines))
            del lines[lost]
            self._trace(self._name, f"loses {events[lost].stored.key}")
        if lines and chance.random() < faults.repeated:
            lines.append(lines[-1])
        if chance.random() < faults.invalid:
            lines.insert(chance.randrange(len(lines) + 1), _INVALID_LINE)
        chunk = b"".join(lines)
        last = events[-1].stored
        self._trace(self._name, f"{len(lines)} lines, last {last.key} {last.rv}")
        if chunk and chance.random() < faults.split:
            cut = chance.randrange(1, len(chunk))
            chunk, self._rest = chunk[:cut], chunk[cut:]
        return chunk
