"""Devices of a simulated cluster: drivers, ResourceClaims, their controller and other clients."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.dra.controller import ResourceClaimController
from asched.apiserver.dra.devices import DEFAULT_DRIVER, DeviceSpec
from asched.apiserver.dra.pod_claims import unreported_devices, with_reported_devices
from asched.apiserver.errors import StatusError
from tests.fault_simulation.trace import Trace

Object = dict[str, Any]
Device = tuple[str, str, str]
"""Driver, pool and name."""

NAMESPACE = "default"
EXTENDED = "example.com/gpu"
"""The extended resource that the class provides."""
_MOST_SHARED = 2
_MOST_DEVICES = 3


class Devices:
    """Publishes devices, and changes slices and claims behind the scheduler's back."""

    def __init__(self, cluster: EmbeddedCluster, chance: Random, trace: Trace) -> None:
        self._cluster = cluster
        self._chance = chance
        self._trace = trace
        self._controller = ResourceClaimController(cluster)
        self._specs: dict[str, DeviceSpec] = {}
        """By node; a node that comes back has the devices that it had."""
        self._shared: set[str] = set()
        """Names of claims that several apps may use."""
        self._heartbeats = 0
        self.foreign_devices: set[Device] = set()
        """Devices that another client allocated, without regard to others."""
        self.changed_claims: set[str] = set()
        """UIDs of claims that another client deallocated or allocated."""

    def begin(self) -> None:
        spec = DeviceSpec(1).device_class()
        spec["spec"]["extendedResourceName"] = EXTENDED
        self._cluster.create("deviceclasses", spec)
        self._controller.attach()

    def add_to(self, app: str, spec: Object, share: float) -> None:
        """Let the pods of an app use devices, if it is among the ``share`` of those that do."""
        if self._chance.random() >= share:
            return
        drawn = self._chance.random()
        if drawn < 0.25:
            resources = spec["containers"][0]["resources"]
            resources["requests"][EXTENDED] = "1"
            resources["limits"] = {EXTENDED: "1"}
            return
        entry = {"name": "gpu"}
        if drawn < 0.45:
            entry["resourceClaimName"] = self._some_shared_claim()
        else:
            self._cluster.create(
                "resourceclaimtemplates",
                {"metadata": {"name": app}, "spec": {"spec": self._drawn_claim_spec()}},
                namespace=NAMESPACE,
            )
            entry["resourceClaimTemplateName"] = app
        spec["resourceClaims"] = [entry]

    def _drawn_claim_spec(self) -> Object:
        exactly: Object = {"deviceClassName": DEFAULT_DRIVER}
        if self._chance.random() < 0.2:
            exactly["count"] = 2
        request: Object = {"name": "r", "exactly": exactly}
        if self._chance.random() < 0.2:
            names = (("two", 2), ("one", 1))
            alternatives = [
                {"name": name, "deviceClassName": DEFAULT_DRIVER, "count": count}
                for name, count in names
            ]
            request = {"name": "r", "firstAvailable": alternatives}
        return {"devices": {"requests": [request]}}

    def _some_shared_claim(self) -> str:
        name = f"shared-{self._chance.randrange(_MOST_SHARED)}"
        self._shared.add(name)
        self._create_shared(name)
        return name

    def _create_shared(self, name: str) -> None:
        if self._cluster.api.find("resourceclaims.resource.k8s.io", NAMESPACE, name) is None:
            body = {"metadata": {"name": name}, "spec": self._drawn_claim_spec()}
            self._cluster.create("resourceclaims", body, namespace=NAMESPACE)

    # -- drivers and controller -----------------------------------------------------------------

    def tick(self) -> None:
        """Run drivers and the controller once."""
        nodes = {node["metadata"]["name"]: node for node in self._cluster.list("nodes")}
        published = {each["spec"]["nodeName"] for each in self._cluster.list("resourceslices")}
        for name in sorted(published - nodes.keys()):
            for each in self._slices_of(name):
                self._cluster.delete("resourceslices", each["metadata"]["name"])
        for name, node in nodes.items():
            if name not in published and self._chance.random() < 0.7:
                for each in self._spec_of(name).slices(node):
                    self._cluster.create("resourceslices", each)
        for claim in self._cluster.list("resourceclaims"):
            if unreported_devices(claim) and self._chance.random() < 0.3:
                self._report(claim)
        self._controller.step()

    def _spec_of(self, node: str) -> DeviceSpec:
        found = self._specs.get(node)
        if found is None:
            waits = ("Attached",) if self._chance.random() < 0.2 else ()
            count = self._chance.randint(1, _MOST_DEVICES)
            found = self._specs[node] = DeviceSpec(count, conditions=waits)
            self._trace("devices", f"node {node} has {count} devices, conditions {waits}")
        return found

    def _report(self, claim: Object) -> None:
        reported = with_reported_devices(claim, self._cluster.api.now_text())
        self._set_status(claim, {"devices": reported["status"]["devices"]})

    def _slices_of(self, node: str) -> list[Object]:
        slices = self._cluster.list("resourceslices")
        return [each for each in slices if each["spec"]["nodeName"] == node]

    def settle(self) -> None:
        """Publish all devices, and create missing shared claims."""
        for each in self._cluster.list("resourceslices"):
            self._cluster.delete("resourceslices", each["metadata"]["name"])
        self.tick()
        for name in sorted(self._shared):
            self._create_shared(name)

    # -- disturbances ---------------------------------------------------------------------------

    def disturb(self) -> None:
        """Make one change."""
        changes: tuple[Callable[[], None], ...] = (
            self._republish,
            self._republish,
            self._change_slice,
            self._remove_slice,
            self._delete_claim,
            self._deallocate_some,
            self._allocate,
        )
        self._chance.choice(changes)()

    def _republish(self) -> None:
        """A driver writes its slice again, without a change that anyone reads."""
        item = self._some("resourceslices")
        if item is not None:
            self._heartbeats += 1
            annotations = {"example.com/heartbeat": str(self._heartbeats)}
            patch = {"metadata": {"annotations": annotations}}
            self._cluster.patch("resourceslices", item["metadata"]["name"], patch)

    def _change_slice(self) -> None:
        """A driver publishes a new generation, often with fewer devices."""
        item = self._some("resourceslices")
        if item is None:
            return
        name, node = item["metadata"]["name"], item["spec"]["nodeName"]
        (full,) = self._spec_of(node).slices({"metadata": {"name": node, "uid": "u"}})
        devices = full["spec"]["devices"]
        kept = [device for device in devices if self._chance.random() < 0.6]
        generation = item["spec"]["pool"]["generation"] + 1
        self._trace("devices", f"{name} has {len(kept)} of {len(devices)} devices")
        patch = {"spec": {"pool": {"generation": generation}, "devices": kept}}
        self._cluster.patch("resourceslices", name, patch)

    def _remove_slice(self) -> None:
        item = self._some("resourceslices")
        if item is not None:
            self._trace("devices", f"{item['metadata']['name']} is gone")
            self._cluster.delete("resourceslices", item["metadata"]["name"])

    def _delete_claim(self) -> None:
        claim = self._some("resourceclaims")
        if claim is None:
            return
        name = claim["metadata"]["name"]
        by_force = _is_unreserved(claim) and self._chance.random() < 0.5
        self._trace("devices", f"claim {name} is deleted, by force: {by_force}")
        if by_force:
            # In this order, because schedulers do not listen to deletions of claims.
            self._deallocate(claim)
            patch = {"metadata": {"finalizers": None}}
            self._cluster.patch("resourceclaims", name, patch, namespace=NAMESPACE)
        self._cluster.delete("resourceclaims", name, namespace=NAMESPACE)

    def _deallocate_some(self) -> None:
        claim = self._some("resourceclaims")
        if claim is not None and _is_unreserved(claim):
            self._deallocate(claim)

    def _deallocate(self, claim: Object) -> None:
        if (claim.get("status") or {}).get("allocation"):
            self._trace("devices", f"{claim['metadata']['name']} is deallocated by another client")
            self.changed_claims.add(claim["metadata"]["uid"])
            self._set_status(claim, {"allocation": None, "devices": None})

    def _allocate(self) -> None:
        claim, item = self._some("resourceclaims"), self._some("resourceslices")
        if claim is None or item is None or (claim.get("status") or {}).get("allocation"):
            return
        spec, request = item["spec"], claim["spec"]["devices"]["requests"][0]
        if not spec.get("devices") or "exactly" not in request:
            return
        device = (spec["driver"], spec["pool"]["name"], spec["devices"][0]["name"])
        self.foreign_devices.add(device)
        self.changed_claims.add(claim["metadata"]["uid"])
        self._trace("devices", f"{claim['metadata']['name']} gets {device} by another client")
        term = {"key": "metadata.name", "operator": "In", "values": [spec["nodeName"]]}
        driver, pool, name = device
        result = {"request": request["name"], "driver": driver, "pool": pool, "device": name}
        allocation = {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [term]}]},
            "allocationTimestamp": self._cluster.api.now_text(),
        }
        self._set_status(claim, {"allocation": allocation})

    def _some(self, resource: str) -> Object | None:
        found = self._cluster.list(resource)
        return self._chance.choice(found) if found else None

    def _set_status(self, claim: Object, status: Object) -> None:
        try:
            self._cluster.patch(
                "resourceclaims",
                claim["metadata"]["name"],
                {"status": status},
                namespace=NAMESPACE,
                subresource="status",
            )
        except StatusError as error:
            self._trace("devices", f"rejected: {error.message}")


def _is_unreserved(claim: Object) -> bool:
    return not (claim.get("status") or {}).get("reservedFor")
