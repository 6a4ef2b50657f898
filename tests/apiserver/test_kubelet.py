"""Simulated kubelets on a manual clock."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.kubelet import (
    RUN_SECONDS,
    Kubelets,
    KubeletTimings,
    simulated_node,
    simulated_nodes,
)
from tests.apiserver.objects import FakeClock, node, pod


class Sim:
    """A cluster with one node, its kubelets and its clock."""

    def __init__(self, **timings: Any) -> None:
        self.clock = FakeClock()
        self.cluster = EmbeddedCluster(clock=self.clock, seed=1)
        self.cluster.create("nodes", node("n"))
        self.kubelets = Kubelets(
            self.cluster, KubeletTimings(start_s=1.0, terminate_s=2.0, **timings)
        )

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.kubelets.step()

    def pod(self) -> dict[str, Any]:
        return self.cluster.get("pods", "p", namespace="default")

    def phase(self) -> str:
        return str(self.pod()["status"]["phase"])


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    sim.kubelets.attach()
    return sim


def running_pod(sim: Sim, run_s: str | None = None) -> None:
    made = pod("p")
    if run_s is not None:
        made["metadata"]["annotations"] = {RUN_SECONDS: run_s}
    sim.cluster.create("pods", made)
    sim.cluster.bind("default", "p", "n")
    sim.advance(1.0)


def test_bound_pod_runs_after_the_start_delay(sim: Sim) -> None:
    sim.cluster.create("pods", pod("p"))
    sim.advance(100)
    assert sim.phase() == "Pending", "no kubelet runs an unbound pod"
    sim.cluster.bind("default", "p", "n")
    sim.advance(0.5)
    assert sim.phase() == "Pending"
    sim.advance(0.5)
    status = sim.pod()["status"]
    assert status["phase"] == "Running"
    held = {c["type"] for c in status["conditions"] if c["status"] == "True"}
    assert held >= {"Initialized", "Ready", "ContainersReady", "PodScheduled"}
    assert status["podIP"]
    assert status["startTime"]
    assert [c["ready"] for c in status["containerStatuses"]] == [True]


def test_pod_with_run_seconds_succeeds(sim: Sim) -> None:
    running_pod(sim, "10")
    sim.advance(9.5)
    assert sim.phase() == "Running"
    sim.advance(0.5)
    status = sim.pod()["status"]
    assert status["phase"] == "Succeeded"
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert sim.kubelets.finished_pods == 1


@pytest.mark.parametrize("run_s", [None, "soon"])
def test_pod_without_run_seconds_keeps_running(sim: Sim, run_s: str | None) -> None:
    running_pod(sim, run_s)
    sim.advance(1e6)
    assert sim.phase() == "Running"


def test_terminating_pod_is_removed(sim: Sim) -> None:
    running_pod(sim)
    sim.cluster.delete("pods", "p", namespace="default")
    sim.advance(1.5)
    assert sim.cluster.count("pods") == 1
    sim.advance(0.5)
    assert sim.cluster.count("pods") == 0


def test_termination_is_limited_by_the_grace_period(sim: Sim) -> None:
    running_pod(sim)
    sim.cluster.delete("pods", "p", namespace="default", grace_period_s=1)
    sim.advance(1.0)
    assert sim.cluster.count("pods") == 0


def test_timers_ignore_a_new_pod_of_the_same_name(sim: Sim) -> None:
    running_pod(sim, "10")
    sim.cluster.delete("pods", "p", namespace="default", grace_period_s=0)
    sim.cluster.create("pods", pod("p"))
    sim.advance(100)
    assert sim.phase() == "Pending"


def test_pods_of_unknown_node_wait_for_it(sim: Sim) -> None:
    sim.cluster.create("pods", pod("p"))
    sim.cluster.bind("default", "p", "ghost")
    sim.advance(10)
    assert sim.phase() == "Pending"
    sim.cluster.create("nodes", node("ghost"))
    sim.advance(1)
    assert sim.phase() == "Running"


def test_earlier_bound_pods_are_run() -> None:
    sim = Sim()
    sim.cluster.create("pods", pod("p", nodeName="n"))
    sim.kubelets.attach()
    sim.advance(1)
    assert sim.phase() == "Running"
    sim.kubelets.detach()
    sim.cluster.delete("pods", "p", namespace="default")
    sim.advance(100)
    assert sim.cluster.count("pods") == 1, "detached kubelets do nothing"


def test_leases_are_renewed_while_the_node_exists() -> None:
    sim = Sim(heartbeat_s=10.0)
    sim.kubelets.attach()
    sim.kubelets.step()
    first = sim.cluster.get("leases", "n", namespace="kube-node-lease")
    assert first["spec"]["renewTime"] == "2027-01-15T08:00:00.000000Z"
    sim.advance(10)
    renewed = sim.cluster.get("leases", "n", namespace="kube-node-lease")
    assert renewed["spec"]["renewTime"] == "2027-01-15T08:00:10.000000Z"
    sim.cluster.delete("nodes", "n")
    sim.advance(10)
    assert sim.cluster.get("leases", "n", namespace="kube-node-lease") is renewed


def test_step_returns_the_next_due_time(sim: Sim) -> None:
    assert sim.kubelets.step() is None
    sim.cluster.create("pods", pod("p", nodeName="n"))
    assert sim.kubelets.step() == pytest.approx(1.0)


async def test_task_wakes_for_new_pods() -> None:
    cluster = EmbeddedCluster()
    cluster.create("nodes", node("n"))
    kubelets = Kubelets(cluster, KubeletTimings(start_s=0.0))
    with anyio.fail_after(60), cluster.watch("pods") as watcher:
        async with anyio.create_task_group() as group:
            group.start_soon(kubelets.run)
            cluster.create("pods", pod("p"))
            cluster.bind("default", "p", "n")
            async for event in watcher:
                if event.stored.obj["status"]["phase"] == "Running":
                    group.cancel_scope.cancel()
    assert kubelets.started_pods == 1


def test_simulated_nodes_differ_in_name_zone_and_address() -> None:
    nodes = list(simulated_nodes(300))
    assert len({n["metadata"]["name"] for n in nodes}) == 300
    assert len({n["status"]["addresses"][0]["address"] for n in nodes}) == 300
    assert len({n["metadata"]["labels"]["topology.kubernetes.io/zone"] for n in nodes}) == 3


def test_simulated_node_is_accepted_by_the_cluster() -> None:
    cluster = EmbeddedCluster()
    gpu = {"cpu": "8", "memory": "32Gi", "pods": "50", "nvidia.com/gpu": "4"}
    created = cluster.create("nodes", simulated_node("g", capacity=gpu))
    assert created["status"]["allocatable"] == gpu
