"""Turns of an engine that are taken by hand: what one of them takes in, and what it decides by."""

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
from asched.daemon.effects.dispatcher import EffectDispatcher, EffectServices
from asched.daemon.engine.commits import Commits
from asched.daemon.engine.engine import Engine, EngineLimits, EngineOptions
from asched.daemon.engine.inbox import Inbox, Reconfiguration
from asched.daemon.plugin_host.external_plugins import ExternalPlugins
from asched.daemon.telemetry.metrics import Metrics
from asched.framework.cycle_state import CycleState
from asched.framework.interface import PermitResult, PermitReview, Plugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import Code, Status
from asched.journal.memory import MemoryStore
from asched.kube.client import ApiClient, FixedCredentials, RenewingCredentials
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
    EngineStarted,
    LeadershipGained,
    PermitRejected,
    ProfilesLoaded,
    Rejected,
    TurnStarted,
)
from tests.daemon.test_bindings import Gate, Slow
from tests.kube.harness import BEGIN, TIMEOUT_S, ManualClock
from tests.state.objects import a_node, a_pod, bound
from tests.state.profiles import ESSENTIAL, profile_of

LOOK_NS = 1_000_000
"""What passes between two looks at the clock: so a slice is so many steps, however fast we are."""


class StepClock(Clock):
    """Advances each time it is read."""

    def __init__(self) -> None:
        self._passed_ns = 0

    def time_ns(self) -> int:
        return int(BEGIN.timestamp()) * NS_PER_S + self._passed_ns

    def monotonic_ns(self) -> int:
        self._passed_ns += LOOK_NS
        return self._passed_ns

    async def sleep(self, delay_s: float) -> None:
        raise NotImplementedError("this journal can always be written")


class Scene:
    """An engine, what feeds it, and its journal."""

    def __init__(
        self, engine: Engine, effects: EffectDispatcher, inbox: Inbox, gate: Gate, journal: MemoryStore,
        plugins: tuple[type[Plugin], ...], state: ClusterState,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.effects = effects
        self.inbox = inbox
        self.gate = gate
        self.state = state
        self._journal = journal
        self._plugins = plugins

    async def turn(self, *seen: AnyObject) -> None:
        """One in which a watch has shown this."""
        self.show(*seen)
        await self.engine.turn()

    def show(self, *seen: AnyObject) -> None:
        self.inbox.put_changes(
            tuple(
                Upserted(Resource.PODS if isinstance(item, Pod) else Resource.NODES, item)
                for item in seen
            )
        )

    async def records(self) -> list[AnyRecord]:
        return [stored.record async for stored in self._journal.read()]

    async def replayed(self) -> bool:
        """Whether each decision follows from what is recorded before it."""
        registry = PluginRegistry({plugin.name: plugin for plugin in (*ESSENTIAL, *self._plugins)})
        return (await replay(self._journal, registry)).equal


@asynccontextmanager
async def scene(
    *plugins: type[Plugin],
    limits: EngineLimits | None = None,
    standby: bool = False,
    permitted: Callable[[], bool] = lambda: True,
) -> AsyncIterator[Scene]:
    """Everything was listed. The API server does all that it is asked for, once its gate is open."""
    gate, clock, random, journal = Gate(), ManualClock(), Random(1), MemoryStore()
    engine_clock: Clock = StepClock()
    inbox, state, metrics = Inbox(monotonic_ns=engine_clock.monotonic_ns), ClusterState(), Metrics()
    load = {plugin.name: plugin for plugin in (*ESSENTIAL, *plugins)}.__getitem__
    credentials = Credentials("http://127.0.0.1")
    renewing = RenewingCredentials(FixedCredentials(credentials), credentials, clock)
    retry = RetryPolicy(attempts=1)
    client = ApiClient(gate, renewing, clock=clock, random=random, retry=retry)
    await journal.claim("it", claimed_at_ns=engine_clock.time_ns())
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
            ),
        )
        engine = Engine(
            Fold(state, load), Commits(journal, engine_clock, metrics, next_seq=1), effects, inbox,
            engine_clock, metrics,
            EngineOptions(
                awaited=frozenset(), limits=limits or EngineLimits(), standby=standby,
                may_decide=permitted,
            ),
        )  # fmt: skip
        started = EngineStarted("test", seed=1)
        engine.record_start(started, ProfilesLoaded((profile_of(*plugins),)))
        yield Scene(engine, effects, inbox, gate, journal, plugins, state)
        effects.stop()


# -- a new leader -------------------------------------------------------------------------------


async def test_a_new_leader_decides_when_it_has_folded_what_came_before() -> None:
    """A list that takes many turns, while the cluster is so busy that there is always more."""
    brief = EngineLimits(slice_s=0.01)
    full = {"cpu": "800m"}
    pending, filling = a_pod("pending", full), a_pod("filling", full, on="n0")
    others = [a_pod(f"other-{number}", {}, on="elsewhere") for number in range(50)]
    taken_up: list[bool] = []
    async with scene(NodeResourcesFit, limits=brief, standby=True) as s:
        await s.turn(a_node("n0", {"cpu": "1", "pods": "9"}), pending)
        s.inbox.put_changes((Listed(Resource.PODS, (*others, pending, filling)),))
        s.inbox.put_outcome(LeadershipGained(1))
        s.inbox.put_changes((Listed(Resource.PODS, (*others, pending, filling)),) * 9)
        reconfigured = Reconfiguration((), {}, lambda: taken_up.append(s.engine.leading))
        s.inbox.put_outcome(reconfigured)
        turns = 0
        while not s.engine.leading:
            await s.turn(*(a_pod(f"new-{turns}-{number}", {}, on="n0") for number in range(20)))
            turns += 1
            assert turns < 20, "only what came before counts"
        assert len(s.inbox) > 20 * turns
        records = await s.records()
        assert not [record for record in records if isinstance(record, Assigned)]
        assert [record.key for record in records if isinstance(record, Rejected)] == [pending.key]
        assert await s.replayed()
    assert turns > 3
    assert taken_up == [False], "other outcomes wait for nothing"


async def test_a_new_leader_with_nothing_to_fold_decides_at_once() -> None:
    async with scene(NodeResourcesFit, standby=True) as s:
        await s.turn(a_node("n0"), a_pod("p"))
        assert "default/p" in s.state.queue
        s.inbox.put_outcome(LeadershipGained(1))
        await s.turn()
        assert s.state.pods["default/p"].node == "n0"


# -- another configuration ------------------------------------------------------------------------


async def test_a_list_that_was_asked_for_before_is_not_what_a_new_configuration_awaits() -> None:
    """It may lack just what is awaited: here one is half folded, and another one waits."""
    pending = a_pod("pending")
    pods = (*(a_pod(f"other-{number}", {}, on="elsewhere") for number in range(50)), pending)
    told: list[bool] = []
    async with scene(NodeResourcesFit, limits=EngineLimits(slice_s=0.01), standby=True) as s:
        await s.turn(a_node("n0"))
        s.inbox.put_changes((Listed(Resource.PODS, pods), Listed(Resource.PODS, pods)))
        await s.turn()
        assert 0 < len(s.state.pods) < len(pods)
        s.inbox.put_outcome(
            Reconfiguration((), {Resource.PODS: 1}, lambda: told.append(s.engine.leading))
        )
        s.inbox.put_outcome(LeadershipGained(1))
        for _ in range(50):
            await s.turn()
        assert told == [False]
        assert s.engine.leading
        assert pending.key in s.state.queue
        caches, *_ = s.engine.checks(slow_turn_s=1e9)
        assert caches.trouble() == "not listed yet: pods"
        s.inbox.put_changes((Listed(Resource.PODS, pods, generation=1),))
        for _ in range(50):
            await s.turn()
        assert s.state.pods[pending.key].node == "n0"
        assert caches.trouble() == ""


# -- the time of decisions ----------------------------------------------------------------------


class Clerk(PermitReview):
    """Holds pods called held, until there is a node n1; then says what time it is."""

    name: ClassVar[str] = "Clerk"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        if pod.name == "held":
            return PermitResult(Status(Code.WAIT), timeout_s=600.0)
        return PermitResult()

    def review(self) -> None:
        cluster = self.handle.cluster
        for held in self.handle.waiting_pods():
            if cluster.nodes.row_of("n1") is not None:
                held.reject(self.name, f"rejected at {cluster.now_ns}")


async def rejected_on_time(s: Scene) -> bool:
    """Whether the Clerk spoke, and at the time that is recorded before."""
    now_ns = 0
    for record in await s.records():
        if isinstance(record, TurnStarted):
            now_ns = record.now_ns
        elif isinstance(record, PermitRejected):
            return record.message == f"rejected at {now_ns}" and await s.replayed()
    return False


async def test_what_follows_while_nobody_may_decide_is_decided_at_a_recorded_time() -> None:
    may_decide = True
    async with scene(Clerk, permitted=lambda: may_decide) as s:
        await s.turn(a_node("n0"), a_pod("held"))
        assert "default/held" in s.state.waiting
        await s.turn()
        may_decide = False
        await s.turn(a_node("n1"))
        assert "default/held" in s.state.waiting
        may_decide = True
        await s.turn()
        assert await rejected_on_time(s)


async def test_so_is_what_follows_while_too_many_effects_are_under_way() -> None:
    """A binding that waited for a plugin was no load. When it goes on nobody decides."""
    Slow.may_end = anyio.Event()
    async with scene(Clerk, Slow, limits=EngineLimits(effects_under_way=1)) as s:
        await s.turn(a_node("n0"), a_pod("held"))
        await s.turn(a_pod("p"))
        await anyio.wait_all_tasks_blocked()
        assert (s.effects.in_flight, s.effects.load) == (1, 0)
        await s.turn()
        s.gate.shut()
        Slow.may_end.set()
        await anyio.wait_all_tasks_blocked()
        assert s.effects.load == 1
        await s.turn(a_node("n1"), bound(a_pod("p"), "n0"))
        assert "default/held" in s.state.waiting
        s.gate.open_now.set()
        with anyio.fail_after(TIMEOUT_S):
            while s.effects.in_flight:
                await anyio.lowlevel.checkpoint()
        await s.turn()
        assert await rejected_on_time(s)


async def test_where_nothing_happens_nothing_is_recorded() -> None:
    async with scene(Clerk) as s:
        await s.turn(a_node("n0"), a_pod("held"))
        before = await s.records()
        await s.turn()
        await s.turn()
        assert await s.records() == before
