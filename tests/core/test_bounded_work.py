"""Work that other pods cause is bounded: counted calls, with many waiting or rejected pods."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from asched.core.scheduler import Budget, SchedulerCore
from asched.framework.term_table import TermTable
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import GroupResource, Resource, decode
from asched.plugins.default_preemption import dry_run as preemption
from asched.plugins.default_preemption import victims
from asched.plugins.inter_pod_affinity.hints import AffinityHints
from asched.state import attempt_budget
from asched.state.attempt_budget import (
    attempt_steps,
    gang_steps,
    most_gang_forms,
    preemption_steps,
)
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.records import Rejected
from tests.core.hostile import REGISTRY, HostileCore
from tests.security.hostile_objects import Json, a_pod


@pytest.fixture(autouse=True)
def no_short_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts are charged whoever waits, as long ones are."""
    monkeypatch.setattr(attempt_budget, "SHORT_STEPS", 0)


PODS = 40


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, *names: str) -> Counter[str]:
    """Count the calls of these methods."""
    calls: Counter[str] = Counter()

    def count(name: str) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for name in names:
        count(name)
    return calls


def required(kind: str, *terms: Json) -> Json:
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def term(app: str, key: str = "kubernetes.io/hostname") -> Json:
    return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}


def bound(name: str, number: int, app: str, *, node: str = "n1", **spec: Any) -> Json:
    return a_pod(name, number, meta={"labels": {"app": app}}, nodeName=node, **spec)


# -- hints ----------------------------------------------------------------------------------------


def rejected_core() -> HostileCore:
    """Many pods that wait for pods of their own."""
    core = HostileCore()
    for number in range(PODS):
        affinity = required("podAffinity", term(f"wanted{number}"))
        core.see(Resource.PODS, a_pod("waits", number, affinity=affinity))
    core.decide()
    assert len(core.state.queue.unschedulable) == PODS
    return core


def test_event_evaluates_hints_of_pods_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, AffinityHints, "_pod_changed")
    core = rejected_core()
    calls.clear()
    core.see(Resource.PODS, bound("other", 1, "web"))
    assert not calls
    core.see(Resource.PODS, bound("other", 2, "wanted7"))
    assert calls["_pod_changed"] == 1
    assert "evil/waits-7" not in core.state.queue.unschedulable
    assert len(core.state.queue.unschedulable) == PODS - 1
    core.verify_replay()


def test_updated_pods_wait_for_what_they_look_for_now() -> None:
    core = rejected_core()
    core.see(Resource.PODS, bound("other", 1, "web"))  # builds the index
    core.delete(Resource.PODS, a_pod("waits", 3))
    core.see(Resource.PODS, bound("other", 2, "wanted3"))
    pod = a_pod("waits", 99, affinity=required("podAffinity", term("late")))
    core.see(Resource.PODS, pod)
    core.decide()
    assert "evil/waits-99" in core.state.queue.unschedulable
    core.see(Resource.PODS, bound("other", 3, "late"))
    assert "evil/waits-99" not in core.state.queue.unschedulable
    core.verify_replay()


def test_end_of_anti_affinity_requeues_pods_that_it_selected() -> None:
    core = HostileCore(nodes=1)
    guard = bound(
        "guard", 1, "g", node="n0", affinity=required("podAntiAffinity", term("kept-out"))
    )
    core.see(Resource.PODS, guard)
    core.see(Resource.PODS, a_pod("waits", 1, meta={"labels": {"app": "kept-out"}}))
    core.decide()
    assert [*core.state.queue.unschedulable] == ["evil/waits-1"]
    core.delete(Resource.PODS, guard)
    assert not core.state.queue.unschedulable


def test_spread_constraints_wait_for_pods_that_they_count(monkeypatch: pytest.MonkeyPatch) -> None:
    core = HostileCore(nodes=2)
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    core.see(Resource.PODS, bound("held", 1, "spread", node="n0"))
    full = [{"name": "c", "resources": {"requests": {"cpu": "63500m"}}}]
    core.see(Resource.PODS, bound("full", 1, "none", node="n1", containers=full))
    waiting = a_pod(
        "waits",
        1,
        meta={"labels": {"app": "spread"}},
        topologySpreadConstraints=[constraint],
        containers=[{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
    )
    core.see(Resource.PODS, waiting)
    core.decide()
    assert [*core.state.queue.unschedulable] == ["evil/waits-1"]
    core.see(Resource.PODS, bound("other", 1, "web", node="n0"))
    assert [*core.state.queue.unschedulable] == ["evil/waits-1"]
    core.delete(Resource.PODS, bound("held", 1, "spread", node="n0"))
    assert not core.state.queue.unschedulable
    core.verify_replay()


# -- terms of existing pods -----------------------------------------------------------------------


def test_terms_are_indexed_turn_by_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    core = HostileCore()
    calls = counted(monkeypatch, TermTable, "move")
    for number in range(PODS):
        affinity = required("podAntiAffinity", *(term(f"t{number}-{i}") for i in range(10)))
        core.see(Resource.PODS, bound("holder", number, "h", affinity=affinity))
        core.begin()
        assert calls["move"] == 10 * (number + 1)
    core.innocent(1)
    core.decide()
    assert calls["move"] == 10 * PODS


def test_new_core_has_indexed_the_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    core = HostileCore()
    for number in range(PODS):
        affinity = required("podAntiAffinity", term(f"t{number}"))
        core.see(Resource.PODS, bound("holder", number, "h", affinity=affinity))
    core.innocent(1)
    fold = restore(checkpoint_of(core.state), REGISTRY.load)
    restarted = SchedulerCore(fold)
    calls = counted(monkeypatch, TermTable, "move")
    restarted.begin_turn(core.now_ns)
    assert len(restarted.decide(Budget(10))) == 1
    assert not calls


# -- preemption -----------------------------------------------------------------------------------


def crowd(core: HostileCore, nodes: int) -> None:
    """Less important pods on each node."""
    for number in range(2 * nodes):
        core.see(Resource.PODS, bound("low", number, "low", node=f"n{number % nodes}", priority=-5))


def test_nodes_that_no_eviction_helps_are_decided_together(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, preemption.CandidateSearch, "_compute")
    tried = counted(monkeypatch, victims.VictimSelection, "run")
    core = HostileCore(nodes=30)
    crowd(core, 30)
    affinity = required("podAntiAffinity", term("low", "topology.kubernetes.io/zone"))
    core.see(Resource.PODS, a_pod("preemptor", 1, affinity=affinity))
    (decision,) = core.decide()
    assert isinstance(decision, Rejected)
    assert decision.message.count("30 node(s) didn't match pod anti-affinity rules") == 2
    assert not decision.victims
    assert calls
    assert not tried
    core.verify_replay()


def test_preemption_finds_nodes_that_an_eviction_helps() -> None:
    core = HostileCore(nodes=6)
    crowd(core, 6)
    affinity = required("podAntiAffinity", term("low"))
    core.see(Resource.PODS, a_pod("preemptor", 1, affinity=affinity))
    (decision,) = core.decide()
    assert isinstance(decision, Rejected)
    assert len(decision.victims) == 2
    core.verify_replay()


# -- budget ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_ns", [attempt_budget.NS_PER_STEP, 95])
def test_preemption_with_terms_is_charged(step_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_budget, "FREE_STEPS", 1000)
    core = HostileCore(nodes=10, step_ns=step_ns)
    crowd(core, 10)
    affinity = required("podAntiAffinity", term("low", "topology.kubernetes.io/zone"))
    core.see(Resource.PODS, a_pod("preemptor", 1, affinity=affinity))
    core.decide()
    ((namespace, paid_at_ns),) = core.state.guards.budgets.snapshot()
    steps = 10 * attempt_budget.PREEMPTION_STEPS
    assert namespace == "evil"
    assert paid_at_ns - core.now_ns == steps * step_ns * attempt_budget.SHARE
    again = restore(checkpoint_of(core.state), REGISTRY.load)
    assert again.state.guards.budgets.step_ns == step_ns
    core.verify_replay()


def test_preemption_without_victims_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_budget, "FREE_STEPS", 1000)
    core = HostileCore(nodes=10)
    for number in range(10):
        core.see(Resource.PODS, bound("equal", number, "low", node=f"n{number}"))
    core.see(Resource.PODS, a_pod("rejected", 1, affinity=required("podAntiAffinity", term("low"))))
    core.decide()
    assert core.state.guards.budgets.snapshot() == ()


def preemptor(number: int, memory: int = 0, **spec: Any) -> Json:
    requests = {"cpu": "63950m", "memory": str(memory or number)}
    container = {"name": "c", "image": "i", "resources": {"requests": requests}}
    return a_pod("preemptor", number, containers=[container], priority=1, **spec)


def paid_at_ns(core: HostileCore, namespace: str) -> int:
    return dict(core.state.guards.budgets.snapshot()).get(namespace, 0)


def test_check_of_a_gang_puts_the_next_one_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_budget, "_GANG_STEPS", NS_PER_S // 10)  # 0.08 s for two forms
    core = HostileCore(nodes=10)
    for number in range(10):
        core.see(Resource.PODS, bound("low", number, "low", node=f"n{number}", priority=0))
    for group in ("first", "second"):
        metadata = {"name": group, "namespace": "evil", "uid": group}
        policy = {"gang": {"minCount": 2}}
        core.see(
            GroupResource.POD_GROUPS, {"metadata": metadata, "spec": {"schedulingPolicy": policy}}
        )
    member: Json = {"schedulingGroup": {"podGroupName": "first"}}
    core.see(Resource.PODS, preemptor(1, **member))
    core.see(Resource.PODS, preemptor(2, **member))
    core.decide()
    assert paid_at_ns(core, "evil") > core.now_ns
    member = {"schedulingGroup": {"podGroupName": "second"}}
    core.see(Resource.PODS, preemptor(3, **member))
    core.see(Resource.PODS, preemptor(4, **member))
    put_off = [one for one in core.decide() if isinstance(one, Rejected) and one.put_off_until_ns]
    assert put_off
    assert put_off[0].message == (
        "put off: checking whether preemption completes the gang takes long in this cluster, and"
        " namespace evil used up its share of decision time"
    )
    assert paid_at_ns(core, "innocent") == 0
    core.verify_replay()


def test_check_of_a_gang_that_preempts_is_charged() -> None:
    assert gang_steps(1, 5000) == 0
    assert gang_steps(16, 5000) * attempt_budget.NS_PER_STEP == pytest.approx(0.1e9, rel=0.1)
    # Gangs of more forms are not tried.
    assert gang_steps(17, 5000) == 0
    assert most_gang_forms(5000) == 16


def test_requirements_of_node_affinity_are_charged() -> None:
    def steps(requirements: int) -> int:
        terms = [
            {"matchExpressions": [{"key": f"k{i}", "operator": "Exists"}]}
            for i in range(requirements)
        ]
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        pod = decode(
            Resource.PODS, json.dumps(a_pod("p", 1, affinity={"nodeAffinity": rule})).encode()
        )
        assert isinstance(pod, Pod)
        assert preemption_steps(pod, 5000) == 0
        return attempt_steps(pod, 5000, 50_000)

    assert steps(attempt_budget.FREE_REQUIREMENTS) == 0
    assert steps(480) == 480 * 5000 // attempt_budget.NODES_PER_STEP
