"""The scheduler core: inputs in, records out, and every record can be replayed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.audit.replay import ReplayVerifier
from asched.core.inputs import Deleted, Listed, Upserted, sync_problem
from asched.core.scheduler import Budget, SchedulerCore
from asched.framework.status import Code
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import Resource
from asched.plugins.default_preemption import DefaultPreemption
from asched.plugins.node_resources import NodeResourcesFit
from asched.plugins.queue_and_bind import DefaultBinder
from asched.state.cluster import ClusterState, PlacementState
from asched.state.fold import Fold
from asched.state.records import (
    AnyRecord,
    Assigned,
    BindFailed,
    Bound,
    EngineStarted,
    EvictionSucceeded,
    LeadershipGained,
    LeadershipLost,
    ObjectDeleted,
    ProfilesLoaded,
    Rejected,
    TurnStarted,
)
from asched.testing.invariants import check
from tests.state.objects import a_node, a_pod, bound
from tests.state.profiles import loader, profile_of

PLUGINS = (NodeResourcesFit, DefaultBinder, DefaultPreemption)
START_NS = 1_790_000_000 * NS_PER_S


def new_fold() -> Fold:
    return Fold(ClusterState(), loader(*PLUGINS))


def started(core: SchedulerCore) -> SchedulerCore:
    core.begin_turn(START_NS)
    core.apply(EngineStarted("test", 7))
    core.apply(ProfilesLoaded((profile_of(*PLUGINS),)))
    core.take_records()
    return core


@pytest.fixture
def core() -> SchedulerCore:
    return started(SchedulerCore(new_fold()))


def upserted(item: Node | Pod) -> Upserted:
    return Upserted(Resource.PODS if isinstance(item, Pod) else Resource.NODES, item)


def kinds(records: list[AnyRecord]) -> list[str]:
    return [type(record).__name__ for record in records]


def test_turn_without_changes_leaves_no_record(core: SchedulerCore) -> None:
    core.observe(upserted(a_node("n0")))
    core.take_records()
    core.begin_turn(START_NS + NS_PER_S)
    core.observe(upserted(a_node("n0")))
    assert core.take_records() == []


def test_clock_precedes_the_first_record_of_a_turn(core: SchedulerCore) -> None:
    core.begin_turn(START_NS + NS_PER_S)
    core.observe(upserted(a_node("n0")))
    core.observe(upserted(a_node("n1")))
    assert kinds(core.take_records()) == ["TurnStarted", "ObjectObserved", "ObjectObserved"]


def test_decisions_are_folded_and_recorded(core: SchedulerCore) -> None:
    core.begin_turn(START_NS + NS_PER_S)
    for item in (a_node("n0"), a_pod("p"), a_pod("q")):
        core.observe(upserted(item))
    decisions = core.decide(Budget(decisions=10))
    assert [(d.key, d.node) for d in decisions if isinstance(d, Assigned)] == [
        ("default/p", "n0"),
        ("default/q", "n0"),
    ]
    assert core.take_records()[-2:] == decisions
    assert core.idle


def test_budget_limits_decisions(core: SchedulerCore) -> None:
    core.begin_turn(START_NS + NS_PER_S)
    core.observe(upserted(a_node("n0")))
    for number in range(5):
        core.observe(upserted(a_pod(f"p{number}", {"cpu": "1m"})))
    assert len(core.decide(Budget(decisions=2))) == 2
    assert not core.idle
    assert len(core.decide(Budget(decisions=9))) == 3


def test_deadline_ends_a_round_of_decisions() -> None:
    times = iter(range(0, 100, 10))
    core = started(SchedulerCore(new_fold(), monotonic_ns=lambda: next(times)))
    core.begin_turn(START_NS + NS_PER_S)
    core.observe(upserted(a_node("n0")))
    for number in range(5):
        core.observe(upserted(a_pod(f"p{number}", {"cpu": "1m"})))
    # The clock shows 0 before the first decision, 10 after it, 20 after the second.
    assert len(core.decide(Budget(decisions=9, deadline_ns=20))) == 2


def _finish_list(core: SchedulerCore) -> None:
    while core.listing:
        core.continue_list()


def test_list_is_folded_step_by_step(core: SchedulerCore) -> None:
    core.await_lists({Resource.NODES: 2})
    assert sync_problem(core.unsynced) == "not listed yet: nodes"
    core.begin_turn(START_NS + NS_PER_S)
    nodes = tuple(a_node(f"n{i}") for i in range(3))
    for relist_count in (1, 2):
        core.observe(Listed(Resource.NODES, nodes, relist_count=relist_count))
        assert core.listing
        _finish_list(core)
        assert bool(core.unsynced) is (relist_count == 1)
    assert kinds(core.take_records()) == ["TurnStarted", *["ObjectObserved"] * 3]


def test_parts_of_a_list_are_folded_before_it_ends(core: SchedulerCore) -> None:
    core.await_lists({Resource.NODES: 0})
    core.begin_turn(START_NS + NS_PER_S)
    core.observe(upserted(a_node("gone")))
    nodes = tuple(a_node(f"n{i}") for i in range(3))
    abandoned = Listed(Resource.NODES, nodes[:1], ends=False)
    first = Listed(Resource.NODES, nodes[:2], ends=False)
    for part in (abandoned, first, Listed(Resource.NODES, nodes[2:], begins=False)):
        assert core.unsynced
        core.observe(part)
        _finish_list(core)
    assert not core.unsynced
    assert sorted(core.state.objects(Node)) == ["n0", "n1", "n2"]


def test_nothing_is_decided_before_the_lists_or_on_standby(core: SchedulerCore) -> None:
    core.begin_turn(START_NS + NS_PER_S)
    for item in (a_node("n0"), a_pod("p")):
        core.observe(upserted(item))
    core.await_lists({Resource.PODS: 1})
    assert core.decide(Budget(decisions=1)) == []
    core.mark_listed(Resource.PODS, 1)
    core.handle_outcome(LeadershipLost(1))
    assert core.decide(Budget(decisions=1)) == []
    core.handle_outcome(LeadershipGained(2))
    assert len(core.decide(Budget(decisions=1))) == 1


def test_binding_is_recorded_once_the_watch_confirms_it(core: SchedulerCore) -> None:
    core.begin_turn(START_NS + NS_PER_S)
    pod = a_pod("p")
    for item in (a_node("n0"), pod):
        core.observe(upserted(item))
    core.decide(Budget(decisions=1))
    core.take_records()
    core.begin_turn(START_NS + 2 * NS_PER_S)
    core.handle_outcome(Bound(pod.key, pod.uid, "n0"))
    assert core.has_unconfirmed
    core.observe(upserted(bound(pod, "n0")))
    core.record_unconfirmed()
    assert kinds(core.take_records()) == ["TurnStarted", "Bound"]


def test_unconfirmed_binding_is_recorded_in_the_next_turn(core: SchedulerCore) -> None:
    core.begin_turn(START_NS + NS_PER_S)
    pod = a_pod("p")
    for item in (a_node("n0"), pod):
        core.observe(upserted(item))
    core.decide(Budget(decisions=1))
    core.handle_outcome(Bound(pod.key, pod.uid, "n0"))
    core.take_records()
    core.begin_turn(START_NS + 2 * NS_PER_S)
    core.record_unconfirmed()
    assert kinds(core.take_records()) == ["TurnStarted", "Bound"]
    assert not core.has_unconfirmed


def test_eviction_is_recorded_before_the_deletion_of_the_victim(core: SchedulerCore) -> None:
    low = a_pod("low", {"cpu": "1"}, on="n0", priority=1)
    core.begin_turn(START_NS + NS_PER_S)
    for item in (
        a_node("n0", {"cpu": "1", "pods": "10"}),
        low,
        a_pod("high", {"cpu": "1"}, priority=9),
    ):
        core.observe(upserted(item))
    (decision,) = core.decide(Budget(decisions=9))
    assert isinstance(decision, Rejected)
    assert [victim.key for victim in decision.victims] == ["default/low"]
    core.take_records()
    core.begin_turn(START_NS + 2 * NS_PER_S)
    core.handle_outcome(EvictionSucceeded(low.key, low.uid))
    assert core.take_records() == []
    core.observe(Deleted(Resource.PODS, low))
    assert kinds(core.take_records()) == ["TurnStarted", "EvictionSucceeded", "ObjectDeleted"]


def test_timer_starts_a_turn(core: SchedulerCore) -> None:
    core.begin_turn(START_NS + NS_PER_S)
    core.observe(upserted(a_pod("p")))
    core.decide(Budget(decisions=1))
    core.take_records()
    due_ns = core.next_timer_ns()
    assert due_ns is not None
    core.begin_turn(due_ns)
    core.fire_timers(may_decide=True)
    assert core.take_records() == [TurnStarted(due_ns)]


# -- replay ---------------------------------------------------------------------------------------


def drive(core: SchedulerCore, random: Random) -> Iterator[list[AnyRecord]]:
    """Turns of a small cluster in which pods and nodes come and go, with outcomes drawn at
    random."""
    pods: dict[str, Pod] = {}
    for turn in range(1, 12):
        core.begin_turn(START_NS + turn * 10 * NS_PER_S)
        core.fire_timers(may_decide=True)
        for _ in range(random.randint(0, 4)):
            name = f"{turn}-{random.randint(0, 99)}"
            match random.randint(0, 5):
                case 0 | 1:
                    node = a_node(f"n{random.randint(0, 3)}", {"cpu": "1", "pods": "4"})
                    core.observe(upserted(node))
                case 2 | 3 | 4:
                    pod = a_pod(
                        name, {"cpu": f"{random.randint(1, 9)}00m"}, priority=random.randint(0, 3)
                    )
                    pods[pod.key] = pod
                    core.observe(upserted(pod))
                case _ if pods:
                    core.observe(Deleted(Resource.PODS, pods.pop(random.choice([*pods]))))
        core.record_unconfirmed()
        for entry in [*core.state.pods.values()]:
            if entry.placement_state is PlacementState.ASSUMED and random.random() < 0.7:
                key, uid, node_name = entry.info.key, entry.info.uid, entry.node
                if random.random() < 0.2:
                    core.handle_outcome(BindFailed(key, uid, node_name, Code.ERROR))
                else:
                    core.handle_outcome(Bound(key, uid, node_name))
        for eviction in [*core.state.evictions.values()]:
            core.handle_outcome(EvictionSucceeded(eviction.victim.key, eviction.victim.uid))
            if random.random() < 0.7:
                victim = core.state.pods.get(eviction.victim.key)
                if victim is not None:
                    pods.pop(victim.info.key, None)
                    core.observe(Deleted(Resource.PODS, victim.info.pod))
        core.decide(Budget(decisions=random.randint(1, 5)))
        check(core.state)
        yield core.take_records()


@given(st.integers(0, 2**32))
def test_every_decision_is_repeated_by_a_replay(seed: int) -> None:
    core = SchedulerCore(new_fold())
    core.begin_turn(START_NS)
    core.apply(EngineStarted("test", seed))
    core.apply(ProfilesLoaded((profile_of(*PLUGINS),)))
    verifier, seq = ReplayVerifier(new_fold(), complete=True), 0
    batches = [core.take_records(), *drive(core, Random(seed))]
    for batch in batches:
        for record in batch:
            seq += 1
            assert verifier.verify(seq, record) is None
    assert verifier.end(seq + 1) is None


def test_drawn_turns_contain_all_kinds_of_decisions() -> None:
    """The property above would be empty without assignments, rejections and evictions."""
    found: set[type[AnyRecord]] = set()
    for seed in range(20):
        for batch in drive(started(SchedulerCore(new_fold())), Random(seed)):
            found |= {type(record) for record in batch}
    assert {Assigned, Rejected, Bound, BindFailed, EvictionSucceeded, ObjectDeleted} <= found
