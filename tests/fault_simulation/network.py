"""Between a daemon and the API server: a transport without a network, on which everything may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from random import Random
from typing import NamedTuple

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import StatusError, too_many_requests
from asched.apiserver.handlers import Request, handle
from asched.apiserver.requests import PathNotServedError, parse_request
from asched.apiserver.storage import encode
from asched.kube.errors import NoResponseError
from asched.kube.transport import ApiRequest, Credentials, HttpResponse, exchange_sequentially
from tests.fault_simulation.mixes import Mix
from tests.fault_simulation.ports import Ports
from tests.fault_simulation.trace import Trace
from tests.fault_simulation.virtual_time import VirtualLoop
from tests.fault_simulation.watches import SimulatedWatch, WatchPlan

_JSON = "application/json"
_FAILURES = (500, 503, 504)


class Fate(Enum):
    """How a request fares."""

    SERVED = "served"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    UNANSWERED = "unanswered"
    BELATED = "belated"
    PUT_OFF = "put off"
    FAILING = "failing"
    FAILING_DONE = "failing but done"
    OVERDUE = "overdue"


class Course(NamedTuple):
    """What will become of one request."""

    fate: Fate
    there_s: float
    back_s: float
    code: int = 500


def handle(cluster: EmbeddedCluster, request: ApiRequest) -> HttpResponse:
    """What the API server says."""
    if request.path == "/version":
        return HttpResponse(200, b"{}", None, reusable=True)
    try:
        info = parse_request(
            cluster.api.registry, request.method, request.path, request.params or {}
        )
        said = handle(cluster.api, Request(info, request.body or b"", request.content_type, _JSON))
    except StatusError as error:
        return refusal(error)
    except PathNotServedError:
        return HttpResponse(404, b"404 page not found\n", None, reusable=True)
    return HttpResponse(said.code, said.body, None, reusable=True)


def refusal(error: StatusError) -> HttpResponse:
    retry_after = None if error.retry_after_s is None else str(error.retry_after_s)
    return HttpResponse(error.code, encode(error.status()), retry_after, reusable=True)


class Network:
    """What all processes share: the server, its outages, and how bad things are."""

    def __init__(
        self, loop: VirtualLoop, cluster: EmbeddedCluster, chance: Random, mix: Mix
    ) -> None:
        self.loop = loop
        self.cluster = cluster
        self.chance = chance
        self.mix = mix
        self.down = False
        self._watches: list[SimulatedWatch] = []

    def heal(self) -> None:
        """No faults from now on. Watches that had fallen silent are broken, as keepalive would."""
        self.mix = Mix(workload=self.mix.workload)
        self.down = False
        for watch in self._watches:
            if watch.is_silent:
                watch.break_off()

    def begin_outage(self) -> None:
        """Nobody can be reached; all watches break."""
        self.down = True
        for watch in self._watches:
            watch.break_off()

    def perhaps_go_down(self) -> None:
        """What loses an answer often is a server on its way down."""
        if not self.down and self.chance.random() < self.mix.api.going_down:
            self.begin_outage()
            self.loop.call_later(self.chance.uniform(1.0, 30.0), self.end_outage)

    def end_outage(self) -> None:
        self.down = False

    def add(self, watch: SimulatedWatch) -> None:
        self._watches = [known for known in self._watches if not known.is_over]
        self._watches.append(watch)

    def course(self) -> Course:
        """Draw what becomes of a request."""
        faults, chance = self.mix.api, self.chance
        there_s, back_s = chance.uniform(0.0005, 0.004), chance.uniform(0.0005, 0.004)
        if chance.random() < faults.slow:
            back_s += chance.uniform(0.5, 20.0)
        drawn = chance.random()
        for fate, share in (
            (Fate.UNREACHABLE, faults.unreachable),
            (Fate.LOST, faults.lost),
            (Fate.UNANSWERED, faults.unanswered),
            (Fate.BELATED, faults.belated),
            (Fate.PUT_OFF, faults.put_off),
            (Fate.FAILING, faults.failing),
            (Fate.FAILING_DONE, faults.failing_done),
            (Fate.OVERDUE, faults.overdue),
        ):
            if drawn < share:
                if fate is Fate.BELATED:
                    there_s = chance.uniform(31.0, 60.0)
                return Course(fate, there_s, back_s, chance.choice(_FAILURES))
            drawn -= share
        return Course(Fate.SERVED, there_s, back_s)


Outgoing = Callable[[ApiRequest], None]


class Wire:
    """One process's :class:`~asched.kube.transport.Transport`."""

    def __init__(
        self, name: str, network: Network, ports: Ports, trace: Trace, outgoing: Outgoing
    ) -> None:
        """``outgoing`` looks at each request as it leaves, and raises AssertionError where it must
        not have been made."""
        self._name = name
        self._network = network
        self._ports = ports
        self._trace = trace
        self._outgoing = outgoing

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        del credentials
        if self._ports.frozen:
            await self._ports.through()
            raise NoResponseError("the connection was closed meanwhile", sent=False)
        await self._ports.through()
        self._outgoing(request)
        course = self._network.course()
        said = f"{request.method} {request.path} {course.fate.value}"
        if course.fate is Fate.UNREACHABLE or self._network.down:
            self._trace(self._name, f"{said}, down" if self._network.down else said)
            await asyncio.sleep(course.there_s)
            raise NoResponseError("connection refused", sent=False)
        self._trace(self._name, said)
        loop = self._network.loop
        answered: asyncio.Future[HttpResponse] = loop.create_future()
        loop.call_later(course.there_s, self._arrive, request, course, answered)
        try:
            async with asyncio.timeout(request.timeout_s):
                found = await answered
        except TimeoutError:
            raise NoResponseError(f"timed out after {request.timeout_s:g} s", sent=True) from None
        await self._ports.through()
        return found

    def _arrive(
        self, request: ApiRequest, course: Course, answered: asyncio.Future[HttpResponse]
    ) -> None:
        """The request is at the server, whatever has become of who sent it."""
        network = self._network
        if network.down or course.fate is Fate.LOST:
            _fail(answered, "connection reset by peer")
            return
        if self._ports.cut and network.chance.random() < 0.5:
            return  # it was still in the buffers of the machine that went down
        if course.fate is Fate.OVERDUE:
            network.loop.call_later(network.chance.uniform(0.1, 59.0), self._serve_late, request)
            found = refusal(StatusError(504, "Timeout", "injected: not yet done", details={}))
        else:
            found = self._served(request, course)
        self._trace("server", f"{request.method} {request.path} {found.status}")
        if course.fate in (Fate.UNANSWERED, Fate.BELATED):
            _fail(answered, "connection reset by peer")
            network.perhaps_go_down()
            return
        network.loop.call_later(course.back_s, self._come_back, answered, found)

    def _come_back(self, answered: asyncio.Future[HttpResponse], found: HttpResponse) -> None:
        if self._network.down:
            _fail(answered, "connection reset by peer")
        elif not answered.done():
            answered.set_result(found)

    def _serve_late(self, request: ApiRequest) -> None:
        """Nobody waits for the answer any more."""
        if not self._network.down:
            found = handle(self._network.cluster, request)
            self._trace("server", f"{request.method} {request.path} {found.status}, overdue")

    def _served(self, request: ApiRequest, course: Course) -> HttpResponse:
        match course.fate:
            case Fate.PUT_OFF:
                return refusal(too_many_requests(self._network.chance.randint(1, 5)))
            case Fate.FAILING:
                return refusal(StatusError(course.code, "", "injected: not done", details={}))
        found = handle(self._network.cluster, request)
        if course.fate is Fate.FAILING_DONE:
            return refusal(StatusError(course.code, "", "injected: but done", details={}))
        return found

    async def exchange_pipelined(
        self, credentials: Credentials, requests: Sequence[ApiRequest]
    ) -> list[HttpResponse]:
        return await exchange_sequentially(self, credentials, requests)

    async def open(self, credentials: Credentials, request: ApiRequest) -> SimulatedWatch | Refused:
        del credentials
        await self._ports.through()
        network = self._network
        course = network.course()
        await asyncio.sleep(min(course.there_s + course.back_s, request.timeout_s))
        await self._ports.through()
        if network.down or course.fate is Fate.UNREACHABLE:
            raise NoResponseError("connection refused", sent=False)
        match course.fate:
            case Fate.LOST | Fate.UNANSWERED | Fate.BELATED:
                raise NoResponseError("connection reset by peer", sent=True)
            case Fate.PUT_OFF | Fate.FAILING | Fate.FAILING_DONE | Fate.OVERDUE:
                return Refused(self._served(request, Course(Fate.FAILING, 0, 0, course.code)))
        try:
            watch = SimulatedWatch(
                self._name, network.cluster, request, self._ports, self._trace,
                WatchPlan(network.loop, network.chance, lambda: network.mix.watch),
            )  # fmt: skip
        except StatusError as error:
            return Refused(refusal(error))
        except PathNotServedError:
            return Refused(HttpResponse(404, b"404 page not found\n", None, reusable=True))
        network.add(watch)
        return watch


class Refused:
    """An answer that is no stream; an :class:`~asched.kube.transport.StreamingResponse`."""

    def __init__(self, said: HttpResponse) -> None:
        self._said = said

    @property
    def status(self) -> int:
        return self._said.status

    async def read(self) -> bytes:
        return b""

    async def read_all(self) -> HttpResponse:
        return self._said

    def release(self) -> None:
        """There is nothing to release."""


def _fail(answered: asyncio.Future[HttpResponse], why: str) -> None:
    if not answered.done():
        answered.set_exception(NoResponseError(why, sent=True))
