"""No binding fails while what was sent for it, and not answered, may still arrive: its place would be given
away."""

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
from asched.daemon.effects.dispatcher import EffectDispatcher, EffectServices
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
from asched.kube.timing import Backoff, RetryPolicy
from asched.model.pod import Pod
from asched.plugins.queue_and_bind import DefaultBinder
from asched.state.records import BindFailed, Bound, ObjectDeleted, ProfilesLoaded
from tests.cycle.plugins import RoomForAll
from tests.cycle.scheduling import Scheduling
from tests.daemon.scripted_api import POD, Answer, NodeThatStays, pod_on, silence, status
from tests.extenders.service import serving
from tests.kube import harness
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader, profile_of

UNBOUND = pod_on("")
NOT_TODAY = 'running PreBind plugin "Fussy": not today'
AN_EARLIER_PROCESS = 0.0
"""By then it may have sent a binding: the clock begins there."""


class Fussy(PreBindPlugin):
    name: ClassVar[str] = "Fussy"
    api_version: ClassVar[int] = 1

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        return Status.error("not today")


class Deaf(BindPlugin):
    """Does not come to say whether it has bound the pod."""

    name: ClassVar[str] = "Deaf"
    api_version: ClassVar[int] = 1

    @property
    def time_limit_s(self) -> float:
        return 0.001

    async def bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        await anyio.sleep_forever()
        return SUCCESS


class Holding(PermitPlugin):
    """Holds every pod."""

    name: ClassVar[str] = "Holding"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), 900.0)


class FailingExtender(HttpExtender):
    """Does not bind, and is not asked by HTTP for it."""

    def __init__(self, error: ExtenderError, *, ignorable: bool = False) -> None:
        self.config = Extender("http://127.0.0.1", bind_verb="bind", ignorable=ignorable)
        self._error = error

    async def bind(self, pod: Pod, node_name: str) -> None:
        raise self._error


UNANSWERED = ExtenderError("no answer within 5 s", may_take_effect=True)
REFUSED = ExtenderError("no")


def profile_with(*plugins: type[Plugin]) -> Profile:
    (profile,) = Scheduling(*plugins).state.profiles.values()
    return profile


def assert_given_up_in_time(network: NodeThatStays, since_s: float = 0.0) -> None:
    """It was looked at when nothing could arrive any more, and at no later time."""
    last_s = network.asked_at_s[-1] - since_s
    assert network.asked[-1] == "GET"
    assert MAX_REQUEST_AGE_S <= last_s < MAX_REQUEST_AGE_S + 0.001


# -- how a binding may end ------------------------------------------------------------------------


async def test_what_an_earlier_process_sent_is_looked_for_where_prebind_fails() -> None:
    network = NodeThatStays(UNBOUND, UNBOUND, pod_on("n"))
    binder = network.binder(AN_EARLIER_PROCESS)
    outcome = await BindingCycle(profile_with(Fussy, DefaultBinder), binder, POD, "n").run()
    assert isinstance(outcome, Bound)
    assert network.asked == ["GET"] * 3


async def test_prebind_fails_when_nothing_can_arrive_any_more() -> None:
    network = NodeThatStays(reads=UNBOUND)
    binder = network.binder(AN_EARLIER_PROCESS)
    outcome = await BindingCycle(profile_with(Fussy, DefaultBinder), binder, POD, "n").run()
    assert isinstance(outcome, BindFailed)
    assert (outcome.plugin, outcome.code, outcome.message) == ("Fussy", Code.ERROR, NOT_TODAY)
    assert_given_up_in_time(network)


async def test_what_has_arrived_is_seen_though_prebind_took_longer_than_that() -> None:
    network = NodeThatStays(pod_on("n"))
    binder = network.binder(AN_EARLIER_PROCESS)
    network.clock.now_s = 10 * MAX_REQUEST_AGE_S
    outcome = await BindingCycle(profile_with(Fussy, DefaultBinder), binder, POD, "n").run()
    assert isinstance(outcome, Bound)


async def test_without_a_doubt_nobody_looks() -> None:
    network = NodeThatStays()
    outcome = await BindingCycle(
        profile_with(Fussy, DefaultBinder), network.binder(), POD, "n"
    ).run()
    assert isinstance(outcome, BindFailed)
    assert network.asked == []


@pytest.mark.parametrize(
    "found", [pod_on("other"), status(404)], ids=["bound elsewhere", "the pod is gone"]
)
async def test_what_ends_the_matter_ends_the_doubt(found: Answer) -> None:
    network = NodeThatStays(UNBOUND, found)
    binder = network.binder(AN_EARLIER_PROCESS)
    outcome = await BindingCycle(profile_with(Fussy, DefaultBinder), binder, POD, "n").run()
    assert isinstance(outcome, BindFailed)
    assert network.asked == ["GET", "GET"]
    assert not binder.unresolved


async def test_a_stop_leaves_it_open() -> None:
    network = NodeThatStays(UNBOUND)
    network.pauses.end()
    binder = network.binder(AN_EARLIER_PROCESS)
    outcome = await BindingCycle(profile_with(Fussy, DefaultBinder), binder, POD, "n").run()
    assert outcome is None
    assert binder.unresolved


async def test_a_bind_plugin_that_is_cut_short_may_have_asked_somebody() -> None:
    network = NodeThatStays(UNBOUND, UNBOUND, pod_on("n"))
    outcome = await BindingCycle(profile_with(Deaf), network.binder(), POD, "n").run()
    assert isinstance(outcome, Bound)


# -- tries that are answered ----------------------------------------------------------------------


@pytest.mark.parametrize("code", [500, 429])
async def test_a_doubt_ends_though_every_try_is_put_off(code: int) -> None:
    """A webhook for bindings is down, or the server is too busy, for good."""
    network = NodeThatStays(reads=UNBOUND, writes=status(code))
    binder = network.binder(AN_EARLIER_PROCESS)
    with anyio.fail_after(60):
        answer = await binder.bind(POD, "n")
    assert answer.code is Code.ERROR
    assert network.asked.count("POST") > 5
    assert MAX_REQUEST_AGE_S <= network.clock.monotonic_s() < MAX_REQUEST_AGE_S + 15


async def test_a_failure_that_was_answered_leaves_no_doubt() -> None:
    network = NodeThatStays(status(500), UNBOUND)
    answer = await network.binder().bind(POD, "n")
    assert answer.code is Code.ERROR
    assert network.asked == ["POST", "GET"]


async def test_who_is_refused_at_last_looks_whether_it_was_bound_before() -> None:
    network = NodeThatStays(silence, silence, silence, status(403), pod_on("n"))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.asked == ["POST", "GET", "GET", "POST", "GET"]


@pytest.mark.parametrize(
    "given_up",
    [status(504), status(500, "etcdserver: request timed out")],
    ids=["504", "etcd"],
)
async def test_a_server_that_gave_up_waiting_may_bind_the_pod_yet(
    given_up: Answer,
) -> None:
    network = NodeThatStays(given_up, UNBOUND, status(403), UNBOUND, pod_on("n"))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.asked == ["POST", "GET", "POST", "GET", "GET"]


# -- extenders ------------------------------------------------------------------------------------


async def bound_by(extender: HttpExtender, binder: BindReconciler) -> Bound | BindFailed | None:
    return await BindingCycle(profile_with(DefaultBinder), binder, POD, "n").run([extender])


async def test_an_extender_that_did_not_answer_may_bind_yet() -> None:
    network = NodeThatStays(UNBOUND, UNBOUND, pod_on("n"))
    assert isinstance(await bound_by(FailingExtender(UNANSWERED), network.binder()), Bound)

    network = NodeThatStays(reads=UNBOUND)
    outcome = await bound_by(FailingExtender(UNANSWERED), network.binder())
    assert isinstance(outcome, BindFailed)
    assert outcome.message == "no answer within 5 s"
    assert_given_up_in_time(network)


async def test_an_extender_that_refuses_is_believed_after_one_look() -> None:
    network = NodeThatStays(UNBOUND)
    outcome = await bound_by(FailingExtender(REFUSED), network.binder())
    assert isinstance(outcome, BindFailed)
    assert network.asked == ["GET"]
    assert network.clock.sleeps_s == []


async def test_its_refusal_says_nothing_of_what_was_sent_before() -> None:
    network = NodeThatStays(reads=UNBOUND)
    binder = network.binder(AN_EARLIER_PROCESS)
    network.clock.now_s = 10.0
    outcome = await bound_by(FailingExtender(REFUSED), binder)
    assert isinstance(outcome, BindFailed)
    assert_given_up_in_time(network)


async def test_who_binds_in_place_of_an_extender_need_not_wait_for_it() -> None:
    network = NodeThatStays(status(201))
    extender = FailingExtender(UNANSWERED, ignorable=True)
    assert isinstance(await bound_by(extender, network.binder()), Bound)
    assert network.clock.sleeps_s == []

    network = NodeThatStays(status(403), UNBOUND, pod_on("n"))
    assert isinstance(await bound_by(extender, network.binder()), Bound)


async def refused_by(url: str, within: timedelta = timedelta(seconds=5)) -> ExtenderError:
    async with aiohttp.ClientSession() as session:
        extender = HttpExtender(Extender(url, bind_verb="bind", http_timeout=within), session, None)
        with pytest.raises(ExtenderError) as raised:
            await extender.bind(POD.pod, "n")
    return raised.value


async def test_an_extender_that_is_not_there_was_sent_nothing() -> None:
    assert not (await refused_by("http://127.0.0.1:1")).may_take_effect


@pytest.mark.parametrize(
    ("answer", "in_doubt"),
    [
        (lambda _: {"Error": "no"}, False),
        (lambda _: b"neither yes nor no", False),
        (lambda _: web.Response(status=404), False),
        (lambda _: web.Response(status=500), False),
        (lambda _: web.Response(status=502), True),
        (lambda _: web.Response(status=504), True),
    ],
    ids=["no", "nonsense", "404", "500", "502", "504"],
)
async def test_whether_an_extender_has_answered(
    answer: Callable[[object], object], in_doubt: bool
) -> None:
    async with serving() as service:
        service.answer("bind", answer)
        assert (await refused_by(service.url)).may_take_effect is in_doubt


async def test_an_extender_that_takes_too_long_or_is_cut_off_has_not() -> None:
    async with serving() as service:
        service.answer_when_released("bind", lambda _: {})
        late = await refused_by(service.url, timedelta(milliseconds=50))
        assert "no response within 0.05 s" in str(late)
        assert late.may_take_effect

    async with harness.ScriptedServer(harness.in_turn(harness.Answer(drop=True))).run() as server:
        assert (await refused_by(server.url)).may_take_effect


# -- after a start --------------------------------------------------------------------------------


class Start:
    """A process that finds a decision in the journal, of a pod that may have been bound since."""

    def __init__(self, scheduling: Scheduling, effects: EffectDispatcher, inbox: Inbox) -> None:
        self.scheduling = scheduling
        self.effects = effects
        self._inbox = inbox

    async def outcomes(self) -> list[Outcome | Reconfiguration]:
        """What comes of it in the end."""
        with anyio.fail_after(60):
            while self.effects.in_flight:
                await anyio.lowlevel.checkpoint()
        found = []
        while (outcome := self._inbox.next_outcome()) is not None:
            found.append(outcome)
        return found


@asynccontextmanager
async def started(network: NodeThatStays, *more: type[Plugin]) -> AsyncIterator[Start]:
    plugins: tuple[type[Plugin], ...] = (RoomForAll, DefaultBinder, *more)
    scheduling, inbox, random = Scheduling(*plugins), Inbox(), Random(1)
    scheduling.see(a_node("n"), a_pod("p"))
    scheduling.decide()
    asked = ExternalPlugins(scheduling.state, loader(*plugins), PluginLimits())
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
                plugins=asked,
            ),
        )
        yield Start(scheduling, effects, inbox)
        effects.stop()


async def test_a_profile_that_is_gone_is_no_reason_to_give_the_place_away() -> None:
    network = NodeThatStays(UNBOUND, UNBOUND, pod_on("n"))
    async with started(network) as start:
        other = profile_of(RoomForAll, DefaultBinder, name="other")
        start.scheduling.apply(ProfilesLoaded((other,)))
        start.effects.resume()
        assert await start.outcomes() == [Bound("default/p", "pod-p", "n")]
    assert network.asked == ["GET"] * 3


async def test_without_its_profile_a_pod_is_given_up_at_last() -> None:
    network = NodeThatStays(reads=UNBOUND)
    async with started(network) as start:
        other = profile_of(RoomForAll, DefaultBinder, name="other")
        start.scheduling.apply(ProfilesLoaded((other,)))
        start.effects.resume()
        (outcome,) = await start.outcomes()
    assert isinstance(outcome, BindFailed)
    assert outcome.message == "profile default-scheduler was removed after the pod was assigned"
    assert_given_up_in_time(network)


async def test_what_a_crashed_leader_sent_may_arrive_when_it_leads_again() -> None:
    network = NodeThatStays(UNBOUND, UNBOUND, pod_on("n"))
    async with started(network) as start:
        start.effects.abandon_previous_term()
        assert await start.outcomes() == [Bound("default/p", "pod-p", "n")]
    assert network.asked == ["GET"] * 3


async def test_an_earlier_term_is_given_up_at_last() -> None:
    network = NodeThatStays(reads=UNBOUND)
    async with started(network) as start:
        start.effects.abandon_previous_term()
        (outcome,) = await start.outcomes()
    assert isinstance(outcome, BindFailed)
    assert "previous term" in outcome.message
    assert_given_up_in_time(network)


async def test_what_permit_held_in_an_earlier_term_was_never_sent() -> None:
    """So nothing is to be waited for, in which Permit might allow it."""
    network = NodeThatStays()
    async with started(network, Holding) as start:
        assert "default/p" in start.scheduling.state.waiting
        start.effects.abandon_previous_term()
        assert start.effects.in_flight == 0
        (outcome,) = await start.outcomes()
    assert isinstance(outcome, BindFailed)
    assert "previous term" in outcome.message
    start.scheduling.apply(outcome)
    assert not start.scheduling.state.waiting
    assert network.asked == []


async def test_what_was_given_up_before_its_turn_came_is_not_bound() -> None:
    network = NodeThatStays()
    async with started(network) as start:
        start.effects.resume()
        start.scheduling.apply(BindFailed("default/p", "pod-p", "n", Code.ERROR))
        assert await start.outcomes() == []
    assert network.asked == []


@pytest.mark.parametrize(
    "take_up", [EffectDispatcher.resume, EffectDispatcher.abandon_previous_term]
)
async def test_who_merely_keeps_its_place_is_no_load(
    take_up: Callable[[EffectDispatcher], None],
) -> None:
    network = NodeThatStays(reads=UNBOUND)
    network.clock.horizon_s = 10.0
    async with started(network) as start:
        start.scheduling.apply(ObjectDeleted("Node", "n", "node-n"))
        take_up(start.effects)
        await network.clock.horizon_reached.wait()
        assert (start.effects.in_flight, start.effects.load) == (1, 0)
        start.effects.stop()
        assert await start.outcomes() == []
        assert start.effects.load == 0


async def test_a_pod_that_waits_for_an_answer_to_its_binding_is_a_load() -> None:
    """The server may be down: who goes on deciding would have all pods wait for it."""
    waiting: list[int] = []
    network = NodeThatStays(silence, UNBOUND, silence, UNBOUND, status(201))
    assert (await network.binder(waiting=waiting.append).bind(POD, "n")).is_success
    assert waiting == []
