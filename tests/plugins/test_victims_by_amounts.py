"""Victims selected by sums are those that are selected on nodes with pods."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from asched.framework.runtime.dry_run import FilterDryRunner
from asched.model.resources import Resource
from asched.state.records import Rejected
from tests.core.hostile import HostileCore, a_node
from tests.security.hostile_objects import Json, a_pod

NODES = 4
AMOUNTS = ("500m", "1", "1500m", "2", "9223372036854775807m")
"""The last one saturates sums."""
LARGE_AMOUNTS = ("2500m", "3", "3500m", "4")


@st.composite
def pods_on_nodes(draw: st.DrawFn) -> list[Json]:
    pods = []
    for number in range(draw(st.integers(8, 20))):
        amount = draw(st.sampled_from([*AMOUNTS[:4] * 4, *AMOUNTS]))
        pod = drawn_pod(draw, "on-node", number, amount, draw(st.integers(0, 2)))
        pod["spec"]["nodeName"] = f"n{draw(st.integers(0, NODES - 1))}"
        pod["metadata"]["labels"] = {"app": draw(st.sampled_from("ab"))}
        if draw(st.booleans()):
            second = draw(st.integers(0, 3))
            pod["status"] = {"phase": "Running", "startTime": f"2026-01-01T00:00:0{second}Z"}
        pods.append(pod)
    return pods


def drawn_pod(draw: st.DrawFn, prefix: str, number: int, cpu: str, priority: int) -> Json:
    requests = {"cpu": cpu, "memory": f"{draw(st.integers(0, 3))}Gi"}
    if draw(st.booleans()):
        requests["example.com/card"] = str(draw(st.integers(0, 2)))
    container = {"name": "c", "image": "i", "resources": {"requests": requests}}
    return a_pod(prefix, number, containers=[container], priority=priority)


@st.composite
def preemptors(draw: st.DrawFn) -> list[Json]:
    number = draw(st.integers(1, 4))
    amounts, priorities = st.sampled_from(LARGE_AMOUNTS), st.integers(1, 3)
    return [drawn_pod(draw, "preemptor", i, draw(amounts), draw(priorities)) for i in range(number)]


def budget(allowed: int) -> Json:
    return {
        "metadata": {"name": "b", "namespace": "evil", "uid": "b"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}},
        "status": {"disruptionsAllowed": allowed},
    }


def decisions(cluster: list[Json], waiting: list[Json], allowed: int | None) -> list[Any]:
    core = HostileCore(nodes=0)
    for number in range(NODES):
        node = a_node(number, cpu="4", memory="8Gi", pods="5", **{"example.com/card": "2"})
        core.see(Resource.NODES, node)
    if allowed is not None:
        core.see(Resource.POD_DISRUPTION_BUDGETS, budget(allowed))
    for pod in (*cluster, *waiting):
        core.see(Resource.PODS, pod)
    return core.decide()


@given(cluster=pods_on_nodes(), waiting=preemptors(), allowed=st.sampled_from([None, 0, 1]))
def test_same_decisions(cluster: list[Json], waiting: list[Json], allowed: int | None) -> None:
    by_amounts = decisions(cluster, waiting, allowed)
    with patch.object(FilterDryRunner, "reads_only_amounts", False):
        assert decisions(cluster, waiting, allowed) == by_amounts


def test_sums_are_used_for_plain_pods() -> None:
    cluster = [a_pod("on-node", n, nodeName=f"n{n}", containers=[_cpu("4")]) for n in range(NODES)]
    waiting = [a_pod("preemptor", 0, containers=[_cpu("3")], priority=1)]
    with patch.object(FilterDryRunner, "dry_runs", side_effect=AssertionError):
        (decision,) = decisions(cluster, waiting, None)
    assert isinstance(decision, Rejected)
    assert len(decision.victims) == 1


def _cpu(amount: str) -> Json:
    return {"name": "c", "image": "i", "resources": {"requests": {"cpu": amount}}}
