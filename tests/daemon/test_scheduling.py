"""The daemon schedules a cluster over real HTTP."""

from __future__ import annotations

from pathlib import Path

import anyio

from asched.apiserver.kubelet import Kubelets, KubeletTimings
from tests.daemon.world import KUBE, world


async def test_pods_are_bound_with_condition_and_event(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w, w.daemon():
        w.add_pods(30, "p")
        await w.until(lambda: not w.unbound())
        assert {w.node_of(f"p-{n}") for n in range(30)} == {"n0", "n1", "n2"}
        assert w.condition("p-0")["status"] == "True"
        await w.until(lambda: len(w.events("p-7")) == 1)
        scheduled = f"Successfully assigned default/p-7 to {w.node_of('p-7')}"
        assert w.events("p-7") == [("Scheduled", scheduled)]


async def test_unschedulable_pod_gets_message_of_kube_scheduler(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2, cpu="2") as w:
        w.cluster.patch("nodes", "n1", {"spec": {"unschedulable": True}})
        w.add_pod("big", "3")
        async with w.daemon():
            message = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable."
            await w.until(lambda: w.message("big").startswith(message))
            assert w.condition("big")["reason"] == "Unschedulable"
            assert w.condition("big")["status"] == "False"
            await w.until(lambda: len(w.events("big")) == 1)
            assert w.events("big") == [("FailedScheduling", w.message("big"))]


async def test_cluster_without_nodes_is_reported(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.daemon():
        w.add_pod("p")
        await w.until(lambda: w.message("p") == "no nodes available to schedule pods")


async def test_new_node_requeues_unschedulable_pod(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w, w.daemon():
        w.add_pod("big", "3")
        await w.until(lambda: bool(w.message("big")))
        w.add_node("large", cpu="4")
        await w.until(lambda: w.node_of("big") == "large")


async def test_deleted_pod_releases_its_resources(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w, w.daemon():
        w.add_pod("first", "800m")
        await w.until(lambda: w.node_of("first") == "n0")
        w.add_pod("second", "800m")
        await w.until(lambda: bool(w.message("second")))
        w.cluster.delete("pods", "first", namespace="default", grace_period_s=0)
        await w.until(lambda: w.node_of("second") == "n0")


async def test_finished_pods_release_their_resources(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w, anyio.create_task_group() as tasks:
        tasks.start_soon(Kubelets(w.cluster, KubeletTimings(start_s=0.01)).run)
        async with w.daemon():
            for n in range(3):
                w.add_pod(f"p-{n}", "800m")
                w.cluster.patch(
                    "pods",
                    f"p-{n}",
                    {"metadata": {"annotations": {"asched.dev/run-seconds": "0.05"}}},
                    namespace="default",
                )
            await w.until(
                lambda: all(w.pod(f"p-{n}")["status"]["phase"] == "Succeeded" for n in range(3))
            )
        tasks.cancel_scope.cancel()


async def test_gated_pod_waits_for_its_gates(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, w.daemon() as daemon:
        w.add_pod("gated", schedulingGates=[{"name": "example.com/quota"}])
        w.add_pod("free")
        await w.until(lambda: w.node_of("free") == "n0")
        assert list(daemon.cluster.queue.gated) == ["default/gated"]
        assert w.condition("gated")["reason"] == "SchedulingGated"
        w.cluster.patch("pods", "gated", {"spec": {"schedulingGates": None}}, namespace="default")
        await w.until(lambda: w.node_of("gated") == "n0")


async def test_pods_are_scheduled_by_priority(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w:
        for name, value in (("low", 1), ("high", 1000)):
            w.cluster.create("priorityclasses", {"metadata": {"name": name}, "value": value})
        for n in range(5):
            w.add_pod(f"low-{n}", "200m", priorityClassName="low")
            w.add_pod(f"high-{n}", "200m", priorityClassName="high")
        async with w.daemon():
            await w.until(lambda: len(w.placements.order) == 5)
        assert {name.partition("-")[0] for name in w.placements.order} == {"high"}


PROFILES = (
    KUBE
    + """
profiles:
- schedulerName: spread
- schedulerName: pack
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated}}
  plugins:
    score:
      disabled: [{name: NodeResourcesBalancedAllocation}]
"""
)


async def test_profiles_serve_their_scheduler_names_only(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=4) as w, w.daemon(PROFILES):
        w.add_pod("foreign", schedulerName="default-scheduler")
        for n in range(4):
            w.add_pod(f"pack-{n}", "1", schedulerName="pack")
        await w.until(lambda: w.unbound() == ["foreign"])
        assert len({w.node_of(f"pack-{n}") for n in range(4)}) == 1
        for n in range(3):
            w.add_pod(f"spread-{n}", "1", schedulerName="spread")
        await w.until(lambda: w.unbound() == ["foreign"])
        assert len({w.node_of(f"spread-{n}") for n in range(3)}) == 3
        assert w.condition("foreign") == {}


async def test_pod_bound_by_another_scheduler_uses_its_resources(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w, w.daemon() as daemon:
        w.add_pod("foreign", "800m", schedulerName="other")
        w.cluster.bind("default", "foreign", "n0")
        w.add_pod("own", "800m")
        await w.until(lambda: "Insufficient cpu" in w.message("own"))
        assert daemon.cluster.pods["default/foreign"].node == "n0"
