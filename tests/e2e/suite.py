"""A small simulated cluster for the scenarios, and helpers for its objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from asched.apiserver.kubelet import Kubelets, KubeletTimings
from asched.apiserver.storage import ADDED, StoreChange
from asched.daemon.daemon import Daemon
from asched.model.resources import Resource, decode
from tests.daemon.world import TIMEOUT_S, World, world
from tests.e2e.replicas import ReplicaControllers, owned_pods

Object = dict[str, Any]

WORKERS = ("worker-0", "worker-1", "worker-2")
CONTROL_PLANE = "control-plane"
CONTROL_PLANE_TAINT = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
NODE_CPU_MILLIS = 4000
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
PRIORITIES = {"low-priority": 1, "medium-priority": 100, "high-priority": 1000}
_TIMINGS = KubeletTimings(start_s=0.01, terminate_s=0.05)


def pause_pod(
    name: str,
    requests: Mapping[str, str] | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    ports: Sequence[Object] = (),
    **spec: Any,
) -> Object:
    """An idle pod with limits equal to requests and a grace period of one second.

    ``spec``: further fields of its spec.
    """
    resources = {"requests": dict(requests), "limits": dict(requests)} if requests else {}
    container = {
        "name": "pause",
        "image": "registry.k8s.io/pause:3.10",
        "resources": resources,
        "ports": list(ports),
    }
    return {
        "metadata": {
            "name": name,
            "labels": dict(labels or {}),
            "finalizers": list(finalizers),
        },
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }


def on_node(*names: str) -> Object:
    """Affinity to the nodes with these names."""
    field = {"key": "metadata.name", "operator": "In", "values": list(names)}
    return required_nodes({"matchFields": [field]})


def with_label(key: str, *values: str) -> Object:
    """Affinity to nodes with any of these values of a label."""
    return required_nodes(
        {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}
    )


def required_nodes(*terms: Object) -> Object:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}


def spread_constraint(topology_key: str, label: str, when_unsatisfiable: str) -> Object:
    """A maximum skew of one among all pods with the label."""
    return {
        "maxSkew": 1,
        "topologyKey": topology_key,
        "whenUnsatisfiable": when_unsatisfiable,
        "labelSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]},
    }


class Suite:
    """A cluster with kubelets, controllers and a daemon; created by :func:`suite`."""

    def __init__(self, w: World, daemon: Daemon) -> None:
        self.world = w
        self.cluster = w.cluster
        self.daemon = daemon
        self.created: list[str] = []
        """Names of all pods in creation order, including deleted ones."""
        w.cluster.listen("pods", self._on_pod)

    def _on_pod(self, change: StoreChange) -> None:
        if change.type == ADDED:
            self.created.append(change.new.obj["metadata"]["name"])

    # -- changes ------------------------------------------------------------------------------

    def create(self, pod: Object, *, namespace: str = "default") -> Object:
        return self.cluster.create("pods", pod, namespace=namespace)

    async def label_node(self, name: str, **labels: str) -> None:
        await self._patch_node(name, {"metadata": {"labels": labels}})

    async def label_nodes_with_names(self, key: str, *names: str) -> None:
        for name in names:
            await self.label_node(name, **{key: name})

    async def taint(self, name: str, *taints: Object) -> None:
        """Replace the taints of a node."""
        await self._patch_node(name, {"spec": {"taints": list(taints)}})

    async def set_capacity(self, name: str, resource: str, amount: str) -> None:
        """Set capacity and allocatable of a resource on a node."""
        status = {"capacity": {resource: amount}, "allocatable": {resource: amount}}
        await self._patch_node(name, {"status": status}, "status")

    async def _patch_node(self, name: str, patch: Object, subresource: str = "") -> None:
        changed = self.cluster.patch("nodes", name, patch, subresource=subresource)
        await self.wait_until_observed(Resource.NODES, changed)

    async def wait_until_observed(self, resource: Resource, obj: Object) -> None:
        """Wait until the scheduler observed an object.

        Each resource has its own watch, so a pod that is created later might be observed earlier.
        """
        decoded = decode(resource, msgspec.json.encode(obj))
        objects = self.daemon.cluster.objects(resource.value.type)
        with anyio.fail_after(TIMEOUT_S):
            while objects.get(decoded.key) != decoded:
                await anyio.lowlevel.checkpoint()
                objects = self.daemon.cluster.objects(resource.value.type)

    def create_priority_classes(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            self.cluster.create("priorityclasses", {"metadata": {"name": name}, "value": value})

    async def create_replicas(self, resource: Resource, pod: Object, replicas: int) -> Object:
        """Create a ReplicaSet or ReplicationController of such pods."""
        labels, name = pod["metadata"]["labels"], f"rs-{pod['metadata']['name']}"
        selector = {"matchLabels": labels} if resource is Resource.REPLICA_SETS else labels
        created = self.cluster.create(
            resource.plural,
            {
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "replicas": 0,
                    "selector": selector,
                    "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
                },
            },
        )
        await self.wait_until_observed(resource, created)
        scaled = {"spec": {"replicas": replicas}}
        return self.cluster.patch(resource.plural, name, scaled, namespace="default")

    # -- waiting ------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], bool]) -> None:
        await self.world.until(holds)

    async def run(self, pod: Object, *, namespace: str = "default") -> str:
        """Create a pod and wait until it runs; returns its node."""
        name = self.create(pod, namespace=namespace)["metadata"]["name"]
        return await self.running(name, namespace=namespace)

    async def running(self, name: str, *, namespace: str = "default") -> str:
        await self.until(lambda: self.pod(name, namespace)["status"]["phase"] == "Running")
        node: str = self.pod(name, namespace)["spec"]["nodeName"]
        return node

    async def rejected(self, name: str) -> str:
        """Wait for the FailedScheduling Event of a pod; returns its note."""

        def notes() -> list[str]:
            events = self.world.events(name)
            return [note for reason, note in events if reason == "FailedScheduling"]

        await self.until(lambda: bool(notes()))
        assert not self.pod(name)["spec"].get("nodeName")
        return notes()[-1]

    async def replicas_running(self, controller: Object) -> list[Object]:
        """Wait until all replicas of a controller run."""
        wanted = controller["spec"]["replicas"]

        def running() -> list[Object]:
            pods = owned_pods(self.cluster, controller)
            return [pod for pod in pods if pod["status"]["phase"] == "Running"]

        await self.until(lambda: len(running()) == wanted)
        return running()

    # -- state --------------------------------------------------------------------------------

    def pod(self, name: str, namespace: str = "default") -> Object:
        return self.cluster.get("pods", name, namespace=namespace)

    def is_terminating_or_deleted(self, name: str) -> bool:
        found = [pod["metadata"] for pod in self.pods() if pod["metadata"]["name"] == name]
        return not found or "deletionTimestamp" in found[0]

    def pods(self) -> list[Object]:
        return self.cluster.list("pods", namespace="default")

    def pod_counts(self) -> tuple[int, int]:
        """Numbers of (scheduled, unscheduled) pods in the default namespace."""
        scheduled = sum(bool(pod["spec"].get("nodeName")) for pod in self.pods())
        return scheduled, len(self.pods()) - scheduled


@asynccontextmanager
async def suite(folder: Path) -> AsyncIterator[Suite]:
    """Run three workers with 4 cores in two zones, and a tainted control-plane node."""
    async with world(folder) as w, anyio.create_task_group() as tasks:
        for number, name in enumerate((CONTROL_PLANE, *WORKERS)):
            w.add_node(name, cpu=f"{NODE_CPU_MILLIS}m", pods="10", **{ZONE: f"zone-{number % 2}"})
        w.cluster.patch("nodes", CONTROL_PLANE, {"spec": {"taints": [CONTROL_PLANE_TAINT]}})
        tasks.start_soon(Kubelets(w.cluster, _TIMINGS).run)
        tasks.start_soon(ReplicaControllers(w.cluster).run)
        async with w.daemon() as daemon:
            yield Suite(w, daemon)
        tasks.cancel_scope.cancel()
