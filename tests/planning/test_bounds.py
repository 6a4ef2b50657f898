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
from asched.planning.bounds import least_nodes, most_of, most_pods
from asched.planning.packing import NodeKind, PackingProblem, PodKind, packing_problem
from asched.planning.quality import AuditedPod, quality_of
from tests.audit.recording import node, pod

LIMIT_S = 20.0

amounts = st.tuples(st.integers(0, 4), st.integers(1, 4))


def problem(nodes: list[tuple[int, int]], pods: list[tuple[int, int]]) -> PackingProblem:
    """One kind for each node and each pod; pods may run everywhere."""
    every = tuple(range(len(nodes)))
    return PackingProblem(
        ("cpu", "pods"),
        tuple(NodeKind((f"n{i}",), np.array(one)) for i, one in enumerate(nodes)),
        tuple(PodKind(1, np.array(one), every) for one in pods),
    )


def best(nodes: list[tuple[int, int]], pods: list[tuple[int, int]]) -> tuple[int | None, int, int]:
    """(least nodes for all pods, most pods, most of the first resource) by trying everything."""

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

    every = placements(0, tuple(nodes))
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


def test_command_without_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCHED_JOURNAL", raising=False)
    ran = CliRunner().invoke(app, ["audit-quality"])
    assert (ran.exit_code, "give a sweep file or --journal" in ran.output) == (2, True)
