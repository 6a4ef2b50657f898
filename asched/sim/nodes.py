"""Simulated nodes: what a kubelet registers, without the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Object = dict[str, Any]

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


def dotted(address: int) -> str:
    """An IPv4 address from its number."""
    return ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))


def simulated_node(
    name: str,
    *,
    capacity: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
    index: int = 0,
    ready_since: str | None = None,
) -> Object:
    """A node object that is Ready.

    :param capacity: quantities by resource, ``pods`` among them; all of it is allocatable.
    :param index: number of the node, from which its address follows.
    :param ready_since: time of the Ready condition. Heartbeats are in the nodes' leases; the
        condition's own time stands still.
    """
    own = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        **(labels or {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": own},
        "spec": {},
        "status": {
            "capacity": dict(capacity),
            "allocatable": dict(capacity),
            "conditions": [
                {**_READY, "lastHeartbeatTime": ready_since, "lastTransitionTime": ready_since}
            ],
            "addresses": [
                {"type": "InternalIP", "address": dotted(_SUBNET + (255 << 16) + index + 1)},
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


DEFAULT_CAPACITY = {
    "cpu": "16",
    "memory": "64Gi",
    "ephemeral-storage": "200Gi",
    "pods": "110",
}


def simulated_nodes(
    count: int, *, prefix: str = "node-", ready_since: str | None = None
) -> Iterator[Object]:
    """``count`` like nodes, spread over three zones."""
    width = max(4, len(str(max(0, count - 1))))
    for index in range(count):
        labels = {
            "topology.kubernetes.io/zone": ZONES[index % len(ZONES)],
            "topology.kubernetes.io/region": REGION,
        }
        yield simulated_node(
            f"{prefix}{index:0{width}d}",
            capacity=DEFAULT_CAPACITY,
            labels=labels,
            index=index,
            ready_since=ready_since,
        )
