"""VolumeBinding with an API server: claims are bound before their pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from asched.apiserver.cluster import EmbeddedCluster
from tests.daemon.world import KUBE, World, world

Object = dict[str, Any]

IMPATIENT = (
    KUBE
    + """
profiles:
- pluginConfig:
  - name: VolumeBinding
    args:
      bindTimeoutSeconds: 1
"""
)
SELECTED_NODE = "volume.kubernetes.io/selected-node"


class VolumeController:
    """A volume binder of kube-controller-manager and an external provisioner."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._changed = anyio.Event()
        self.broken_nodes: set[str] = set()
        """Nodes for which provisioning fails."""
        self.failures = 0
        for resource in ("persistentvolumes", "persistentvolumeclaims"):
            cluster.listen(resource, lambda _: self._changed.set())

    async def run(self) -> None:
        while True:
            changed = self._changed
            for claim in self._cluster.list("persistentvolumeclaims"):
                if not claim["spec"].get("volumeName"):
                    self._look_after(claim)
            await changed.wait()
            self._changed = anyio.Event()

    def _look_after(self, claim: Object) -> None:
        node = claim["metadata"].get("annotations", {}).get(SELECTED_NODE)
        if node in self.broken_nodes:
            self.failures += 1
            self._patch_claim(claim, {"metadata": {"annotations": {SELECTED_NODE: None}}})
        elif node:
            name = f"made-for-{claim['metadata']['name']}"
            spec = {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "d.example.com", "volumeHandle": name},
                "claimRef": _reference(claim),
                **_reached_from(node),
            }
            self._cluster.create("persistentvolumes", {"metadata": {"name": name}, "spec": spec})
            self._bind(claim, name)
        for volume in self._cluster.list("persistentvolumes"):
            reference = volume["spec"].get("claimRef") or {}
            if reference.get("uid") == claim["metadata"]["uid"] and not node:
                self._bind(claim, volume["metadata"]["name"])

    def _bind(self, claim: Object, volume: str) -> None:
        done = {"pv.kubernetes.io/bind-completed": "yes"}
        self._patch_claim(
            claim, {"metadata": {"annotations": done}, "spec": {"volumeName": volume}}
        )

    def _patch_claim(self, claim: Object, patch: Object) -> None:
        name = claim["metadata"]["name"]
        self._cluster.patch("persistentvolumeclaims", name, patch, namespace="default")


def _reference(claim: Object) -> Object:
    metadata = claim["metadata"]
    return {
        "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": metadata["namespace"],
        "name": metadata["name"], "uid": metadata["uid"],
    }  # fmt: skip


def _reached_from(node: str) -> Object:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}}


class Storage:
    """Creates storage objects in a world."""

    def __init__(self, w: World) -> None:
        self._w = w

    def add_class(self, provisioner: str = "kubernetes.io/no-provisioner") -> None:
        self._w.cluster.create(
            "storageclasses.storage.k8s.io",
            {
                "metadata": {"name": "late"},
                "provisioner": provisioner,
                "volumeBindingMode": "WaitForFirstConsumer",
            },
        )

    def add_volume(self, name: str, node: str) -> None:
        spec = {
            "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": "late", "local": {"path": "/disk"}, **_reached_from(node),
        }  # fmt: skip
        cluster = self._w.cluster
        cluster.create(
            "persistentvolumes",
            {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}},
        )
        cluster.patch(
            "persistentvolumes", name, {"status": {"phase": "Available"}}, subresource="status"
        )

    def add_claim(self, name: str) -> None:
        spec = {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "late",
            "resources": {"requests": {"storage": "1Gi"}},
        }  # fmt: skip
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
        self._w.cluster.create("persistentvolumeclaims", body)

    def add_pod(self, name: str, claim: str) -> None:
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
        self._w.add_pod(name, volumes=[volume])

    def claimant(self, volume: str) -> str:
        reference = self._w.cluster.get("persistentvolumes", volume)["spec"].get("claimRef")
        return reference["name"] if reference else ""

    def volume_of(self, claim: str) -> str:
        found = self._w.cluster.get("persistentvolumeclaims", claim, namespace="default")
        name: str = found["spec"].get("volumeName", "")
        return name


@asynccontextmanager
async def running(controller: VolumeController) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run)
        yield
        tasks.cancel_scope.cancel()


async def test_two_pods_get_one_volume_each(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w:
        storage = Storage(w)
        storage.add_class()
        for name in ("a", "b"):
            storage.add_volume(f"pv-{name}", "n1")
            storage.add_claim(f"claim-{name}")
            storage.add_pod(f"pod-{name}", f"claim-{name}")
        storage.add_claim("claim-c")
        storage.add_pod("pod-c", "claim-c")
        async with w.daemon(), running(VolumeController(w.cluster)):
            await w.until(lambda: len(w.placements.node_of) == 2 and bool(w.unbound()))
            left = w.unbound()
            await w.until(lambda: bool(w.message(left[0])))
        assert w.message(left[0]).startswith(
            "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind."
        )
        assert set(w.placements.node_of.values()) == {
            w.node_of(name) for name in w.placements.order
        }
        assert {w.node_of(name) for name in w.placements.order} == {"n1"}
        claims = {storage.claimant("pv-a"), storage.claimant("pv-b")}
        assert claims == {f"claim-{name[-1]}" for name in w.placements.order}
        for name in w.placements.order:
            assert storage.volume_of(f"claim-{name[-1]}")


async def test_volume_is_provisioned_for_the_selected_node(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w:
        storage = Storage(w)
        storage.add_class("d.example.com")
        storage.add_claim("data")
        storage.add_pod("p", "data")
        async with w.daemon(), running(VolumeController(w.cluster)):
            await w.until(lambda: bool(w.node_of("p")))
        assert storage.volume_of("data") == "made-for-data"


async def test_failed_provisioning_selects_another_node(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:
        storage = Storage(w)
        storage.add_class("d.example.com")
        storage.add_claim("data")
        controller = VolumeController(w.cluster)
        controller.broken_nodes.add("n0")
        w.cluster.patch("nodes", "n1", {"spec": {"unschedulable": True}})
        async with w.daemon(), running(controller):
            storage.add_pod("p", "data")
            failure = 'provisioning failed for PVC "data"'
            await w.until(lambda: failure in w.message("p"))
            w.cluster.patch("nodes", "n0", {"spec": {"unschedulable": True}})
            w.cluster.patch("nodes", "n1", {"spec": {"unschedulable": None}})
            await w.until(lambda: w.node_of("p") == "n1")
        assert controller.failures
        assert storage.volume_of("data") == "made-for-data"


@pytest.mark.parametrize("provisioner", ["kubernetes.io/no-provisioner", "d.example.com"])
async def test_binding_times_out(tmp_path: Path, provisioner: str) -> None:
    async with world(tmp_path, nodes=1) as w:
        storage = Storage(w)
        storage.add_class(provisioner)
        if provisioner.startswith("kubernetes.io"):
            storage.add_volume("pv", "n0")
        storage.add_claim("data")
        storage.add_pod("p", "data")
        async with w.daemon(IMPATIENT):
            expected = (
                'running PreBind plugin "VolumeBinding": binding volumes: timed out waiting for'
                " the condition"
            )
            await w.until(lambda: w.message("p") == expected)
            assert w.condition("p")["reason"] == "SchedulerError"
            # It retries, and the pod is bound after the claim.
            async with running(VolumeController(w.cluster)):
                await w.until(lambda: w.node_of("p") == "n0")


async def test_volume_claimed_by_another_pod_requeues_the_pod(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:
        storage = Storage(w)
        storage.add_class()
        storage.add_volume("pv-0", "n0")
        storage.add_claim("data")
        storage.add_claim("thief")
        taken = False

        def steal(verb: str, resource: str) -> None:
            """Another scheduler claims the volume just before the patch arrives."""
            nonlocal taken
            if verb == "patch" and resource == "persistentvolumes" and not taken:
                taken = True
                thief = w.cluster.get("persistentvolumeclaims", "thief", namespace="default")
                reference = {"spec": {"claimRef": _reference(thief)}}
                w.cluster.patch("persistentvolumes", "pv-0", reference)

        w.faults.on_request = steal
        async with w.daemon(), running(VolumeController(w.cluster)):
            storage.add_pod("p", "data")
            await w.until(lambda: "already claimed by default/thief" in w.message("p"))
            storage.add_volume("pv-1", "n1")
            await w.until(lambda: w.node_of("p") == "n1")
        assert storage.claimant("pv-0") == "thief"
        assert storage.claimant("pv-1") == "data"


async def test_deleted_pod_releases_its_volume(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        storage = Storage(w)
        storage.add_class("d.example.com")
        storage.add_claim("data")
        storage.add_pod("p", "data")

        def selected() -> bool:
            claim = w.cluster.get("persistentvolumeclaims", "data", namespace="default")
            return SELECTED_NODE in claim["metadata"].get("annotations", {})

        w.cluster.listen("persistentvolumeclaims", lambda _: w.touch())
        async with w.daemon():
            await w.until(selected)
            w.cluster.delete("pods", "p", namespace="default", grace_period_s=0)
            storage.add_pod("q", "data")
            async with running(VolumeController(w.cluster)):
                await w.until(lambda: w.node_of("q") == "n0")


async def test_restart_continues_with_the_same_volume(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=5) as w:
        storage = Storage(w)
        storage.add_class("d.example.com")
        storage.add_claim("data")
        storage.add_pod("p", "data")

        def selected() -> str:
            claim = w.cluster.get("persistentvolumeclaims", "data", namespace="default")
            node: str = claim["metadata"].get("annotations", {}).get(SELECTED_NODE, "")
            return node

        w.cluster.listen("persistentvolumeclaims", lambda _: w.touch())
        async with w.daemon():
            await w.until(lambda: bool(selected()))
            chosen = selected()
        assert not w.node_of("p")
        async with w.daemon(), running(VolumeController(w.cluster)):
            await w.until(lambda: w.node_of("p") == chosen)
        assert not w.message("p")
