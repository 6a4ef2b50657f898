"""Simulated nodes and kubelets: bound pods start, finish and terminate.

One task serves the timers of all nodes from one heap. A timer reads the current state of its pod
when it fires, so superseded timers do nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address

from asched.apiserver.api import DeleteOptions
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.dra.pod_claims import (
    claims_are_ready,
    unreported_devices,
    with_reported_devices,
)
from asched.apiserver.dra.strategy import CLAIMS
from asched.apiserver.errors import Object, StatusError
from asched.apiserver.storage import ADDED, DELETED, StoreChange

ZONES = ("zone-a", "zone-b", "zone-c")
REGION = "region-1"
KUBELET_VERSION = "v1.36.2-asched"
_SUBNET = 10 << 24
_READY = {
    "type": "Ready",
    "status": "True",
    "reason": "KubeletReady",
    "message": "kubelet is posting ready status",
}


def simulated_node(
    name: str,
    *,
    capacity: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
    index: int = 0,
    ready_since: str | None = None,
) -> Object:
    """A Ready node object.

    :param capacity: quantities by resource, including ``pods``; all of it is allocatable.
    :param index: number of the node, which determines its address.
    :param ready_since: time of the Ready condition. Heartbeats renew the node's lease instead.
    """
    own = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        **(labels or {}),
    }
    address = IPv4Address(_SUBNET + (255 << 16) + index + 1)
    ready = {**_READY, "lastHeartbeatTime": ready_since, "lastTransitionTime": ready_since}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": own},
        "spec": {},
        "status": {
            "capacity": dict(capacity),
            "allocatable": dict(capacity),
            "conditions": [ready],
            "addresses": [
                {
                    "type": "InternalIP",
                    "address": str(address),
                },
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": {
                "kubeletVersion": KUBELET_VERSION,
                "containerRuntimeVersion": "simulated://1",
                "osImage": "simulated",
                "kernelVersion": "simulated",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


DEFAULT_CAPACITY = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "200Gi", "pods": "110"}


def simulated_nodes(count: int, *, ready_since: str | None = None) -> Iterator[Object]:
    """``count`` identical nodes in three zones."""
    width = max(4, len(str(max(0, count - 1))))
    for index in range(count):
        labels = {
            "topology.kubernetes.io/zone": ZONES[index % len(ZONES)],
            "topology.kubernetes.io/region": REGION,
        }
        yield simulated_node(
            f"node-{index:0{width}d}",
            capacity=DEFAULT_CAPACITY,
            labels=labels,
            index=index,
            ready_since=ready_since,
        )


RUN_SECONDS = "asched.dev/run-seconds"
"""Annotation: seconds until the pod succeeds; without it the pod keeps running."""
LEASE_NAMESPACE = "kube-node-lease"
LEASE_DURATION_S = 40
_POD_NETWORK = (10 << 24) + (64 << 16)
_POD_NETWORK_SIZE = 1 << 22
_FINISHED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class KubeletTimings:
    """Delays of simulated kubelets."""

    start_s: float = 0.5
    """From binding to Running."""
    terminate_s: float = 0.2
    """From the deletion request to the removal; at most the grace period."""
    heartbeat_s: float | None = None
    """Interval of lease renewals; None disables leases."""


class Kubelets:
    """The kubelets of all nodes: a task (:meth:`run`), or :meth:`step` after the clock moves."""

    def __init__(self, cluster: EmbeddedCluster, timings: KubeletTimings | None = None) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._pods = cluster.resource("pods")
        self._timings = timings or KubeletTimings()
        self._timers: list[tuple[float, int, Callable[[str, str], None], str, str]] = []
        self._sequence = itertools.count()
        self._addresses = itertools.count()
        self._wake = asyncio.Event()
        self._unsubscribe: list[Callable[[], None]] = []
        self._without_claims: dict[str, str] = {}
        """Bound pods that wait for their ResourceClaims: UID by key."""
        self.started_pods = 0
        self.finished_pods = 0

    def attach(self) -> None:
        """Start managing existing and later pods."""
        self._unsubscribe = [
            self._cluster.listen("pods", self._on_pod),
            self._cluster.listen("nodes", self._on_node),
            self._cluster.listen("resourceclaims", self._on_claim),
        ]
        for stored in self._cluster.stored("resourceclaims"):
            self._manage_claim(stored.obj)
        for stored in self._cluster.stored("pods"):
            self._manage(stored.obj)
        nodes = self._cluster.stored("nodes")
        for index, stored in enumerate(nodes):
            self._start_heartbeats(stored.obj, index / len(nodes))

    def detach(self) -> None:
        """Stop managing pods."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = []
        self._timers.clear()
        self._without_claims.clear()

    async def run(self) -> None:
        """Serve until cancelled."""
        self.attach()
        try:
            while True:
                self._wake.clear()
                wait_s = self.step()
                try:
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            self.detach()

    def step(self) -> float | None:
        """Run the due timers. Returns the seconds until the next one, or None."""
        while self._timers:
            due_s = self._timers[0][0]
            left_s = due_s - self._api.clock()
            if left_s > 0:
                return left_s
            _, _, action, key, uid = heapq.heappop(self._timers)
            action(key, uid)
        return None

    def _add_timer(
        self, delay_s: float, action: Callable[[str, str], None], key: str, uid: str
    ) -> None:
        due_s = self._api.clock() + delay_s
        timer = (due_s, next(self._sequence), action, key, uid)
        heapq.heappush(self._timers, timer)
        if self._timers[0] is timer:
            self._wake.set()

    def _on_pod(self, change: StoreChange) -> None:
        if change.type != DELETED:
            before = change.old.obj if change.old is not None else None
            self._manage(change.new.obj, before)
        uid = self._without_claims.pop(change.new.key, None)
        if uid is not None and change.type != DELETED:
            self._add_timer(0.0, self._start, change.new.key, uid)

    def _on_claim(self, change: StoreChange) -> None:
        if change.type == DELETED:
            return
        claim = change.new.obj
        self._manage_claim(claim)
        for consumer in (claim.get("status") or {}).get("reservedFor") or ():
            key = f"{claim['metadata']['namespace']}/{consumer.get('name')}"
            uid = self._without_claims.pop(key, None)
            if uid is not None:
                self._add_timer(0.0, self._start, key, uid)

    def _manage_claim(self, claim: Object) -> None:
        """Devices with binding conditions become ready as fast as pods start."""
        if unreported_devices(claim):
            metadata = claim["metadata"]
            key = f"{metadata['namespace']}/{metadata['name']}"
            self._add_timer(self._timings.start_s, self._report_devices, key, metadata["uid"])

    def _report_devices(self, key: str, uid: str) -> None:
        namespace, _, name = key.partition("/")
        stored = self._api.find(CLAIMS, namespace, name)
        if stored is None or stored.obj["metadata"]["uid"] != uid:
            return
        if unreported_devices(stored.obj):
            claim = with_reported_devices(stored.obj, self._api.now_text())
            claims = self._cluster.resource("resourceclaims")
            self._api.update(claims, namespace, name, lambda _: claim, subresource="status")

    def _on_node(self, change: StoreChange) -> None:
        if change.type != ADDED:
            return
        self._start_heartbeats(change.new.obj, 0.0)
        name = change.new.obj["metadata"]["name"]
        for stored in self._cluster.stored("pods"):
            if stored.obj["spec"].get("nodeName") == name:
                self._manage(stored.obj)

    def _start_heartbeats(self, node: Object, phase: float) -> None:
        """``phase``: fraction of the interval to wait first, which spreads the renewals."""
        if self._timings.heartbeat_s:
            metadata = node["metadata"]
            delay_s = phase * self._timings.heartbeat_s
            self._add_timer(delay_s, self._heartbeat, metadata["name"], metadata["uid"])

    def _manage(self, pod: Object, before: Object | None = None) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        node_name = spec.get("nodeName")
        if not node_name or self._api.find("nodes", "", node_name) is None:
            return
        key, uid = f"{metadata['namespace']}/{metadata['name']}", metadata["uid"]
        if metadata.get("deletionTimestamp"):
            if before is None or not before["metadata"].get("deletionTimestamp"):
                grace_s = metadata.get("deletionGracePeriodSeconds") or 0
                self._add_timer(min(grace_s, self._timings.terminate_s), self._remove, key, uid)
        elif before is None or not before["spec"].get("nodeName"):
            phase = pod["status"].get("phase")
            if phase == "Pending":
                self._add_timer(self._timings.start_s, self._start, key, uid)
            elif phase == "Running":
                self._schedule_finish(pod, key, uid)

    def _schedule_finish(self, pod: Object, key: str, uid: str) -> None:
        text = (pod["metadata"].get("annotations") or {}).get(RUN_SECONDS)
        # An invalid annotation is ignored.
        with suppress(ValueError):
            if text is not None:
                self._add_timer(float(text), self._finish, key, uid)

    def _current(self, key: str, uid: str) -> Object | None:
        namespace, _, name = key.partition("/")
        stored = self._api.find("pods", namespace, name)
        if stored is None or stored.obj["metadata"]["uid"] != uid:
            return None
        return stored.obj

    def _write_status(self, pod: Object, status: Object) -> Object:
        metadata = pod["metadata"]
        return self._api.update(
            self._pods,
            metadata["namespace"],
            metadata["name"],
            lambda current: {**current, "status": {**current["status"], **status}},
            subresource="status",
        ).obj

    def _start(self, key: str, uid: str) -> None:
        pod = self._current(key, uid)
        if pod is None or pod["metadata"].get("deletionTimestamp"):
            return
        if pod["status"].get("phase") != "Pending":
            return
        if not claims_are_ready(self._api, pod):
            self._without_claims[key] = uid
            return
        now = self._api.now_text()
        address = str(IPv4Address(_POD_NETWORK + 1 + next(self._addresses) % _POD_NETWORK_SIZE))
        running = {"running": {"startedAt": now}}
        status = {
            "phase": "Running",
            "conditions": _conditions(pod, now, ready=True),
            "hostIP": self._host_address(pod),
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": now,
            "containerStatuses": _container_statuses(pod, running, ready=True),
        }
        self.started_pods += 1
        self._schedule_finish(self._write_status(pod, status), key, uid)

    def _finish(self, key: str, uid: str) -> None:
        pod = self._current(key, uid)
        if pod is None or pod["status"].get("phase") in _FINISHED:
            return
        now = self._api.now_text()
        began = pod["status"].get("startTime") or now
        ended = {"exitCode": 0, "reason": "Completed", "startedAt": began, "finishedAt": now}
        status = {
            "phase": "Succeeded",
            "conditions": _conditions(pod, now, ready=False),
            "containerStatuses": _container_statuses(pod, {"terminated": ended}, ready=False),
        }
        self.finished_pods += 1
        self._write_status(pod, status)

    def _remove(self, key: str, uid: str) -> None:
        pod = self._current(key, uid)
        if pod is None:
            return
        metadata = pod["metadata"]
        options = DeleteOptions(grace_period_s=0, uid=uid)
        self._api.delete(self._pods, metadata["namespace"], metadata["name"], options)

    def _host_address(self, pod: Object) -> str:
        node = self._api.find("nodes", "", pod["spec"]["nodeName"])
        addresses = (node.obj.get("status") or {}).get("addresses") or () if node else ()
        return next((a.get("address", "") for a in addresses if a.get("type") == "InternalIP"), "")

    def _heartbeat(self, name: str, uid: str) -> None:
        """Renew the lease of a node while the node exists."""
        node = self._api.find("nodes", "", name)
        if node is None or node.obj["metadata"]["uid"] != uid or not self._timings.heartbeat_s:
            return
        leases = self._cluster.resource("leases")
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": f"{self._api.now_text()[:-1]}.000000Z",
        }
        try:
            self._api.update(leases, LEASE_NAMESPACE, name, lambda lease: {**lease, "spec": spec})
        except StatusError as error:
            if error.code != 404:
                raise
            self._api.create(leases, LEASE_NAMESPACE, {"metadata": {"name": name}, "spec": spec})
        self._add_timer(self._timings.heartbeat_s, self._heartbeat, name, uid)


_POD_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")


def _conditions(pod: Object, now: str, *, ready: bool) -> list[Object]:
    """The conditions that kubelets set, then those of other components."""
    kept = [
        condition
        for condition in pod["status"].get("conditions") or ()
        if condition.get("type") not in _POD_CONDITIONS
    ]
    made: list[Object] = []
    for kind in _POD_CONDITIONS:
        status = "True" if ready or kind == "Initialized" else "False"
        times = {"lastProbeTime": None, "lastTransitionTime": now}
        made.append({"type": kind, "status": status, **times})
        if not ready and kind != "PodReadyToStartContainers":
            made[-1]["reason"] = "PodCompleted"
    return [*made, *kept]


def _container_statuses(pod: Object, state: Object, *, ready: bool) -> list[Object]:
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "lastState": {},
            "ready": ready,
            "restartCount": 0,
            "started": ready,
            "state": state,
        }
        for container in pod["spec"].get("containers") or ()
    ]
