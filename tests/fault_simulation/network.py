"""A simulated transport between daemons and the API server, with injected faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import NamedTuple

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.discovery import Discovery
from asched.apiserver.errors import StatusError, too_many_requests
from asched.apiserver.group_forms import KubernetesVersion
from asched.apiserver.handlers import Request
from asched.apiserver.handlers import handle as handle_request
from asched.apiserver.requests import PathNotServedError, parse_request
from asched.apiserver.storage import encode
from asched.kube.errors import NoResponseError
from asched.kube.transport import ApiRequest, Credentials, HttpResponse, Transport
from tests.fault_simulation.mixes import Mix
from tests.fault_simulation.ports import Ports
from tests.fault_simulation.trace import Trace
from tests.fault_simulation.virtual_time import VirtualLoop
from tests.fault_simulation.watches import SimulatedWatch, WatchPlan

_JSON = "application/json"
_FAILURES = (500, 503, 504)


class RequestFault(Enum):
    """The fault injected into a request."""

    NONE = "served"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    NO_RESPONSE = "no response"
    DELAYED = "delayed"
    THROTTLED = "throttled"
    FAILED = "failed"
    FAILED_BUT_EXECUTED = "failed but executed"
    EXECUTED_LATER = "executed later"


class RequestPlan(NamedTuple):
    """The drawn handling of one request."""

    fault: RequestFault
    request_s: float
    response_s: float
    code: int = 500


def serve(cluster: EmbeddedCluster, request: ApiRequest) -> HttpResponse:
    """The response of the API server."""
    if request.path == "/version":
        return HttpResponse(200, b"{}", None, reusable=True)
    if request.path.startswith("/apis/") and request.path.count("/") == 3:
        return _discovery(cluster, request.path)
    try:
        info = parse_request(
            cluster.api.registry, request.method, request.path, request.params or {}
        )
        response = handle_request(
            cluster.api, Request(info, request.body or b"", request.content_type, _JSON)
        )
    except StatusError as error:
        return status_response(error)
    except PathNotServedError:
        return HttpResponse(404, b"404 page not found\n", None, reusable=True)
    return HttpResponse(response.code, response.body, None, reusable=True)


def _discovery(cluster: EmbeddedCluster, path: str) -> HttpResponse:
    """The resources of a group and version."""
    try:
        body = Discovery(cluster.api.registry).group(path)
    except StatusError as error:
        return status_response(error)
    except PathNotServedError:
        return HttpResponse(404, b"404 page not found\n", None, reusable=True)
    return HttpResponse(200, body, None, reusable=True)


def status_response(error: StatusError) -> HttpResponse:
    retry_after = None if error.retry_after_s is None else str(error.retry_after_s)
    return HttpResponse(error.code, encode(error.status()), retry_after, reusable=True)


class Network:
    """State shared by all processes: the server, its outages, and the fault rates."""

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
        """End all faults. Silent watches break, as keepalive would break them."""
        self.mix = Mix(workload=self.mix.workload)
        self.down = False
        for watch in self._watches:
            if watch.is_silent:
                watch.disconnect()

    def begin_outage(self) -> None:
        """Refuse connections and break all watches."""
        self.down = True
        for watch in self._watches:
            watch.disconnect()

    def maybe_begin_outage(self) -> None:
        """A lost response is often the start of an outage."""
        if not self.down and self.chance.random() < self.mix.api.going_down:
            self.begin_outage()
            self.loop.call_later(self.chance.uniform(1.0, 30.0), self.end_outage)

    def end_outage(self) -> None:
        self.down = False

    def upgrade(self) -> KubernetesVersion:
        """Serve another Kubernetes version from now on. All watches end within ten seconds, as when
        several API servers restart one after the other."""
        version: KubernetesVersion = self.chance.choice([*KubernetesVersion])
        self.cluster.api.registry.serve_version(version)
        for watch in self._watches:
            self.loop.call_later(self.chance.uniform(0.0, 10.0), watch.disconnect)
        return version

    def add(self, watch: SimulatedWatch) -> None:
        self._watches = [known for known in self._watches if not known.is_over]
        self._watches.append(watch)

    def draw_plan(self) -> RequestPlan:
        """Draw the handling of a request."""
        faults, chance = self.mix.api, self.chance
        request_s, response_s = chance.uniform(0.0005, 0.004), chance.uniform(0.0005, 0.004)
        if chance.random() < faults.slow:
            response_s += chance.uniform(0.5, 20.0)
        drawn = chance.random()
        for fault, share in (
            (RequestFault.UNREACHABLE, faults.unreachable),
            (RequestFault.LOST, faults.lost),
            (RequestFault.NO_RESPONSE, faults.no_response),
            (RequestFault.DELAYED, faults.delayed),
            (RequestFault.THROTTLED, faults.throttled),
            (RequestFault.FAILED, faults.failed),
            (RequestFault.FAILED_BUT_EXECUTED, faults.failed_but_executed),
            (RequestFault.EXECUTED_LATER, faults.executed_later),
        ):
            if drawn < share:
                if fault is RequestFault.DELAYED:
                    request_s = chance.uniform(31.0, 60.0)
                return RequestPlan(fault, request_s, response_s, chance.choice(_FAILURES))
            drawn -= share
        return RequestPlan(RequestFault.NONE, request_s, response_s)


Outgoing = Callable[[ApiRequest], None]


class SimulatedTransport(Transport):
    """One process's :class:`~asched.kube.transport.Transport`."""

    def __init__(
        self, name: str, network: Network, ports: Ports, trace: Trace, outgoing: Outgoing
    ) -> None:
        """``outgoing`` checks each request, and raises AssertionError for a forbidden one."""
        self._name = name
        self._network = network
        self._ports = ports
        self._trace = trace
        self._outgoing = outgoing

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        del credentials
        if self._ports.frozen:
            await self._ports.wait()
            raise NoResponseError("the connection was closed meanwhile", sent=False)
        await self._ports.wait()
        self._outgoing(request)
        plan = self._network.draw_plan()
        line = f"{request.method} {request.path} {plan.fault.value}"
        if plan.fault is RequestFault.UNREACHABLE or self._network.down:
            self._trace(self._name, f"{line}, down" if self._network.down else line)
            await asyncio.sleep(plan.request_s)
            raise NoResponseError("connection refused", sent=False)
        self._trace(self._name, line)
        loop = self._network.loop
        answered: asyncio.Future[HttpResponse] = loop.create_future()
        loop.call_later(plan.request_s, self._arrive, request, plan, answered)
        try:
            async with asyncio.timeout(request.timeout_s):
                found = await answered
        except TimeoutError:
            raise NoResponseError(f"timed out after {request.timeout_s:g} s", sent=True) from None
        await self._ports.wait()
        return found

    def _arrive(
        self, request: ApiRequest, plan: RequestPlan, answered: asyncio.Future[HttpResponse]
    ) -> None:
        """The request reaches the server, even if its sender crashed."""
        network = self._network
        if network.down or plan.fault is RequestFault.LOST:
            _fail(answered, "connection reset by peer")
            return
        if self._ports.cut and network.chance.random() < 0.5:
            return  # lost in the buffers of the crashed machine
        if plan.fault is RequestFault.EXECUTED_LATER:
            network.loop.call_later(network.chance.uniform(0.1, 59.0), self._execute_later, request)
            found = status_response(
                StatusError(504, "Timeout", "injected: not yet executed", details={})
            )
        else:
            found = self._served(request, plan)
        self._trace("server", f"{request.method} {request.path} {found.status}")
        if plan.fault in (RequestFault.NO_RESPONSE, RequestFault.DELAYED):
            _fail(answered, "connection reset by peer")
            network.maybe_begin_outage()
            return
        network.loop.call_later(plan.response_s, self._respond, answered, found)

    def _respond(self, answered: asyncio.Future[HttpResponse], found: HttpResponse) -> None:
        if self._network.down:
            _fail(answered, "connection reset by peer")
        elif not answered.done():
            answered.set_result(found)

    def _execute_later(self, request: ApiRequest) -> None:
        """Execute a request after its error response."""
        if not self._network.down:
            found = serve(self._network.cluster, request)
            self._trace("server", f"{request.method} {request.path} {found.status}, executed later")

    def _served(self, request: ApiRequest, plan: RequestPlan) -> HttpResponse:
        match plan.fault:
            case RequestFault.THROTTLED:
                return status_response(too_many_requests(self._network.chance.randint(1, 5)))
            case RequestFault.FAILED:
                return status_response(
                    StatusError(plan.code, "", "injected: not executed", details={})
                )
        found = serve(self._network.cluster, request)
        if plan.fault is RequestFault.FAILED_BUT_EXECUTED:
            return status_response(StatusError(plan.code, "", "injected: but executed", details={}))
        return found

    async def open(
        self, credentials: Credentials, request: ApiRequest
    ) -> SimulatedWatch | RejectedStream:
        del credentials
        await self._ports.wait()
        network = self._network
        plan = network.draw_plan()
        await asyncio.sleep(min(plan.request_s + plan.response_s, request.timeout_s))
        await self._ports.wait()
        if network.down or plan.fault is RequestFault.UNREACHABLE:
            raise NoResponseError("connection refused", sent=False)
        match plan.fault:
            case RequestFault.LOST | RequestFault.NO_RESPONSE | RequestFault.DELAYED:
                raise NoResponseError("connection reset by peer", sent=True)
            case (
                RequestFault.THROTTLED
                | RequestFault.FAILED
                | RequestFault.FAILED_BUT_EXECUTED
                | RequestFault.EXECUTED_LATER
            ):
                return RejectedStream(
                    self._served(request, RequestPlan(RequestFault.FAILED, 0, 0, plan.code))
                )
        try:
            watch = SimulatedWatch(
                self._name,
                network.cluster,
                request,
                self._ports,
                self._trace,
                WatchPlan(network.loop, network.chance, lambda: network.mix.watch),
            )
        except StatusError as error:
            return RejectedStream(status_response(error))
        except PathNotServedError:
            return RejectedStream(HttpResponse(404, b"404 page not found\n", None, reusable=True))
        network.add(watch)
        return watch


class RejectedStream:
    """A :class:`~asched.kube.transport.StreamingResponse` that is not a stream."""

    def __init__(self, response: HttpResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    async def read(self) -> bytes:
        return b""

    async def read_all(self) -> HttpResponse:
        return self._response

    def release(self) -> None:
        """Nothing to release."""


def _fail(answered: asyncio.Future[HttpResponse], why: str) -> None:
    if not answered.done():
        answered.set_exception(NoResponseError(why, sent=True))
