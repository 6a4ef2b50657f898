"""Single turns of an engine: which inputs a turn takes, and the time of its decisions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import ClassVar

import anyio

from asched.audit.replay import replay
from asched.config.registry import PluginRegistry
from asched.config.settings import PluginLimits
from asched.core.inputs import Listed, Upserted
from asched.daemon.effects.dispatcher import EffectDispatcher
from asched.daemon.effects.per_pod_queue import EffectServices
from asched.daemon.engine.engine import Engine, EngineOptions
from asched.daemon.engine.inbox import Inbox, Reconfiguration
from asched.daemon.engine.journaling import JournalAppender
from asched.daemon.plugin_host.external_plugins import ExternalPlugins
from asched.daemon.telemetry.metrics import Metrics
from asched.framework.cycle_state import CycleState
from asched.framework.interface import PermitResult, Plugin, WaitingPodReviewer
from asched.framework.pod_info import PodInfo
from asched.framework.status import Code, Status
from asched.journal.memory import MemoryStore
from asched.kube.client import ApiClient, RenewingCredentials
from asched.kube.timing import Backoff, Clock, RetryPolicy
from asched.kube.transport import Credentials
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import AnyObject, Resource
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import (
    AnyRecord,
    Assigned,
    Bound,
    EngineStarted,
    LeadershipGained,
    PermitRejected,
    ProfilesLoaded,
    Rejected,
    TurnStarted,
)
from tests.daemon.test_bindings import BlockingPreBind, GatedApi
from tests.kube.harness import BEGIN, TIMEOUT_S, FixedCredentials, ManualClock
from tests.state.objects import a_node, a_pod, bound
from tests.state.profiles import ESSENTIAL, profile_of

STEP_NS = 1_000_000
"""Time between two reads of the clock, so that a time slice has a fixed number of steps."""


class StepClock(Clock):
    """Advances each time it is read."""

    def __init__(self, step_ns: int = STEP_NS) -> None:
        self._elapsed_ns = 0
        self._step_ns = step_ns
        self.blocked_s: list[float] = []
        self.on_block: Callable[[], None] = lambda: None

    def time_ns(self) -> int:
        return int(BEGIN.timestamp()) * NS_PER_S + self._elapsed_ns

    def monotonic_ns(self) -> int:
        self._elapsed_ns += self._step_ns
        return self._elapsed_ns

    async def sleep(self, delay_s: float) -> None:
        raise NotImplementedError("journal appends never fail")

    def block(self, delay_s: float) -> None:
        self._elapsed_ns += round(delay_s * NS_PER_S)
        self.blocked_s.append(delay_s)
        self.on_block()


class EngineFixture:
    """An engine with its inbox, effects and journal."""

    def __init__(
        self,
        engine: Engine,
        effects: EffectDispatcher,
        inbox: Inbox,
        api: GatedApi,
        journal: MemoryStore,
        plugins: tuple[type[Plugin], ...],
        state: ClusterState,
    ) -> None:
        self.engine = engine
        self.effects = effects
        self.inbox = inbox
        self.api = api
        self.state = state
        self._journal = journal
        self._plugins = plugins

    async def turn(self, *objects: AnyObject) -> None:
        """Run one turn after a watch showed these objects."""
        if objects:
            self.show(*objects)
        await self.engine.turn()

    def show(self, *objects: AnyObject) -> None:
        self.inbox.put_changes(
            tuple(
                Upserted(Resource.PODS if isinstance(item, Pod) else Resource.NODES, item)
                for item in objects
            )
        )

    async def records(self) -> list[AnyRecord]:
        return [stored.record async for stored in self._journal.read()]

    async def replayed(self) -> bool:
        """Whether a replay of the journal makes equal decisions."""
        registry = PluginRegistry({plugin.name: plugin for plugin in (*ESSENTIAL, *self._plugins)})
        return (await replay(self._journal, registry)).equal


@asynccontextmanager
async def running_engine(
    *plugins: type[Plugin],
    slice_s: float = 0.05,
    max_effects_in_flight: int = 2_000,
    standby: bool = False,
    may_decide: Callable[[], bool] = lambda: True,
    engine_clock: StepClock | None = None,
) -> AsyncIterator[EngineFixture]:
    """An engine with synced caches, and an API server that answers while its gate is open."""
    api, clock, random, journal = GatedApi(), ManualClock(), Random(1), MemoryStore()
    engine_clock = engine_clock or StepClock()
    inbox, state, metrics = Inbox(monotonic_ns=engine_clock.monotonic_ns), ClusterState(), Metrics()
    load = {plugin.name: plugin for plugin in (*ESSENTIAL, *plugins)}.__getitem__
    credentials = Credentials("http://127.0.0.1")
    renewing = RenewingCredentials(FixedCredentials(credentials), credentials, clock)
    retry = RetryPolicy(attempts=1)
    client = ApiClient(api, renewing, clock=clock, random=random, retry=retry)
    await journal.claim("test", claimed_at_ns=engine_clock.time_ns())
    async with anyio.create_task_group() as tasks:
        effects = EffectDispatcher(
            state,
            inbox,
            EffectServices(
                client=client,
                events=None,
                tasks=tasks,
                backoff=lambda: Backoff(RetryPolicy(), random),
                metrics=metrics,
                plugins=ExternalPlugins(state, load, PluginLimits()),
                check_writer=anyio.lowlevel.checkpoint,
            ),
        )
        options = EngineOptions(
            unsynced=frozenset(),
            slice_s=slice_s,
            max_effects_in_flight=max_effects_in_flight,
            standby=standby,
            may_decide=may_decide,
        )
        appender = JournalAppender(journal, engine_clock, metrics, next_seq=1)
        engine = Engine(Fold(state, load), appender, effects, inbox, engine_clock, metrics, options)
        started = EngineStarted("test", seed=1)
        engine.record_start(started, ProfilesLoaded((profile_of(*plugins),)))
        yield EngineFixture(engine, effects, inbox, api, journal, plugins, state)
        effects.stop()


# -- a new leader -------------------------------------------------------------------------------


async def test_new_leader_decides_after_folding_earlier_changes() -> None:
    """The list takes many turns, and new changes keep arriving."""
    full = {"cpu": "800m"}
    pending, filling = a_pod("pending", full), a_pod("filling", full, on="n0")
    others = [a_pod(f"other-{number}", {}, on="elsewhere") for number in range(150)]
    leading_when_applied: list[bool] = []
    async with running_engine(NodeResourcesFit, slice_s=0.01, standby=True) as s:
        await s.turn(a_node("n0", {"cpu": "1", "pods": "9"}), pending)
        s.inbox.put_changes((Listed(Resource.PODS, (*others, pending, filling)),))
        s.inbox.put_outcome(LeadershipGained(1))
        s.inbox.put_changes((Listed(Resource.PODS, (*others, pending, filling)),) * 9)
        reconfigured = Reconfiguration(
            (), {}, lambda: leading_when_applied.append(s.engine.leading)
        )
        s.inbox.put_outcome(reconfigured)
        turns = 0
        while not s.engine.leading:
            await s.turn(*(a_pod(f"new-{turns}-{number}", {}, on="n0") for number in range(20)))
            turns += 1
            assert turns < 20, "only earlier changes delay leadership"
        assert len(s.inbox) > 20 * turns
        records = await s.records()
        assert not [record for record in records if isinstance(record, Assigned)]
        assert [record.key for record in records if isinstance(record, Rejected)] == [pending.key]
        assert await s.replayed()
    assert turns > 3
    assert leading_when_applied == [False], "other outcomes are not delayed"


async def test_new_leader_without_changes_decides_immediately() -> None:
    async with running_engine(NodeResourcesFit, standby=True) as s:
        await s.turn(a_node("n0"), a_pod("p"))
        assert "default/p" in s.state.queue
        s.inbox.put_outcome(LeadershipGained(1))
        await s.turn()
        assert s.state.pods["default/p"].node == "n0"


# -- another configuration ------------------------------------------------------------------------


async def test_new_configuration_does_not_accept_earlier_list() -> None:
    """One earlier list is partly folded, another one is queued."""
    pending = a_pod("pending")
    pods = (*(a_pod(f"other-{number}", {}, on="elsewhere") for number in range(50)), pending)
    applied: list[bool] = []
    async with running_engine(NodeResourcesFit, slice_s=0.01, standby=True) as s:
        await s.turn(a_node("n0"))
        s.inbox.put_changes((Listed(Resource.PODS, pods), Listed(Resource.PODS, pods)))
        await s.turn()
        assert 0 < len(s.state.pods) < len(pods)
        s.inbox.put_outcome(
            Reconfiguration((), {Resource.PODS: 1}, lambda: applied.append(s.engine.leading))
        )
        s.inbox.put_outcome(LeadershipGained(1))
        for _ in range(50):
            await s.turn()
        assert applied == [False]
        assert s.engine.leading
        assert pending.key in s.state.queue
        caches, *_ = s.engine.checks()
        assert caches.problem() == "not listed yet: pods"
        s.inbox.put_changes((Listed(Resource.PODS, pods, relist_count=1),))
        for _ in range(50):
            await s.turn()
        assert s.state.pods[pending.key].node == "n0"
        assert caches.problem() == ""


# -- the time of decisions ----------------------------------------------------------------------


class RejectWithTime(WaitingPodReviewer):
    """Holds the pod ``held`` until node n1 exists, then rejects it with the current time."""

    name: ClassVar[str] = "RejectWithTime"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        if pod.name == "held":
            return PermitResult(Status(Code.WAIT), timeout_s=600.0)
        return PermitResult()

    def review_waiting_pods(self) -> None:
        cluster = self.handle.cluster
        for held in self.handle.waiting_pods():
            if cluster.nodes.row_of("n1") is not None:
                held.reject(self.name, f"rejected at {cluster.now_ns}")


async def rejected_at_recorded_time(s: EngineFixture) -> bool:
    """Whether the pod was rejected at the recorded time of the turn."""
    now_ns = 0
    for record in await s.records():
        if isinstance(record, TurnStarted):
            now_ns = record.now_ns
        elif isinstance(record, PermitRejected):
            return record.message == f"rejected at {now_ns}" and await s.replayed()
    return False


async def test_permit_review_after_lost_leadership_uses_recorded_time() -> None:
    leading = True
    async with running_engine(RejectWithTime, may_decide=lambda: leading) as s:
        await s.turn(a_node("n0"), a_pod("held"))
        assert "default/held" in s.state.waiting
        await s.turn()
        leading = False
        await s.turn(a_node("n1"))
        assert "default/held" in s.state.waiting
        leading = True
        await s.turn()
        assert await rejected_at_recorded_time(s)


async def test_permit_review_after_too_many_effects_uses_recorded_time() -> None:
    """A binding that waits for a plugin is no load; when it continues, decisions pause."""
    BlockingPreBind.may_end = anyio.Event()
    async with running_engine(RejectWithTime, BlockingPreBind, max_effects_in_flight=1) as s:
        await s.turn(a_node("n0"), a_pod("held"))
        await anyio.wait_all_tasks_blocked()  # the nomination of the waiting pod is written
        await s.turn(a_pod("p"))
        await anyio.wait_all_tasks_blocked()
        assert (s.effects.in_flight, s.effects.load) == (1, 0)
        await s.turn()
        s.api.close()
        BlockingPreBind.may_end.set()
        await anyio.wait_all_tasks_blocked()
        assert s.effects.load == 1
        await s.turn(a_node("n1"), bound(a_pod("p"), "n0"))
        assert "default/held" in s.state.waiting
        s.api.is_open.set()
        with anyio.fail_after(TIMEOUT_S):
            while s.effects.in_flight:
                await anyio.lowlevel.checkpoint()
        await s.turn()
        assert await rejected_at_recorded_time(s)


async def test_end_of_an_effect_wakes_the_engine_if_it_has_too_many() -> None:
    """A written condition has no outcome that would cause a turn."""
    async with running_engine(max_effects_in_flight=1) as s:
        for name, turns, by_time in (("first", 1, True), ("second", 2, False)):
            s.api.close()
            s.show(a_pod(name))
            await s.inbox.wait()
            for _ in range(turns):  # the second turn may decide nothing
                await s.turn()
            await anyio.wait_all_tasks_blocked()
            assert s.effects.in_flight == 1
            s.api.is_open.set()
            await anyio.wait_all_tasks_blocked()
            assert not s.effects.in_flight
            assert await s.inbox.wait(anyio.current_time()) == by_time


async def test_turn_without_input_records_nothing() -> None:
    async with running_engine(RejectWithTime) as s:
        await s.turn(a_node("n0"), a_pod("held"))
        before = await s.records()
        await s.turn()
        await s.turn()
        assert await s.records() == before


# -- deferred turns ------------------------------------------------------------------------------


async def test_confirmation_is_recorded_without_another_arrival() -> None:
    async with running_engine() as s, anyio.create_task_group() as tasks:
        tasks.start_soon(s.engine.run)
        s.show(a_node("n0"), a_pod("p"))
        with anyio.fail_after(TIMEOUT_S):
            while not s.engine.stats.bound:
                await anyio.lowlevel.checkpoint()
        s.engine.stop()
    assert [type(record) for record in await s.records()].count(Bound) == 1


async def test_confirmation_shares_the_commit_of_the_next_pod() -> None:
    async with running_engine() as s:
        await s.turn(a_node("n0"), a_pod("first"))
        s.show(bound(a_pod("first"), "n0"))
        assert not s.inbox.urgent
        batches = s.engine.stats.turns
        await s.turn(a_pod("second"))
        assert s.engine.stats.turns == batches + 1
        assigned = [r.key for r in await s.records() if isinstance(r, Assigned)]
        assert assigned == ["default/first", "default/second"]
        assert s.state.pods["default/first"].info.pod.node_name == "n0"


# -- turns under load -----------------------------------------------------------------------------


async def run_until_bound(s: EngineFixture, pods: int) -> None:
    """Run the engine until it bound so many pods, and stop it."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(s.engine.run)
        with anyio.fail_after(TIMEOUT_S):
            while s.engine.stats.bound < pods:
                await anyio.lowlevel.checkpoint()
        s.engine.stop()


async def test_bindings_are_sent_before_the_thread_sleeps() -> None:
    clock, unsent = StepClock(step_ns=1_000), []
    async with running_engine(engine_clock=clock) as s:

        def compare() -> None:
            sent = sum(request.endswith("/binding") for request in s.api.requests)
            unsent.append(s.engine.stats.assigned - sent)

        clock.on_block = compare
        s.show(a_node("n0", {"pods": "1k"}), *(a_pod(f"p{number}") for number in range(200)))
        await run_until_bound(s, 200)
    assert unsent
    assert not any(unsent)


async def test_changes_that_arrive_while_the_thread_sleeps_belong_to_the_next_turn() -> None:
    """They are read by a task that wakes another one, as those of a watch."""
    clock = StepClock(step_ns=1_000)
    async with running_engine(engine_clock=clock) as s, anyio.create_task_group() as tasks:
        readable, read = anyio.Event(), anyio.Event()
        received: list[int] = []
        turn = s.engine.turn

        async def read_socket() -> None:
            await readable.wait()
            read.set()

        async def watch() -> None:
            await read.wait()
            s.show(a_pod("late"))

        async def counted_turn() -> None:
            received.append(s.inbox.received)
            await turn()

        def arrive() -> None:
            if not readable.is_set():
                readable.set()
                received.clear()

        clock.on_block = arrive
        s.engine.turn = counted_turn  # type: ignore[method-assign]
        tasks.start_soon(read_socket)
        tasks.start_soon(watch)
        s.show(a_node("n0", {"pods": "1k"}), *(a_pod(f"p{number}") for number in range(200)))
        await run_until_bound(s, 201)
    assert received[0] == 202


async def test_thread_does_not_sleep_for_few_pods() -> None:
    clock = StepClock(step_ns=1_000)
    async with running_engine(engine_clock=clock) as s:
        s.show(a_node("n0"), *(a_pod(f"p{number}") for number in range(20)))
        await run_until_bound(s, 20)
    assert not clock.blocked_s


async def test_stopping_engine_does_not_sleep() -> None:
    clock = StepClock(step_ns=1_000)
    async with running_engine(engine_clock=clock) as s:
        s.show(a_node("n0", {"pods": "1k"}), *(a_pod(f"p{number}") for number in range(200)))
        s.engine.stop()
        await s.engine.run()
    assert not clock.blocked_s
