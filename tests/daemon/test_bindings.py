"""Bindings that start during shutdown or after the deletion of their pod, and the load of
effects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import ClassVar

import aiohttp
import anyio
import pytest

from asched.config.kube_scheduler import Extender
from asched.config.settings import PluginLimits
from asched.core.inputs import Outcome
from asched.daemon.effects.dispatcher import EffectDispatcher
from asched.daemon.effects.per_pod_queue import EffectServices
from asched.daemon.engine.inbox import Inbox, Reconfiguration
from asched.daemon.plugin_host.external_plugins import ExternalPlugins
from asched.daemon.telemetry.metrics import Metrics
from asched.framework.binding import BindingClient
from asched.framework.interface import Plugin, PostBindPlugin, PreBindPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderSpec
from asched.framework.status import SUCCESS, Status
from asched.kube.client import ApiClient, RenewingCredentials
from asched.kube.extenders import HttpExtender
from asched.kube.timing import Backoff, RetryPolicy
from asched.kube.transport import (
    ApiRequest,
    Credentials,
    HttpResponse,
    StreamingResponse,
    Transport,
)
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.state.records import Bound, ObjectDeleted, ProfilesLoaded
from tests.cycle.scheduling import Scheduling
from tests.extenders.service import serving
from tests.kube.harness import FixedCredentials, ManualClock
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader, profile_of


class BlockingPreBind(PreBindPlugin):
    """Blocks until released."""

    name: ClassVar[str] = "BlockingPreBind"
    api_version: ClassVar[int] = 1
    calls: ClassVar[list[str]] = []
    may_end: ClassVar[anyio.Event]

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        self.calls.append(pod.name)
        await self.may_end.wait()
        return SUCCESS


class FirstPostBind(PostBindPlugin):
    """Blocks until released, and records its calls."""

    name: ClassVar[str] = "FirstPostBind"
    api_version: ClassVar[int] = 1
    calls: ClassVar[list[str]] = []
    left_s: ClassVar[list[float]] = []
    may_end: ClassVar[anyio.Event]

    async def post_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> None:
        self.left_s.append(client.context.remaining_s)
        try:
            await self.may_end.wait()
            FirstPostBind.calls.append(f"{self.name} of {pod.name}")
        finally:
            self.left_s.append(client.context.remaining_s)


class SecondPostBind(FirstPostBind):
    name: ClassVar[str] = "SecondPostBind"
    api_version: ClassVar[int] = 1


class WaitingPostBind(FirstPostBind):
    """Waits through its client until the client ends the wait."""

    name: ClassVar[str] = "WaitingPostBind"
    api_version: ClassVar[int] = 1

    async def post_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> None:
        async def never() -> Status | None:
            return None

        await client.wait_until(never, 60)


@pytest.fixture(autouse=True)
async def reset_plugins() -> None:
    for calls in (BlockingPreBind.calls, FirstPostBind.calls, FirstPostBind.left_s):
        calls.clear()
    BlockingPreBind.may_end, FirstPostBind.may_end = anyio.Event(), anyio.Event()


class GatedApi(Transport):
    """An API server that answers every request while it is open."""

    def __init__(self) -> None:
        self.is_open = anyio.Event()
        self.is_open.set()
        self.requests: list[str] = []

    def close(self) -> None:
        self.is_open = anyio.Event()

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        self.requests.append(f"{request.method} {request.path.removeprefix('/api/v1/namespaces/')}")
        await self.is_open.wait()
        return HttpResponse(200, b"{}", None, reusable=True)

    async def open(self, credentials: Credentials, request: ApiRequest) -> StreamingResponse:
        raise NotImplementedError("no watches")


class DispatcherFixture:
    """Decisions, and the dispatcher of their effects."""

    def __init__(
        self, scheduling: Scheduling, effects: EffectDispatcher, api: GatedApi, inbox: Inbox
    ) -> None:
        self.scheduling = scheduling
        self.effects = effects
        self.api = api
        self._inbox = inbox

    def decide(self) -> None:
        """Decide for all pods, and dispatch the decisions as durable."""
        for decision in self.scheduling.decide():
            self.effects.dispatch(decision)

    def outcomes(self) -> list[Outcome | Reconfiguration]:
        """The outcomes so far."""
        found = []
        while (outcome := self._inbox.next_outcome()) is not None:
            found.append(outcome)
        return found


@asynccontextmanager
async def dispatcher(
    *plugins: type[Plugin], binds: Callable[[], None] | None = None
) -> AsyncIterator[DispatcherFixture]:
    """A dispatcher with one node. With ``binds``, an extender binds, which calls it."""
    api, inbox, clock, random = GatedApi(), Inbox(), ManualClock(), Random(1)
    scheduling = Scheduling(NodeResourcesFit, *plugins)
    credentials = Credentials("http://127.0.0.1")
    renewing = RenewingCredentials(FixedCredentials(credentials), credentials, clock)
    retry = RetryPolicy(attempts=1)
    client = ApiClient(api, renewing, clock=clock, random=random, retry=retry)
    external = ExternalPlugins(scheduling.state, loader(NodeResourcesFit, *plugins), PluginLimits())
    async with AsyncExitStack() as stack:
        extenders = []
        if binds is not None:
            service = await stack.enter_async_context(serving())
            session = await stack.enter_async_context(aiohttp.ClientSession())
            service.on_question = binds
            service.answer("bind", lambda _: {})
            extenders = [HttpExtender(Extender(service.url, bind_verb="bind"), session, None)]
            profile = profile_of(NodeResourcesFit, *plugins)
            spec = ExtenderSpec(service.url, bind_verb="bind")
            scheduling.apply(ProfilesLoaded((profile,), extenders=(spec,)))
        scheduling.see(a_node("n"))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        effects = EffectDispatcher(
            scheduling.state,
            inbox,
            EffectServices(
                client=client,
                events=None,
                tasks=tasks,
                backoff=lambda: Backoff(RetryPolicy(), random),
                metrics=Metrics(),
                plugins=external,
                check_writer=anyio.lowlevel.checkpoint,
                extenders=extenders,
            ),
        )
        yield DispatcherFixture(scheduling, effects, api, inbox)
        effects.stop()
        BlockingPreBind.may_end.set()
        FirstPostBind.may_end.set()


async def until_idle(o: DispatcherFixture) -> None:
    """Wait until all effects have ended."""
    with anyio.fail_after(60):
        while o.effects.in_flight:
            await anyio.lowlevel.checkpoint()


async def test_plugin_is_not_called_for_binding_released_after_stop() -> None:
    """The commit was in progress at the stop. The next start calls the plugin."""
    async with dispatcher(BlockingPreBind) as o:
        o.scheduling.see(a_pod("p"))
        o.effects.stop()
        o.decide()
        await anyio.wait_all_tasks_blocked()
        assert o.effects.in_flight == 0
        assert BlockingPreBind.calls == []
        assert o.outcomes() == []


async def test_binding_without_plugin_released_after_stop_is_sent() -> None:
    async with dispatcher() as o:
        o.scheduling.see(a_pod("p"))
        o.effects.stop()
        o.decide()
        await until_idle(o)
        assert o.outcomes() == [Bound("default/p", "pod-p", "n")]


async def test_binding_released_after_lost_leadership_is_not_sent() -> None:
    async with dispatcher() as o:
        o.scheduling.see(a_pod("p"))
        o.effects.depose()
        o.effects.stop()
        o.decide()
        await until_idle(o)
        assert o.api.requests == []
        assert o.outcomes() == []


async def test_extender_is_not_called_for_binding_released_after_stop() -> None:
    calls: list[int] = []
    async with dispatcher(binds=lambda: calls.append(1)) as o:
        o.scheduling.see(a_pod("p"))
        o.effects.stop()
        o.decide()
        await until_idle(o)
        assert calls == []
        assert o.outcomes() == []


async def test_plugin_is_not_called_for_pod_deleted_while_binding_was_queued() -> None:
    async with dispatcher(BlockingPreBind) as o:
        o.api.close()
        o.scheduling.see(a_pod("p", {"cpu": "6"}))
        o.decide()
        await anyio.wait_all_tasks_blocked()
        assert o.api.requests == ["PATCH default/pods/p/status"]
        o.scheduling.see(a_node("n", {"cpu": "8", "memory": "8Gi", "pods": "110"}))
        o.scheduling.pass_time(60)
        o.decide()  # queued until the pod's condition is written
        assert o.scheduling.state.pods["default/p"].node == "n"
        o.scheduling.apply(ObjectDeleted("Pod", "default/p", "pod-p"))
        o.effects.on_pod_deleted("default/p", "pod-p")
        o.api.is_open.set()
        await anyio.wait_all_tasks_blocked()
        assert o.effects.in_flight == 0
        assert BlockingPreBind.calls == []
        assert o.outcomes() == []


ENDINGS = pytest.mark.parametrize("end", [EffectDispatcher.stop, EffectDispatcher.depose])


@ENDINGS
async def test_post_bind_plugins_run_after_end_of_dispatcher(
    end: Callable[[EffectDispatcher], None],
) -> None:
    async with dispatcher(FirstPostBind, SecondPostBind) as o:
        o.api.close()
        o.scheduling.see(a_pod("p"))
        o.decide()
        await anyio.wait_all_tasks_blocked()
        assert o.api.requests == ["POST default/pods/p/binding"]
        end(o.effects)
        o.api.is_open.set()
        await anyio.wait_all_tasks_blocked()
        assert FirstPostBind.calls == []
        FirstPostBind.may_end.set()
        await until_idle(o)
        assert FirstPostBind.calls == ["FirstPostBind of p", "SecondPostBind of p"]
        assert all(0 < left_s <= 5 for left_s in FirstPostBind.left_s)
        assert o.outcomes() == [Bound("default/p", "pod-p", "n")]


@ENDINGS
async def test_running_post_bind_plugin_gets_grace_period_at_end(
    end: Callable[[EffectDispatcher], None],
) -> None:
    async with dispatcher(FirstPostBind, SecondPostBind) as o:
        o.scheduling.see(a_pod("p"))
        o.decide()
        await anyio.wait_all_tasks_blocked()
        assert len(FirstPostBind.left_s) == 1
        assert 50 < FirstPostBind.left_s[0] <= 60
        end(o.effects)
        FirstPostBind.may_end.set()
        await until_idle(o)
        assert FirstPostBind.calls == ["FirstPostBind of p", "SecondPostBind of p"]
        assert all(0 < left_s <= 5 for left_s in FirstPostBind.left_s[1:])


async def test_waiting_post_bind_plugin_does_not_block_others_at_stop() -> None:
    async with dispatcher(WaitingPostBind, SecondPostBind) as o:
        o.api.close()
        o.scheduling.see(a_pod("p"))
        o.decide()
        await anyio.wait_all_tasks_blocked()
        o.effects.stop()
        o.api.is_open.set()
        FirstPostBind.may_end.set()
        await until_idle(o)
        assert FirstPostBind.calls == ["SecondPostBind of p"]
        assert o.outcomes() == [Bound("default/p", "pod-p", "n")]


async def test_post_bind_plugin_ends_when_pod_is_deleted() -> None:
    async with dispatcher(FirstPostBind) as o:
        o.scheduling.see(a_pod("p"))
        o.decide()
        await anyio.wait_all_tasks_blocked()
        o.effects.stop()
        o.effects.on_pod_deleted("default/p", "pod-p")
        await until_idle(o)
        assert FirstPostBind.calls == []


async def test_pod_waiting_for_plugin_and_extender_counts_once() -> None:
    loads: list[int] = []
    async with dispatcher(BlockingPreBind, binds=lambda: loads.append(o.effects.load)) as o:
        o.scheduling.see(a_pod("p"))
        o.decide()
        await anyio.wait_all_tasks_blocked()
        assert (BlockingPreBind.calls, o.effects.in_flight, o.effects.load) == (["p"], 1, 0)
        BlockingPreBind.may_end.set()
        await until_idle(o)
        assert loads == [0]
        assert o.effects.load == 0
        assert o.outcomes() == [Bound("default/p", "pod-p", "n")]


async def test_pod_waiting_for_plugin_is_no_load() -> None:
    async with dispatcher(BlockingPreBind) as o:
        o.scheduling.see(a_pod("p"))
        o.decide()
        assert o.effects.load == 1
        await anyio.wait_all_tasks_blocked()
        assert (o.effects.in_flight, o.effects.load) == (1, 0)
        o.api.close()
        BlockingPreBind.may_end.set()
        await anyio.wait_all_tasks_blocked()
        assert o.effects.load == 1  # waiting for the API server
        o.api.is_open.set()
        await until_idle(o)
        assert o.effects.load == 0
