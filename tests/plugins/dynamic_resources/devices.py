"""Devices, classes and claims in a world with an API server."""

from __future__ import annotations

from typing import Any

from tests.daemon.world import World

Object = dict[str, Any]

DRIVER = "gpu.example.com"
CLASS = "gpu"
RESOURCE = "example.com/gpu"


class DeviceWorld:
    """Creates objects about devices in a world, and reads them."""

    def __init__(self, w: World) -> None:
        self._w = w
        w.cluster.listen("resourceclaims.resource.k8s.io", lambda _: w.touch())

    def add_class(self, extended_resource: str | None = None) -> None:
        expression = f'device.driver == "{DRIVER}"'
        spec: Object = {"selectors": [{"cel": {"expression": expression}}]}
        if extended_resource is not None:
            spec["extendedResourceName"] = extended_resource
        self._create("deviceclasses", {"metadata": {"name": CLASS}, "spec": spec})

    def add_slice(self, node: str, devices: int, **fields: Any) -> None:
        spec = {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{number}", **fields} for number in range(devices)],
        }
        self._create("resourceslices", {"metadata": {"name": f"{node}-gpus"}, "spec": spec})

    def add_claim(self, name: str, count: int = 1) -> None:
        request = {"name": "gpus", "exactly": {"deviceClassName": CLASS, "count": count}}
        body = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
        }
        self._create("resourceclaims", body)

    def add_pod(self, name: str, *claims: str, **spec: Any) -> None:
        entries = [{"name": c, "resourceClaimName": c} for c in claims]
        self._w.add_pod(name, resourceClaims=entries, **spec)

    def _create(self, plural: str, body: Object) -> None:
        self._w.cluster.create(f"{plural}.resource.k8s.io", body)

    def claim(self, name: str) -> Object:
        return self._w.cluster.get("resourceclaims.resource.k8s.io", name, namespace="default")

    def claims(self) -> list[Object]:
        return self._w.cluster.list("resourceclaims.resource.k8s.io", namespace="default")

    def allocate(self, name: str, node: str, device: str = "gpu-0") -> None:
        """Allocate a claim as another scheduler would."""
        here = {"key": "metadata.name", "operator": "In", "values": [node]}
        result = {"request": "gpus", "driver": DRIVER, "pool": node, "device": device}
        status = {
            "allocation": {
                "devices": {"results": [result]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
                "allocationTimestamp": "2026-01-01T00:00:00Z",
            }
        }
        self.set_status(name, status)

    def set_status(self, name: str, status: Object) -> None:
        """Merge into the status of a claim."""
        self._w.cluster.patch(
            "resourceclaims.resource.k8s.io",
            name,
            {"status": status},
            namespace="default",
            subresource="status",
        )

    def report(self, name: str, pool: str, condition: str, reason: str, message: str = "") -> None:
        """Set a condition of a claim's device, as its driver does."""
        found = {
            "type": condition, "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        device = {"driver": DRIVER, "pool": pool, "device": "gpu-0", "conditions": [found]}
        self.set_status(name, {"devices": [device]})

    def devices(self, name: str) -> list[tuple[str, str]]:
        """Pool and device of each result of a claim."""
        allocation = self.claim(name).get("status", {}).get("allocation") or {}
        results = allocation.get("devices", {}).get("results", [])
        return [(each["pool"], each["device"]) for each in results]

    def consumers(self, name: str) -> list[str]:
        return [c["name"] for c in self.claim(name).get("status", {}).get("reservedFor", [])]
