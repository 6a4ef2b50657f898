"""Bounds hold for every placement, and are exact where the relaxation is."""

from __future__ import annotations

import json
from concurrent.futures import Executor
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from asched import planning
from asched.cli.main import app
from asched.model.pod import Toleration
from asched.planning.bounds import least_cost, least_nodes, most_of, most_pods
from asched.planning.packing import NodeKind, PackingProblem, PodKind, packing_problem
from asched.planning.quality import AuditedPod, quality_of
from asched.pricing.prices import NodePrice, Prices
from tests.audit.recording import node, pod

LIMIT_S = 20.0

amounts = st.tuples(st.integers(0, 4), st.integers(1, 4))


def problem(
    nodes: list[tuple[int, int]], pods: list[tuple[int, int]], prices: list[float] | None = None
) -> PackingProblem:
    """One kind for each node and each pod; pods may run everywhere."""
    every = tuple(range(len(nodes)))
    per_hour = prices or [0.0] * len(nodes)
    return PackingProblem(
        ("cpu", "pods"),
        tuple(NodeKind((f"n{i}",), np.array(one), per_hour[i]) for i, one in enumerate(nodes)),
        tuple(PodKind(1, np.array(one), every) for one in pods),
    )


def placements_of(
    nodes: list[tuple[int, int]], pods: list[tuple[int, int]]
) -> frozenset[tuple[int, ...]]:
    """(bits of used nodes, pods, amount of the first resource) of every placement."""

    @cache
    def placements(left: int, free: tuple[tuple[int, int], ...]) -> frozenset[tuple[int, ...]]:
        """(bits of used nodes, pods, amount) of every placement of the pods from ``left`` on."""
        if left == len(pods):
            return frozenset([(0, 0, 0)])
        found = set(placements(left + 1, free))
        asked = pods[left]
        for i, (cpu, slots) in enumerate(free):
            if asked[0] <= cpu and asked[1] <= slots:
                rest = (*free[:i], (cpu - asked[0], slots - asked[1]), *free[i + 1 :])
                for used, count, amount in placements(left + 1, rest):
                    found.add((used | 1 << i, count + 1, amount + asked[0]))
        return frozenset(found)

    return placements(0, tuple(nodes))


def best(nodes: list[tuple[int, int]], pods: list[tuple[int, int]]) -> tuple[int | None, int, int]:
    """(least nodes for all pods, most pods, most of the first resource) by trying everything."""
    every = placements_of(nodes, pods)
    whole = [used.bit_count() for used, count, _ in every if count == len(pods)]
    return (
        min(whole, default=None),
        max(count for _, count, _ in every),
        max(amount for _, _, amount in every),
    )


@given(
    nodes=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 6)), min_size=1, max_size=3),
    pods=st.lists(amounts, min_size=1, max_size=5),
)
def test_bounds_hold_for_all_placements(
    nodes: list[tuple[int, int]], pods: list[tuple[int, int]]
) -> None:
    least, most, amount = best(nodes, pods)
    given_problem = problem(nodes, pods)
    found = least_nodes(given_problem, LIMIT_S)
    if found is None:
        assert least is None, "the program must have a solution if there is a placement"
    elif least is not None:
        assert found.value <= least
    assert most_pods(given_problem, LIMIT_S).value >= most
    assert most_of(given_problem, "cpu", LIMIT_S).value >= amount
    if len(nodes) == 1:
        # Without a choice of nodes nothing is relaxed.
        assert (found and found.value, most_pods(given_problem, LIMIT_S).value) == (least, most)


@given(
    nodes=st.lists(
        st.tuples(st.integers(0, 8), st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=4
    ),
    pods=st.lists(amounts, min_size=1, max_size=5),
)
def test_no_placement_is_cheaper_than_the_bound(
    nodes: list[tuple[int, int, int]], pods: list[tuple[int, int]]
) -> None:
    sizes = [(cpu, slots) for cpu, slots, _ in nodes]
    prices = [tenths / 10 for *_, tenths in nodes]
    found = least_cost(problem(sizes, pods, prices), LIMIT_S)
    costs = [
        sum(price for i, price in enumerate(prices) if used >> i & 1)
        for used, count, _ in placements_of(sizes, pods)
        if count == len(pods)
    ]
    if not costs:
        assert found is None, "with a kind for each node nothing is relaxed"
        return
    assert found is not None
    assert found.gap <= 1e-4, "the solver ends there"
    assert found.value == pytest.approx(min(costs), abs=1e-3)
    assert found.value <= min(costs)
    merged = least_cost(with_equal_nodes_merged(problem(sizes, pods, prices)), LIMIT_S)
    assert merged is not None
    assert merged.value <= min(costs)


def with_equal_nodes_merged(separate: PackingProblem) -> PackingProblem:
    """Equal nodes are of one kind, which relaxes the packing of each."""
    kinds = {
        (tuple(one.allocatable.tolist()), one.per_hour): one.allocatable for one in separate.nodes
    }
    names = {
        key: tuple(
            one.names[0]
            for one in separate.nodes
            if (tuple(one.allocatable.tolist()), one.per_hour) == key
        )
        for key in kinds
    }
    nodes = tuple(NodeKind(names[key], kinds[key], key[1]) for key in kinds)
    every = tuple(range(len(nodes)))
    return PackingProblem(
        separate.resources, nodes, tuple(one._replace(node_kinds=every) for one in separate.pods)
    )


def test_cost_bound_chooses_cheap_nodes() -> None:
    """Four pods of one core: two cheap nodes with two cores, not one dear node with eight."""
    kinds = PackingProblem(
        ("cpu", "pods"),
        (
            NodeKind(("large",), np.array([8000, 110]), 1.0),
            NodeKind(tuple("abc"), np.array([2000, 110]), 0.3),
        ),
        (PodKind(4, np.array([1000, 1]), (0, 1)),),
    )
    found = least_cost(kinds, LIMIT_S)
    assert found is not None
    assert found.value == pytest.approx(0.6, abs=1e-5)
    assert found.gap == 0.0
    nodes = least_nodes(kinds, LIMIT_S)
    assert nodes
    assert nodes.value == 1


def test_regret_in_money() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    prices = Prices(
        "asched.dev/v1", "Prices", {"cpu": 0.1}, nodes=(NodePrice(1.5, {"kind": "dear"}),)
    )
    nodes = [node("a"), node("b"), node("c", kind="dear"), node("d")]
    placed = [AuditedPod(pod("p"), "a"), AuditedPod(pod("q"), "c"), AuditedPod(pod("r"), "")]
    found = quality_of(at, nodes, placed, LIMIT_S, prices)
    assert found.costs is not None
    assert found.costs.nodes == pytest.approx(2.7)
    assert found.costs.in_use == pytest.approx(1.9)
    assert found.excess_cost == pytest.approx(1.5, abs=1e-5), "both pods fit on one cheap node"
    assert quality_of(at, nodes, placed, LIMIT_S).least_cost is None


def test_rounding_by_node_counts() -> None:
    """Three pods of 3 CPUs on nodes with 4: the sum would fit on three nodes, as would single
    pods; seven do not fit on six nodes although 21 < 24."""
    kinds = PackingProblem(
        ("cpu", "pods"),
        (NodeKind(tuple("abcdef"), np.array([4, 110])),),
        (PodKind(7, np.array([3, 1]), (0,)),),
    )
    assert least_nodes(kinds, LIMIT_S) is None
    found = most_pods(kinds, LIMIT_S)
    assert (found.value, found.gap) == (6, 0.0)
    assert most_of(kinds, "cpu", LIMIT_S).value == 18


def test_kinds_of_nodes_and_pods() -> None:
    """Nodes differ by amounts, selected labels, and taints that a pod does not tolerate."""
    nodes = [node("a"), node("b"), node("c", cpu="8"), node("d", taint="gpu"), node("e", zone="z")]
    tolerant = pod("t", tolerations=[msgspec.to_builtins(Toleration(key="gpu", operator="Exists"))])
    pods = [pod("p"), pod("q"), tolerant, pod("s", nodeSelector={"zone": "z"})]
    found = packing_problem(nodes, pods)
    assert [kind.names for kind in found.nodes] == [("a", "b"), ("c",), ("d",), ("e",)]
    kinds = {kind.node_kinds: kind.number for kind in found.pods}
    assert kinds == {(0, 1, 3): 2, (0, 1, 2, 3): 1, (3,): 1}
    assert found.pod_count == 4


def test_pod_that_fits_nowhere_is_not_counted() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    placed = [
        AuditedPod(pod("p"), "a"),
        AuditedPod(pod("q"), "b"),
        AuditedPod(pod("huge", "9"), ""),
    ]
    found = quality_of(at, [node("a"), node("b")], placed, LIMIT_S)
    assert (found.nodes_in_use, found.least_nodes and found.least_nodes.value) == (2, 1)
    assert (found.excess_nodes, found.placed, found.most_pods.value) == (1, 2, 2)
    assert found.missed_pods == 0
    assert (found.resources["cpu"].allocated, found.resources["cpu"].most.value) == (2000, 2000)


def test_empty_cluster_and_no_pods() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    nothing = quality_of(at, [], [], LIMIT_S)
    assert (nothing.nodes_in_use, nothing.excess_nodes, nothing.missed_pods) == (0, 0, 0)
    without_nodes = quality_of(at, [], [AuditedPod(pod("p"), "")], LIMIT_S)
    assert without_nodes.most_pods.value == 0


def test_runs_are_never_better_than_their_bounds(journal: Path, processes: Executor) -> None:
    runs = planning.sweep(planning.open(journal), drop_nodes=[0, 3], seed=[None, 3])
    for row in runs.quality(processes, moments=4, limit_s=LIMIT_S):
        assert row.error == ""
        assert row.quality is not None
        assert len(row.quality.moments) == 4
        for moment in row.quality.moments:
            assert moment.excess_nodes >= 0
            assert moment.missed_pods >= 0
            for one in moment.resources.values():
                assert one.allocated <= one.most.value <= one.allocatable


@pytest.mark.parametrize("at", [[], ["--at", "2026-01-01T00:10:00Z"]])
def test_command_on_a_journal(journal: Path, at: list[str]) -> None:
    ran = CliRunner().invoke(app, ["audit-quality", "--journal", str(journal), *at, "-o", "json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert found["nodesInUse"] >= found["leastNodes"]["value"]
    table = CliRunner().invoke(app, ["audit-quality", "--journal", str(journal), *at])
    assert f"pods placed, of {found['pods']}" in table.stdout


def test_command_on_a_sweep(journal: Path, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "apiVersion: asched.dev/v1\nkind: Sweep\n"
        f"workload: {{journal: {journal}}}\nplugins: ['', 'NodeResourcesFit=5']\n"
    )
    options = ["--jobs", "1", "--moments", "2", "--cache", str(tmp_path / "runs")]
    ran = CliRunner().invoke(app, ["audit-quality", str(file), *options, "-o", "json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert [len(row["moments"]) for row in found] == [2, 2]
    table = CliRunner().invoke(app, ["audit-quality", str(file), *options])
    assert "NodeResourcesFit=5" in table.stdout
    prices = ["--prices", "docs/examples/prices.yaml"]
    priced = CliRunner().invoke(app, ["audit-quality", str(file), *options, *prices])
    assert "EXCESS COST / H" in priced.stdout
    ran = CliRunner().invoke(app, ["audit-quality", str(file), *options, *prices, "-o", "json"])
    for row in json.loads(ran.stdout):
        assert 0 <= row["meanExcessCost"] <= row["moments"][0]["costs"]["nodes"]


def test_command_without_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCHED_JOURNAL", raising=False)
    ran = CliRunner().invoke(app, ["audit-quality"])
    assert (ran.exit_code, "give a sweep file or --journal" in ran.output) == (2, True)
