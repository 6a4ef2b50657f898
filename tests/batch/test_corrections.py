"""Each correction, on a case that kube-batch gets wrong: its result, and the default mode's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asched.batch.corrections import Correction
from asched.framework.session_objects import TaskStatus
from asched.framework.sessions import Callback, Compatibility, PluginOption, SessionOutcome
from asched.model.pod import Affinity, PodAffinity, PodAffinityTerm
from asched.model.selectors import LabelSelector
from tests.batch.worlds import DEFAULT_TIERS, World, bound, evicted, overdrawn, session_spec

MODES = (Compatibility.KUBE_BATCH, Compatibility.NONE)


def hold_both(
    make: Callable[[], World], *actions: str, tiers: tuple[tuple[str, ...], ...] = DEFAULT_TIERS
) -> tuple[SessionOutcome, SessionOutcome]:
    """(The outcome in compatibility mode, the outcome in default mode)."""
    theirs, ours = (
        make().hold(session_spec(*actions, tiers=tiers, compatibility=mode)) for mode in MODES
    )
    return theirs, ours


def condition_of(outcome: SessionOutcome, group: str) -> tuple[str, str]:
    [found] = [g for g in outcome.groups if g.group == group]
    [condition] = found.conditions
    return condition.reason, condition.message


def test_every_correction_has_a_test() -> None:
    shown = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {correction.name.lower() for correction in Correction} <= shown


def test_roll_back_gangs() -> None:
    def world() -> World:
        world = World()
        world.node("n", cpu=4)
        world.queue("q")
        world.job("big", "q", pods=5, minimum=5)
        world.job("small", "q", pods=2, minimum=2)
        return world

    theirs, ours = hold_both(world, "allocate")
    assert bound(theirs) == {}
    assert bound(ours) == {"ns/small-0": "n", "ns/small-1": "n"}


def test_drop_invalid_jobs() -> None:
    def world() -> World:
        world = World()
        world.node("n", cpu=4)
        world.queue("q")
        world.job("incomplete", "q", pods=2, minimum=3)
        return world

    theirs, ours = hold_both(world, "allocate")
    assert condition_of(theirs, "ns/incomplete")[0] == "NotEnoughResources"
    assert condition_of(ours, "ns/incomplete") == (
        "NotEnoughTasks",
        "Not enough valid tasks for gang-scheduling, valid: 2, min: 3",
    )
    assert {pod.message for pod in ours.unschedulable} == {
        "Not enough valid tasks for gang-scheduling, valid: 2, min: 3"
    }


def test_exact_fit() -> None:
    def world() -> World:
        world = World()
        world.node("n", cpu=4)
        world.queue("q")
        world.job("j", "q", pods=1, cpu="4009m")
        return world

    theirs, ours = hold_both(world, "allocate")
    assert bound(theirs) == {"ns/j-0": "n"}
    assert bound(ours) == {}
    assert ours.unschedulable[0].message == "0/1 nodes are available: 1 Insufficient cpu."
    run = world().run(session_spec("allocate", compatibility=Compatibility.KUBE_BATCH))
    assert overdrawn(run.session.session_nodes) == ["n"]


def test_count_all_requests() -> None:
    def world() -> World:
        world = World()
        world.node("n", cpu=4)
        world.queue("q")
        world.job("j", "q", pods=1, cpu=0, memory=0, init_cpu=1)
        return world

    theirs, ours = hold_both(world, "allocate", "backfill")
    assert bound(theirs) == {}
    assert bound(ours) == {"ns/j-0": "n"}


def test_count_foreign_pods() -> None:
    def world() -> World:
        world = World()
        world.node("n", cpu=4)
        world.queue("q")
        world.foreign_pod("theirs", "n", cpu=3, phase="Pending")
        world.job("j", "q", pods=1, cpu=2)
        return world

    theirs, ours = hold_both(world, "allocate")
    assert bound(theirs) == {"ns/j-0": "n"}
    assert bound(ours) == {}


def test_leave_others_alone() -> None:
    def world() -> World:
        world = World()
        world.node("n", cpu=4)
        world.queue("q")
        world.job("theirs", "q", pods=3, minimum=3, scheduler="another")
        world.job("mine", "q", pods=1)
        return world

    theirs, ours = hold_both(world, "allocate")
    assert sorted(group.group for group in theirs.groups) == ["ns/mine", "ns/theirs"]
    assert [group.group for group in ours.groups] == ["ns/mine"]


def test_ready_nodes_only() -> None:
    def world() -> World:
        world = World()
        world.node("dead", cpu=4, ready=False)
        world.queue("q")
        world.job("j", "q", pods=1)
        return world

    theirs, ours = hold_both(world, "allocate", tiers=(("gang",),))
    assert bound(theirs) == {"ns/j-0": "dead"}
    assert bound(ours) == {}


def test_spare_gangs() -> None:
    def world() -> World:
        world = World()
        world.node("n", cpu=4)
        world.queue("q")
        world.priority_class("high", 10)
        # Four tasks run and the minimum is three: one is spare.
        world.job("gang", "q", pods=4, minimum=3, on=["n"] * 4)
        world.job("urgent", "q", pods=1, cpu=2, priority_class="high")
        return world

    theirs, ours = hold_both(world, "preempt")
    assert len(theirs.evictions) == 2
    assert ours.evictions == ()


def test_room_before_victims() -> None:
    def world() -> World:
        world = World()
        world.node("full", cpu=4)
        world.node("empty", cpu=4)
        world.queue("q")
        world.priority_class("high", 10)
        world.job("low", "q", pods=4, on=["full"] * 4)
        world.job("urgent", "q", pods=1, priority_class="high")
        return world

    theirs, ours = hold_both(world, "preempt")
    assert len(theirs.evictions) == 1
    assert ours.evictions == ()
    assert bound(ours) == {"ns/urgent-0": "empty"}


def test_preempt_evicts_only_for_missing_resources() -> None:
    world = World()
    world.node("n", cpu=4)
    world.queue("q")
    world.priority_class("high", 10)
    world.job("low", "q", pods=3, on=["n"] * 3)
    world.job("urgent", "q", pods=1, cpu=2, priority_class="high")
    outcome = world.hold(session_spec("preempt"))
    assert len(outcome.evictions) == 1
    assert [(p.pod, p.node) for p in outcome.pipelined] == [("ns/urgent-0", "n")]


def test_idle_before_waiting() -> None:
    def world() -> World:
        world = World()
        # The node with the release is larger, so it has the better score.
        world.node("leaving", cpu=8, memory="16Gi")
        world.node("idle", cpu=4)
        world.queue("q")
        world.job("old", "q", pods=1, cpu=8, on=["leaving"], terminating=True)
        world.job("half", "q", pods=1, cpu=3, memory="6Gi", on=["idle"])
        world.job("j", "q", pods=1, cpu=1, memory="1Gi")
        return world

    tiers = (("gang",), ("predicates", "nodeorder"))
    theirs, ours = hold_both(world, "allocate", tiers=tiers)
    assert bound(ours) == {"ns/j-0": "idle"}
    waiting = [p.pod for p in theirs.pipelined]
    assert waiting == ["ns/j-0"] or bound(theirs) == {"ns/j-0": "idle"}
    assert waiting == ["ns/j-0"]


def test_reclaim_for_gangs() -> None:
    def world() -> World:
        world = World()
        world.node("n", cpu=4)
        world.queue("mine")
        world.queue("other")
        world.job("greedy", "other", pods=4, on=["n"] * 4)
        world.job("pair", "mine", pods=2, minimum=2)
        world.job("trio", "mine", pods=3, minimum=3)
        return world

    theirs, ours = hold_both(world, "reclaim")
    # One task of the pair gets resources, and one of the trio.
    assert len(theirs.evictions) == 2
    assert sorted(p.pod for p in ours.pipelined) == ["ns/pair-0", "ns/pair-1"]
    assert {e.preemptor for e in ours.evictions} == {"ns/pair-0", "ns/pair-1"}


def test_honour_capability() -> None:
    def world() -> World:
        world = World()
        world.node("n", cpu=8)
        world.queue("q", capability={"cpu": 2})
        world.job("j", "q", pods=4)
        return world

    theirs, ours = hold_both(world, "allocate")
    assert len(theirs.binds) == 4
    assert len(ours.binds) == 2
    assert {p.message for p in ours.unschedulable} == {"queue q has reached its capability."}


def test_consent_of_all_tiers() -> None:
    def world() -> World:
        world = World()
        world.node("n", cpu=4)
        world.queue("q")
        world.priority_class("high", 10)
        # The urgent job already has three quarters of the cluster.
        world.job("urgent", "q", pods=4, on=["n"] * 3, priority_class="high")
        world.job("low", "q", pods=1, on=["n"])
        return world

    theirs, ours = hold_both(world, "preempt")
    assert evicted(theirs) == ["ns/low-0"]
    assert evicted(ours) == []


def test_deserved_by_resource() -> None:
    def world() -> World:
        world = World()
        world.node("n", cpu=4, memory="8Gi")
        world.queue("mine")
        world.queue("other")
        # All cpu, but little memory: in kube-batch the queue deserves half of both.
        world.job("greedy", "other", pods=4, memory="100Mi", on=["n"] * 4)
        world.job("j", "mine", pods=2, memory="100Mi")
        return world

    tiers = (("gang", "proportion"), ("predicates",))
    theirs, ours = hold_both(world, "reclaim", tiers=tiers)
    assert theirs.evictions == ()
    assert len(ours.evictions) == 2


def test_smaller_share_reclaims() -> None:
    def world(waiting: int) -> World:
        world = World()
        world.node("n", cpu=2, memory="8Gi")
        world.queue("larger", weight=2)
        world.queue("large", weight=1)
        # Less memory than it deserves, and all cpu: 1.5 times its part if the other waits for some.
        world.job("cpu", "larger", pods=2, on=["n"] * 2)
        world.job("memory", "larger", pods=2, cpu=0, on=["n"])
        # Its share is 1 without one of its pods.
        world.job("greedy", "large", pods=5, cpu=0, on=["n"] * 5)
        if waiting:
            world.job("waits", "large", pods=waiting)
        return world

    theirs, ours = hold_both(lambda: world(waiting=2), "reclaim")
    assert "ns/greedy-4" in evicted(theirs)
    assert ours.evictions == ()
    # Equal shares: the older queue precedes.
    _, ours = hold_both(lambda: world(waiting=0), "reclaim")
    assert evicted(ours) == ["ns/greedy-4"]


def test_preempt_upwards() -> None:
    def world() -> World:
        world = World()
        world.node("n", cpu=2)
        world.queue("q")
        world.job("j", "q", pods=4, on=["n"] * 2)
        return world

    theirs, ours = hold_both(world, "preempt", tiers=(("gang",), ("predicates",)))
    assert len(theirs.evictions) == 1
    assert ours.evictions == ()


def test_more_important_task_preempts_within_its_job() -> None:
    world = World()
    world.node("n", cpu=2)
    world.queue("q")
    world.job("j", "q", pods=3, on=["n"] * 2, priorities=[0, 5, 9])
    order_only = PluginOption("priority", (Callback.PREEMPTABLE,))
    outcome = world.hold(session_spec("preempt", tiers=((order_only, "gang"), ("predicates",))))
    assert evicted(outcome) == ["ns/j-0"]


def test_real_places() -> None:
    def world() -> World:
        world = World()
        world.node("n", cpu=8)
        world.queue("q")
        world.job("a", "q", pods=1, on=["n"])
        # Two terms: no pod matches both.
        terms = tuple(
            PodAffinityTerm(
                label_selector=LabelSelector(match_labels={"app": app}), topology_key="host"
            )
            for app in ("a", "b")
        )
        apart = Affinity(pod_anti_affinity=PodAffinity(required=terms))
        world.job("j", "q", pods=1, affinity=apart)
        return world

    theirs, ours = hold_both(world, "allocate")
    assert bound(theirs) == {"ns/j-0": "n"}
    assert bound(ours) == {}
    assert ours.unschedulable[0].message == (
        "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."
    )


def test_nodes_in_messages() -> None:
    def world() -> World:
        world = World()
        world.node("n1", cpu=4)
        world.node("n2", cpu=4, ready=False)
        world.queue("q")
        world.job("j", "q", pods=1, cpu=5)
        return world

    theirs, ours = hold_both(world, "allocate")
    assert theirs.unschedulable[0].message == "0 nodes are available"
    assert ours.unschedulable[0].message == (
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were not ready."
    )


def test_ordered_queues() -> None:
    """Three queues get the same number of pods. kube-batch visits a queue once for each of its jobs
    and does not update their order."""

    def world() -> World:
        world = World()
        world.node("n", cpu=6)
        for queue in ("q1", "q2", "q3"):
            world.queue(queue)
            for number in range(3):
                world.job(f"{queue}-{number}", queue, pods=2)
        return world

    spec = session_spec("allocate", compatibility=Compatibility.NONE)
    run = world().run(spec)
    held: dict[str, int] = {}
    for job in run.session.jobs.values():
        held[job.queue] = held.get(job.queue, 0) + job.count(TaskStatus.BINDING)
    assert held == {"q1": 2, "q2": 2, "q3": 2}


@pytest.mark.parametrize("mode", MODES)
def test_modes_agree_without_corrections(mode: Compatibility) -> None:
    world = World()
    world.node("n", cpu=4)
    world.queue("q")
    world.job("j", "q", pods=3, minimum=3)
    outcome = world.hold(session_spec("allocate", compatibility=mode))
    assert bound(outcome) == dict.fromkeys(["ns/j-0", "ns/j-1", "ns/j-2"], "n")
