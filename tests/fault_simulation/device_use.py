"""Use of devices by the history of the API server, independent of the daemon's state."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.dra.pod_claims import claim_refs, is_reserved_for
from asched.apiserver.dra.strategy import CLAIMS
from asched.apiserver.storage import DELETED, StoreChange
from asched.framework.devices import SharedDevices
from asched.state.cluster import ClusterState
from tests.fault_simulation.breach import BreachError, BreachReporter
from tests.fault_simulation.devices import Device, Devices

Object = dict[str, Any]


class DeviceUse:
    """Checks every write of a claim, and every binding of a pod with claims."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        devices: Devices,
        foreign_pods: Collection[str],
        reporter: BreachReporter,
    ) -> None:
        """``foreign_pods``: UIDs of pods that another client bound."""
        self._cluster = cluster
        self._devices = devices
        self._foreign_pods = foreign_pods
        self._reporter = reporter
        self._holders: dict[Device, set[str]] = {}
        """UIDs of the claims that have a device."""
        self._held: dict[str, set[Device]] = {}
        self.allocated = 0
        cluster.listen("resourceclaims", self._on_claim)
        cluster.listen("pods", self._on_pod)

    def _on_claim(self, change: StoreChange) -> None:
        claim = change.new.obj
        uid, name = claim["metadata"]["uid"], claim["metadata"]["name"]
        now = set() if change.type == DELETED else _devices_of(claim)
        before = self._held.pop(uid, set())
        if now:
            self._held[uid] = now
        for device in before - now:
            self._holders[device].discard(uid)
        for device in sorted(now - before):
            holders = self._holders.setdefault(device, set())
            holders.add(uid)
            self.allocated += 1
            if len(holders) > 1 and device not in self._devices.foreign_devices:
                shown = "/".join(device)
                breach = BreachError(
                    f"device {shown} is allocated twice, the second time to {name}"
                )
                self._reporter.report(breach)

    def _on_pod(self, change: StoreChange) -> None:
        pod, old = change.new.obj, change.old
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        was_bound = old is not None and bool(old.obj["spec"].get("nodeName"))
        if change.type == DELETED or was_bound or not pod["spec"].get("nodeName"):
            return
        if uid in self._foreign_pods:
            return
        for ref in claim_refs(pod):
            found = self._cluster.api.find(
                CLAIMS, pod["metadata"]["namespace"], ref.claim_name or ""
            )
            if found is None or found.obj["metadata"]["uid"] in self._devices.changed_claims:
                continue
            status = found.obj.get("status") or {}
            if not status.get("allocation") or not is_reserved_for(found.obj, uid):
                breach = f"pod {name} was bound without its claim {ref.claim_name}"
                self._reporter.report(BreachError(breach))

    def in_use(self) -> str:
        """What is in use, after all pods are gone; empty if nothing is."""
        for claim in self._cluster.list("resourceclaims"):
            name = claim["metadata"]["name"]
            if claim["metadata"].get("ownerReferences"):
                return f"claim {name} is left after its pod"
            consumers = (claim.get("status") or {}).get("reservedFor")
            if consumers:
                return f"claim {name} is still reserved: {consumers}"
        return ""


def pending_allocations(state: ClusterState, of: str) -> str:
    """Which allocations are still assumed; empty if none is."""
    shared = state.plugin_context.shared.get(SharedDevices)
    pending = [] if shared is None else sorted(shared.pods_with_pending_allocations)
    return f"{of}: allocations are still pending for {', '.join(pending)}" if pending else ""


def _devices_of(claim: Object) -> set[Device]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return {(r["driver"], r["pool"], r["device"]) for r in results if not r.get("adminAccess")}
