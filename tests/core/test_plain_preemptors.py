"""Searches for victims of pods without terms: they are limited only while pods of others wait."""

from __future__ import annotations

import pytest

from asched.cycle import feasible_nodes
from asched.model.quantity import NS_PER_S
from asched.model.resources import Resource
from asched.plugins.default_preemption import dry_run
from asched.state import attempt_budget
from asched.state.records import Assigned, Rejected
from tests.core.hostile import HostileCore
from tests.security.hostile_objects import Json, a_pod, metadata, plain_preemptor, terms_at_limit

NODES = 20
PREEMPTORS = 20


STEP_NS = NS_PER_S // (NODES * attempt_budget.STEPS_PER_CANDIDATE * attempt_budget.SHARE)
"""One search is worth about a second of the namespace, as in a very large cluster."""


@pytest.fixture(autouse=True)
def few_free_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_budget, "FREE_STEPS", 1000)


def preemptor(number: int) -> Json:
    """A pod that needs a node without other pods, in a form of its own."""
    return plain_preemptor(number, 0)


def full_cluster() -> HostileCore:
    core = HostileCore(nodes=NODES, step_ns=STEP_NS)
    for number in range(NODES):
        running = a_pod("running", number, nodeName=f"n{number}")
        container = running["spec"]["containers"][0]
        container["resources"] = {"requests": {"cpu": "1"}}
        core.see(Resource.PODS, running)
    return core


def searches(core: HostileCore) -> list[Rejected]:
    """Attempts of preemptors that selected a victim."""
    return [r for r in core.taken() if isinstance(r, Rejected) and r.victims]


def put_off(core: HostileCore) -> list[Rejected]:
    return [r for r in core.taken() if isinstance(r, Rejected) and r.put_off_until_ns]


def test_lone_tenant_is_not_limited() -> None:
    core = full_cluster()
    for number in range(PREEMPTORS):
        core.see(Resource.PODS, preemptor(number))
    core.decide()
    assert len(searches(core)) == PREEMPTORS
    assert not put_off(core)
    assert not core.state.guards.budgets.snapshot()
    core.verify_replay()


def test_pods_of_others_go_first_beyond_the_budget() -> None:
    core = full_cluster()
    for number in range(PREEMPTORS):
        core.see(Resource.PODS, preemptor(number))
    core.innocent(0)
    decided = core.decide()
    kinds = [type(each) for each in decided]
    allowed = kinds.index(Assigned) - len(put_off(core))
    assert 1 <= allowed <= attempt_budget.BURST_NS // NS_PER_S + 2
    assert len(put_off(core)) == PREEMPTORS - allowed
    assert put_off(core)[0].message == (
        "put off: searching for pods to evict takes long in this cluster, pods of other namespaces"
        " wait, and namespace evil used up its share of decision time"
    )
    # No pod of another namespace waits now, so no pod waits for a turn.
    assert len(searches(core)) == PREEMPTORS
    assert all(pod.turn_ns == 0 and not pod.yields for pod in core.state.queue)
    core.verify_replay()


def test_node_affinity_does_not_make_searches_free() -> None:
    core = full_cluster()
    anywhere = {"key": "kubernetes.io/hostname", "operator": "Exists"}
    required = {"nodeSelectorTerms": [{"matchExpressions": [anywhere]}]}
    rule = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    for number in range(PREEMPTORS):
        pod = preemptor(number)
        pod["spec"]["affinity"] = rule
        core.see(Resource.PODS, pod)
    core.innocent(0)
    core.decide()
    assert len(put_off(core)) > PREEMPTORS // 2
    core.verify_replay()


def test_pods_have_their_turns_while_others_wait() -> None:
    core = full_cluster()
    for number in range(PREEMPTORS):
        core.see(Resource.PODS, preemptor(number))
    turns = 3 * PREEMPTORS
    for number in range(turns):
        core.innocent(2 * number)
        core.innocent(2 * number + 1)
        core.begin(0.5)
        core.decide(1 if number else PREEMPTORS + 1)
        if len(searches(core)) == PREEMPTORS:
            break
    assert len(searches(core)) == PREEMPTORS
    core.verify_replay()


def test_checkpoint_keeps_who_yields() -> None:
    core = full_cluster()
    for number in range(PREEMPTORS):
        core.see(Resource.PODS, preemptor(number))
    core.innocent(0)
    core.decide(PREEMPTORS)
    assert any(pod.yields for pod in core.state.queue)
    core.verify_replay()


def with_terms(namespace_pod: int) -> Json:
    return terms_at_limit(namespace_pod, 1_000_000)


def test_short_attempts_of_a_lone_tenant_are_free() -> None:
    core = full_cluster()
    for number in range(PREEMPTORS):
        core.see(Resource.PODS, with_terms(number))
    core.decide()
    assert not put_off(core)
    assert not core.state.guards.budgets.snapshot()
    core.verify_replay()


def test_short_attempts_yield_to_pods_of_others() -> None:
    """They are put off while others wait, and attempted once none does."""
    core = full_cluster()
    for number in range(PREEMPTORS):
        core.see(Resource.PODS, with_terms(number))
    core.innocent(0)
    kinds = [type(each) for each in core.decide()]
    assert put_off(core)
    assert kinds.count(Assigned) == 1 + PREEMPTORS
    assert all(pod.turn_ns == 0 and not pod.yields for pod in core.state.queue)
    core.verify_replay()


def own_pods(core: HostileCore) -> None:
    """Less important pods on all nodes, which a budget protects."""
    budget = {
        "metadata": metadata("budget", 0),
        "spec": {"selector": {"matchLabels": {"app": "own"}}},
        "status": {"disruptionsAllowed": 0},
    }
    core.see(Resource.POD_DISRUPTION_BUDGETS, budget)
    for number in range(NODES):
        own = a_pod("own", number, meta={"labels": {"app": "own"}}, nodeName=f"n{number}")
        own["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        core.see(Resource.PODS, own)


def test_long_searches_are_charged_as_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is attempted, and the others wait until it is paid."""
    monkeypatch.setattr(feasible_nodes, "FREE_STEPS", 0)
    monkeypatch.setattr(dry_run, "_STEPS_PER_NODE", attempt_budget.SHORT_STEPS)
    core = full_cluster()
    own_pods(core)
    for number in range(3):
        core.see(Resource.PODS, preemptor(number))
    core.decide()
    first, *others = (r for r in core.taken() if isinstance(r, Rejected))
    assert first.search_steps > attempt_budget.SHORT_STEPS
    assert first.victims
    assert [bool(each.put_off_until_ns) for each in others] == [True, True]
    budgets = core.state.guards.budgets
    assert budgets.search_steps("evil") == first.search_steps
    cost_ns = first.search_steps * STEP_NS * attempt_budget.SHARE
    assert dict(budgets.snapshot())["evil"] >= core.now_ns + 3 * cost_ns
    core.verify_replay()


def test_turns_are_given_anew_if_searches_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods that were put off when searches were short do not keep their turns."""
    core = full_cluster()
    for number in range(PREEMPTORS):
        core.see(Resource.PODS, preemptor(number))
    core.innocent(0)
    core.decide(PREEMPTORS)
    turns = {pod.info.key: pod.turn_ns for pod in core.state.queue if pod.turn_ns}
    assert turns
    core.state.guards.budgets.note_search("evil", 10 * attempt_budget.SHORT_STEPS)
    last_ns = max(turns.values())
    core.begin((last_ns - core.now_ns) / NS_PER_S + 0.001)
    for number in range(1, 2 * PREEMPTORS):
        core.innocent(number)
    core.decide(len(turns))
    later = {pod.info.key: pod.turn_ns for pod in core.state.queue if pod.turn_ns}
    assert later
    assert all(turn_ns > last_ns for turn_ns in later.values())


def test_search_ends_with_the_best_candidate_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "MAX_STEPS", 300)
    core = full_cluster()
    own_pods(core)
    core.see(Resource.PODS, preemptor(0))
    core.decide()
    (decision,) = (r for r in core.taken() if isinstance(r, Rejected))
    assert decision.victims
    core.verify_replay()


def test_search_that_ends_early_explains_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "MAX_STEPS", 300)
    core = full_cluster()
    for number in range(NODES):
        important = a_pod("important", number, nodeName=f"n{number}", priority=100)
        important["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        core.see(Resource.PODS, important)
    core.see(Resource.PODS, preemptor(0))
    core.decide()
    (decision,) = (r for r in core.taken() if isinstance(r, Rejected))
    assert not decision.victims
    assert "search for victims stopped: too many pods" in decision.message
    core.verify_replay()
