"""Repeated sessions on a cluster that applies their results."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from asched.framework.sessions import SessionOutcome, SessionSpec
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod, PodStatus
from tests.batch.workloads import Plan, plans
from tests.batch.worlds import World, bound, evicted, session_spec

ROUNDS = 12
DEFAULT = session_spec("reclaim", "allocate", "backfill", "preempt")


def obey(world: World, outcome: SessionOutcome) -> None:
    """Bound pods run; evicted pods are deleted and recreated by their controllers."""
    replace = msgspec.structs.replace
    for bind in outcome.binds:
        pod = world.state.pods[bind.pod].info.pod
        spec = replace(pod.spec, node_name=bind.node)
        world.add(replace(pod, spec=spec, status=PodStatus(phase="Running")))
    for eviction in outcome.evictions:
        pod = world.state.pods[eviction.pod].info.pod
        world.remove(pod)
        world.add(successor(pod))


def successor(pod: Pod) -> Pod:
    replace = msgspec.structs.replace
    old = pod.metadata
    meta: ObjectMeta = replace(old, name=f"{old.name}x", uid=f"{old.uid}x")
    spec = replace(pod.spec, node_name="")
    return replace(pod, metadata=meta, spec=spec, status=PodStatus(phase="Pending"))


def rounds(world: World, spec: SessionSpec, count: int) -> Sequence[SessionOutcome]:
    outcomes = []
    for number in range(1, count + 1):
        outcomes.append(world.hold(spec, number))
        obey(world, outcomes[-1])
    return outcomes


@given(plans(), st.integers(0, 99))
def test_sessions_reach_a_stable_state(plan: Plan, seed: int) -> None:
    """Evictions end: queues and jobs do not evict each other alternately."""
    last = rounds(plan.world(seed), DEFAULT, ROUNDS)[-2:]
    assert [(bound(outcome), evicted(outcome)) for outcome in last] == [({}, []), ({}, [])]


def test_gang_gets_the_resources_of_its_victims() -> None:
    world = World()
    world.node("n", cpu=4)
    world.queue("q")
    world.priority_class("high", 10)
    world.job("low", "q", pods=4, on=["n"] * 4)
    world.job("gang", "q", pods=2, minimum=2, priority_class="high")
    first, second, third = rounds(world, DEFAULT, 3)
    assert len(first.evictions) == 2
    assert set(bound(second)) == {"ns/gang-0", "ns/gang-1"}
    assert second.evictions == third.evictions == ()


def test_no_more_evictions_while_victims_terminate() -> None:
    world = World()
    world.node("n", cpu=4)
    world.queue("mine")
    world.queue("other")
    world.job("greedy", "other", pods=4, on=["n"] * 4)
    world.job("j", "mine", pods=2, minimum=2)
    first = world.hold(DEFAULT, 1)
    assert len(first.evictions) == 2
    for eviction in first.evictions:
        world.delete(world.state.pods[eviction.pod].info.pod)
    again = world.hold(DEFAULT, 2)
    assert again.evictions == ()
    assert sorted(p.pod for p in again.pipelined) == ["ns/j-0", "ns/j-1"]


def test_queues_reach_their_deserved_share() -> None:
    world = World()
    world.node("n", cpu=8)
    world.queue("one", weight=1)
    world.queue("three", weight=3)
    world.job("early", "one", pods=8, on=["n"] * 8)
    world.job("late", "three", pods=8)
    rounds(world, DEFAULT, 4)
    running = [e.info.name.split("-")[0] for e in world.state.pods.values() if e.node]
    assert sorted(running) == ["early"] * 2 + ["late"] * 6
