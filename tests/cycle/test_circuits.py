"""Circuit breakers: a plugin that fails repeatedly is not called, and replays decide the same."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from asched.core.scheduler import SchedulerCore
from asched.cycle.decide import Decider
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterPlugin, ScorePlugin
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import BreakerSpec, PluginPolicy
from asched.framework.status import SUCCESS, Code, ObjectErrorStatus, Status
from asched.state import records as r
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import DECISIONS
from tests.cycle.scheduling import Scheduling, nodes_of, the_one
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader, profile_of

CIRCUIT_OPEN = (
    "circuit breaker of plugin Moody is open for 30s: 2 failures within 1m0s, or another one since"
)


class Moody(FilterPlugin, ScorePlugin):
    """Fails while a flag is set; otherwise accepts one node."""

    name: ClassVar[str] = "Moody"
    api_version: ClassVar[int] = 1
    in_the_mood: ClassVar[bool] = True
    asked: ClassVar[int] = 0

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        type(self).asked += 1
        if self.in_the_mood:
            raise RuntimeError("not today")
        return SUCCESS if node.name == "n1" else Status.unschedulable("not here")

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return 1


def scheduling(*, optional: bool) -> Scheduling:
    Moody.in_the_mood, Moody.asked = True, 0
    policy = PluginPolicy("Moody", optional=optional, breaker=BreakerSpec(2, 60.0, 30.0))
    spec = msgspec.structs.replace(profile_of(Moody), policies=(policy,))
    made = Scheduling(Moody, profiles=(spec,))
    made.pass_time(1000)
    made.see(a_node("n0"), a_node("n1"))
    return made


def replayed(made: Scheduling) -> None:
    """Check that a replay decides the same, whatever the flag is now."""
    fold = Fold(ClusterState(), loader(Moody))
    decider = Decider(fold.state)
    for record in made.records:
        if isinstance(record, r.Rejected) and record.open_circuit:
            assert the_one(decider.next()) == record
        fold.apply(record)


class Choosy(FilterPlugin):
    """Every pod has a broken object."""

    name: ClassVar[str] = "Choosy"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return ObjectErrorStatus(Code.ERROR, ("no such key: model",))


def test_errors_of_objects_do_not_open_the_circuit() -> None:
    policy = PluginPolicy("Choosy", breaker=BreakerSpec(1, 60.0, 30.0))
    spec = msgspec.structs.replace(profile_of(Choosy), policies=(policy,))
    made = Scheduling(Choosy, profiles=(spec,))
    made.see(a_node("n0"), a_pod("a"), a_pod("b"))
    message = 'running "Choosy" filter plugin: no such key: model'
    assert [
        (decision.plugin, decision.message)
        for decision in made.decide()
        if isinstance(decision, r.AttemptFailed)
    ] == [("", message)] * 2


def test_pods_are_rejected_while_circuit_is_open_and_retried_when_it_closes() -> None:
    made = scheduling(optional=False)
    made.see(a_pod("a"), a_pod("b"), a_pod("c"), a_pod("d"))
    decisions = made.decide()
    assert [type(decision) for decision in decisions] == [
        r.AttemptFailed, r.AttemptFailed, r.Rejected, r.Rejected,
    ]  # fmt: skip
    assert {d.message for d in decisions if isinstance(d, r.Rejected)} == {CIRCUIT_OPEN}
    asked = Moody.asked
    made.pass_time(5)
    # Backoffs are over, but no pod is tried; each is rejected once.
    assert {type(decision) for decision in made.decide()} == {r.Rejected}
    assert made.decide() == []
    assert Moody.asked == asked
    timers = SchedulerCore(made).next_decision_ns()
    assert timers == made.state.now_ns + 25 * 10**9
    Moody.in_the_mood = False
    made.pass_time(25)
    assert set(nodes_of(made.decide()).values()) == {"n1"}
    replayed(made)


def test_first_failure_reopens_circuit_until_a_pod_is_assigned() -> None:
    made = scheduling(optional=False)
    made.see(a_pod("a"), a_pod("b"), a_pod("c"))
    made.decide()
    made.pass_time(30)
    kinds = [type(decision) for decision in made.decide()]
    assert kinds == [r.AttemptFailed, r.Rejected, r.Rejected]
    Moody.in_the_mood = False
    made.pass_time(30)
    assert len(nodes_of(made.decide())) == 3
    Moody.in_the_mood = True
    made.see(a_pod("d"))
    assert isinstance(the_one(made.decide()), r.AttemptFailed)
    made.see(a_node("n2"), a_pod("e"))
    assert isinstance(made.decide()[0], r.AttemptFailed)


def test_optional_plugin_with_open_circuit_is_skipped() -> None:
    made = scheduling(optional=True)
    made.see(a_pod("a"), a_pod("b"), a_pod("c"))
    decisions = made.decide()
    assert [type(decision) for decision in decisions][:2] == [r.AttemptFailed] * 2
    assert list(nodes_of(decisions)) == ["default/c"]
    Moody.in_the_mood = False
    made.pass_time(30)
    # It is called again.
    assert set(nodes_of(made.decide()).values()) <= {"n1"}


def test_checkpoint_restores_circuits() -> None:
    made = scheduling(optional=False)
    made.see(a_pod("a"), a_pod("b"), a_pod("c"))
    made.decide()
    blob = checkpoint_of(made.state)
    fold = restore(blob, loader(Moody))
    assert checkpoint_of(fold.state) == blob
    Moody.in_the_mood = False
    later = r.TurnStarted(made.state.now_ns + 30 * 10**9)
    made.apply(later)
    fold.apply(later)
    other = Decider(fold.state)
    for decision in made.decide():
        assert isinstance(decision, DECISIONS)
        assert the_one(other.next()) == decision
        fold.apply(decision)
    assert not fold.state.guards.circuits.circuit("default-scheduler", "Moody").rejected
