"""Whoever reads the API learns to which node a pod is nominated, whatever befell the words that said so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import anyio
import anyio.lowlevel
import msgspec
import pytest

from asched.config.settings import PluginLimits
from asched.daemon.effects.dispatcher import EffectDispatcher, EffectServices
from asched.daemon.engine.inbox import Inbox
from asched.daemon.plugin_host.external_plugins import ExternalPlugins
from asched.daemon.telemetry.metrics import Metrics
from asched.framework.cluster import Victim
from asched.framework.status import Code
from asched.kube.client import ApiClient, FixedCredentials, RenewingCredentials
from asched.kube.timing import Backoff, RetryPolicy
from asched.kube.transport import (
    ApiRequest,
    Credentials,
    HttpResponse,
    StreamingResponse,
    exchange_sequentially,
)
from asched.model.pod import PodCondition
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.state.records import (
    Assigned,
    BindFailed,
    Decision,
    ObjectDeleted,
    PermitRejected,
    PermitWait,
    Rejected,
)
from tests.cycle.scheduling import Scheduling
from tests.kube.harness import ManualClock
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader

KEY, UID = "default/p", "pod-p"
NOTHING = "-"
"""Said of the nomination: it is left as it is."""


class _Condition(msgspec.Struct):
    message: str


class _Status(msgspec.Struct, rename="camel"):
    conditions: tuple[_Condition, ...] = ()
    nominated_node_name: str | msgspec.UnsetType | None = msgspec.UNSET


class _Patch(msgspec.Struct):
    status: _Status


class Api:
    """Notes what is said on pods, and answers as it is told to, once it is open."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        """The message, empty for none, and the nomination."""
        self.nominated = ""
        """What a reader of the pod finds."""
        self.codes: list[int] = []
        """What the next requests are answered; after that it is 200."""
        self.open_now = anyio.Event()
        self.open_now.set()

    def shut(self) -> None:
        self.open_now = anyio.Event()

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        if request.method != "PATCH":
            return HttpResponse(500, b"{}", None, reusable=True)
        status = msgspec.json.decode(request.body or b"", type=_Patch).status
        node = status.nominated_node_name
        self.said.append(
            (
                status.conditions[0].message if status.conditions else "",
                NOTHING if node is msgspec.UNSET else node or "",
            )
        )
        await self.open_now.wait()
        code = self.codes.pop(0) if self.codes else 200
        if code == 200 and node is not msgspec.UNSET:
            self.nominated = node or ""
        return HttpResponse(code, b"{}", None, reusable=True)

    async def exchange_pipelined(
        self, credentials: Credentials, requests: Sequence[ApiRequest]
    ) -> list[HttpResponse]:
        return await exchange_sequentially(self, credentials, requests)

    async def open(self, credentials: Credentials, request: ApiRequest) -> StreamingResponse:
        raise NotImplementedError("nothing is watched")


class Term:
    """One life of a daemon: what is decided in it is folded and carried out."""

    def __init__(self, scheduling: Scheduling, effects: EffectDispatcher, api: Api) -> None:
        self.scheduling, self.effects, self.api = scheduling, effects, api

    def decide(self, decision: Decision) -> None:
        self.scheduling.apply(decision)
        self.effects.dispatch(decision)

    def reject(self, message: str, nominated: str | None = None) -> None:
        self.decide(Rejected(KEY, UID, 1, message, ("NodeResourcesFit",), nominated_node=nominated))

    def displace(self) -> None:
        """Another pod takes the place that room was made on for this one."""
        displaced = (Victim(KEY, UID),)
        self.decide(
            Rejected("default/first", "pod-first", 1, "first", ("NodeResourcesFit",),
                     nominated_node="n", cleared_nominations=displaced)
        )  # fmt: skip

    def see(self, nominated: str) -> None:
        """The watch shows the pod."""
        said = PodCondition(type="PodScheduled", status="False")
        self.scheduling.see(a_pod("p", nominated=nominated, conditions=(said,)))

    @property
    def held(self) -> str:
        return self.scheduling.state.nominator.node_of(KEY)

    async def settled(self) -> None:
        self.api.open_now.set()
        with anyio.fail_after(60):
            while self.effects.in_flight:
                await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def term(scheduling: Scheduling, api: Api) -> AsyncIterator[Term]:
    inbox, clock, random = Inbox(), ManualClock(), Random(1)
    credentials = Credentials("http://127.0.0.1")
    renewing = RenewingCredentials(FixedCredentials(credentials), credentials, clock)
    retry = RetryPolicy(attempts=1)
    client = ApiClient(api, renewing, clock=clock, random=random, retry=retry)
    asked = ExternalPlugins(scheduling.state, loader(NodeResourcesFit), PluginLimits())
    async with anyio.create_task_group() as tasks:
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
            ),
        )
        yield Term(scheduling, effects, api)
        effects.stop()


def a_cluster() -> Scheduling:
    made = Scheduling(NodeResourcesFit)
    made.see(a_node("n"), a_node("m"), a_pod("p"), a_pod("first", priority=9))
    return made


@asynccontextmanager
async def one_term() -> AsyncIterator[Term]:
    async with term(a_cluster(), Api()) as t:
        yield t


async def begin(t: Term) -> None:
    """A first word is under way and unanswered: what is said now waits for it."""
    t.api.shut()
    t.reject("no room")
    await anyio.wait_all_tasks_blocked()
    assert t.api.said == [("no room", NOTHING)]


# -- one word replaces another ----------------------------------------------------------------


async def test_a_later_word_on_the_condition_carries_the_nomination_of_the_one_it_replaces() -> (
    None
):
    async with one_term() as t:
        await begin(t)
        t.reject("preempting", "n")
        t.reject("victims leave")
        await t.settled()
        assert t.api.said[1:] == [("victims leave", "n")]
        assert t.api.nominated == t.held == "n"


async def test_it_carries_the_end_of_a_nomination_too() -> None:
    async with one_term() as t:
        t.reject("preempting", "n")
        await t.settled()
        t.see(nominated="n")
        t.api.shut()
        t.reject("no room")
        await anyio.wait_all_tasks_blocked()
        t.reject("nobody to evict", "")
        t.reject("a plugin says no")
        await t.settled()
        assert t.api.said[1:] == [("no room", NOTHING), ("a plugin says no", "")]
        assert t.api.nominated == t.held == ""


async def test_of_several_nominations_the_newest_counts() -> None:
    async with one_term() as t:
        await begin(t)
        for node in ("n", "", "m"):
            t.reject("preempting", node)
        t.reject("victims leave")
        await t.settled()
        assert t.api.said[1:] == [("victims leave", "m")]


async def test_the_echo_of_an_earlier_nomination_does_not_silence_the_next() -> None:
    async with one_term() as t:
        t.api.shut()
        t.reject("preempting", "n")
        await anyio.wait_all_tasks_blocked()
        t.reject("preempting there", "m")
        t.see(nominated="n")  # before the answer
        t.reject("victims leave")
        await t.settled()
        assert t.api.said == [("preempting", "n"), ("victims leave", "m")]


# -- a word that did not arrive ---------------------------------------------------------------


@pytest.mark.parametrize("code", [403, 500])
@pytest.mark.parametrize("message", ["preempting", "victims leave"])
async def test_a_nomination_that_was_not_written_goes_with_the_next_word(
    code: int, message: str
) -> None:
    async with one_term() as t:
        t.api.codes = [code]
        t.reject("preempting", "n")
        await t.settled()
        assert t.api.nominated == ""
        t.reject(message)
        await t.settled()
        assert t.api.said == [("preempting", "n"), (message, "n")]


async def test_it_goes_with_what_waits_already() -> None:
    async with one_term() as t:
        t.api.shut()
        t.api.codes = [500, 500]
        t.reject("preempting", "n")
        await anyio.wait_all_tasks_blocked()
        t.reject("victims leave")
        await t.settled()
        assert t.api.said == [("preempting", "n"), ("victims leave", "n")]
        t.reject("victims leave")
        await t.settled()
        assert t.api.said[2:] == [("victims leave", "n")]


async def test_not_in_place_of_one_that_was_decided_since() -> None:
    async with one_term() as t:
        t.api.shut()
        t.api.codes = [500]
        t.reject("preempting", "n")
        await anyio.wait_all_tasks_blocked()
        t.reject("preempting there", "m")
        await t.settled()
        assert t.api.said == [("preempting", "n"), ("preempting there", "m")]


async def test_the_end_of_a_nomination_that_was_not_written_is_said_again() -> None:
    async with one_term() as t:
        t.reject("preempting", "n")
        await t.settled()
        t.see(nominated="n")
        t.api.codes = [500]
        t.reject("nobody to evict", "")
        await t.settled()
        assert t.api.nominated == "n"
        t.reject("a plugin says no")
        await t.settled()
        assert t.api.said[2:] == [("a plugin says no", "")]


async def test_a_nomination_that_arrived_though_nobody_answered_is_not_said_again() -> None:
    async with one_term() as t:
        t.api.codes = [500]
        t.reject("preempting", "n")
        await t.settled()
        t.see(nominated="n")
        t.reject("victims leave")
        await t.settled()
        assert t.api.said[1:] == [("victims leave", NOTHING)]


# -- displaced --------------------------------------------------------------------------------


async def test_a_displaced_pod_whose_nomination_waits_says_at_once_that_it_has_none() -> None:
    async with one_term() as t:
        await begin(t)
        t.reject("preempting", "n")
        t.displace()
        await t.settled()
        of_p = [said for said in t.api.said[1:] if said[0] != "first"]
        assert of_p == [("preempting", "")]


async def test_a_displacement_that_was_not_written_goes_with_the_next_word() -> None:
    async with one_term() as t:
        t.reject("preempting", "n")
        await t.settled()
        t.see(nominated="n")
        t.api.shut()
        t.api.codes = [500, 500]
        t.displace()
        await anyio.wait_all_tasks_blocked()
        assert ("", "") in t.api.said
        t.reject("no room")
        await t.settled()
        assert t.api.said[-1] == ("no room", "")
        assert t.api.nominated == t.held == ""


async def test_a_displaced_pod_that_is_nominated_again_is_not_cleared_afterwards() -> None:
    async with one_term() as t:
        await begin(t)
        t.displace()
        t.reject("preempting there", "m")
        await t.settled()
        of_p = [said for said in t.api.said[1:] if said[0] != "first"]
        assert of_p == [("preempting there", "m")]


# -- no nomination of a pod that has its node, or is gone ---------------------------------------


async def test_no_nomination_is_written_for_a_pod_that_got_a_node_or_went() -> None:
    async with one_term() as t:
        await begin(t)
        t.reject("preempting", "n")
        t.decide(Assigned(KEY, UID, "n", 2, 1))
        t.scheduling.apply(ObjectDeleted("Pod", KEY, UID))
        t.effects.forget(KEY, UID)
        await t.settled()
        assert t.api.said == [("no room", NOTHING)]


async def test_nor_when_the_node_was_lost_again_before_it_was_said() -> None:
    async with one_term() as t:
        await begin(t)
        t.reject("preempting", "n")
        t.decide(Assigned(KEY, UID, "n", 2, 1, permit_waits=(PermitWait("Permit", 10**18),)))
        t.decide(PermitRejected(KEY, UID, "Permit", "not now"))
        await t.settled()
        assert t.api.said[1:] == [("not now", NOTHING)]
        assert t.held == ""


async def test_a_nomination_that_ended_with_an_assignment_is_cleared_with_what_became_of_it() -> (
    None
):
    async with one_term() as t:
        t.reject("preempting", "n")
        await t.settled()
        t.see(nominated="n")
        t.decide(Assigned(KEY, UID, "n", 2, 1, permit_waits=(PermitWait("Permit", 10**18),)))
        failure = BindFailed(KEY, UID, "n", Code.ERROR, message="the node is gone")
        t.scheduling.apply(failure)
        t.effects.binding_failed(failure)
        await t.settled()
        assert t.api.said[1:] == [("the node is gone", "")]
        assert t.api.nominated == t.held == ""


# -- nothing needless -------------------------------------------------------------------------


async def test_condition_and_nomination_are_one_patch_and_said_once() -> None:
    async with one_term() as t:
        t.reject("preempting", "n")
        await t.settled()
        t.reject("preempting")  # the watch lags
        t.see(nominated="n")
        t.reject("preempting")
        t.reject("preempting", "n")
        await t.settled()
        assert t.api.said == [("preempting", "n")]
        t.reject("victims leave", "n")
        await t.settled()
        assert t.api.said[1:] == [("victims leave", NOTHING)]


async def test_who_has_no_nomination_is_not_told_so() -> None:
    async with one_term() as t:
        t.reject("nobody to evict", "")
        await t.settled()
        assert t.api.said == [("nobody to evict", NOTHING)]


async def test_what_somebody_else_nominated_stays_until_we_decide() -> None:
    async with one_term() as t:
        t.reject("no room")
        await t.settled()
        t.see(nominated="m")
        t.reject("no room")
        t.reject("victims leave")
        await t.settled()
        assert t.api.said[1:] == [("victims leave", NOTHING)]
        t.reject("victims leave", "n")
        await t.settled()
        assert t.api.said[2:] == [("victims leave", "n")]


async def test_a_nomination_that_somebody_took_away_is_written_when_it_is_decided_again() -> None:
    async with one_term() as t:
        t.reject("preempting", "n")
        await t.settled()
        t.see(nominated="n")
        t.see(nominated="")
        t.reject("preempting")
        await t.settled()
        assert t.api.said == [("preempting", "n")]
        t.reject("preempting", "n")
        await t.settled()
        assert t.api.said[1:] == [("preempting", "n")]


# -- another life -----------------------------------------------------------------------------


async def test_what_was_not_said_before_a_restart_is_said_after_it() -> None:
    scheduling, api = a_cluster(), Api()
    api.codes = [500]
    async with term(scheduling, api) as before:
        before.reject("preempting", "n")
        await before.settled()
    async with term(scheduling, api) as after:
        after.effects.resume()
        await after.settled()
        assert api.said[1:] == [("", "n")]
        after.see(nominated="n")
        after.reject("victims leave")
        await after.settled()
    assert api.said[2:] == [("victims leave", NOTHING)]


async def test_it_is_not_said_alone_where_the_pod_is_decided_about_at_once() -> None:
    scheduling, api = a_cluster(), Api()
    scheduling.apply(Rejected(KEY, UID, 1, "preempting", ("Fit",), nominated_node="n"))
    async with term(scheduling, api) as after:
        after.effects.resume()
        after.reject("preempting there", "m")
        await after.settled()
    assert api.said == [("preempting there", "m")]


async def test_nor_where_it_is_assigned_at_once() -> None:
    scheduling, api = a_cluster(), Api()
    scheduling.apply(Rejected(KEY, UID, 1, "preempting", ("Fit",), nominated_node="n"))
    async with term(scheduling, api) as after:
        after.effects.resume()
        after.decide(Assigned(KEY, UID, "n", 2, 1, permit_waits=(PermitWait("Permit", 10**18),)))
        await after.settled()
    assert api.said == []


async def test_what_an_earlier_term_did_not_say_goes_with_the_first_word_of_the_next() -> None:
    scheduling, api = a_cluster(), Api()
    api.codes = [403]
    async with term(scheduling, api) as before:
        before.reject("preempting", "n")
        before.effects.depose()
        await before.settled()
    async with term(scheduling, api) as after:
        after.effects.abandon_previous_term()
        await after.settled()
        assert api.said[1:] == []
        after.reject("victims leave")
        await after.settled()
    assert api.said[1:] == [("victims leave", "n")]


async def test_what_was_said_before_a_restart_is_not_said_again() -> None:
    scheduling, api = a_cluster(), Api()
    async with term(scheduling, api) as before:
        before.reject("preempting", "n")
        await before.settled()
    async with term(scheduling, api) as after:
        after.see(nominated="n")
        after.effects.resume()
        after.reject("victims leave")
        await after.settled()
    assert api.said[1:] == [("victims leave", NOTHING)]


async def test_what_another_leader_nominated_since_overrules_what_an_earlier_term_did_not_say() -> (
    None
):
    scheduling, api = a_cluster(), Api()
    api.codes = [403]
    async with term(scheduling, api) as before:
        before.reject("preempting", "n")
        before.effects.depose()
        await before.settled()
    async with term(scheduling, api) as after:
        after.see(nominated="m")
        after.effects.abandon_previous_term()
        after.reject("victims leave")
        await after.settled()
    assert api.said[1:] == [("victims leave", NOTHING)]
    assert after.held == "m"
