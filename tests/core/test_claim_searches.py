"""A tenant with claims that all differ pays for the search for devices of each of them."""

from __future__ import annotations

import pytest

from asched.model.quantity import NS_PER_S
from asched.model.resources import Resource
from asched.plugins.dynamic_resources import plugin
from asched.state import attempt_budget, attempt_costs, charged_forms, claim_searches
from asched.state.attempt_budget import BURST_NS, NS_PER_STEP, SHARE
from asched.state.charged_forms import ChargedForms
from asched.state.records import Assigned, Rejected
from tests.core.hostile import HostileCore
from tests.security.hostile_objects import (
    Json,
    a_claim,
    a_device_class,
    a_pod_with_claims,
    a_slice,
)


@pytest.fixture(autouse=True)
def no_short_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts are charged whoever waits, as long ones are."""
    monkeypatch.setattr(attempt_budget, "SHORT_STEPS", 0)


PODS = 20
NODES = 20


@pytest.fixture(autouse=True)
def large_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """One search is worth a second of the namespace, as in a large cluster."""
    steps = NS_PER_S // (NS_PER_STEP * SHARE)
    monkeypatch.setattr(claim_searches, "FREE_STEPS", 1000)
    monkeypatch.setattr(claim_searches, "SIMPLE_STEPS", steps // NODES)


def evil(number: int) -> Json:
    return a_pod_with_claims("claims", number, [f"c-{number}"])


def crowded(*, distinct: bool) -> HostileCore:
    core = HostileCore(nodes=NODES)
    core.see(Resource.DEVICE_CLASSES, a_device_class())
    for number in range(NODES):
        core.see(Resource.RESOURCE_SLICES, a_slice(number, f"n{number}"))
    for number in range(PODS):
        expression = f"device.driver != 'x{number if distinct else 0}'"
        core.see(Resource.RESOURCE_CLAIMS, a_claim("c", number, [expression]))
        core.see(Resource.PODS, evil(number))
    for number in range(10):
        core.innocent(number)
    return core


def put_off(core: HostileCore) -> list[Rejected]:
    return [r for r in core.taken() if isinstance(r, Rejected) and r.put_off_until_ns]


def assigned(core: HostileCore, namespace: str) -> int:
    found = (r for r in core.taken() if isinstance(r, Assigned))
    return sum(1 for r in found if r.key.startswith(f"{namespace}/"))


def test_pods_with_different_claims_are_put_off() -> None:
    core = crowded(distinct=True)
    core.decide()
    assert assigned(core, "innocent") == 10
    allowed = assigned(core, "evil")
    assert BURST_NS // NS_PER_S <= allowed <= BURST_NS // NS_PER_S + 2
    waiting = put_off(core)
    assert len(waiting) == PODS - allowed
    assert waiting[0].message == (
        "put off: 1 resource claims take long in this cluster, and namespace evil used up its"
        " share of decision time"
    )
    core.verify_replay()


def test_all_pods_have_their_turn() -> None:
    core = crowded(distinct=True)
    core.decide()
    for _ in range(3 * PODS):
        core.begin(0.5)
        core.decide()
    assert assigned(core, "evil") == PODS
    core.verify_replay()


def test_pods_with_equal_claims_are_charged_once() -> None:
    core = crowded(distinct=False)
    core.decide()
    assert not put_off(core)
    assert assigned(core, "evil") == PODS
    core.verify_replay()


def test_pods_with_equal_claims_share_a_turn() -> None:
    core = crowded(distinct=True)
    core.decide()
    last = put_off(core)[-1]
    number = int(last.key.rpartition("-")[2])
    before = core.state.guards.budgets.snapshot()
    core.see(Resource.RESOURCE_CLAIMS, a_claim("again", 1, [f"device.driver != 'x{number}'"]))
    core.see(Resource.PODS, a_pod_with_claims("again", 1, ["again-1"]))
    (shared,) = core.decide()
    assert isinstance(shared, Rejected)
    assert shared.put_off_until_ns == last.put_off_until_ns
    assert core.state.guards.budgets.snapshot() == before
    core.verify_replay()


def test_pods_with_equal_claims_are_charged_for_long_searches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device that another pod takes makes them necessary again."""
    monkeypatch.setattr(plugin, "LONG_SEARCH_STEPS", 5)
    monkeypatch.setattr(attempt_costs, "STEPS_OF_SEARCH_STEP", 100_000)
    core = crowded(distinct=False)
    core.decide()
    assert assigned(core, "innocent") == 10
    waiting = put_off(core)
    assert len(waiting) == PODS - assigned(core, "evil") > PODS // 2
    assert len({rejected.put_off_until_ns for rejected in waiting}) == len(waiting)
    searched = [r for r in core.taken() if isinstance(r, Assigned) and r.long_search]
    assert len(searched) == assigned(core, "evil")
    for _ in range(4 * PODS):
        core.begin(0.5)
        core.decide()
    assert assigned(core, "evil") == PODS
    core.verify_replay()


def test_a_deleted_pod_returns_no_search() -> None:
    """Another pod could use the turn of its claims for nothing."""
    core = crowded(distinct=True)
    core.decide()
    before = core.state.guards.budgets.snapshot()
    for rejected in put_off(core):
        core.delete(Resource.PODS, evil(int(rejected.key.rpartition("-")[2])))
    assert core.state.guards.budgets.snapshot() == before
    core.verify_replay()


def test_pods_that_name_very_many_claims_are_not_attempted() -> None:
    core = crowded(distinct=False)
    core.decide()
    core.see(Resource.PODS, a_pod_with_claims("many", 1, ["c-1"] * 700))
    (decision,) = core.decide()
    assert isinstance(decision, Rejected)
    assert decision.message == "too expensive: 700 resource claims, at most 32"
    core.verify_replay()


def test_number_of_known_forms_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    forms = ChargedForms(3)
    for number in range(5):
        forms.note(f"evil/{number}", number)
    assert forms.snapshot() == (("evil/2", 2, 0), ("evil/3", 3, 0), ("evil/4", 4, 0))
    forms.note_repeated("evil/3", 7)
    monkeypatch.setattr(charged_forms, "MAX_FORMS", 4)
    forms.note("other/0", 0)
    forms.note("other/1", 1)
    kept = forms.snapshot()
    assert kept == (("evil/3", 3, 7), ("evil/4", 4, 0), ("other/0", 0, 0), ("other/1", 1, 0))
    forms.note("evil/5", 5, most=1)
    assert forms.snapshot() == (("evil/5", 5, 0), ("other/0", 0, 0), ("other/1", 1, 0))
    restored = ChargedForms(3)
    restored.restore(kept)
    assert restored.snapshot() == kept
    assert restored.repeated_steps("evil/3") == 7


@pytest.mark.parametrize(
    ("nodes", "most"), [(0, 64), (500, 64), (1_000, 40), (5_000, 8), (10**6, 8)]
)
def test_more_forms_are_known_in_small_clusters(nodes: int, most: int) -> None:
    """The answers for all of them are kept."""
    assert claim_searches.most_forms(nodes) == most


@pytest.mark.parametrize(
    ("expression", "is_simple"),
    [
        ("device.driver == 'x'", True),
        ("device.capacity['x'].memory.compareTo(quantity('40Gi')) >= 0", True),
        ("[0, 1, 2].all (a, a >= 0)", False),
        ("device.attributes['x'].model.matches('a*')", False),
        (" || ".join(f"device.driver != 'x{number}'" for number in range(20)), False),
    ],
)
def test_selectors_that_may_take_long_cost_more(expression: str, is_simple: bool) -> None:
    core = HostileCore(nodes=NODES)
    core.see(Resource.RESOURCE_CLAIMS, a_claim("c", 1, [expression]))
    core.see(Resource.PODS, evil(1))
    info = core.state.pods["evil/claims-1"].info
    per_node = claim_searches.SIMPLE_STEPS if is_simple else claim_searches.OTHER_STEPS
    assert core.state.guards.costs.of_first(info) == NODES * per_node
