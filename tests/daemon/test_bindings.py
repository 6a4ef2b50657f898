"""Bindings that begin when the scheduler stops already, or when their pod is gone already; what counts
as load."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import ClassVar

import aiohttp
import anyio
import pytest

from asched.config.kube_scheduler import Extender
from asched.config.settings import PluginLimits
from asched.core.inputs import Outcome
from asched.daemon.effects.dispatcher import EffectDispatcher, EffectServices
from asched.daemon.engine.inbox import Inbox, Reconfiguration
from asched.daemon.plugin_host.external_plugins import ExternalPlugins
from asched.daemon.telemetry.metrics import Metrics
from asched.framework.binding import BindingClient
from asched.framework.interface import Plugin, PostBindPlugin, PreBindPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderSpec
from asched.framework.status import SUCCESS, Status
from asched.kube.client import ApiClient, FixedCredentials, RenewingCredentials
from asched.kube.extenders import HttpExtender
from asched.kube.timing import Backoff, RetryPolicy
from asched.kube.transport import (
    ApiRequest,
    Credentials,
    HttpResponse,
    StreamingResponse,
    exchange_sequentially,
)
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.state.records import Bound, ObjectDeleted, ProfilesLoaded
from tests.cycle.scheduling import Scheduling
from tests.extenders.service import serving
from tests.kube.harness import ManualClock
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader, profile_of


class Slow(PreBindPlugin):
    """Takes until it is let go."""

    name: ClassVar[str] = "Slow"
    api_version: ClassVar[int] = 1
    asked: ClassVar[list[str]] = []
    may_end: ClassVar[anyio.Event]

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        self.asked.append(pod.name)
        await self.may_end.wait()
        return SUCCESS


class First(PostBindPlugin):
    """Takes until it is let go, and notes what it was told."""

    name: ClassVar[str] = "First"
    api_version: ClassVar[int] = 1
    told: ClassVar[list[str]] = []
    left_s: ClassVar[list[float]] = []
    may_end: ClassVar[anyio.Event]

    async def post_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> None:
        self.left_s.append(client.context.remaining_s)
        try:
            await self.may_end.wait()
            First.told.append(f"{self.name} of {pod.name}")
        finally:
            self.left_s.append(client.context.remaining_s)


class Second(First):
    name: ClassVar[str] = "Second"
    api_version: ClassVar[int] = 1


class Impatient(First):
    """Waits as long as it may, by its client."""

    name: ClassVar[str] = "Impatient"
    api_version: ClassVar[int] = 1

    async def post_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> None:
        async def never() -> Status | None:
            return None

        await client.wait_until(never, 60)


@pytest.fixture(autouse=True)
async def nothing_happened() -> None:
    for noted in (Slow.asked, First.told, First.left_s):
        noted.clear()
    Slow.may_end, First.may_end = anyio.Event(), anyio.Event()


class Gate:
    """An API server that does what it is asked for, once it is open."""

    def __init__(self) -> None:
        self.open_now = anyio.Event()
        self.open_now.set()
        self.asked: list[str] = []

    def shut(self) -> None:
        self.open_now = anyio.Event()

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        self.asked.append(f"{request.method} {request.path.removeprefix('/api/v1/namespaces/')}")
        await self.open_now.wait()
        return HttpResponse(200, b"{}", None, reusable=True)

    async def exchange_pipelined(
        self, credentials: Credentials, requests: Sequence[ApiRequest]
    ) -> list[HttpResponse]:
        return await exchange_sequentially(self, credentials, requests)

    async def open(self, credentials: Credentials, request: ApiRequest) -> StreamingResponse:
        raise NotImplementedError("nothing is watched")


class Office:
    """Decisions, and who carries them out."""

    def __init__(
        self, scheduling: Scheduling, effects: EffectDispatcher, gate: Gate, inbox: Inbox
    ) -> None:
        self.scheduling = scheduling
        self.effects = effects
        self.gate = gate
        self._inbox = inbox

    def decide(self) -> None:
        """Decide about all pods; what was decided is durable."""
        for decision in self.scheduling.decide():
            self.effects.dispatch(decision)

    def outcomes(self) -> list[Outcome | Reconfiguration]:
        """What came of it."""
        found = []
        while (outcome := self._inbox.next_outcome()) is not None:
            found.append(outcome)
        return found


@asynccontextmanager
async def office(
    *plugins: type[Plugin], binds: Callable[[], None] | None = None
) -> AsyncIterator[Office]:
    """With one node. ``binds`` is called where an extender is asked to bind, if there is to be one."""
    gate, inbox, clock, random = Gate(), Inbox(), ManualClock(), Random(1)
    scheduling = Scheduling(NodeResourcesFit, *plugins)
    credentials = Credentials("http://127.0.0.1")
    renewing = RenewingCredentials(FixedCredentials(credentials), credentials, clock)
    retry = RetryPolicy(attempts=1)
    client = ApiClient(gate, renewing, clock=clock, random=random, retry=retry)
    asked = ExternalPlugins(scheduling.state, loader(NodeResourcesFit, *plugins), PluginLimits())
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
                plugins=asked,
                extenders=extenders,
            ),
        )
        yield Office(scheduling, effects, gate, inbox)
        effects.stop()
        Slow.may_end.set()
        First.may_end.set()


async def settled(o: Office) -> None:
    """All effects have ended."""
    with anyio.fail_after(60):
        while o.effects.in_flight:
            await anyio.lowlevel.checkpoint()


async def test_a_plugin_is_not_asked_for_what_is_released_after_the_stop() -> None:
    """Its commit was under way when the stop came. The next start asks."""
    async with office(Slow) as o:
        o.scheduling.see(a_pod("p"))
        o.effects.stop()
        o.decide()
        await anyio.wait_all_tasks_blocked()
        assert o.effects.in_flight == 0
        assert Slow.asked == []
        assert o.outcomes() == []


async def test_what_needs_no_plugin_is_bound_though_it_is_released_after_the_stop() -> None:
    async with office() as o:
        o.scheduling.see(a_pod("p"))
        o.effects.stop()
        o.decide()
        await settled(o)
        assert o.outcomes() == [Bound("default/p", "pod-p", "n")]


async def test_nothing_is_bound_that_is_released_after_leadership_was_lost() -> None:
    async with office() as o:
        o.scheduling.see(a_pod("p"))
        o.effects.depose()
        o.effects.stop()
        o.decide()
        await settled(o)
        assert o.gate.asked == []
        assert o.outcomes() == []


async def test_an_extender_is_not_asked_to_bind_what_is_released_after_the_stop() -> None:
    asked: list[int] = []
    async with office(binds=lambda: asked.append(1)) as o:
        o.scheduling.see(a_pod("p"))
        o.effects.stop()
        o.decide()
        await settled(o)
        assert asked == []
        assert o.outcomes() == []


async def test_a_plugin_is_not_asked_for_a_pod_that_went_while_its_binding_waited() -> None:
    async with office(Slow) as o:
        o.gate.shut()
        o.scheduling.see(a_pod("p", {"cpu": "6"}))
        o.decide()
        await anyio.wait_all_tasks_blocked()
        assert o.gate.asked == ["PATCH default/pods/p/status"]
        o.scheduling.see(a_node("n", {"cpu": "8", "memory": "8Gi", "pods": "110"}))
        o.scheduling.pass_time(60)
        o.decide()  # waits in the pod's lane, until its condition is written
        assert o.scheduling.state.pods["default/p"].node == "n"
        o.scheduling.apply(ObjectDeleted("Pod", "default/p", "pod-p"))
        o.effects.forget("default/p", "pod-p")
        o.gate.open_now.set()
        await anyio.wait_all_tasks_blocked()
        assert o.effects.in_flight == 0
        assert Slow.asked == []
        assert o.outcomes() == []


ENDINGS = pytest.mark.parametrize("end", [EffectDispatcher.stop, EffectDispatcher.depose])


@ENDINGS
async def test_all_that_want_to_hear_of_a_binding_are_told_though_the_end_came_first(
    end: Callable[[EffectDispatcher], None],
) -> None:
    async with office(First, Second) as o:
        o.gate.shut()
        o.scheduling.see(a_pod("p"))
        o.decide()
        await anyio.wait_all_tasks_blocked()
        assert o.gate.asked == ["POST default/pods/p/binding"]
        end(o.effects)
        o.gate.open_now.set()
        await anyio.wait_all_tasks_blocked()
        assert First.told == []
        First.may_end.set()
        await settled(o)
        assert First.told == ["First of p", "Second of p"]
        assert all(0 < left_s <= 5 for left_s in First.left_s)
        assert o.outcomes() == [Bound("default/p", "pod-p", "n")]


@ENDINGS
async def test_who_hears_of_a_binding_when_the_end_comes_has_a_little_time_left(
    end: Callable[[EffectDispatcher], None],
) -> None:
    async with office(First, Second) as o:
        o.scheduling.see(a_pod("p"))
        o.decide()
        await anyio.wait_all_tasks_blocked()
        assert len(First.left_s) == 1
        assert 50 < First.left_s[0] <= 60
        end(o.effects)
        First.may_end.set()
        await settled(o)
        assert First.told == ["First of p", "Second of p"]
        assert all(0 < left_s <= 5 for left_s in First.left_s[1:])


async def test_who_waits_by_its_client_at_a_stop_keeps_nobody_else_from_being_told() -> None:
    async with office(Impatient, Second) as o:
        o.gate.shut()
        o.scheduling.see(a_pod("p"))
        o.decide()
        await anyio.wait_all_tasks_blocked()
        o.effects.stop()
        o.gate.open_now.set()
        First.may_end.set()
        await settled(o)
        assert First.told == ["Second of p"]
        assert o.outcomes() == [Bound("default/p", "pod-p", "n")]


async def test_the_end_of_the_pod_ends_what_is_told_of_it() -> None:
    async with office(First) as o:
        o.scheduling.see(a_pod("p"))
        o.decide()
        await anyio.wait_all_tasks_blocked()
        o.effects.stop()
        o.effects.forget("default/p", "pod-p")
        await settled(o)
        assert First.told == []


async def test_a_pod_that_waits_for_a_plugin_and_an_extender_counts_once() -> None:
    loads: list[int] = []
    async with office(Slow, binds=lambda: loads.append(o.effects.load)) as o:
        o.scheduling.see(a_pod("p"))
        o.decide()
        await anyio.wait_all_tasks_blocked()
        assert (Slow.asked, o.effects.in_flight, o.effects.load) == (["p"], 1, 0)
        Slow.may_end.set()
        await settled(o)
        assert loads == [0]
        assert o.effects.load == 0
        assert o.outcomes() == [Bound("default/p", "pod-p", "n")]


async def test_a_pod_that_waits_for_a_plugin_is_no_load_meanwhile() -> None:
    async with office(Slow) as o:
        o.gate.shut()
        o.scheduling.see(a_pod("p"))
        o.decide()
        assert o.effects.load == 1
        await anyio.wait_all_tasks_blocked()
        assert (o.effects.in_flight, o.effects.load) == (1, 0)
        Slow.may_end.set()
        await anyio.wait_all_tasks_blocked()
        assert o.effects.load == 1  # the API server's answer is awaited
        o.gate.open_now.set()
        await settled(o)
        assert o.effects.load == 0
