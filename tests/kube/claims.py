"""A ResourceClaim on the embedded API server, and its writer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio.lowlevel
import msgspec

from asched.apiserver.auth import SCHEDULER, User
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.faults import Fault, Faults
from asched.apiserver.http import ApiServer
from asched.framework.binding import ClaimRef
from asched.kube.claim_writer import ClaimWriter
from asched.kube.client import ApiClient
from asched.kube.pod_writer import PodTarget
from asched.kube.write_outcomes import WriteOutcome
from asched.model.resource_claims import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from asched.model.resources import Resource, decode
from tests.kube.harness import ManualClock, client_for

Object = dict[str, Any]

NOW = datetime(2026, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
REQUEST = {"name": "r", "exactly": {"deviceClassName": "gpu", "count": 1}}
CONFIG = {"opaque": {"driver": "d.example.com", "parameters": {"ratio": 1.50, "deep": {"a": [1]}}}}


def allocation(device: str = "gpu-0", request: str = "r") -> AllocationResult:
    result = DeviceRequestAllocationResult(
        request=request, driver="d.example.com", pool="n", device=device
    )
    return AllocationResult(devices=DeviceAllocationResult(results=(result,)))


STORED = {
    "devices": {
        "results": [{"request": "r", "driver": "d.example.com", "pool": "n", "device": "gpu-0"}]
    },
    "allocationTimestamp": "2026-05-06T07:08:09Z",
}


class RecordedRequests(Faults):
    """Records the writes, and calls a hook before each."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.on_update: Callable[[], None] = lambda: None

    def take(self, verb: str, resource: str) -> Fault | None:
        if verb != "get":
            self.writes.append(f"{verb} {resource}")
        if verb in ("update", "patch"):
            self.on_update()
        return super().take(verb, resource)


class Claims:
    """A server with one claim and one pod, and the writer."""

    def __init__(
        self, cluster: EmbeddedCluster, faults: RecordedRequests, client: ApiClient
    ) -> None:
        self.cluster = cluster
        self.faults = faults
        self.shown: ResourceClaim | None = None
        self.confirm: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        self.writer = ClaimWriter(client, lambda key: self.shown, lambda: self.confirm())
        self.requests = faults.writes
        spec = {"devices": {"requests": [REQUEST], "config": [CONFIG]}}
        body = {"metadata": {"name": "c", "namespace": "d", "labels": {"a": "b"}}, "spec": spec}
        self.claim = ClaimRef("d", "c", cluster.create("resourceclaims", body)["metadata"]["uid"])
        self.pod = self.add_pod("p")

    def add_pod(self, name: str) -> PodTarget:
        spec = {"containers": [{"name": "c", "image": "x"}]}
        made = self.cluster.create(
            "pods", {"metadata": {"name": name, "namespace": "d"}, "spec": spec}
        )
        return PodTarget("d", name, made["metadata"]["uid"])

    @property
    def stored(self) -> Object:
        return self.cluster.get("resourceclaims", "c", namespace="d")

    @property
    def reserved_for(self) -> list[str]:
        """UIDs of the consumers."""
        return [consumer["uid"] for consumer in self.stored["status"].get("reservedFor", ())]

    async def undo(self, way: str) -> WriteOutcome:
        """Release the claim for the pod by the method of that name."""
        match way:
            case "release":
                return await self.writer.release(self.claim, self.pod.uid)
            case "deallocate":
                return await self.writer.deallocate(self.claim, self.pod.uid)
            case _:
                return await self.writer.delete_special(self.claim)

    def show(self) -> None:
        """The watch shows the claim to the writer."""
        found = decode(Resource.RESOURCE_CLAIMS, msgspec.json.encode(self.stored))
        assert isinstance(found, ResourceClaim)
        self.shown = found

    def set_status(self, **status: Any) -> None:
        self.cluster.patch(
            "resourceclaims", "c", {"status": status}, namespace="d", subresource="status"
        )

    async def allocate(
        self, result: AllocationResult | None, pod: PodTarget | None = None
    ) -> WriteOutcome:
        return await self.writer.allocate(self.claim, result, pod or self.pod, NOW)

    def reservation(self, pod: PodTarget) -> Object:
        return {"resource": "pods", "name": pod.name, "uid": pod.uid}


@asynccontextmanager
async def claims(user: User = SCHEDULER) -> AsyncIterator[Claims]:
    cluster, faults = EmbeddedCluster(seed=1), RecordedRequests()
    server = ApiServer(cluster, faults=faults, tokens={"t": user})
    cluster.create("namespaces", {"metadata": {"name": "d"}})
    async with server.run(), client_for(server.url, ManualClock(), token="t") as client:
        yield Claims(cluster, faults, client)
