"""Simulated controllers of ReplicaSets and ReplicationControllers."""

from __future__ import annotations

from typing import Any

import anyio

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.storage import StoreChange

Object = dict[str, Any]

_CONTROLLERS = {
    "replicasets": ("apps/v1", "ReplicaSet"),
    "replicationcontrollers": ("v1", "ReplicationController"),
}


class ReplicaControllers:
    """Creates and deletes pods until each controller has its number of active replicas.

    As in kube-controller-manager, a pod that terminates or has ended is not active. Surplus pods
    without a node are deleted first.
    """

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._changed = anyio.Event()

    async def run(self) -> None:
        """Reconcile until cancelled."""
        stops = [
            self._cluster.listen(resource, self._on_change) for resource in ("pods", *_CONTROLLERS)
        ]
        try:
            while True:
                self._changed = anyio.Event()
                for resource, (version, kind) in _CONTROLLERS.items():
                    for controller in self._cluster.list(resource):
                        self._reconcile(controller, version, kind)
                await self._changed.wait()
        finally:
            for stop in stops:
                stop()

    def _on_change(self, _: StoreChange) -> None:
        self._changed.set()

    def _reconcile(self, controller: Object, version: str, kind: str) -> None:
        active = [pod for pod in owned_pods(self._cluster, controller) if _is_active(pod)]
        wanted = controller["spec"]["replicas"]
        for _ in range(wanted - len(active)):
            self._create(controller, version, kind)
        active.sort(key=lambda pod: bool(pod["spec"].get("nodeName")))
        for pod in active[: max(0, len(active) - wanted)]:
            metadata = pod["metadata"]
            self._cluster.delete("pods", metadata["name"], namespace=metadata["namespace"])

    def _create(self, controller: Object, version: str, kind: str) -> None:
        metadata, template = controller["metadata"], controller["spec"]["template"]
        owner = {
            "apiVersion": version,
            "kind": kind,
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        pod = {
            "metadata": {
                **template["metadata"],
                "generateName": f"{metadata['name']}-",
                "ownerReferences": [owner],
            },
            "spec": template["spec"],
        }
        self._cluster.create("pods", pod, namespace=metadata["namespace"])


def owned_pods(cluster: EmbeddedCluster, controller: Object) -> list[Object]:
    """The existing pods of a controller."""
    uid = controller["metadata"]["uid"]
    pods = cluster.list("pods", namespace=controller["metadata"]["namespace"])
    return [
        pod
        for pod in pods
        if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or ())
    ]


def _is_active(pod: Object) -> bool:
    ended = pod["status"]["phase"] in ("Succeeded", "Failed")
    return not ended and not pod["metadata"].get("deletionTimestamp")
