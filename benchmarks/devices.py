"""Devices of workloads: what a simulated driver publishes, and claims with devices from the start.

Source: ``test/integration/scheduler_perf/dra.go`` of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

import msgspec

from asched.dra.allocator import AllocationRequest, Allocator
from asched.dra.cel_selectors import cel_selector
from asched.dra.devices import NodeView
from asched.dra.inventory import Inventory
from asched.dra.outcomes import Allocated
from asched.model.resource_claims import (
    AllocationResult,
    DeviceClass,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceSlice,
)
from asched.model.resources import Resource, decode
from benchmarks.kinds import Json

API_VERSION = "resource.k8s.io/v1"


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


class ClaimAllocator:
    """Allocates devices to claims on nodes in a random order, which is the same in each run."""

    def __init__(self, nodes: Sequence[Json], slices: Sequence[Json], classes: Sequence[Json]):
        """The arguments are objects of the API server."""
        self._inventory = Inventory(cel_selector)
        for item in slices:
            published = decode(Resource.RESOURCE_SLICES, msgspec.json.encode(item))
            assert isinstance(published, ResourceSlice)
            self._inventory.put_slice(published)
        for item in classes:
            device_class = decode(Resource.DEVICE_CLASSES, msgspec.json.encode(item))
            assert isinstance(device_class, DeviceClass)
            self._inventory.put_class(device_class)
        views = [
            NodeView(node["metadata"]["name"], node["metadata"].get("labels", {})) for node in nodes
        ]
        self._nodes = sorted(views, key=lambda view: view.name)
        self._allocator = Allocator(self._inventory)
        self._random = Random(0)
        self._left: dict[bytes, list[NodeView]] = {}
        """By the spec of a claim, the nodes that may have devices for another one."""

    def allocate(self, item: Json) -> AllocationResult | None:
        """``status.allocation`` for a claim. Its devices are in use from now on.

        A claim with an allocation keeps it. None if no node has devices for the claim. Raises
        AllocationError.
        """
        claim = decode(Resource.RESOURCE_CLAIMS, msgspec.json.encode(item))
        assert isinstance(claim, ResourceClaim)
        found = claim.status.allocation or self._search(claim)
        if found is not None:
            self._inventory.assume(claim.key, found)
        return found

    def _search(self, claim: ResourceClaim) -> AllocationResult | None:
        nodes = self._nodes_for(claim.spec)
        while nodes:
            place = self._random.randrange(len(nodes))
            outcome = self._allocator.allocate(AllocationRequest((claim,)), nodes[place])
            if isinstance(outcome, Allocated):
                share_id = f"{self._random.getrandbits(128):032x}"
                return outcome.results(nodes[place].name, partial(str, share_id))[0]
            nodes[place] = nodes[-1]
            nodes.pop()
        return None

    def _nodes_for(self, spec: ResourceClaimSpec) -> list[NodeView]:
        key = msgspec.msgpack.encode(spec)
        return self._left.setdefault(key, self._nodes.copy())
