"""Expensive pods of one namespace are put off, so that the pods of others keep their rate."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from asched.framework.pod_info import PodInfo
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import Resource, decode
from asched.model.selectors import LabelSelector, LabelSelectorRequirement
from asched.model.storage import PersistentVolumeClaim, PersistentVolumeClaimSpec
from asched.state import attempt_budget
from asched.state.attempt_budget import (
    BURST_NS,
    AttemptBudgets,
    attempt_steps,
    preemption_steps,
    volume_steps,
)
from asched.state.records import Assigned, Rejected
from tests.core.hostile import HostileCore
from tests.security.hostile_objects import Json, a_pod, metadata, terms_at_limit


@pytest.fixture(autouse=True)
def no_short_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts are charged whoever waits, as long ones are."""
    monkeypatch.setattr(attempt_budget, "SHORT_STEPS", 0)


PODS = 30
LARGE = 1_000_000


@pytest.fixture(autouse=True)
def large_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """One expensive attempt is worth about a second of the namespace, as in a large cluster."""
    monkeypatch.setattr(attempt_budget, "FREE_STEPS", 1000)


def evil(number: int) -> Json:
    return terms_at_limit(number, LARGE)


def crowded() -> HostileCore:
    # 128 terms in a cluster of 200 nodes and 40 pods.
    steps = 128 * 240 * attempt_budget.SHARE
    core = HostileCore(nodes=200, step_ns=NS_PER_S // steps)
    for number in range(PODS):
        core.see(Resource.PODS, evil(number))
    for number in range(10):
        core.innocent(number)
    return core


def put_off(core: HostileCore) -> list[Rejected]:
    return [r for r in core.taken() if isinstance(r, Rejected) and r.put_off_until_ns]


def assigned(core: HostileCore, namespace: str) -> int:
    found = (r for r in core.taken() if isinstance(r, Assigned))
    return sum(1 for r in found if r.key.startswith(f"{namespace}/"))


def test_expensive_pods_wait_while_others_are_placed() -> None:
    core = crowded()
    core.decide()
    assert assigned(core, "innocent") == 10
    allowed = assigned(core, "evil")
    assert BURST_NS // NS_PER_S <= allowed <= BURST_NS // NS_PER_S + 2
    waiting = put_off(core)
    assert len(waiting) == PODS - allowed
    assert waiting[0].message == (
        "put off: 128 affinity terms and spread constraints take long in this cluster, and"
        " namespace evil used up its share of decision time"
    )
    turns_ns = [rejected.put_off_until_ns for rejected in waiting]
    assert all(0.7 < (b - a) / NS_PER_S < 1.3 for a, b in pairwise(turns_ns))
    assert len(core.state.queue.backoff) == len(waiting)
    core.verify_replay()


def test_each_pod_is_put_off_once_and_has_its_turn() -> None:
    core = crowded()
    core.decide()
    for _ in range(3 * PODS):
        core.begin(0.5)
        core.decide()
    assert assigned(core, "evil") == PODS
    keys = [rejected.key for rejected in put_off(core)]
    assert len(keys) == len({*keys})
    assert all(pod.turn_ns == 0 for pod in core.state.queue)
    core.verify_replay()


def test_checkpoint_keeps_budgets_and_turns() -> None:
    core = crowded()
    core.decide()
    core.begin(0.5)
    core.decide()
    assert core.state.guards.budgets.snapshot()
    core.verify_replay()  # compares a restored state with this one


def test_activation_does_not_advance_the_turn() -> None:
    core = crowded()
    core.decide()
    last = put_off(core)[-1]
    core.state.queue.activate(last.key, core.now_ns)
    core.core.idle = False
    before = core.state.guards.budgets.snapshot()
    (again,) = core.decide()
    assert isinstance(again, Rejected)
    assert again.put_off_until_ns == last.put_off_until_ns
    assert core.state.guards.budgets.snapshot() == before


def test_deleted_pods_return_their_turns() -> None:
    core = crowded()
    core.decide()
    for rejected in put_off(core):
        core.delete(Resource.PODS, evil(int(rejected.key.rpartition("-")[2])))
    ((namespace, paid_at_ns),) = core.state.guards.budgets.snapshot()
    assert namespace == "evil"
    assert (paid_at_ns - core.now_ns) / NS_PER_S < BURST_NS / NS_PER_S + 3
    core.verify_replay()


def test_refund_equals_the_charge_whatever_the_cluster_size() -> None:
    core = crowded()
    core.decide()
    before = dict(core.state.guards.budgets.snapshot())["evil"]
    charged = [queued.charged_steps for queued in core.state.queue.backoff.values()]
    for number in range(500, 540):
        core.see(Resource.PODS, {**a_pod("tiny", number, nodeName="n1")})
    for rejected in put_off(core):
        core.delete(Resource.PODS, evil(int(rejected.key.rpartition("-")[2])))
    after = dict(core.state.guards.budgets.snapshot())["evil"]
    step_ns = core.state.guards.budgets.step_ns
    returned_ns = sum(charged) * step_ns * attempt_budget.SHARE
    assert before - after == returned_ns
    core.verify_replay()


def test_other_namespace_has_its_own_budget() -> None:
    core = crowded()
    core.decide()
    pod = evil(99)
    pod["metadata"]["namespace"] = "innocent"
    core.see(Resource.PODS, pod)
    (decision,) = core.decide()
    assert isinstance(decision, Assigned)


def test_ordinary_pods_are_free() -> None:
    terms = [{"topologyKey": f"k{i}"} for i in range(8)]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    assert _steps(a_pod("plain", 1)) == 0
    assert _steps(a_pod("eight", 1, affinity={"podAntiAffinity": rule})) == 0
    assert _steps(evil(1)) == 128 * 55_000


def test_node_selectors_and_host_ports_are_charged() -> None:
    few, many = ({f"k{i}": "v" for i in range(count)} for count in (64, 2000))
    assert _steps(a_pod("few", 1, nodeSelector=few)) == 0
    assert _steps(a_pod("many", 1, nodeSelector=many)) == 2000 * 5000 // 8
    ports = [{"containerPort": i, "hostPort": i} for i in range(1, 1001)]
    assert _steps(a_pod("ports", 1, containers=[{"name": "c", "ports": ports}])) == 5_000_000


def test_host_ports_are_charged_in_a_search_for_victims() -> None:
    def steps(**port: int) -> int:
        made = a_pod("p", 1, containers=[{"name": "c", "ports": [{"containerPort": 1, **port}]}])
        return preemption_steps(_pod(made), 5_000)

    assert steps() == 0
    assert steps(hostPort=1) == 5_000 * attempt_budget.PREEMPTION_STEPS


def test_unbound_claims_are_charged() -> None:
    def claims(count: int, values: int = 0) -> list[PersistentVolumeClaim]:
        expression = LabelSelectorRequirement(key="k", operator="In", values=("v",) * values)
        selector = LabelSelector(match_expressions=(expression,)) if values else None
        spec = PersistentVolumeClaimSpec(selector=selector)
        return [PersistentVolumeClaim(spec=spec) for _ in range(count)]

    assert volume_steps(claims(2), 5_000, 20_000) == 0
    assert volume_steps(claims(3, values=1000), 5_000, 2_000) > 6_000_000


def test_pods_with_few_claims_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    core = HostileCore()
    volumes = []
    for number in range(60):
        name = f"claim-{number}"
        claim = {"metadata": metadata("claim", number), "spec": {"storageClassName": "late"}}
        core.see(Resource.PERSISTENT_VOLUME_CLAIMS, claim)
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": name}})
    costs = core.state.guards.costs
    assert costs.is_cheap(PodInfo(_pod(a_pod("few", 1, volumes=volumes[:2]))))
    many = PodInfo(_pod(a_pod("many", 1, volumes=volumes)))
    assert not costs.is_cheap(many)
    assert costs.of_attempt(many, preemption=False) == 60**3 * 10 // 64


def _steps(made: Json) -> int:
    return attempt_steps(_pod(made), 5_000, 50_000)


def _pod(made: Json) -> Pod:
    pod = decode(Resource.PODS, json.dumps(made).encode())
    assert isinstance(pod, Pod)
    return pod


def test_budget_is_paid_back() -> None:
    budgets = AttemptBudgets()
    now_ns = 10 * NS_PER_S
    most = BURST_NS // (attempt_budget.NS_PER_STEP * attempt_budget.SHARE)
    budgets.charge("a", most // 2, now_ns)
    assert budgets.owes("a", now_ns)
    assert budgets.turn_ns("a", most // 2, now_ns) == 0
    budgets.charge("a", most // 2, now_ns)
    turn_ns = budgets.turn_ns("a", most // 2, now_ns)
    assert abs(turn_ns - now_ns - BURST_NS // 2) < NS_PER_S // 1000
    assert budgets.turn_ns("a", most // 2, turn_ns) == 0
    # One attempt that takes longer needs a namespace without debts.
    assert abs(budgets.turn_ns("a", 3 * most, now_ns) - now_ns - BURST_NS) < NS_PER_S // 1000
    assert budgets.turn_ns("b", 3 * most, now_ns) == 0
    budgets.charge("b", 1, now_ns + BURST_NS)
    assert [name for name, _ in budgets.snapshot()] == ["b"]


def test_few_terms_are_charged_for_the_first_pod_of_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two terms in a cluster of 10 nodes and 20 pods are worth a second of the namespace.
    monkeypatch.setattr(attempt_budget, "FREE_FORM_STEPS", 1)
    core = HostileCore(nodes=10, step_ns=NS_PER_S // (60 * attempt_budget.SHARE))
    for number in range(10):
        core.see(Resource.PODS, _with_terms("same", number, "a"))
    for number in range(10):
        core.see(Resource.PODS, _with_terms("other", number, f"a{number}"))
    core.decide()
    waiting = {rejected.key for rejected in put_off(core)}
    assert not [key for key in waiting if "same" in key]
    assert len(waiting) > 5
    before = core.state.guards.budgets.snapshot()
    core.see(Resource.PODS, _with_terms("same", 10, "a"))
    core.see(Resource.PODS, _with_terms("shares-a-turn", 1, "a9"))
    placed, put = core.decide()
    assert isinstance(placed, Assigned)
    assert isinstance(put, Rejected)
    assert put.put_off_until_ns
    assert core.state.guards.budgets.snapshot() == before
    core.verify_replay()


def test_keys_of_own_labels_are_a_part_of_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_budget, "FREE_FORM_STEPS", 1)
    core = HostileCore(nodes=10)
    for number in range(4):
        pod = _with_terms("keys", number, "a", matchLabelKeys=["own"])
        pod["metadata"]["labels"] = {"own": str(number % 2)}
        core.see(Resource.PODS, pod)
    core.decide()
    assert len(core.state.guards.terms.snapshot()) == 2
    core.verify_replay()


def _with_terms(name: str, number: int, app: str, **more: object) -> Json:
    term = {
        "labelSelector": {"matchLabels": {"app": app}},
        "topologyKey": "kubernetes.io/hostname",
        **more,
    }
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term] * 2}
    return a_pod(name, number, affinity={"podAntiAffinity": rule})
