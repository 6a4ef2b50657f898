"""Devices of workloads: what a simulated driver publishes, and claims with devices from the start.

Source: ``test/integration/scheduler_perf/dra.go`` of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from benchmarks.kinds import Json

API_VERSION = "resource.k8s.io/v1"


class DeviceId(NamedTuple):
    """A device of the cluster. The name of its pool is the name of its node."""

    driver: str
    pool: str
    device: str


def slice_of(driver: str, node: str, devices: int) -> Json:
    """The ResourceSlice of a node: one complete pool of equal devices, except for their NUMA
    node."""

    def device(number: int) -> Json:
        return {
            "name": f"instance-{number}",
            "attributes": {
                "model": {"string": "A100"},
                "family": {"string": "GPU"},
                "driverVersion": {"version": "1.2.3"},
                "dra.example.com/numa": {"int": number},
            },
            "capacity": {"memory": {"value": "1Gi"}},
        }

    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {"name": node},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "resourceSliceCount": 1},
            "devices": [device(number) for number in range(devices)],
        },
    }


class FreeDevices:
    """The devices that no claim uses, chosen at random but equally in each run."""

    def __init__(self, slices: list[Json], claims: list[Json]) -> None:
        used = {
            DeviceId(result["driver"], result["pool"], result["device"])
            for claim in claims
            for result in claim.get("status", {})
            .get("allocation", {})
            .get("devices", {})
            .get("results", ())
        }
        free = [
            DeviceId(spec["driver"], spec["pool"]["name"], device["name"])
            for spec in (each["spec"] for each in slices)
            for device in spec.get("devices", ())
        ]
        self._free = sorted(each for each in free if each not in used)
        Random(0).shuffle(self._free)

    def take(self) -> DeviceId | None:
        """A free device, which is in use from now on; None if there is none."""
        return self._free.pop() if self._free else None


def allocation(claim: Json, take: Callable[[], DeviceId | None]) -> Json | None:
    """``status.allocation`` with one device for each request; None if devices are missing."""
    results = []
    nodes = set()
    for request in claim["spec"]["devices"]["requests"]:
        device = take()
        if device is None:
            return None
        results.append({"request": request["name"], **device._asdict()})
        nodes.add(device.pool)
    fields = [
        {"key": "metadata.name", "operator": "In", "values": [node]} for node in sorted(nodes)
    ]
    terms = [{"matchFields": [field]} for field in fields]
    return {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": terms}}
