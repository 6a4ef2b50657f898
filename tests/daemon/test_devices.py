"""Pods with devices: a daemon, simulated drivers and kubelets, and the controller of claims."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from asched.apiserver.dra.controller import ResourceClaimController
from asched.apiserver.dra.devices import DEFAULT_DRIVER, DeviceSpec, SimulatedDriver
from asched.apiserver.kubelet import Kubelets, KubeletTimings
from tests.daemon.world import World, world

BACKOFF = (
    "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    "podInitialBackoffSeconds: 1\npodMaxBackoffSeconds: 1\n"
)


@asynccontextmanager
async def devices(w: World, spec: str) -> AsyncIterator[None]:
    """Run drivers, the controller of claims and kubelets."""
    request = {"name": "r", "exactly": {"deviceClassName": DEFAULT_DRIVER}}
    template = {"spec": {"devices": {"requests": [request]}}}
    body = {"metadata": {"name": "gpus"}, "spec": template}
    w.cluster.create("resourceclaimtemplates", body, namespace="default")
    for resource in ("resourceclaims", "resourceslices"):
        w.cluster.listen(resource, lambda _: w.touch())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(SimulatedDriver(w.cluster, DeviceSpec.parse(spec)).run)
        tasks.start_soon(ResourceClaimController(w.cluster).run)
        tasks.start_soon(Kubelets(w.cluster, KubeletTimings(start_s=0.01)).run)
        yield
        tasks.cancel_scope.cancel()


def add_pods(w: World, *names: str) -> None:
    for name in names:
        entry = {"name": "gpu", "resourceClaimTemplateName": "gpus"}
        w.add_pod(name, resourceClaims=[entry])


def running(w: World) -> list[str]:
    pods = w.cluster.list("pods")
    return [p["metadata"]["name"] for p in pods if p["status"]["phase"] == "Running"]


def in_use(w: World) -> list[tuple[str, str]]:
    """Pool and name of every allocated device."""
    claims = w.cluster.list("resourceclaims")
    allocations = [(claim.get("status") or {}).get("allocation") for claim in claims]
    results = [result for each in allocations if each for result in each["devices"]["results"]]
    return sorted((result["pool"], result["device"]) for result in results)


async def test_pods_share_the_devices_of_the_cluster(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w, devices(w, "2"):
        async with w.daemon(BACKOFF):
            add_pods(w, "a", "b", "c", "d")
            await w.until(lambda: len(running(w)) == 4)
            assert in_use(w) == [(f"n{n}", f"gpu-{d}") for n in (0, 1) for d in (0, 1)]
            add_pods(w, "late")
            await w.until(lambda: "cannot allocate all claims" in w.message("late"))
        # Another daemon, which has the claims from its journal.
        async with w.daemon(BACKOFF):
            w.cluster.delete("pods", "b", namespace="default", grace_period_s=0)
            await w.until(lambda: "late" in running(w))
            assert len(in_use(w)) == len(set(in_use(w))) == 4
            for name in ("a", "c", "d", "late"):
                w.cluster.delete("pods", name, namespace="default", grace_period_s=0)
            await w.until(lambda: w.cluster.count("resourceclaims") == 0)


async def test_binding_waits_for_conditions_of_devices(tmp_path: Path) -> None:
    async with (
        world(tmp_path, nodes=1) as w,
        devices(w, "1,wait=Attached"),
        w.daemon(BACKOFF),
    ):
        add_pods(w, "a")
        await w.until(lambda: running(w) == ["a"])
        (claim,) = w.cluster.list("resourceclaims")
        (device,) = claim["status"]["devices"]
        assert device["conditions"][0]["type"] == "Attached"
