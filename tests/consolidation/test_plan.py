"""Plans: what is freed, what stays and why, and that every plan can be carried out."""

from __future__ import annotations

from collections import defaultdict
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.consolidation import ConsolidationSettings, plan_consolidation
from asched.consolidation.candidates import candidates_of, eviction_cost
from asched.consolidation.live import with_prices
from asched.consolidation.plan import ConsolidationError, ConsolidationPlan
from asched.consolidation.search import SearchProgress, cheapest_with_room
from asched.framework.pod_info import PodInfo
from asched.model.resources import AnyObject
from asched.pricing.prices import parse_prices
from asched.state.checkpoint import checkpoint_of
from asched.state.cluster import ClusterState
from asched.testing.builders import node, pod
from tests.consolidation.clusters import REGISTRY, budget, owned, state_of

ALL = ConsolidationSettings()
PRICES = parse_prices(
    """
apiVersion: asched.dev/v1
kind: Prices
resources: {cpu: 1}
nodes:
  - {labels: {size: large}, perHour: 2}
  - {labels: {size: small}, perHour: 0.5}
""",
    "prices.yaml",
)


def plan_of(state: ClusterState, settings: ConsolidationSettings = ALL) -> ConsolidationPlan:
    return plan_consolidation(state, REGISTRY.load, settings)


def freed(plan: ConsolidationPlan) -> list[str]:
    return [domain.name for domain in plan.freed]


def reasons(plan: ConsolidationPlan) -> dict[str, str]:
    return {kept.name: kept.reason for kept in plan.kept}


def three_nodes(*others: AnyObject) -> ClusterState:
    """Nodes a, b and c with 4 CPUs; a has two pods of 1 CPU, b and c have one of 2."""
    return state_of(
        *(node(name, cpu="4") for name in "abc"),
        owned("a1", cpu="1", node="a", labels={"app": "a"}),
        owned("a2", cpu="1", node="a"),
        owned("b1", cpu="2", node="b", labels={"app": "b"}),
        owned("c1", cpu="2", node="c"),
        *others,
    )


def test_cheapest_nodes_are_freed_and_the_rest_says_why() -> None:
    plan = plan_of(three_nodes())
    assert freed(plan) == ["b"]
    (move,) = plan.freed[0].moves
    assert (move.pod, move.node) == ("default/b1", "b")
    assert move.target in ("a", "c")
    assert (plan.evictions, plan.cost, plan.cost_per_node) == (1, 1.0, 1.0)
    assert "Insufficient cpu" in reasons(plan)["c"]
    assert "Insufficient cpu" in reasons(plan)["a"]


def test_nodes_of_one_plan_receive_no_pods() -> None:
    state = state_of(
        *(node(f"n{number}", cpu="4") for number in range(4)),
        *(owned(f"p{number}", cpu="1", node=f"n{number}") for number in range(4)),
    )
    plan = plan_of(state)
    assert freed(plan) == ["n0", "n1", "n2"]
    assert {move.target for domain in plan.freed for move in domain.moves} == {"n3"}


@pytest.mark.parametrize(
    ("blocker", "reason"),
    [
        (pod("bare", node="b"), "pod default/bare has no controller that would replace it"),
        (
            owned("other", node="b", scheduler_name="other"),
            "pod default/other is scheduled by other, which no profile serves",
        ),
        (
            budget("strict", 0, app="b"),
            "pod default/b1 is protected by PodDisruptionBudget default/strict, which allows none",
        ),
        (
            owned("claim", node="b", spec={"resourceClaims": [{"name": "gpu"}]}),
            "pod default/claim has devices of ResourceClaims",
        ),
    ],
)
def test_unmovable_pod_keeps_its_node(blocker: AnyObject, reason: str) -> None:
    plan = plan_of(three_nodes(blocker))
    assert "b" not in freed(plan)
    assert reasons(plan)["b"] == reason


def test_budget_that_allows_one_disruption_does_not_keep_a_node() -> None:
    plan = plan_of(three_nodes(budget("loose", 1, app="b"), budget("strict", 0, app="a")))
    assert freed(plan) == ["c"]
    assert "strict" in reasons(plan)["a"]


def test_pods_of_daemon_sets_stay() -> None:
    plan = plan_of(three_nodes(owned("daemon", "DaemonSet/agent", node="b")))
    assert freed(plan) == ["c"] or freed(plan) == ["b"]
    assert all(move.pod != "default/daemon" for domain in plan.freed for move in domain.moves)


def test_anti_affinity_of_the_pods_is_respected() -> None:
    term = {
        "labelSelector": {"matchLabels": {"app": "x"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    options: Any = {"labels": {"app": "x"}, "affinity": affinity, "cpu": "1"}
    state = state_of(
        *(node(name, cpu="8") for name in "abc"),
        *(owned(f"p-{name}", node=name, **options) for name in "abc"),
    )
    plan = plan_of(state)
    assert freed(plan) == []
    assert all("anti-affinity" in reason for reason in reasons(plan).values())


def test_pods_that_need_preemption_keep_their_node() -> None:
    state = state_of(
        node("a", cpu="2"),
        node("b", cpu="2"),
        owned("important", cpu="2", node="a", priority=10),
        owned("minor", cpu="2", node="b"),
    )
    found = reasons(plan_of(state))
    assert found["a"] == "pod default/minor would be preempted for pod default/important"
    assert "Insufficient cpu" in found["b"]


def test_pending_pods_get_their_nodes_first() -> None:
    used = [owned(f"{name}1", cpu="2", node=name) for name in "ab"]
    nodes = [node(name, cpu="4") for name in "ab"]
    assert len(freed(plan_of(state_of(*nodes, *used)))) == 1
    plan = plan_of(state_of(*nodes, *used, owned("waiting", cpu="2")))
    assert (plan.placed_first, freed(plan)) == (1, [])


def test_domains_are_freed_whole() -> None:
    state = state_of(
        *(
            node(f"{rack}{number}", cpu="4", labels={"rack": rack})
            for rack in "xy"
            for number in range(2)
        ),
        node("lost", cpu="64"),
        *(owned(f"x{number}-pod", cpu="2", node=f"x{number}") for number in range(2)),
        *(owned(f"y{number}-pod", cpu="3", node=f"y{number}") for number in range(2)),
    )
    plan = plan_of(state, ConsolidationSettings(by="rack", max_domains=1))
    (domain,) = plan.freed
    assert (domain.name, domain.nodes, len(domain.moves)) == ("x", ("x0", "x1"), 2)
    assert {move.target for move in domain.moves} == {"lost"}
    assert reasons(plan) == {"y": "the limit of 1 is reached"}


def test_named_domains_are_freed_in_their_order() -> None:
    plan = plan_of(three_nodes(), ConsolidationSettings(domains=("c",)))
    assert freed(plan) == ["c"]
    assert plan.kept == ()


def test_prices_order_the_domains_and_are_summed() -> None:
    state = state_of(
        node("a", cpu="4", labels={"size": "large"}),
        node("b", cpu="4", labels={"size": "small"}),
        owned("a1", cpu="1", node="a"),
        owned("b1", cpu="1", node="b"),
    )
    plan = plan_of(state, with_prices(ConsolidationSettings(), state, PRICES))
    assert freed(plan) == ["a"]
    assert plan.price_per_hour == 2.0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (ConsolidationSettings(by="rack"), "no node has label rack"),
        (
            ConsolidationSettings(selector={"pool": "x"}),
            "no node with pool=x exists",
        ),
        (ConsolidationSettings(domains=("z",)), "node z is not in the cluster"),
    ],
)
def test_settings_that_fit_no_node_are_rejected(settings: ConsolidationSettings, line: str) -> None:
    with pytest.raises(ConsolidationError, match=line):
        plan_of(three_nodes(), settings)


def test_eviction_cost_is_that_of_karpenter() -> None:
    def cost(priority: int, deletion_cost: int = 0) -> float:
        return eviction_cost(PodInfo(pod("p", priority=priority)), deletion_cost)

    assert cost(0) == 1.0
    assert cost(2**25) == 2.0
    assert cost(0, 2**27) == 2.0
    assert cost(2_000_000_000) == 10.0
    assert cost(-2_000_000_000) == -10.0


# -- properties ----------------------------------------------------------------------------------

CPUS = st.integers(1, 4)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    """CPUs of nodes, and (node, CPUs) of pods that fit on them."""
    nodes = draw(st.lists(st.integers(2, 6), min_size=2, max_size=4))
    left, pods = list(nodes), []
    for _ in range(draw(st.integers(0, 6))):
        at, cpu = draw(st.integers(0, len(nodes) - 1)), draw(CPUS)
        if left[at] >= cpu:
            left[at] -= cpu
            pods.append((at, cpu))
    return nodes, pods


def built(cluster: tuple[list[int], list[tuple[int, int]]]) -> ClusterState:
    nodes, pods = cluster
    return state_of(
        *(node(f"n{number}", cpu=str(cpu)) for number, cpu in enumerate(nodes)),
        *(
            owned(f"p{number}", cpu=str(cpu), node=f"n{at}")
            for number, (at, cpu) in enumerate(pods)
        ),
    )


@given(clusters())
def test_every_plan_can_be_carried_out_in_order(
    cluster: tuple[list[int], list[tuple[int, int]]],
) -> None:
    nodes, pods = cluster
    state = built(cluster)
    before = checkpoint_of(state)
    plan = plan_of(state)
    assert checkpoint_of(state) == before
    assert plan_of(state) == plan
    gone = {name for domain in plan.freed for name in domain.nodes}
    used: dict[str, int] = defaultdict(int)
    place = {f"default/p{number}": (f"n{at}", cpu) for number, (at, cpu) in enumerate(pods)}
    for at, cpu in pods:
        used[f"n{at}"] += cpu
    for domain in plan.freed:
        for move in domain.moves:
            at_node, cpu = place.pop(move.pod)
            assert at_node == move.node
            assert move.target not in gone
            used[move.node] -= cpu
            used[move.target] += cpu
            assert used[move.target] <= nodes[int(move.target[1:])]
    assert all(used[name] == 0 for name in gone)
    assert {kept.name for kept in plan.kept} | gone == {f"n{n}" for n in range(len(nodes))}


@given(clusters())
def test_nodes_beyond_the_first_set_need_more_room_than_there_is(
    cluster: tuple[list[int], list[tuple[int, int]]],
) -> None:
    """The first set contains every number of cheapest nodes that can be freed together."""
    nodes, pods = cluster
    state = built(cluster)
    free = [each for each in candidates_of(state, ALL) if not each.reason]
    first = cheapest_with_room(state, free)
    for number in range(first + 1, len(free) + 1):
        gone = {each.name for each in free[:number]}
        left = {n: cpu for n, cpu in enumerate(nodes) if f"n{n}" not in gone}
        for at, cpu in pods:
            if at in left:
                left[at] -= cpu
        moving = [cpu for at, cpu in pods if at not in left]
        assert sum(moving) > sum(left.values())


def test_progress_and_the_limit_of_trials() -> None:
    seen: list[SearchProgress] = []
    plan = plan_consolidation(three_nodes(), REGISTRY.load, ALL, seen.append)
    assert freed(plan) == ["b"]
    assert [each.step for each in seen] == sorted(each.step for each in seen)
    assert all(each.done < each.domains for each in seen)
    stopped = plan_of(three_nodes(), ConsolidationSettings(trials=1))
    assert freed(stopped) == ["b"], "one trial proves the first set"
    not_tried = "not tried: the limit of trials is reached"
    assert reasons(stopped) == {"a": not_tried, "c": not_tried}


def test_a_node_that_fails_becomes_a_target() -> None:
    """The cheapest node has a pod that fits nowhere else; the next two fit on it."""
    state = state_of(
        node("a", cpu="8", labels={"disk": "ssd"}),
        *(node(name, cpu="4") for name in "bc"),
        owned("bound", cpu="1", node="a", spec={"nodeSelector": {"disk": "ssd"}}),
        *(owned(f"{name}{i}", cpu="1", node=name) for name in "bc" for i in range(2)),
    )
    plan = plan_of(state)
    assert freed(plan) == ["b", "c"]
    assert {move.target for domain in plan.freed for move in domain.moves} == {"a"}
    assert "would not be scheduled" in reasons(plan)["a"]


@given(clusters())
def test_a_node_is_kept_only_if_its_pods_did_not_fit(
    cluster: tuple[list[int], list[tuple[int, int]]],
) -> None:
    """A single node with pods that fit elsewhere in every order is never kept by an empty plan."""
    nodes, pods = cluster
    if freed(plan_of(built(cluster))):
        return
    for emptied in range(len(nodes)):
        left = {n: cpu for n, cpu in enumerate(nodes) if n != emptied}
        for at, cpu in pods:
            if at != emptied:
                left[at] -= cpu
        moving = [cpu for at, cpu in pods if at == emptied]
        assert not all(_first_fit(left, order) for order in permutations(moving))


def _first_fit(left: dict[int, int], sizes: tuple[int, ...]) -> bool:
    """Whether every choice of nodes places the pods: the worst one fills the fullest last."""
    if not sizes:
        return True
    fitting = [n for n, free in left.items() if free >= sizes[0]]
    return bool(fitting) and all(
        _first_fit({**left, n: left[n] - sizes[0]}, sizes[1:]) for n in fitting
    )
