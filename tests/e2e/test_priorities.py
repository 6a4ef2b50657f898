"""SchedulerPriorities and spreading: which of several feasible nodes is selected."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from asched.model.quantity import milli_value, value
from asched.model.resources import Resource
from tests.e2e.suite import (
    HOSTNAME,
    NODE_CPU_MILLIS,
    WORKERS,
    ZONE,
    Suite,
    on_node,
    pause_pod,
    spread_constraint,
    suite,
    with_label,
)

SMALL = {"cpu": "100m", "memory": "100Mi"}


async def _balance(s: Suite, share: float) -> None:
    """Run a pod on each worker, so that all use the same share of cpu and memory."""
    for name in WORKERS:
        bound = [pod for pod in s.pods() if pod["spec"].get("nodeName") == name]
        requested = [pod["spec"]["containers"][0]["resources"].get("requests", {}) for pod in bound]
        used_cpu = sum(milli_value(requests.get("cpu", "0")) for requests in requested)
        used_memory = sum(value(requests.get("memory", "0")) for requests in requested)
        cpu = f"{round(NODE_CPU_MILLIS * share) - used_cpu}m"
        memory = str(round(16 * 2**30 * share) - used_memory)
        filler = pause_pod(f"balance-{name}", {"cpu": cpu, "memory": memory})
        await s.run({**filler, "spec": {**filler["spec"], "affinity": on_node(name)}})


async def _add_load(s: Suite, node: str) -> None:
    """Use some resources of a node, which lowers its score slightly."""
    await s.run(
        pause_pod(f"load-{node}", {"cpu": "400m", "memory": "1600Mi"}, affinity=on_node(node))
    )


async def test_preferred_anti_affinity_avoids_node(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        avoided = await s.run(pause_pod("with-label", SMALL, labels={"security": "S1"}))
        await _balance(s, 0.6)
        for node in set(WORKERS) - {avoided}:
            await _add_load(s, node)
        expressions = [
            {"key": "security", "operator": "In", "values": ["S1", "value2"]},
            {"key": "security", "operator": "NotIn", "values": ["S2"]},
            {"key": "security", "operator": "Exists"},
        ]
        term = {
            "labelSelector": {"matchExpressions": expressions},
            "topologyKey": HOSTNAME,
            "namespaces": ["default"],
        }
        preferred = [{"weight": 10, "podAffinityTerm": term}]
        anti = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
        for number in range(4):
            assert await s.run(pause_pod(f"anti-{number}", affinity=anti)) != avoided


async def test_nodes_with_tolerated_taints_are_preferred(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await _balance(s, 0.5)
        tolerations = []
        for node in WORKERS:
            taints = [
                {"key": f"taint-{number}", "value": f"of-{node}", "effect": "PreferNoSchedule"}
                for number in range(10)
            ]
            await s.taint(node, *taints)
            if node == WORKERS[1]:
                tolerations = taints
        assert await s.run(pause_pod("with-tolerations", tolerations=tolerations)) == WORKERS[1]


async def test_preferred_spread_constraint_selects_emptier_node(tmp_path: Path) -> None:
    key = label = "kubernetes.io-e2e-pts-score"
    async with suite(tmp_path) as s:
        nodes = WORKERS[:2]
        await s.label_nodes_with_names(key, *nodes)
        await _balance(s, 0.5)
        existing = pause_pod("e2e-pts-score", labels={label: "foo"}, nodeSelector={key: nodes[0]})
        await s.replicas_running(await s.create_replicas(Resource.REPLICA_SETS, existing, 4))
        await _add_load(s, nodes[1])
        pod = pause_pod(
            "test-pod",
            labels={label: "bar"},
            affinity=with_label(key, *nodes),
            topologySpreadConstraints=[spread_constraint(key, label, "ScheduleAnyway")],
        )
        assert await s.run(pod) == nodes[1]


# -- zones ----------------------------------------------------------------------------------------


def _per_zone(s: Suite, prefix: str) -> list[int]:
    """Numbers of the pods in each zone, sorted."""
    counts: Counter[str] = Counter()
    for name in WORKERS:
        counts[s.cluster.get("nodes", name)["metadata"]["labels"][ZONE]] += 0
    for pod in s.pods():
        if pod["metadata"]["name"].startswith(prefix):
            node = s.cluster.get("nodes", pod["spec"]["nodeName"])
            counts[node["metadata"]["labels"][ZONE]] += 1
    return sorted(counts.values())


async def test_pods_of_a_service_spread_over_zones(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        service = s.cluster.create(
            "services",
            {
                "metadata": {"name": "test-service"},
                "spec": {"selector": {"service": "test-service"}, "ports": [{"port": 80}]},
            },
        )
        await s.wait_until_observed(Resource.SERVICES, service)
        await _add_load(s, WORKERS[1])
        for number in range(5):
            s.create(pause_pod(f"member-{number}", labels={"service": "test-service"}))
        await s.until(lambda: s.pod_counts() == (6, 0))
        assert _per_zone(s, "member") == [2, 3]


@pytest.mark.parametrize("resource", [Resource.REPLICATION_CONTROLLERS, Resource.REPLICA_SETS])
async def test_pods_of_a_controller_spread_over_zones(tmp_path: Path, resource: Resource) -> None:
    async with suite(tmp_path) as s:
        await _add_load(s, WORKERS[1])
        pod = pause_pod("spread", labels={"name": "spread"})
        await s.replicas_running(await s.create_replicas(resource, pod, 5))
        assert _per_zone(s, "rs-spread") == [2, 3]
