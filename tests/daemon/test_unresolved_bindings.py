"""A binding does not fail while an unanswered request for it may still take effect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random
from typing import ClassVar

import aiohttp
import anyio
import pytest
from aiohttp import web

from asched.config.kube_scheduler import Extender
from asched.config.settings import PluginLimits
from asched.core.inputs import Outcome
from asched.daemon.effects.bind import BindingCycle
from asched.daemon.effects.dispatcher import EffectDispatcher
from asched.daemon.effects.per_pod_queue import EffectServices
from asched.daemon.effects.reconciler import MAX_REQUEST_AGE_S, BindReconciler
from asched.daemon.engine.inbox import Inbox, Reconfiguration
from asched.daemon.plugin_host.external_plugins import ExternalPlugins
from asched.daemon.telemetry.metrics import Metrics
from asched.framework.binding import BindingClient
from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    BindPlugin,
    PermitPlugin,
    PermitResult,
    Plugin,
    PreBindPlugin,
)
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import Profile
from asched.framework.status import SUCCESS, Code, Status
from asched.kube.extenders import ExtenderError, HttpExtender
from asched.kube.pod_writer import PodWriter
from asched.kube.timing import Backoff, RetryPolicy
from asched.model.pod import Pod
from asched.plugins.queue_and_bind import DefaultBinder
from asched.state.records import BindFailed, Bound, ObjectDeleted, ProfilesLoaded
from tests.cycle.plugins import RoomForAll
from tests.cycle.scheduling import Scheduling
from tests.daemon.scripted_api import POD, Answer, ScriptedApi, no_response, pod_on, status
from tests.extenders.service import serving
from tests.kube import harness
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader, profile_of

UNBOUND = pod_on("")
FAILED = 'running PreBind plugin "FailingPreBind": failed'
PREVIOUS_PROCESS_S = 0.0
"""When a previous process may have sent a binding: at the start of the clock."""


class FailingPreBind(PreBindPlugin):
    name: ClassVar[str] = "FailingPreBind"
    api_version: ClassVar[int] = 1

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        return Status.error("failed")


class TimedOutBinder(BindPlugin):
    """Runs into its time limit."""

    name: ClassVar[str] = "TimedOutBinder"
    api_version: ClassVar[int] = 1

    @property
    def time_limit_s(self) -> float:
        return 0.001

    async def bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        await anyio.sleep_forever()
        return SUCCESS


class WaitForAll(PermitPlugin):
    """Lets every pod wait on Permit."""

    name: ClassVar[str] = "WaitForAll"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), 900.0)


class FailingExtender(HttpExtender):
    """Fails to bind without an HTTP request."""

    def __init__(self, error: ExtenderError, *, ignorable: bool = False) -> None:
        self.config = Extender("http://127.0.0.1", bind_verb="bind", ignorable=ignorable)
        self._error = error

    async def bind(self, pod: Pod, node_name: str) -> None:
        raise self._error


UNANSWERED = ExtenderError("no answer within 5 s", may_take_effect=True)
REJECTED = ExtenderError("no")


def profile_with(*plugins: type[Plugin]) -> Profile:
    (profile,) = Scheduling(*plugins).state.profiles.values()
    return profile


def assert_failed_in_time(network: ScriptedApi, since_s: float = 0.0) -> None:
    """The last read was exactly when no request could arrive any longer."""
    last_s = network.requested_at_s[-1] - since_s
    assert network.requests[-1] == "GET"
    assert MAX_REQUEST_AGE_S <= last_s < MAX_REQUEST_AGE_S + 0.001


# -- failed PreBind and Bind ----------------------------------------------------------------------


async def test_failed_prebind_finds_binding_of_previous_process() -> None:
    network = ScriptedApi(UNBOUND, UNBOUND, pod_on("n"))
    binder = network.binder(PREVIOUS_PROCESS_S)
    outcome = await BindingCycle(
        profile_with(FailingPreBind, DefaultBinder), binder, POD, "n"
    ).run()
    assert isinstance(outcome, Bound)
    assert network.requests == ["GET"] * 3


async def test_failed_prebind_fails_binding_when_no_request_can_arrive() -> None:
    network = ScriptedApi(reads=UNBOUND)
    binder = network.binder(PREVIOUS_PROCESS_S)
    outcome = await BindingCycle(
        profile_with(FailingPreBind, DefaultBinder), binder, POD, "n"
    ).run()
    assert isinstance(outcome, BindFailed)
    assert (outcome.plugin, outcome.code, outcome.message) == ("FailingPreBind", Code.ERROR, FAILED)
    assert_failed_in_time(network)


async def test_failed_prebind_finds_binding_after_long_prebind() -> None:
    network = ScriptedApi(pod_on("n"))
    binder = network.binder(PREVIOUS_PROCESS_S)
    network.clock.now_s = 10 * MAX_REQUEST_AGE_S
    outcome = await BindingCycle(
        profile_with(FailingPreBind, DefaultBinder), binder, POD, "n"
    ).run()
    assert isinstance(outcome, Bound)


async def test_failed_prebind_without_unknown_request_reads_nothing() -> None:
    network = ScriptedApi()
    outcome = await BindingCycle(
        profile_with(FailingPreBind, DefaultBinder), network.binder(), POD, "n"
    ).run()
    assert isinstance(outcome, BindFailed)
    assert network.requests == []


@pytest.mark.parametrize(
    "found", [pod_on("other"), status(404)], ids=["bound-elsewhere", "pod-deleted"]
)
async def test_other_node_or_deleted_pod_resolves_binding(found: Answer) -> None:
    network = ScriptedApi(UNBOUND, found)
    binder = network.binder(PREVIOUS_PROCESS_S)
    outcome = await BindingCycle(
        profile_with(FailingPreBind, DefaultBinder), binder, POD, "n"
    ).run()
    assert isinstance(outcome, BindFailed)
    assert network.requests == ["GET", "GET"]
    assert not binder.unresolved


async def test_stop_leaves_binding_unresolved() -> None:
    network = ScriptedApi(UNBOUND)
    network.sleep.end()
    binder = network.binder(PREVIOUS_PROCESS_S)
    outcome = await BindingCycle(
        profile_with(FailingPreBind, DefaultBinder), binder, POD, "n"
    ).run()
    assert outcome is None
    assert binder.unresolved


async def test_timed_out_bind_plugin_may_have_bound_pod() -> None:
    network = ScriptedApi(UNBOUND, UNBOUND, pod_on("n"))
    outcome = await BindingCycle(profile_with(TimedOutBinder), network.binder(), POD, "n").run()
    assert isinstance(outcome, Bound)


# -- answered requests ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [500, 429])
async def test_binding_resolves_while_every_request_is_rejected(code: int) -> None:
    """A webhook for bindings is down, or the server is overloaded."""
    network = ScriptedApi(reads=UNBOUND, writes=status(code))
    binder = network.binder(PREVIOUS_PROCESS_S)
    with anyio.fail_after(60):
        answer = await binder.bind(POD, "n")
    assert answer.code is Code.ERROR
    assert network.requests.count("POST") > 5
    assert MAX_REQUEST_AGE_S <= network.clock.monotonic_s() < MAX_REQUEST_AGE_S + 15


async def test_answered_failure_resolves_binding() -> None:
    network = ScriptedApi(status(500), UNBOUND)
    answer = await network.binder().bind(POD, "n")
    assert answer.code is Code.ERROR
    assert network.requests == ["POST", "GET"]


async def test_rejected_retry_checks_whether_earlier_request_bound_pod() -> None:
    network = ScriptedApi(no_response, no_response, no_response, status(403), pod_on("n"))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.requests == ["POST", "GET", "GET", "POST", "GET"]


@pytest.mark.parametrize(
    "response",
    [status(502), status(504), status(500, "etcdserver: request timed out")],
    ids=["502", "504", "etcd"],
)
async def test_server_timeout_leaves_binding_unresolved(
    response: Answer,
) -> None:
    network = ScriptedApi(response, UNBOUND, status(403), UNBOUND, pod_on("n"))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.requests == ["POST", "GET", "POST", "GET", "GET"]


# -- extenders ------------------------------------------------------------------------------------


async def bound_by(extender: HttpExtender, binder: BindReconciler) -> Bound | BindFailed | None:
    return await BindingCycle(profile_with(DefaultBinder), binder, POD, "n").run([extender])


async def test_extender_without_response_leaves_binding_unresolved() -> None:
    network = ScriptedApi(UNBOUND, UNBOUND, pod_on("n"))
    assert isinstance(await bound_by(FailingExtender(UNANSWERED), network.binder()), Bound)

    network = ScriptedApi(reads=UNBOUND)
    outcome = await bound_by(FailingExtender(UNANSWERED), network.binder())
    assert isinstance(outcome, BindFailed)
    assert outcome.message == "no answer within 5 s"
    assert_failed_in_time(network)


async def test_rejecting_extender_fails_binding_after_one_read() -> None:
    network = ScriptedApi(UNBOUND)
    outcome = await bound_by(FailingExtender(REJECTED), network.binder())
    assert isinstance(outcome, BindFailed)
    assert network.requests == ["GET"]
    assert network.clock.sleeps_s == []


async def test_rejecting_extender_does_not_resolve_earlier_request() -> None:
    network = ScriptedApi(reads=UNBOUND)
    binder = network.binder(PREVIOUS_PROCESS_S)
    network.clock.now_s = 10.0
    outcome = await bound_by(FailingExtender(REJECTED), binder)
    assert isinstance(outcome, BindFailed)
    assert_failed_in_time(network)


class _LapsedLease(PodWriter):
    """May write again at a time; never if it is None."""

    def __init__(self, network: ScriptedApi, again_s: float | None) -> None:
        super().__init__(network.client())
        self._network, self._again_s = network, again_s

    @property
    def may_write(self) -> bool:
        if self._again_s is None:
            self._network.sleep.end()
            return False
        return self._network.clock.now_s >= self._again_s


async def test_extender_binds_once_the_lease_is_renewed() -> None:
    network = ScriptedApi(UNBOUND)
    binder = network.binder()
    binder.io = binder.io._replace(writer=_LapsedLease(network, again_s=2.0))
    assert isinstance(await bound_by(FailingExtender(REJECTED), binder), BindFailed)
    assert network.requested_at_s == [2.0]

    binder = network.binder()
    binder.io = binder.io._replace(writer=_LapsedLease(network, again_s=None))
    assert await bound_by(FailingExtender(REJECTED), binder) is None


async def test_binding_after_ignorable_extender_does_not_wait() -> None:
    network = ScriptedApi(status(201))
    extender = FailingExtender(UNANSWERED, ignorable=True)
    assert isinstance(await bound_by(extender, network.binder()), Bound)
    assert network.clock.sleeps_s == []

    network = ScriptedApi(status(403), UNBOUND, pod_on("n"))
    assert isinstance(await bound_by(extender, network.binder()), Bound)


async def bind_error(url: str, within: timedelta = timedelta(seconds=5)) -> ExtenderError:
    async with aiohttp.ClientSession() as session:
        extender = HttpExtender(Extender(url, bind_verb="bind", http_timeout=within), session, None)
        with pytest.raises(ExtenderError) as raised:
            await extender.bind(POD.pod, "n")
    return raised.value


async def test_unreachable_extender_received_no_request() -> None:
    assert not (await bind_error("http://127.0.0.1:1")).may_take_effect


@pytest.mark.parametrize(
    ("answer", "unknown"),
    [
        (lambda _: {"Error": "no"}, False),
        (lambda _: b"neither yes nor no", False),
        (lambda _: web.Response(status=404), False),
        (lambda _: web.Response(status=500), False),
        (lambda _: web.Response(status=502), True),
        (lambda _: web.Response(status=504), True),
    ],
    ids=["error", "invalid", "404", "500", "502", "504"],
)
async def test_extender_response_determines_whether_outcome_is_unknown(
    answer: Callable[[object], object], unknown: bool
) -> None:
    async with serving() as service:
        service.answer("bind", answer)
        assert (await bind_error(service.url)).may_take_effect is unknown


async def test_extender_timeout_and_lost_connection_leave_outcome_unknown() -> None:
    async with serving() as service:
        service.answer_when_released("bind", lambda _: {})
        late = await bind_error(service.url, timedelta(milliseconds=50))
        assert "no response within 0.05 s" in str(late)
        assert late.may_take_effect

    async with harness.ScriptedServer(harness.in_turn(harness.Answer(drop=True))).run() as server:
        assert (await bind_error(server.url)).may_take_effect


# -- after a start --------------------------------------------------------------------------------


class RestartFixture:
    """A process with a decision of a previous process in its journal."""

    def __init__(self, scheduling: Scheduling, effects: EffectDispatcher, inbox: Inbox) -> None:
        self.scheduling = scheduling
        self.effects = effects
        self._inbox = inbox

    async def outcomes(self) -> list[Outcome | Reconfiguration]:
        """The outcomes after all effects ended."""
        with anyio.fail_after(60):
            while self.effects.in_flight:
                await anyio.lowlevel.checkpoint()
        found = []
        while (outcome := self._inbox.next_outcome()) is not None:
            found.append(outcome)
        return found


@asynccontextmanager
async def started(network: ScriptedApi, *more: type[Plugin]) -> AsyncIterator[RestartFixture]:
    plugins: tuple[type[Plugin], ...] = (RoomForAll, DefaultBinder, *more)
    scheduling, inbox, random = Scheduling(*plugins), Inbox(), Random(1)
    scheduling.see(a_node("n"), a_pod("p"))
    scheduling.decide()
    external = ExternalPlugins(scheduling.state, loader(*plugins), PluginLimits())
    async with anyio.create_task_group() as tasks:
        effects = EffectDispatcher(
            scheduling.state,
            inbox,
            EffectServices(
                client=network.client(),
                events=None,
                tasks=tasks,
                backoff=lambda: Backoff(RetryPolicy(), random),
                metrics=Metrics(),
                plugins=external,
                check_writer=anyio.lowlevel.checkpoint,
            ),
        )
        yield RestartFixture(scheduling, effects, inbox)
        effects.stop()


async def test_binding_of_removed_profile_is_resolved() -> None:
    network = ScriptedApi(UNBOUND, UNBOUND, pod_on("n"))
    async with started(network) as start:
        other = profile_of(RoomForAll, DefaultBinder, name="other")
        start.scheduling.apply(ProfilesLoaded((other,)))
        start.effects.resume()
        assert await start.outcomes() == [Bound("default/p", "pod-p", "n")]
    assert network.requests == ["GET"] * 3


async def test_binding_of_removed_profile_fails_when_no_request_can_arrive() -> None:
    network = ScriptedApi(reads=UNBOUND)
    async with started(network) as start:
        other = profile_of(RoomForAll, DefaultBinder, name="other")
        start.scheduling.apply(ProfilesLoaded((other,)))
        start.effects.resume()
        (outcome,) = await start.outcomes()
    assert isinstance(outcome, BindFailed)
    assert outcome.message == "profile default-scheduler was removed after the pod was assigned"
    assert_failed_in_time(network)


async def test_binding_of_previous_term_is_resolved() -> None:
    network = ScriptedApi(UNBOUND, UNBOUND, pod_on("n"))
    async with started(network) as start:
        start.effects.abandon_previous_term()
        assert await start.outcomes() == [Bound("default/p", "pod-p", "n")]
    assert network.requests == ["GET"] * 3


async def test_binding_of_previous_term_fails_when_no_request_can_arrive() -> None:
    network = ScriptedApi(reads=UNBOUND)
    async with started(network) as start:
        start.effects.abandon_previous_term()
        (outcome,) = await start.outcomes()
    assert isinstance(outcome, BindFailed)
    assert "previous term" in outcome.message
    assert_failed_in_time(network)


async def test_pod_held_at_permit_in_previous_term_fails_immediately() -> None:
    """No binding was sent for it."""
    network = ScriptedApi()
    async with started(network, WaitForAll) as start:
        assert "default/p" in start.scheduling.state.waiting
        start.effects.abandon_previous_term()
        assert start.effects.in_flight == 0
        (outcome,) = await start.outcomes()
    assert isinstance(outcome, BindFailed)
    assert "previous term" in outcome.message
    start.scheduling.apply(outcome)
    assert not start.scheduling.state.waiting
    assert network.requests == []


async def test_binding_that_failed_before_its_turn_is_not_sent() -> None:
    network = ScriptedApi()
    async with started(network) as start:
        start.effects.resume()
        start.scheduling.apply(BindFailed("default/p", "pod-p", "n", Code.ERROR))
        assert await start.outcomes() == []
    assert network.requests == []


@pytest.mark.parametrize(
    "resume", [EffectDispatcher.resume, EffectDispatcher.abandon_previous_term]
)
async def test_unresolved_binding_is_no_load(
    resume: Callable[[EffectDispatcher], None],
) -> None:
    network = ScriptedApi(reads=UNBOUND)
    network.clock.horizon_s = 10.0
    async with started(network) as start:
        start.scheduling.apply(ObjectDeleted("Node", "n", "node-n"))
        resume(start.effects)
        await network.clock.horizon_reached.wait()
        assert (start.effects.in_flight, start.effects.load) == (1, 0)
        start.effects.stop()
        assert await start.outcomes() == []
        assert start.effects.load == 0


async def test_pod_waiting_for_binding_response_is_load() -> None:
    """If the server is down, further decisions would queue up."""
    waiting: list[int] = []
    network = ScriptedApi(no_response, UNBOUND, no_response, UNBOUND, status(201))
    assert (await network.binder(waiting=waiting.append).bind(POD, "n")).is_success
    assert waiting == []
