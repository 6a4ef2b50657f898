"""The workload of the demo: feasible, and determined by the seed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.cli.demo import MIN_NODES
from asched.cli.demo.runner import JournalCounts
from asched.cli.demo.workload import GPU, DemoWorkload, Pool, build, most_pods, pools
from asched.model.quantity import NS_PER_S, milli_value, value
from tests.run_size import examples

SIZES = st.integers(MIN_NODES, 400).flatmap(
    lambda nodes: st.tuples(st.just(nodes), st.integers(1, min(4000, most_pods(nodes))))
)


def key_of(pod: dict[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def requests_of(pod: dict[str, Any]) -> dict[str, str]:
    requests: dict[str, str] = pod["spec"]["containers"][0]["resources"]["requests"]
    return requests


def feasible_pods(workload: DemoWorkload) -> list[dict[str, Any]]:
    return [a.pod for a in workload.arrivals if key_of(a.pod) in workload.feasible]


def pool_of(pod: dict[str, Any], workload: DemoWorkload) -> Pool:
    """The only pool for the pod, or the general one."""
    spec = pod["spec"]
    wanted = str([spec.get("nodeSelector"), spec.get("affinity")])
    for pool in workload.pools:
        if pool.gpu_model and f"'{pool.gpu_model}'" in wanted:
            return pool
    name = "memory" if "'memory'" in wanted else "general"
    return next(pool for pool in workload.pools if pool.name == name)


@settings(max_examples=examples(40))
@given(SIZES, st.integers(0, 1000))
def test_feasible_pods_leave_free_resources_in_every_pool(size: tuple[int, int], seed: int) -> None:
    nodes, pods = size
    workload = build(nodes, pods, 5.0, seed)
    names = [key_of(arrival.pod) for arrival in workload.arrivals]
    assert len(set(names)) == len(names)
    assert len(workload.feasible) == pods
    assert {*names} == workload.feasible | workload.infeasible.keys()
    used: Counter[tuple[str, str]] = Counter()
    for pod in feasible_pods(workload):
        pool = pool_of(pod, workload)
        for resource, amount in requests_of(pod).items():
            used[pool.name, resource] += milli_value(amount)
        used[pool.name, "pods"] += 1
        assert milli_value(requests_of(pod)["cpu"]) <= pool.cpu * 1000 // 8 + 10
        assert value(requests_of(pod)["memory"]) <= (pool.memory_gi << 30) // 8 + (16 << 20)
    for pool in workload.pools:
        assert used[pool.name, "cpu"] <= 0.85 * pool.count * pool.cpu * 1000
        assert used[pool.name, GPU] <= pool.count * pool.gpus * 1000 // 2
        assert used[pool.name, "pods"] <= 0.85 * pool.count * 110


def test_same_seed_gives_same_workload() -> None:
    assert build(50, 300, 3.0, 7).arrivals == build(50, 300, 3.0, 7).arrivals
    assert build(50, 300, 3.0, 7).arrivals != build(50, 300, 3.0, 8).arrivals


def test_pods_arrive_in_order_and_in_time() -> None:
    times = [arrival.at_s for arrival in build(200, 2000, 6.0, 1).arrivals]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= 6.0


def test_pools_have_requested_size_and_all_types() -> None:
    found = pools(200)
    assert sum(pool.count for pool in found if not pool.late) == 200
    assert [pool.name for pool in found if pool.late] == ["h100"]
    assert {pool.gpu_model for pool in found} == {"", "A100", "L4", "H100"}
    node = next(next(pool for pool in found if pool.gpus).nodes())
    assert node["status"]["allocatable"][GPU] == "8"
    assert node["spec"]["taints"][0]["effect"] == "NoSchedule"


@pytest.mark.parametrize(
    ("latencies_s", "percent", "answer"),
    [([], 50, 0), ([7], 99, 7), ([1, 2, 3, 4], 50, 2), ([*range(1, 101)], 99, 99)],
)
def test_percentile_uses_nearest_rank(latencies_s: list[int], percent: float, answer: int) -> None:
    counts = JournalCounts(set())
    counts.latencies_ns = [latency_s * NS_PER_S for latency_s in latencies_s]
    assert counts.latency_s(percent) == answer
