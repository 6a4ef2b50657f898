"""SchedulerPredicates: the nodes that pods may run on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asched.model.resources import Resource
from tests.e2e.suite import (
    HOSTNAME,
    NODE_CPU_MILLIS,
    WORKERS,
    Suite,
    on_node,
    pause_pod,
    required_nodes,
    spread_constraint,
    suite,
    with_label,
)

LABEL = "kubernetes.io/e2e-label"
TAINT = {"key": "kubernetes.io/e2e-taint-key", "value": "testing", "effect": "NoSchedule"}
TOLERATION = {"key": TAINT["key"], "value": TAINT["value"], "effect": "NoSchedule"}


async def _find_node(s: Suite) -> str:
    node = await s.run(pause_pod("without-label"))
    s.cluster.delete("pods", "without-label", namespace="default", grace_period_s=0)
    return node


# -- resources ------------------------------------------------------------------------------------


async def test_pod_beyond_max_pods_of_nodes_is_rejected(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        capacity = 10 * len(WORKERS)
        for number in range(capacity):
            s.create(pause_pod(f"maxp-{number}"))
        await s.until(lambda: s.pod_counts() == (capacity, 0))
        s.create(pause_pod("additional-pod"))
        assert "3 Too many pods" in await s.rejected("additional-pod")
        assert s.pod_counts() == (capacity, 1)


async def test_pod_beyond_ephemeral_storage_is_rejected(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        tenth = {"ephemeral-storage": "5Gi"}
        for name in WORKERS:
            await s.set_capacity(name, "pods", "110")
        for number in range(10 * len(WORKERS)):
            s.create(pause_pod(f"overcommit-{number}", tenth))
        await s.until(lambda: s.pod_counts() == (30, 0))
        s.create(pause_pod("additional-pod", tenth))
        assert "3 Insufficient ephemeral-storage" in await s.rejected("additional-pod")
        assert s.pod_counts() == (30, 1)


async def test_pod_beyond_cpu_is_rejected(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await s.label_nodes_with_names("node", *WORKERS)
        most = {"cpu": f"{NODE_CPU_MILLIS * 7 // 10}m"}
        for name in WORKERS:
            s.create(pause_pod(f"filler-{name}", most, affinity=with_label("node", name)))
        for name in WORKERS:
            assert await s.running(f"filler-{name}") == name
        s.create(pause_pod("additional-pod", {"cpu": f"{NODE_CPU_MILLIS // 2}m"}))
        assert "3 Insufficient cpu" in await s.rejected("additional-pod")
        assert s.pod_counts() == (len(WORKERS), 1)


async def test_pod_overhead_is_counted(tmp_path: Path) -> None:
    beard_seconds = "example.com/beardsecond"
    async with suite(tmp_path) as s:
        await s.set_capacity(WORKERS[0], beard_seconds, "1000")
        s.cluster.create(
            "runtimeclasses",
            {
                "metadata": {"name": "with-overhead"},
                "handler": "test-handler",
                "overhead": {"podFixed": {beard_seconds: "250"}},
            },
        )
        assert await s.run(pause_pod("filler", {beard_seconds: "700"})) == WORKERS[0]
        requests = {beard_seconds: "200"}
        s.create(pause_pod("additional-pod", requests, runtimeClassName="with-overhead"))
        assert f"Insufficient {beard_seconds}" in await s.rejected("additional-pod")
        assert s.pod_counts() == (1, 1)
        await s.run(pause_pod("without-overhead", requests))


async def test_in_place_resize_releases_resources_after_kubelet_report(tmp_path: Path) -> None:
    def resources(cpu: str) -> dict[str, Any]:
        return {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}

    def report(s: Suite, cpu: str) -> None:
        """Report allocated resources as the kubelet does."""
        (status,) = s.pod("resized")["status"]["containerStatuses"]
        status = {**status, "allocatedResources": {"cpu": cpu}, "resources": resources(cpu)}
        patch = {"status": {"containerStatuses": [status]}}
        s.cluster.patch("pods", "resized", patch, namespace="default", subresource="status")

    async with suite(tmp_path) as s:
        here: dict[str, Any] = {"nodeSelector": {HOSTNAME: WORKERS[0]}}
        resized = pause_pod("resized", {"cpu": "3"}, **here)
        await s.run(resized)
        report(s, "3")
        s.create(pause_pod("waiting", {"cpu": "2"}, **here))
        assert "1 Insufficient cpu" in await s.rejected("waiting")
        container = {**resized["spec"]["containers"][0], "resources": resources("1")}
        resize = {"spec": {"containers": [container]}}
        s.cluster.patch("pods", "resized", resize, namespace="default", subresource="resize")
        # A later pod shows that the scheduler observed the request without counting on it.
        s.create(pause_pod("later", {"cpu": "4"}, **here))
        assert "1 Insufficient cpu" in await s.rejected("later")
        assert not s.pod("waiting")["spec"].get("nodeName")
        report(s, "1")
        await s.until(lambda: s.pod_counts() == (2, 1))
        assert s.world.node_of("waiting") == WORKERS[0]


# -- selectors, affinity, taints ------------------------------------------------------------------


def _requirement(key: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"nodeSelector": {"label": "nonempty"}}, id="selector"),
        pytest.param(
            {
                "affinity": required_nodes(
                    _requirement("foo", "bar", "value2"), _requirement("diffkey", "wrong", "value2")
                )
            },
            id="affinity",
        ),
    ],
)
async def test_pod_without_matching_node_is_rejected(tmp_path: Path, spec: dict[str, Any]) -> None:
    async with suite(tmp_path) as s:
        s.create(pause_pod("restricted-pod", labels={"name": "restricted"}, **spec))
        note = await s.rejected("restricted-pod")
        assert "3 node(s) didn't match Pod's node affinity/selector" in note
        assert s.pod_counts() == (0, 1)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"nodeSelector": {LABEL: "42"}}, id="selector"),
        pytest.param({"affinity": with_label(LABEL, "42")}, id="affinity"),
    ],
)
async def test_pod_runs_on_only_matching_node(tmp_path: Path, spec: dict[str, Any]) -> None:
    async with suite(tmp_path) as s:
        node = await _find_node(s)
        await s.label_node(node, **{LABEL: "42"})
        assert await s.run(pause_pod("with-labels", **spec)) == node


async def test_tolerated_taint_allows_pod(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        node = await _find_node(s)
        await s.taint(node, TAINT)
        await s.label_node(node, **{LABEL: "v"})
        pod = pause_pod("with-tolerations", nodeSelector={LABEL: "v"}, tolerations=[TOLERATION])
        assert await s.run(pod) == node


async def test_untolerated_taint_rejects_pod_until_removed(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        node = await _find_node(s)
        await s.taint(node, TAINT)
        await s.label_node(node, **{LABEL: "v"})
        s.create(pause_pod("still-no-tolerations", nodeSelector={LABEL: "v"}))
        note = await s.rejected("still-no-tolerations")
        # This node and the control-plane node.
        assert "2 node(s) had untolerated taint(s)" in note
        assert s.pod_counts() == (0, 1)
        await s.taint(node)
        assert await s.running("still-no-tolerations") == node
        assert s.pod_counts() == (1, 0)


# -- host ports -----------------------------------------------------------------------------------


def _with_host_port(name: str, port: int, host_ip: str, protocol: str = "TCP") -> dict[str, Any]:
    exposed = {"hostPort": port, "containerPort": 8080, "protocol": protocol, "hostIP": host_ip}
    return pause_pod(name, ports=[exposed], nodeSelector={HOSTNAME: WORKERS[0]})


async def test_host_port_does_not_conflict_with_other_addresses_and_protocols(
    tmp_path: Path,
) -> None:
    async with suite(tmp_path) as s:
        await s.run(_with_host_port("pod1", 54321, "127.0.0.1"))
        await s.run(_with_host_port("pod2", 54321, "10.255.0.1"))
        await s.run(_with_host_port("pod3", 54321, "10.255.0.1", "UDP"))
        assert {pod["spec"]["nodeName"] for pod in s.pods()} == {WORKERS[0]}


@pytest.mark.parametrize("wildcard", ["", "0.0.0.0"])
async def test_host_port_on_all_addresses_conflicts(tmp_path: Path, wildcard: str) -> None:
    async with suite(tmp_path) as s:
        await s.run(_with_host_port("pod4", 54322, wildcard))
        s.create(_with_host_port("pod5", 54322, "10.255.0.1"))
        note = await s.rejected("pod5")
        assert "1 node(s) didn't have free ports for the requested pod ports" in note


# -- spreading ------------------------------------------------------------------------------------


async def test_four_pods_spread_evenly_over_two_nodes(tmp_path: Path) -> None:
    key = label = "kubernetes.io-e2e-pts-filter"
    async with suite(tmp_path) as s:
        nodes = WORKERS[:2]
        await s.label_nodes_with_names(key, *nodes)
        # By score alone, all pods would be on the other node.
        await s.run(pause_pod("filler", {"cpu": "2", "memory": "8Gi"}, affinity=on_node(nodes[0])))
        pod = pause_pod(
            "e2e-pts-filter",
            labels={label: ""},
            affinity=with_label(key, *nodes),
            topologySpreadConstraints=[spread_constraint(key, label, "DoNotSchedule")],
        )
        pods = await s.replicas_running(await s.create_replicas(Resource.REPLICA_SETS, pod, 4))
        placed = [pod["spec"]["nodeName"] for pod in pods]
        assert [placed.count(node) for node in nodes] == [2, 2]


# -- scheduling gates -----------------------------------------------------------------------------


async def test_gated_pods_wait_until_last_gate_is_removed(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        gates = [{"name": "example.com/foo"}, {"name": "example.com/bar"}]
        pod = pause_pod("gated", labels={"e2e-scheduling-gates": ""}, schedulingGates=gates)
        replicas = await s.create_replicas(Resource.REPLICA_SETS, pod, 3)
        await s.until(lambda: len(s.pods()) == 3)
        names = [pod["metadata"]["name"] for pod in s.pods()]

        def set_gates(left: list[dict[str, str]] | None) -> None:
            for name in names:
                patch = {"spec": {"schedulingGates": left}}
                s.cluster.patch("pods", name, patch, namespace="default")

        def gated_in_queue() -> set[str]:
            return {key.partition("/")[2] for key in s.daemon.cluster.queue.gated}

        # When a pod without gates runs, the scheduler has observed all pods before it.
        await s.run(pause_pod("free-1"))
        assert gated_in_queue() == set(names)
        assert {s.world.condition(name)["reason"] for name in names} == {"SchedulingGated"}
        set_gates(gates[1:])
        await s.run(pause_pod("free-2"))
        assert gated_in_queue() == set(names)
        assert all(not s.world.events(name) for name in names)
        set_gates(None)
        assert len(await s.replicas_running(replicas)) == 3


async def test_node_selector_of_gated_pod_can_be_narrowed(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        s.create(pause_pod("gated", schedulingGates=[{"name": "example.com/foo"}]))
        await s.run(pause_pod("free"))
        narrowed = {"nodeSelector": {HOSTNAME: WORKERS[2]}, "schedulingGates": None}
        s.cluster.patch("pods", "gated", {"spec": narrowed}, namespace="default")
        assert await s.running("gated") == WORKERS[2]


# -- volumes --------------------------------------------------------------------------------------


async def test_volume_affinity_may_name_missing_nodes(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        node = await _find_node(s)
        s.cluster.create(
            "persistentvolumes",
            {
                "metadata": {"name": "local"},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "local": {"path": "/tmp"},
                    "claimRef": {"namespace": "default", "name": "claim"},
                    "nodeAffinity": {
                        "required": {
                            "nodeSelectorTerms": [
                                {
                                    "matchExpressions": [
                                        {
                                            "key": HOSTNAME,
                                            "operator": "In",
                                            "values": [node, "no-node-1", "no-node-2"],
                                        }
                                    ]
                                }
                            ]
                        }
                    },
                },
            },
        )
        s.cluster.create(
            "persistentvolumeclaims",
            {
                "metadata": {
                    "name": "claim",
                    "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
                },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                    "volumeName": "local",
                },
            },
        )
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}]
        assert await s.run(pause_pod("bind-pv", volumes=volumes)) == node


async def test_node_name_affinity_selects_node(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        for name in WORKERS:
            assert await s.run(pause_pod(f"for-{name}", affinity=on_node(name))) == name
        s.create(pause_pod("for-no-node", affinity=on_node("no-node")))
        assert "node(s) didn't" in await s.rejected("for-no-node")
