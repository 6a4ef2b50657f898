"""Writing nominations: the API shows the nominated node despite failed or replaced patches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import ClassVar

import anyio
import anyio.lowlevel
import msgspec
import pytest

from asched.config.settings import PluginLimits
from asched.daemon.effects.dispatcher import EffectDispatcher
from asched.daemon.effects.per_pod_queue import EffectServices
from asched.daemon.engine.inbox import Inbox
from asched.daemon.plugin_host.external_plugins import ExternalPlugins
from asched.daemon.telemetry.metrics import Metrics
from asched.framework.binding import BindingClient
from asched.framework.cluster import PodRef
from asched.framework.feature_gates import FeatureGates
from asched.framework.interface import PreBindPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import Code, Status
from asched.kube.client import ApiClient, RenewingCredentials
from asched.kube.timing import Backoff, RetryPolicy
from asched.kube.transport import (
    ApiRequest,
    Credentials,
    HttpResponse,
    StreamingResponse,
    Transport,
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
    ProfilesLoaded,
    Rejected,
)
from tests.cycle.scheduling import Scheduling
from tests.kube.harness import FixedCredentials, ManualClock
from tests.state.objects import a_node, a_pod, bound
from tests.state.profiles import loader, profile_of

KEY, UID = "default/p", "pod-p"
UNCHANGED = "-"
"""A patch that does not contain the nomination."""


class _Condition(msgspec.Struct):
    message: str


class _Status(msgspec.Struct, rename="camel"):
    conditions: tuple[_Condition, ...] = ()
    nominated_node_name: str | msgspec.UnsetType | None = msgspec.UNSET


class _Patch(msgspec.Struct):
    status: _Status


class Api(Transport):
    """Records the patches of pods, and answers while it is open."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, str]] = []
        """Message (or empty) and nomination of each patch."""
        self.nominated = ""
        """The nomination in the API."""
        self.codes: list[int] = []
        """Status codes of the next requests; 200 after them."""
        self.is_open = anyio.Event()
        self.is_open.set()

    def close(self) -> None:
        self.is_open = anyio.Event()

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        if request.method != "PATCH":
            return HttpResponse(403, b"{}", None, reusable=True)  # bindings are rejected
        status = msgspec.json.decode(request.body or b"", type=_Patch).status
        node = status.nominated_node_name
        self.patches.append(
            (
                status.conditions[0].message if status.conditions else "",
                UNCHANGED if node is msgspec.UNSET else node or "",
            )
        )
        await self.is_open.wait()
        code = self.codes.pop(0) if self.codes else 200
        if code == 200 and node is not msgspec.UNSET:
            self.nominated = node or ""
        return HttpResponse(code, b"{}", None, reusable=True)

    async def open(self, credentials: Credentials, request: ApiRequest) -> StreamingResponse:
        raise NotImplementedError("no watches")


class Term:
    """One term of a daemon: folds decisions and dispatches their effects."""

    def __init__(
        self, scheduling: Scheduling, effects: EffectDispatcher, api: Api, inbox: Inbox
    ) -> None:
        self.scheduling, self.effects, self.api, self._inbox = scheduling, effects, api, inbox

    def failure(self) -> BindFailed:
        """The reported outcome of the binding."""
        outcome = self._inbox.next_outcome()
        assert isinstance(outcome, BindFailed)
        return outcome

    def decide(self, decision: Decision) -> None:
        self.scheduling.apply(decision)
        self.effects.dispatch(decision)

    def reject(self, message: str, nominated: str | None = None) -> None:
        self.decide(Rejected(KEY, UID, 1, message, ("NodeResourcesFit",), nominated_node=nominated))

    def displace(self) -> None:
        """Nominate another pod to the node, which clears this pod's nomination."""
        self.decide(
            Rejected(
                key="default/first",
                uid="pod-first",
                attempt=1,
                message="first",
                unschedulable_plugins=("NodeResourcesFit",),
                nominated_node="n",
                cleared_nominations=(PodRef(KEY, UID),),
            )
        )

    def see(self, nominated: str) -> None:
        """The watch shows the pod."""
        condition = PodCondition(type="PodScheduled", status="False")
        self.scheduling.see(a_pod("p", nominated=nominated, conditions=(condition,)))

    @property
    def nominated(self) -> str:
        return self.scheduling.state.nominator.node_of(KEY)

    async def until_idle(self) -> None:
        self.api.is_open.set()
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
    external = ExternalPlugins(scheduling.state, loader(NodeResourcesFit), PluginLimits())
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
                plugins=external,
                check_writer=anyio.lowlevel.checkpoint,
            ),
        )
        yield Term(scheduling, effects, api, inbox)
        effects.stop()


def a_cluster() -> Scheduling:
    scheduling = Scheduling(NodeResourcesFit)
    scheduling.see(a_node("n"), a_node("m"), a_pod("p"), a_pod("first", priority=9))
    return scheduling


@asynccontextmanager
async def one_term() -> AsyncIterator[Term]:
    async with term(a_cluster(), Api()) as t:
        yield t


async def begin_patch(t: Term) -> None:
    """Start a first patch, which is not answered: later patches are queued."""
    t.api.close()
    t.reject("no room")
    await anyio.wait_all_tasks_blocked()
    assert t.api.patches == [("no room", UNCHANGED)]


# -- a patch replaces another -----------------------------------------------------------------


async def test_later_patch_contains_nomination_of_replaced_patch() -> None:
    async with one_term() as t:
        await begin_patch(t)
        t.reject("preempting", "n")
        t.reject("waiting for victims")
        await t.until_idle()
        assert t.api.patches[1:] == [("waiting for victims", "n")]
        assert t.api.nominated == t.nominated == "n"


async def test_later_patch_contains_cleared_nomination_of_replaced_patch() -> None:
    async with one_term() as t:
        t.reject("preempting", "n")
        await t.until_idle()
        t.see(nominated="n")
        t.api.close()
        t.reject("no room")
        await anyio.wait_all_tasks_blocked()
        t.reject("no victims", "")
        t.reject("rejected by plugin")
        await t.until_idle()
        assert t.api.patches[1:] == [("no room", UNCHANGED), ("rejected by plugin", "")]
        assert t.api.nominated == t.nominated == ""


async def test_newest_of_several_nominations_is_written() -> None:
    async with one_term() as t:
        await begin_patch(t)
        for node in ("n", "", "m"):
            t.reject("preempting", node)
        t.reject("waiting for victims")
        await t.until_idle()
        assert t.api.patches[1:] == [("waiting for victims", "m")]


async def test_watch_of_earlier_nomination_does_not_suppress_next() -> None:
    async with one_term() as t:
        t.api.close()
        t.reject("preempting", "n")
        await anyio.wait_all_tasks_blocked()
        t.reject("preempting again", "m")
        t.see(nominated="n")  # before the response
        t.reject("waiting for victims")
        await t.until_idle()
        assert t.api.patches == [("preempting", "n"), ("waiting for victims", "m")]


# -- failed patches ---------------------------------------------------------------------------


@pytest.mark.parametrize("code", [403, 500])
@pytest.mark.parametrize("message", ["preempting", "waiting for victims"])
async def test_failed_nomination_is_written_with_next_patch(code: int, message: str) -> None:
    async with one_term() as t:
        t.api.codes = [code]
        t.reject("preempting", "n")
        await t.until_idle()
        assert t.api.nominated == ""
        t.reject(message)
        await t.until_idle()
        assert t.api.patches == [("preempting", "n"), (message, "n")]


async def test_failed_nomination_is_written_with_queued_patch() -> None:
    async with one_term() as t:
        t.api.close()
        t.api.codes = [500, 500]
        t.reject("preempting", "n")
        await anyio.wait_all_tasks_blocked()
        t.reject("waiting for victims")
        await t.until_idle()
        assert t.api.patches == [("preempting", "n"), ("waiting for victims", "n")]
        t.reject("waiting for victims")
        await t.until_idle()
        assert t.api.patches[2:] == [("waiting for victims", "n")]


async def test_failed_nomination_does_not_replace_newer_one() -> None:
    async with one_term() as t:
        t.api.close()
        t.api.codes = [500]
        t.reject("preempting", "n")
        await anyio.wait_all_tasks_blocked()
        t.reject("preempting again", "m")
        await t.until_idle()
        assert t.api.patches == [("preempting", "n"), ("preempting again", "m")]


async def test_failed_clearing_is_repeated() -> None:
    async with one_term() as t:
        t.reject("preempting", "n")
        await t.until_idle()
        t.see(nominated="n")
        t.api.codes = [500]
        t.reject("no victims", "")
        await t.until_idle()
        assert t.api.nominated == "n"
        t.reject("rejected by plugin")
        await t.until_idle()
        assert t.api.patches[2:] == [("rejected by plugin", "")]


@pytest.mark.parametrize("node", ["n", ""])
async def test_failed_nomination_is_tried_again_without_another_decision(node: str) -> None:
    """Until then the API server may show an older one, which takes room on a node."""
    async with one_term() as t:
        t.reject("preempting", "m")
        await t.until_idle()
        t.api.codes = [500, 500]
        t.reject("again", node)
        with anyio.fail_after(60):
            while t.api.nominated != node:
                await anyio.lowlevel.checkpoint()
        assert t.api.patches[1:] == [("again", node), ("", node), ("", node)]


async def test_rejected_nomination_is_not_tried_again() -> None:
    async with one_term() as t:
        t.api.codes = [403]
        t.reject("preempting", "n")
        await t.until_idle()
        await anyio.wait_all_tasks_blocked()
        assert t.api.patches == [("preempting", "n")]


async def test_nomination_written_by_failed_request_is_not_repeated() -> None:
    async with one_term() as t:
        t.api.codes = [500]
        t.reject("preempting", "n")
        await t.until_idle()
        t.see(nominated="n")
        t.reject("waiting for victims")
        await t.until_idle()
        assert t.api.patches[1:] == [("waiting for victims", UNCHANGED)]


# -- preempted nominations--------------------------------------------------------------------------


async def test_queued_nomination_is_cleared_by_preemption() -> None:
    async with one_term() as t:
        await begin_patch(t)
        t.reject("preempting", "n")
        t.displace()
        await t.until_idle()
        of_p = [patch for patch in t.api.patches[1:] if patch[0] != "first"]
        assert of_p == [("preempting", "")]


async def test_failed_clearing_is_written_with_next_patch() -> None:
    async with one_term() as t:
        t.reject("preempting", "n")
        await t.until_idle()
        t.see(nominated="n")
        t.api.close()
        t.api.codes = [500, 500]
        t.displace()
        await anyio.wait_all_tasks_blocked()
        assert ("", "") in t.api.patches
        t.reject("no room")
        await t.until_idle()
        assert t.api.patches[-1] == ("no room", "")
        assert t.api.nominated == t.nominated == ""


async def test_new_nomination_replaces_queued_clearing() -> None:
    async with one_term() as t:
        await begin_patch(t)
        t.displace()
        t.reject("preempting again", "m")
        await t.until_idle()
        of_p = [patch for patch in t.api.patches[1:] if patch[0] != "first"]
        assert of_p == [("preempting again", "m")]


# -- assigned and deleted pods ------------------------------------------------------------------


async def test_nomination_of_assigned_and_deleted_pod_is_not_written() -> None:
    async with one_term() as t:
        await begin_patch(t)
        t.reject("preempting", "n")
        t.decide(Assigned(KEY, UID, "n", 2, 1))
        t.scheduling.apply(ObjectDeleted("Pod", KEY, UID))
        t.effects.on_pod_deleted(KEY, UID)
        await t.until_idle()
        assert t.api.patches == [("no room", UNCHANGED)]


async def test_nomination_before_permit_rejection_is_not_written() -> None:
    async with one_term() as t:
        await begin_patch(t)
        t.reject("preempting", "n")
        t.decide(Assigned(KEY, UID, "n", 2, 1, permit_waits=(PermitWait("Permit", 10**18),)))
        t.decide(PermitRejected(KEY, UID, "Permit", "not now"))
        await t.until_idle()
        assert t.api.patches[1:] == [("not now", UNCHANGED)]
        assert t.nominated == ""


async def test_failed_binding_clears_nomination() -> None:
    async with one_term() as t:
        t.reject("preempting", "n")
        await t.until_idle()
        t.see(nominated="n")
        t.decide(Assigned(KEY, UID, "n", 2, 1, permit_waits=(PermitWait("Permit", 10**18),)))
        failure = BindFailed(KEY, UID, "n", Code.ERROR, message="node deleted")
        t.scheduling.apply(failure)
        t.effects.binding_failed(failure)
        await t.until_idle()
        assert t.api.patches[1:] == [("node deleted", "")]
        assert t.api.nominated == t.nominated == ""


# -- a pod that waits is nominated to its node ------------------------------------------------

WAITING_ON_M = Assigned(KEY, UID, "m", 2, 1, permit_waits=(PermitWait("Permit", 10**18),))
EXPECTED_ON_M = ("", "m")


async def test_pod_that_waits_on_permit_is_nominated_to_its_node() -> None:
    async with one_term() as t:
        t.decide(WAITING_ON_M)
        await t.until_idle()
        assert t.api.patches == [EXPECTED_ON_M]
        assert t.nominated == ""  # it is on the node


async def test_gate_disables_expectations() -> None:
    gates = FeatureGates(nominated_node_name_for_expectation=False)
    scheduling = a_cluster()
    scheduling.apply(ProfilesLoaded((profile_of(NodeResourcesFit),), feature_gates=gates))
    async with term(scheduling, Api()) as t:
        t.decide(WAITING_ON_M)
        await t.until_idle()
        assert t.api.patches == []


async def test_expectation_that_the_pod_shows_is_not_written() -> None:
    async with one_term() as t:
        t.see(nominated="m")
        t.decide(WAITING_ON_M)
        await t.until_idle()
        assert t.api.patches == []


async def test_expectation_replaces_nomination_to_another_node() -> None:
    async with one_term() as t:
        t.reject("preempting", "n")
        await t.until_idle()
        t.see(nominated="n")
        t.decide(WAITING_ON_M)
        await t.until_idle()
        assert t.api.patches[1:] == [EXPECTED_ON_M]


@pytest.mark.parametrize("seen", [False, True])
async def test_rejection_on_permit_clears_expectation(seen: bool) -> None:
    """Whether or not the watch shows the expectation by then."""
    async with one_term() as t:
        t.decide(WAITING_ON_M)
        await t.until_idle()
        if seen:
            t.see(nominated="m")
        t.decide(PermitRejected(KEY, UID, "Permit", "not now"))
        await t.until_idle()
        assert t.api.patches[1:] == [("not now", "")]
        assert t.api.nominated == t.nominated == ""


@pytest.mark.parametrize("code", [500, 403])
async def test_failed_binding_clears_expectation_without_success(code: int) -> None:
    """The API server may have accepted it, or an earlier try."""
    async with one_term() as t:
        t.api.codes = [code]
        t.decide(WAITING_ON_M)
        await t.until_idle()
        failure = BindFailed(KEY, UID, "m", Code.ERROR, message="node deleted")
        t.scheduling.apply(failure)
        t.effects.binding_failed(failure)
        await t.until_idle()
        assert t.api.patches == [EXPECTED_ON_M, ("node deleted", "")]


async def test_expectation_of_rejected_pod_is_not_written() -> None:
    async with one_term() as t:
        await begin_patch(t)
        t.decide(WAITING_ON_M)
        t.decide(PermitRejected(KEY, UID, "Permit", "not now"))
        await t.until_idle()
        assert t.api.patches[1:] == [("not now", UNCHANGED)]


async def test_restart_writes_expectation_of_pod_on_permit() -> None:
    scheduling, api = a_cluster(), Api()
    scheduling.apply(WAITING_ON_M)
    async with term(scheduling, api) as after:
        after.effects.resume()
        await after.until_idle()
    assert api.patches == [EXPECTED_ON_M]


async def test_standby_writes_no_expectation() -> None:
    scheduling, api = a_cluster(), Api()
    scheduling.apply(WAITING_ON_M)
    async with term(scheduling, api) as after:
        after.effects.abandon_previous_term()
        await after.until_idle()
    assert api.patches == []


class Slow(PreBindPlugin):
    """Has PreBind work for pods with a label."""

    name: ClassVar[str] = "Slow"
    api_version: ClassVar[int] = 1

    def pre_bind_pre_flight(self, pod: PodInfo, node_name: str) -> bool:
        return "slow" in pod.labels

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        return Status.error("out of order")


@pytest.mark.parametrize("code", [200, 403])
async def test_pod_with_pre_bind_work_is_nominated(code: int) -> None:
    scheduling = Scheduling(Slow)
    scheduling.see(a_node("m"), a_pod("p", labels={"slow": ""}))
    async with term(scheduling, Api()) as t:
        t.api.codes = [code]
        t.decide(Assigned(KEY, UID, "m", 1, 1))
        await t.until_idle()
        assert t.api.patches == [EXPECTED_ON_M]
        # The binding continues if the write fails.
        assert t.failure().plugin == "Slow"


async def test_pod_without_pre_bind_work_is_not_nominated() -> None:
    scheduling = Scheduling(Slow)
    scheduling.see(a_node("m"), a_pod("p"))
    async with term(scheduling, Api()) as t:
        t.decide(Assigned(KEY, UID, "m", 1, 1))
        await anyio.wait_all_tasks_blocked()
        assert t.api.patches == []


# -- redundant patches ------------------------------------------------------------------------


async def test_condition_and_nomination_are_written_once_in_one_patch() -> None:
    async with one_term() as t:
        t.reject("preempting", "n")
        await t.until_idle()
        t.reject("preempting")  # the watch lags
        t.see(nominated="n")
        t.reject("preempting")
        t.reject("preempting", "n")
        await t.until_idle()
        assert t.api.patches == [("preempting", "n")]
        t.reject("waiting for victims", "n")
        await t.until_idle()
        assert t.api.patches[1:] == [("waiting for victims", UNCHANGED)]


async def test_condition_of_preemptor_stays_while_its_victims_terminate() -> None:
    async with one_term() as t:
        evicted = PodCondition(
            type="DisruptionTarget", status="True", reason="PreemptionByScheduler"
        )
        victim = bound(a_pod("victim", priority=-1, conditions=(evicted,)), "n")
        t.scheduling.see(victim)
        t.reject("preempting", "n")
        t.reject("victims terminate")
        await t.until_idle()
        assert t.api.patches == [("preempting", "n")]
        t.see(nominated="n")
        t.reject("victims terminate")
        t.reject("preempting again", "m")
        await t.until_idle()
        assert t.api.patches[1:] == [("preempting again", "m")]
        t.reject("preempting", "n")
        t.scheduling.apply(ObjectDeleted("Pod", "default/victim", "pod-victim"))
        t.reject("no room")
        await t.until_idle()
        assert t.api.patches[2:] == [("no room", "n")], "the victims are gone"


async def test_clearing_without_nomination_is_not_written() -> None:
    async with one_term() as t:
        t.reject("no victims", "")
        await t.until_idle()
        assert t.api.patches == [("no victims", UNCHANGED)]


async def test_foreign_nomination_is_kept_until_next_nomination() -> None:
    async with one_term() as t:
        t.reject("no room")
        await t.until_idle()
        t.see(nominated="m")
        t.reject("no room")
        t.reject("waiting for victims")
        await t.until_idle()
        assert t.api.patches[1:] == [("waiting for victims", UNCHANGED)]
        t.reject("waiting for victims", "n")
        await t.until_idle()
        assert t.api.patches[2:] == [("waiting for victims", "n")]


async def test_removed_nomination_is_written_again_when_decided_again() -> None:
    async with one_term() as t:
        t.reject("preempting", "n")
        await t.until_idle()
        t.see(nominated="n")
        t.see(nominated="")
        t.reject("preempting")
        await t.until_idle()
        assert t.api.patches == [("preempting", "n")]
        t.reject("preempting", "n")
        await t.until_idle()
        assert t.api.patches[1:] == [("preempting", "n")]


# -- restart and new term-----------------------------------------------------------------------


async def test_nomination_not_written_before_restart_is_written_after_it() -> None:
    scheduling, api = a_cluster(), Api()
    api.codes = [500]
    async with term(scheduling, api) as before:
        before.reject("preempting", "n")
        await before.until_idle()
    async with term(scheduling, api) as after:
        after.effects.resume()
        await after.until_idle()
        assert api.patches[1:] == [("", "n")]
        after.see(nominated="n")
        after.reject("waiting for victims")
        await after.until_idle()
    assert api.patches[2:] == [("waiting for victims", UNCHANGED)]


async def test_restart_writes_nomination_with_new_decision() -> None:
    scheduling, api = a_cluster(), Api()
    scheduling.apply(Rejected(KEY, UID, 1, "preempting", ("Fit",), nominated_node="n"))
    async with term(scheduling, api) as after:
        after.effects.resume()
        after.reject("preempting again", "m")
        await after.until_idle()
    assert api.patches == [("preempting again", "m")]


async def test_restart_writes_no_earlier_nomination_if_pod_is_assigned() -> None:
    scheduling, api = a_cluster(), Api()
    scheduling.apply(Rejected(KEY, UID, 1, "preempting", ("Fit",), nominated_node="n"))
    async with term(scheduling, api) as after:
        after.effects.resume()
        after.decide(WAITING_ON_M)
        await after.until_idle()
    assert api.patches == [EXPECTED_ON_M]


async def test_nomination_of_previous_term_is_written_with_first_patch() -> None:
    scheduling, api = a_cluster(), Api()
    api.codes = [403]
    async with term(scheduling, api) as before:
        before.reject("preempting", "n")
        before.effects.depose()
        await before.until_idle()
    async with term(scheduling, api) as after:
        after.effects.abandon_previous_term()
        await after.until_idle()
        assert api.patches[1:] == []
        after.reject("waiting for victims")
        await after.until_idle()
    assert api.patches[1:] == [("waiting for victims", "n")]


async def test_nomination_written_before_restart_is_not_repeated() -> None:
    scheduling, api = a_cluster(), Api()
    async with term(scheduling, api) as before:
        before.reject("preempting", "n")
        await before.until_idle()
    async with term(scheduling, api) as after:
        after.see(nominated="n")
        after.effects.resume()
        after.reject("waiting for victims")
        await after.until_idle()
    assert api.patches[1:] == [("waiting for victims", UNCHANGED)]


async def test_nomination_of_another_leader_replaces_unwritten_one() -> None:
    scheduling, api = a_cluster(), Api()
    api.codes = [403]
    async with term(scheduling, api) as before:
        before.reject("preempting", "n")
        before.effects.depose()
        await before.until_idle()
    async with term(scheduling, api) as after:
        after.see(nominated="m")
        after.effects.abandon_previous_term()
        after.reject("waiting for victims")
        await after.until_idle()
    assert api.patches[1:] == [("waiting for victims", UNCHANGED)]
    assert after.nominated == "m"
