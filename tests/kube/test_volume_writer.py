"""Writes to volumes and claims with the embedded API server over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from asched.apiserver.auth import SCHEDULER
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.faults import Fault, Faults
from asched.apiserver.http import ApiServer
from asched.framework.binding import ClaimRef
from asched.kube.volume_writer import BOUND_BY_CONTROLLER, SELECTED_NODE, VolumeWriter
from asched.kube.write_outcomes import OutcomeUnknown, WriteRejected, WriteSucceeded
from tests.kube.harness import ManualClock, client_for

Object = dict[str, Any]


class HookedFaults(Faults):
    """A hook that runs before every request."""

    def __init__(self) -> None:
        super().__init__()
        self.on_patch: Callable[[], None] = lambda: None

    def take(self, verb: str, resource: str) -> Fault | None:
        if verb == "patch":
            self.on_patch()
        return super().take(verb, resource)


class Storage:
    """A server with one volume and one claim, and the writer."""

    def __init__(
        self, cluster: EmbeddedCluster, faults: HookedFaults, writer: VolumeWriter
    ) -> None:
        self.cluster = cluster
        self.faults = faults
        self.writer = writer
        self.claim = self.make_claim("data")

    def make_claim(self, name: str) -> ClaimRef:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        body = {"metadata": {"name": name, "namespace": "d"}, "spec": spec}
        made = self.cluster.create("persistentvolumeclaims", body)
        return ClaimRef("d", name, made["metadata"]["uid"])

    def make_volume(self, **spec: Any) -> None:
        spec = {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/x"}, **spec,
        }  # fmt: skip
        self.cluster.create("persistentvolumes", {"metadata": {"name": "pv"}, "spec": spec})

    @property
    def volume(self) -> Object:
        return self.cluster.get("persistentvolumes", "pv")

    @property
    def stored_claim(self) -> Object:
        return self.cluster.get("persistentvolumeclaims", "data", namespace="d")


@asynccontextmanager
async def storage() -> AsyncIterator[Storage]:
    cluster, faults = EmbeddedCluster(seed=1), HookedFaults()
    server = ApiServer(cluster, faults=faults, tokens={"t": SCHEDULER})
    cluster.create("namespaces", {"metadata": {"name": "d"}})
    async with server.run(), client_for(server.url, ManualClock(), token="t") as client:
        yield Storage(cluster, faults, VolumeWriter(client))


async def test_free_volume_is_claimed() -> None:
    async with storage() as s:
        s.make_volume()
        assert await s.writer.claim_volume("pv", s.claim) == WriteSucceeded()
        assert s.volume["metadata"]["annotations"] == {BOUND_BY_CONTROLLER: "yes"}
        assert s.volume["spec"]["claimRef"] == {
            "kind": "PersistentVolumeClaim", "apiVersion": "v1",
            "namespace": "d", "name": "data", "uid": s.claim.uid,
        }  # fmt: skip
        revision = s.cluster.revision
        assert await s.writer.claim_volume("pv", s.claim) == WriteSucceeded()
        assert s.cluster.revision == revision


async def test_prebound_volume_gets_uid() -> None:
    async with storage() as s:
        s.make_volume(claimRef={"namespace": "d", "name": "data"})
        assert await s.writer.claim_volume("pv", s.claim) == WriteSucceeded()
        assert s.volume["spec"]["claimRef"]["uid"] == s.claim.uid
        assert "annotations" not in s.volume["metadata"]


async def test_volume_of_another_claim_is_rejected() -> None:
    async with storage() as s:
        s.make_volume(claimRef={"namespace": "d", "name": "data", "uid": "of-an-earlier-one"})
        outcome = await s.writer.claim_volume("pv", s.claim)
        assert outcome == WriteRejected('volume "pv" is already claimed by d/data', 409)


async def test_concurrent_unrelated_change_is_retried() -> None:
    async with storage() as s:
        s.make_volume()
        left = 1

        def touch() -> None:
            nonlocal left
            if left:
                left -= 1
                s.cluster.patch("persistentvolumes", "pv", {"metadata": {"labels": {"a": "b"}}})

        s.faults.on_patch = touch
        assert await s.writer.claim_volume("pv", s.claim) == WriteSucceeded()
        assert s.volume["spec"]["claimRef"]["uid"] == s.claim.uid


async def test_constantly_changing_object_is_rejected() -> None:
    async with storage() as s:
        s.make_volume()
        count = 0

        def touch() -> None:
            nonlocal count
            count += 1
            labels = {"metadata": {"labels": {"a": str(count)}}}
            s.cluster.patch("persistentvolumes", "pv", labels)

        s.faults.on_patch = touch
        outcome = await s.writer.claim_volume("pv", s.claim)
        assert outcome == WriteRejected("the object was modified concurrently", 409)
        assert count == 3


async def test_node_is_selected_once() -> None:
    async with storage() as s:
        assert await s.writer.select_node(s.claim, "n") == WriteSucceeded()
        assert s.stored_claim["metadata"]["annotations"] == {SELECTED_NODE: "n"}
        assert await s.writer.select_node(s.claim, "n") == WriteSucceeded()
        outcome = await s.writer.select_node(s.claim, "m")
        assert outcome == WriteRejected('node n is already selected for claim "d/data"', 409)


async def test_changed_claims_are_rejected() -> None:
    async with storage() as s:
        earlier = s.claim._replace(uid="earlier")
        outcome = await s.writer.select_node(earlier, "n")
        assert outcome == WriteRejected('claim "d/data" was replaced by another one', 409)
        assert await s.writer.read_claim(earlier) is None
        s.cluster.patch(
            "persistentvolumeclaims", "data", {"spec": {"volumeName": "pv"}}, namespace="d"
        )
        outcome = await s.writer.select_node(s.claim, "n")
        assert outcome == WriteRejected('claim "d/data" is already bound', 409)


async def test_missing_objects() -> None:
    async with storage() as s:
        outcome = await s.writer.claim_volume("pv", s.claim)
        assert outcome == WriteRejected('persistentvolumes "pv" not found', 404)
        assert await s.writer.read_volume("pv") is None
        s.make_volume()
        found = await s.writer.read_volume("pv")
        assert found is not None
        assert found.spec.claim_ref is None
        claim = await s.writer.read_claim(s.claim)
        assert claim is not None
        assert claim.uid == s.claim.uid


async def test_server_error_has_unknown_outcome() -> None:
    async with storage() as s:
        s.make_volume()
        s.faults.respond(500, count=10, verb="patch", resource="persistentvolumes")
        assert isinstance(await s.writer.claim_volume("pv", s.claim), OutcomeUnknown)


async def test_lost_response_is_found_successful() -> None:
    async with storage() as s:
        s.make_volume()
        s.faults.drop(verb="patch", resource="persistentvolumes", after_effect=True)
        assert await s.writer.claim_volume("pv", s.claim) == WriteSucceeded()
        assert s.volume["spec"]["claimRef"]["uid"] == s.claim.uid
