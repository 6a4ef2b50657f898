"""Small traces with the exact times of their results."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest

from asched.audit.replay import replay
from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterPlugin,
    PermitPlugin,
    PermitResult,
    ReservePlugin,
    ReserveResult,
)
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import BreakerSpec, PluginPolicy, ProfileSpec
from asched.framework.status import SUCCESS, Code, Status
from asched.journal.memory import MemoryStore
from asched.model.quantity import NS_PER_S
from asched.simulator.loop import Latencies, SchedulerSettings, Simulation, SimulationStuckError
from asched.simulator.trace import (
    EndReason,
    NodeDrained,
    ObjectRemoved,
    ObjectSet,
    PodDeleted,
    TraceEvent,
    WorkloadTrace,
)
from asched.state.records import BindFailed, Bound, QueueSettings, Rejected, TurnStarted
from tests.cycle.default_profile import default_profiles, installed
from tests.cycle.plugins import RoomForAll
from tests.simulator.simulate import (
    BEGIN_NS,
    at,
    comes,
    has,
    node,
    pod,
    seconds,
    simulated,
)
from tests.state.profiles import profile_of


def test_pod_is_bound_runs_and_ends() -> None:
    found = simulated([*has(node("n")), comes(pod("a"), 5, runs_s=60)])
    assert found.placements("a") == [("n", 5, 65, "finished")]
    a = found.pod("a")
    assert (a.attempts, a.rejections, a.end) == (1, 0, EndReason.FINISHED)
    assert (a.node, a.bound_ns, a.ended_ns) == ("n", at(5), at(65))
    assert found.run.end_ns == at(65)


def test_pod_waits_for_capacity() -> None:
    found = simulated(
        [*has(node("n", "1")), comes(pod("a"), 0, runs_s=60), comes(pod("b"), 1, runs_s=60)]
    )
    assert found.placements("b") == [("n", 60, 120, "finished")]
    assert found.pod("b").rejections == 1
    assert found.pod("b").created_ns == at(1)


def test_pending_pod_at_the_end_has_a_message() -> None:
    found = simulated([*has(node("n", "1")), comes(pod("a")), comes(pod("b"), 1)], end_s=3600)
    assert found.placements("a") == [("n", 0, None, "")]
    b = found.pod("b")
    assert (b.placements, b.end) == ((), None)
    assert b.message.startswith("0/1 nodes are available: 1 Insufficient cpu.")
    assert found.run.end_ns == at(3600)


def test_pod_is_not_retried_without_changes() -> None:
    days = 86_400.0
    history = [*has(node("n", "1")), comes(pod("big", "2")), comes(pod("late"), 100 * days, 1)]
    found = simulated(history)
    # When it came; after a hundred days, long overdue, when the clock moved on; and when the other
    # one left, early in its backoff.
    assert found.pod("big").attempts == 3
    assert found.run.end_ns == at(100 * days + 1)


def test_pod_is_retried_early_in_its_backoff_after_a_change() -> None:
    found = simulated([*has(node("n", "1")), comes(pod("big", "2")), *has(node("m"), seconds=0.5)])
    assert found.placements("big") == [("m", 0.5, None, "")]


# -- eviction ---


def low_and_high(*, recreated: bool = True, runs_s: float = 600) -> list[TraceEvent]:
    return [
        *has(node("n", "1")),
        comes(pod("low"), 0, runs_s=runs_s, recreated=recreated),
        comes(pod("high", priority=10), 100, runs_s=50),
    ]


def test_victim_is_recreated_with_remaining_time() -> None:
    found = simulated(low_and_high())
    assert found.placements("high") == [("n", 130, 180, "finished")]
    # 130 of 600 s are run already.
    assert found.placements("low") == [("n", 0, 130, "preempted"), ("n", 180, 650, "finished")]
    first = found.pod("low").placements[0]
    assert (first.by, first.evicted_ns) == ("default/high", at(100))


def test_victim_without_controller_is_lost() -> None:
    found = simulated(low_and_high(recreated=False))
    assert found.placements("low") == [("n", 0, 130, "preempted")]
    assert (found.pod("low").end, found.pod("low").ended_ns) == (EndReason.PREEMPTED, at(130))


def test_victim_may_finish_within_its_grace_period() -> None:
    found = simulated(low_and_high(runs_s=110))
    assert found.placements("low") == [("n", 0, 110, "finished")]
    assert found.placements("low")[0][3] == "finished"
    assert found.pod("low").placements[0].by == "default/high"
    assert found.placements("high") == [("n", 110, 160, "finished")]


def test_victim_without_grace_period_ends_at_once() -> None:
    history = [
        *has(node("n", "1")),
        comes(pod("low", grace_s=0)),
        comes(pod("high", priority=10), 100),
    ]
    found = simulated(history)
    # The preemptor is scheduled early in its backoff from the attempt that made room.
    assert found.placements("low") == [("n", 0, 100, "preempted")]
    assert found.placements("high") == [("n", 100, None, "")]


def test_drain_evicts_pods_except_daemon_sets() -> None:
    history = [
        *has(node("n"), node("m")),
        comes(pod("a", nodeSelector={}), 0, runs_s=100),
        comes(pod("d", owner="DaemonSet", nodeName="n")),
        comes(pod("b", nodeName="n"), 0, runs_s=100),
        NodeDrained(at(10), "n"),
    ]
    found = simulated(history)
    assert found.placements("d") == [("n", 0, None, "")]
    # Pods that came with a node come back as pods to be placed.
    assert found.placements("b") == [("n", 0, 40, "drained"), ("m", 40, 100, "finished")]
    assert [span.node.spec.unschedulable for span in found.run.nodes if span.node.name == "n"] == [
        False,
        True,
    ]


def test_pods_of_removed_node_are_recreated() -> None:
    history = [
        *has(node("n", "2")),
        comes(pod("a", "2"), 0, runs_s=100),
        *has(node("m", "2"), seconds=1),
        ObjectRemoved(at(10), "Node", "n"),
    ]
    found = simulated(history)
    assert found.placements("a") == [("n", 0, 10, "node-gone"), ("m", 10, 100, "finished")]
    assert [(span.node.name, span.to_ns) for span in found.run.nodes] == [
        ("n", at(10)),
        ("m", None),
    ]


def test_binding_fails_if_the_node_was_removed() -> None:
    history = [
        *has(node("n", "2")),
        comes(pod("a"), 5),
        ObjectRemoved(at(6), "Node", "n"),
        *has(node("m"), seconds=20),
    ]
    found = simulated(history, latencies=Latencies(bind_ns=2 * NS_PER_S))
    assert found.placements("a") == [("n", 5, 7, "bind-failed"), ("m", 20, None, "")]
    assert found.pod("a").node == "m"
    assert [type(record) for record in found.records if isinstance(record, Bound | BindFailed)] == [
        BindFailed,
        Bound,
    ]


# -- what others do ---


def test_pending_and_running_pods_are_deleted() -> None:
    history = [
        *has(node("n", "1")),
        comes(pod("a")),
        comes(pod("b"), 1),
        PodDeleted(at(5), "default/b", "uid-b"),
        PodDeleted(at(9), "default/a", "uid-a"),
    ]
    found = simulated(history)
    assert found.placements("a") == [("n", 0, 9, "deleted")]
    assert (found.pod("b").placements, found.pod("b").end, found.pod("b").ended_ns) == (
        (),
        EndReason.DELETED,
        at(5),
    )


def test_deletion_finds_a_recreated_pod() -> None:
    history = [
        *has(node("n"), node("m")),
        comes(pod("a")),
        NodeDrained(at(10), "n"),
        NodeDrained(at(10), "m"),
        PodDeleted(at(60), "default/a", "uid-a"),
    ]
    found = simulated(history)
    assert len(found.pod("a").placements) == 1
    assert found.pod("a").ended_ns == at(60)


def test_creation_waits_for_its_name() -> None:
    second = pod("web")
    second = msgspec.structs.replace(
        second, metadata=msgspec.structs.replace(second.metadata, uid="second")
    )
    third = msgspec.structs.replace(
        second, metadata=msgspec.structs.replace(second.metadata, uid="third")
    )
    history = [
        *has(node("n")),
        comes(pod("web"), 0, runs_s=100),
        comes(second, 50, runs_s=100),
        comes(third, 60),
        PodDeleted(at(70), "default/web", "third"),
    ]
    found = simulated(history)
    created = {found.uid: seconds(found.created_ns) for found in found.run.pods}
    assert created == {"uid-web": 0, "second": 100, "third": 60}
    assert [p.uid for p in found.run.pods if not p.placements] == ["third"]


def test_already_bound_pod_uses_its_node() -> None:
    history = [
        *has(node("n", "1")),
        comes(pod("old", nodeName="n"), 0, runs_s=30),
        comes(pod("new"), 1),
    ]
    found = simulated(history)
    assert found.placements("old") == [("n", 0, 30, "finished")]
    assert found.placements("new") == [("n", 30, None, "")]
    assert found.pod("old").attempts == 0


def test_removed_gate_schedules_the_pod() -> None:
    gated = pod("a", schedulingGates=[{"name": "wait"}])
    history = [*has(node("n")), comes(gated), ObjectSet(at(30), pod("a"))]
    found = simulated(history)
    assert found.placements("a") == [("n", 30, None, "")]
    assert found.pod("a").rejections == 0


# -- circuit breakers ---


class BrokenForBadPods(FilterPlugin):
    name: ClassVar[str] = "BrokenForBadPods"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if "bad" in pod.key:
            raise RuntimeError("broken")
        return SUCCESS


def profile_with_breaker() -> ProfileSpec:
    """Two failures within a minute open the circuit for 30 s."""
    policy = PluginPolicy("BrokenForBadPods", breaker=BreakerSpec(2, 60.0, 30.0))
    return msgspec.structs.replace(profile_of(BrokenForBadPods), policies=(policy,))


def test_pod_rejected_by_open_circuit_is_retried_when_it_closes() -> None:
    events = [*has(node("n")), comes(pod("bad-0")), comes(pod("bad-1")), comes(pod("good"), 1)]
    found = simulated(events, BrokenForBadPods, profiles=[profile_with_breaker()])
    # The failing pods back off for longer.
    assert found.placements("good") == [("n", 30, None, "")]
    assert found.pod("bad-0").placements == found.pod("bad-1").placements == ()


def test_simulation_ends_if_each_closing_circuit_opens_again() -> None:
    bad = [comes(pod(f"bad-{number}", priority=-number)) for number in range(5)]
    found = simulated([*has(node("n")), *bad], BrokenForBadPods, profiles=[profile_with_breaker()])
    assert not any(pod.placements for pod in found.run.pods)
    assert seconds(found.run.end_ns) < 600


# -- pace ---


def test_decision_latency_delays_later_pods() -> None:
    history = [*has(node("n")), *(comes(pod(name), 1) for name in "abc")]
    found = simulated(history, latencies=Latencies(decision_ns=2 * NS_PER_S, bind_ns=NS_PER_S))
    assert [seconds(found.pod(name).bound_ns or 0) for name in "abc"] == [4, 6, 8]
    assert [found.placements(name)[0][1] for name in "abc"] == [1, 3, 5]


def test_time_is_monotonic() -> None:
    history = [*has(node("n")), *(comes(pod(f"p{i}", "2"), i, runs_s=3) for i in range(6))]
    found = simulated(history, latencies=Latencies(decision_ns=NS_PER_S // 2, bind_ns=NS_PER_S))
    times = [record.now_ns for record in found.records if isinstance(record, TurnStarted)]
    assert times == sorted(times)
    assert all(p.end is EndReason.FINISHED for p in found.run.pods)


# -- plugins ---


class Holding(PermitPlugin):
    """Holds every pod until the next one arrives, at most 10 s."""

    name: ClassVar[str] = "Holding"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        for held in self.handle.waiting_pods():
            held.allow(self.name)
        if pod.name == "last":
            return PermitResult()
        return PermitResult(Status(Code.WAIT), timeout_s=10)


class Refusing(ReservePlugin):
    """Fails every call."""

    name: ClassVar[str] = "Refusing"
    api_version: ClassVar[int] = 1

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        raise RuntimeError("no")


def test_held_pod_is_rejected_after_the_permit_timeout() -> None:
    found = simulated([*has(node("n")), comes(pod("a"), 1)], RoomForAll, Holding, end_s=11.5)
    assert found.placements("a") == [("n", 1, 11, "bind-failed")]
    assert found.pod("a").bound_ns is None
    assert "rejected due to timeout after waiting 10s" in found.pod("a").message


def test_allowed_pod_is_bound_to_its_node() -> None:
    history = [*has(node("n")), comes(pod("a"), 1), comes(pod("last"), 5)]
    found = simulated(history, RoomForAll, Holding, latencies=Latencies(bind_ns=NS_PER_S))
    assert found.placements("a") == [("n", 1, None, "")]
    assert [found.pod(name).bound_ns for name in ("a", "last")] == [at(6), at(6)]
    assert found.pod("a").attempts == 1


def test_endless_attempts_raise_an_error_with_the_pod() -> None:
    no_backoff = QueueSettings(initial_backoff_s=0, max_backoff_s=0)
    with pytest.raises(SimulationStuckError, match="pod default/a: more than 1000 attempts"):
        simulated([*has(node("n")), comes(pod("a"), 1)], RoomForAll, Refusing, queue=no_backoff)


def test_failing_attempts_terminate() -> None:
    found = simulated([*has(node("n")), comes(pod("a"), 1)], RoomForAll, Refusing)
    assert found.pod("a").attempts == 1
    assert "RuntimeError: no" in found.pod("a").message


# -- what it is made of ---


async def test_records_replay() -> None:
    found = simulated(low_and_high())
    store = MemoryStore()
    await store.claim("test", claimed_at_ns=BEGIN_NS)
    await store.append(found.records, written_at_ns=BEGIN_NS)
    report = await replay(store, installed())
    assert report.equal, report
    assert report.decisions == sum(p.attempts for p in found.run.pods)
    assert any(isinstance(record, Rejected) and record.victims for record in found.records)


def test_trace_requires_order_and_unique_pods() -> None:
    with pytest.raises(ValueError, match="an event at"):
        WorkloadTrace((comes(pod("a"), 5), comes(pod("b"), 4)), BEGIN_NS)
    with pytest.raises(ValueError, match="an event at"):
        WorkloadTrace((comes(pod("a"), 5),), at(6))
    with pytest.raises(ValueError, match=r"pod default/a \(uid-a\) is created twice"):
        WorkloadTrace((comes(pod("a"), 5), comes(pod("a"), 6)), BEGIN_NS)
    with pytest.raises(ValueError, match="before it begins"):
        WorkloadTrace((), BEGIN_NS, BEGIN_NS - 1)


def test_simulation_stops_at_the_end() -> None:
    history = WorkloadTrace(
        (*has(node("n")), comes(pod("a"), 5, 10), comes(pod("b"), 50)), BEGIN_NS, at(10)
    )
    simulation = Simulation(history, SchedulerSettings(default_profiles()), installed().load)
    last = [turn.now_ns for turn in simulation.turns()][-1]
    assert last == at(5)
    assert [p.key for p in simulation.result().pods] == ["default/a"]
    assert simulation.events_applied == 2
