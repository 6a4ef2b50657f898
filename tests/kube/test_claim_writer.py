"""Writes to ResourceClaims with the embedded API server over HTTP."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from asched.apiserver.auth import KUBE_SCHEDULER_RULES, User
from asched.framework.binding import ClaimRef
from asched.kube.claim_bodies import FINALIZER, SPECIAL_CLAIM, StoredClaim
from asched.kube.claim_writer import ClaimWriter
from asched.kube.pod_writer import PodTarget
from asched.kube.transport import JSON
from asched.kube.write_outcomes import (
    OutcomeUnknown,
    WriteRejected,
    WriteSucceeded,
)
from asched.model.pod import ContainerExtendedResourceRequest
from asched.model.resource_claims import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceClaim,
    DeviceRequest,
    ExactDeviceRequest,
    OpaqueDeviceConfiguration,
    ResourceClaim,
    ResourceClaimSpec,
)
from tests.kube.claims import NOW, STORED, allocation, claims
from tests.kube.harness import Answer, ManualClock, ScriptedServer, client_for, in_turn


async def test_claim_is_allocated_and_reserved() -> None:
    async with claims() as c:
        spec, labels = c.stored["spec"], c.stored["metadata"]["labels"]
        assert await c.allocate(allocation()) == WriteSucceeded()
        assert c.requests == ["patch resourceclaims", "update resourceclaims/status"]
        assert c.stored["metadata"]["finalizers"] == [FINALIZER]
        assert c.stored["status"] == {"allocation": STORED, "reservedFor": [c.reservation(c.pod)]}
        assert (c.stored["spec"], c.stored["metadata"]["labels"]) == (spec, labels)
        revision = c.cluster.revision
        assert await c.allocate(allocation()) == WriteSucceeded()
        assert c.cluster.revision == revision


async def test_allocated_claim_is_reserved_for_another_pod() -> None:
    async with claims() as c:
        await c.allocate(allocation())
        devices = [{"driver": "d.example.com", "pool": "n", "device": "gpu-0", "data": {"x": 1.10}}]
        c.set_status(devices=devices)
        del c.requests[:]
        other = c.add_pod("q")
        assert await c.allocate(None, other) == WriteSucceeded()
        assert c.requests == ["update resourceclaims/status"]
        assert c.stored["status"] == {
            "allocation": STORED,
            "devices": devices,
            "reservedFor": [c.reservation(c.pod), c.reservation(other)],
        }
        assert await c.allocate(None, other) == WriteSucceeded()
        assert len(c.requests) == 1


async def test_reservation_that_was_removed_since_the_watch_showed_it_is_written_again() -> None:
    async with claims() as c:
        await c.allocate(allocation())
        c.show()
        assert await c.undo("release") == WriteSucceeded()
        assert c.reserved_for == []
        assert await c.allocate(None) == WriteSucceeded()
        assert c.reserved_for == [c.pod.uid]


async def test_reservation_that_is_still_there_needs_no_write() -> None:
    async with claims() as c:
        await c.allocate(allocation())
        c.show()
        del c.requests[:]
        assert await c.allocate(None) == WriteSucceeded()
        assert c.requests == []


async def test_allocation_by_others_is_kept() -> None:
    async with claims() as c:
        await c.allocate(allocation())
        elsewhere = WriteRejected("claim d/c got allocated elsewhere in the meantime", 409)
        assert await c.allocate(allocation("gpu-1")) == elsewhere
        assert await c.allocate(allocation(), c.add_pod("q")) == elsewhere


async def test_unusable_claims_are_rejected() -> None:
    async with claims() as c:
        outcome = await c.allocate(None)
        assert outcome == WriteRejected("claim d/c got deallocated elsewhere in the meantime", 409)
        c.claim = c.claim._replace(uid="earlier")
        outcome = await c.allocate(allocation())
        assert outcome == WriteRejected("claim d/c was replaced by another one", 409)
        c.claim = c.claim._replace(uid=c.stored["metadata"]["uid"])
        c.cluster.patch("resourceclaims", "c", {"metadata": {"finalizers": ["x/y"]}}, namespace="d")
        c.cluster.delete("resourceclaims", "c", namespace="d")
        outcome = await c.allocate(allocation())
        assert outcome == WriteRejected("claim d/c got deleted in the meantime", 409)
        c.claim = ClaimRef("d", "gone", "u")
        outcome = await c.allocate(allocation())
        assert outcome == WriteRejected(
            'get claim d/gone: resourceclaims.resource.k8s.io "gone" not found', 404
        )


async def test_concurrent_changes_are_retried() -> None:
    async with claims() as c:
        left = 2

        def touch() -> None:
            nonlocal left
            if left:
                left -= 1
                labels = {"metadata": {"labels": {"a": str(left)}}}
                c.cluster.patch("resourceclaims", "c", labels, namespace="d")

        c.faults.on_update = touch
        assert await c.allocate(allocation()) == WriteSucceeded()
        assert c.stored["metadata"]["labels"] == {"a": "0"}
        assert c.stored["status"]["allocation"] == STORED


async def test_constantly_changing_claim_is_rejected() -> None:
    async with claims() as c:
        count = 0

        def touch() -> None:
            nonlocal count
            count += 1
            labels = {"metadata": {"labels": {"a": str(count)}}}
            c.cluster.patch("resourceclaims", "c", labels, namespace="d")

        c.faults.on_update = touch
        outcome = await c.allocate(allocation())
        assert outcome == WriteRejected("claim d/c was modified concurrently", 409)
        assert count == 6  # the finalizer, and five updates


async def test_other_finalizers_stay() -> None:
    async with claims() as c:
        c.cluster.patch("resourceclaims", "c", {"metadata": {"finalizers": ["x/y"]}}, namespace="d")
        assert await c.allocate(allocation()) == WriteSucceeded()
        assert sorted(c.stored["metadata"]["finalizers"]) == [FINALIZER, "x/y"]


async def test_finalizer_is_added_by_an_update_where_a_patch_is_not_permitted() -> None:
    rules = tuple(
        replace(rule, verbs=rule.verbs - {"patch"}) if "resourceclaims" in rule.resources else rule
        for rule in KUBE_SCHEDULER_RULES
    )
    async with claims(User("system:serviceaccount:other", rules)) as c:
        assert await c.allocate(allocation()) == WriteSucceeded()
        assert c.stored["metadata"]["finalizers"] == [FINALIZER]
        assert c.requests[-2:] == ["update resourceclaims", "update resourceclaims/status"]


async def test_lost_responses_are_found_successful() -> None:
    async with claims() as c:
        c.faults.drop(verb="patch", resource="resourceclaims", after_effect=True)
        c.faults.drop(verb="update", resource="resourceclaims/status", after_effect=True)
        assert await c.allocate(allocation()) == WriteSucceeded()
        assert c.stored["status"]["reservedFor"] == [c.reservation(c.pod)]


@pytest.mark.parametrize("finalizers", [[], [FINALIZER]])
async def test_outcome_of_an_update_with_an_unreadable_answer_is_unknown(
    finalizers: list[str],
) -> None:
    metadata = {"name": "c", "namespace": "d", "uid": "u", "finalizers": finalizers}
    stored = msgspec.json.encode({"metadata": metadata, "spec": {}})
    answers = in_turn(Answer(body=stored), Answer(body=b"{"))
    async with (
        ScriptedServer(answers).run() as server,
        client_for(server.url, ManualClock()) as client,
    ):
        outcome = await ClaimWriter(client).allocate(
            ClaimRef("d", "c", "u"), allocation(), PodTarget("d", "p", "Pod-p"), NOW
        )
    assert isinstance(outcome, OutcomeUnknown)
    assert outcome.message.startswith("add ")


def _field(number: int, content: bytes) -> bytes:
    """A short field of a protobuf message."""
    return bytes([number << 3 | 2, len(content)]) + content


INVALID = Answer(422, body=b'{"message":"spec: field is immutable","code":422}')


def _json(**metadata: object) -> Answer:
    meta = {"name": "c", "namespace": "d", "uid": "u", "resourceVersion": "7", **metadata}
    return Answer(body=msgspec.json.encode({"metadata": meta, "spec": {}}))


async def test_claim_in_a_notation_that_json_does_not_keep_gets_the_finalizer() -> None:
    """As by clients that write opaque parameters with white space."""
    opaque = _field(2, b'{"a": 1}')
    # A creation time and a generation are fields of other types.
    times = _field(8, b"\x08\x01") + b"\x38\x03"
    known = _field(1, b"c") + _field(5, b"u") + _field(6, b"7") + times
    before, kind = _field(1, known), _field(1, _field(2, b"ResourceClaim"))
    stored = b"k8s\0" + kind + _field(2, before + opaque) + _field(3, b"") + _field(4, b"")
    answers = in_turn(
        INVALID, _json(), INVALID, Answer(body=stored), _json(finalizers=[FINALIZER]), _json()
    )
    async with (
        ScriptedServer(answers).run() as server,
        client_for(server.url, ManualClock()) as client,
    ):
        outcome = await ClaimWriter(client).allocate(
            ClaimRef("d", "c", "u"), allocation(), PodTarget("d", "p", "Pod-p"), NOW
        )
        assert outcome == WriteSucceeded()
        asked = server.asked
    protobuf = "application/vnd.kubernetes.protobuf"
    assert [each.method for each in asked] == ["PATCH", "GET", "PUT", "GET", "PUT", "PUT"]
    assert [each.headers["Accept"] for each in asked[2:5]] == [JSON, protobuf, JSON]
    assert asked[4].headers["Content-Type"] == protobuf
    added = _field(1, _field(14, FINALIZER.encode()))
    assert asked[4].body == b"k8s\0" + kind + _field(2, before + opaque + added)


async def test_another_claim_in_protobuf_is_a_conflict() -> None:
    other = _field(1, _field(5, b"v") + _field(6, b"8"))
    stored = b"k8s\0" + _field(1, b"") + _field(2, other)
    answers = in_turn(INVALID, _json(), INVALID, Answer(body=stored), _json(uid="v"))
    async with (
        ScriptedServer(answers).run() as server,
        client_for(server.url, ManualClock()) as client,
    ):
        outcome = await ClaimWriter(client).allocate(
            ClaimRef("d", "c", "u"), allocation(), PodTarget("d", "p", "Pod-p"), NOW
        )
    assert outcome == WriteRejected("claim d/c was replaced by another one", 409)


def test_parameters_are_written_as_the_api_server_writes_them() -> None:
    opaque = OpaqueDeviceConfiguration(driver="d.example.com", parameters={"b": "<&>", "a": 1})
    devices = DeviceAllocationResult(
        config=(DeviceAllocationConfiguration(source="FromClaim", opaque=opaque),)
    )
    claim = StoredClaim(b"{}")
    body = claim.with_reservation(
        PodTarget("d", "p", "Pod-p"), AllocationResult(devices=devices), NOW
    )
    assert rb'"parameters":{"a":1,"b":"\u003c\u0026\u003e"}' in body


async def test_outcome_of_a_creation_with_an_unreadable_answer_is_unknown() -> None:
    answers = in_turn(Answer(201, body=b"{"))
    async with (
        ScriptedServer(answers).run() as server,
        client_for(server.url, ManualClock()) as client,
    ):
        outcome = await ClaimWriter(client).create_special(
            PodTarget("d", "p", "Pod-p"), ResourceClaim()
        )
    assert isinstance(outcome, OutcomeUnknown)


async def test_failures_have_texts_of_kube_scheduler() -> None:
    async with claims() as c:
        for verb in ("patch", "update"):
            c.faults.respond(500, count=10, verb=verb, resource="resourceclaims")
        outcome = await c.allocate(allocation())
        assert isinstance(outcome, OutcomeUnknown)
        assert outcome.message.startswith("add finalizer to claim d/c: ")
    async with claims() as c:
        c.faults.respond(403, verb="update", resource="resourceclaims/status")
        outcome = await c.allocate(allocation())
        assert isinstance(outcome, WriteRejected)
        assert outcome.message.startswith("add allocation and reservation to claim d/c: ")


async def test_reservation_is_released() -> None:
    async with claims() as c:
        await c.allocate(allocation())
        other = c.add_pod("q")
        await c.allocate(None, other)
        assert await c.writer.release(c.claim, c.pod.uid) == WriteSucceeded()
        assert c.stored["status"] == {"allocation": STORED, "reservedFor": [c.reservation(other)]}
        assert await c.writer.release(c.claim, c.pod.uid) == WriteSucceeded()
        assert (
            await c.writer.release(c.claim._replace(uid="earlier"), c.pod.uid) == WriteSucceeded()
        )
        assert c.reserved_for == [other.uid]


class DeposedError(Exception):
    """Another process is the scheduler."""


@pytest.mark.parametrize("undo", ["release", "deallocate", "delete_special"])
async def test_deposed_process_releases_nothing(undo: str) -> None:
    async with claims() as c:
        await c.allocate(allocation())
        before = c.stored

        async def confirm() -> None:
            raise DeposedError

        c.confirm = confirm
        with pytest.raises(DeposedError):
            await c.undo(undo)
        assert c.stored == before


@pytest.mark.parametrize("undo", ["release", "deallocate", "delete_special"])
async def test_successor_keeps_what_it_wrote_after_the_check(undo: str) -> None:
    """A successor begins after this process was found to be the scheduler, and writes before the
    request of this process arrives."""
    async with claims() as c:
        await c.allocate(allocation())
        checks = 0

        async def confirm() -> None:
            nonlocal checks
            checks += 1
            if checks == 2:
                raise DeposedError
            c.set_status(devices=[{"driver": "d.example.com", "pool": "n", "device": "gpu-0"}])

        c.confirm = confirm
        with pytest.raises(DeposedError):
            await c.undo(undo)
        assert c.reserved_for == [c.pod.uid]
        assert c.stored["status"]["allocation"] == STORED
        assert "deletionTimestamp" not in c.stored["metadata"]


async def test_claim_is_deallocated() -> None:
    async with claims() as c:
        await c.allocate(allocation())
        used = WriteRejected("claim d/c is reserved for another pod", 409)
        assert await c.writer.deallocate(c.claim, "other") == used
        assert await c.writer.deallocate(c.claim, c.pod.uid) == WriteSucceeded()
        assert not c.stored.get("status")
        assert c.stored["metadata"]["finalizers"] == [FINALIZER]
        assert await c.writer.deallocate(c.claim, c.pod.uid) == WriteSucceeded()
        gone = ClaimRef("d", "gone", "u")
        assert await c.writer.deallocate(gone, c.pod.uid) == WriteSucceeded()


def special_spec() -> ResourceClaim:
    request = DeviceRequest(
        name="container-0-request-0",
        exactly=ExactDeviceRequest(device_class_name="gpu", count=1),
    )
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=(request,)))
    return ResourceClaim(spec=spec)


async def test_special_claim_is_created_once() -> None:
    async with claims() as c:
        c.faults.drop(verb="create", resource="resourceclaims", after_effect=True)
        made = await c.writer.create_special(c.pod, special_spec())
        assert isinstance(made, ResourceClaim)
        assert made.name.startswith("p-extended-resources-")
        assert len(made.name) == len("p-extended-resources-") + 5
        stored = c.cluster.get("resourceclaims", made.name, namespace="d")["metadata"]
        assert stored["annotations"] == {SPECIAL_CLAIM: "true"}
        assert stored["generateName"] == "p-extended-resources-"
        assert stored["ownerReferences"] == [{
            "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": c.pod.uid, "controller": True,
        }]  # fmt: skip
        assert await c.writer.create_special(c.pod, special_spec()) == made
        other = await c.writer.create_special(PodTarget("d", "p", "other"), special_spec())
        assert isinstance(other, ResourceClaim)
        assert other.name != made.name


async def test_special_claim_is_deleted() -> None:
    async with claims() as c:
        made = await c.writer.create_special(c.pod, special_spec())
        assert isinstance(made, ResourceClaim)
        ref = ClaimRef.of(made)
        allocated = allocation(request="container-0-request-0")
        assert await c.writer.allocate(ref, allocated, c.pod, NOW) == WriteSucceeded()
        found = await c.writer.read(ref)
        assert found is not None
        assert found.status.allocation is not None
        assert await c.writer.read(ref._replace(uid="earlier")) is None
        del c.requests[:]
        assert await c.writer.delete_special(ref) == WriteSucceeded()
        assert c.requests == ["update resourceclaims", "delete resourceclaims"]
        assert await c.writer.read(ref) is None
        assert await c.writer.delete_special(ref) == WriteSucceeded()


async def test_status_of_pod_is_patched() -> None:
    async with claims() as c:
        mapping = ContainerExtendedResourceRequest(
            container_name="c", resource_name="example.com/gpu", request_name="r"
        )
        patched = await c.writer.patch_extended_resource_status(c.pod, "special", [mapping])
        assert patched == WriteSucceeded()
        pod = c.cluster.get("pods", "p", namespace="d")
        assert pod["status"]["extendedResourceClaimStatus"] == {
            "requestMappings": [{
                "containerName": "c", "resourceName": "example.com/gpu", "requestName": "r",
            }],
            "resourceClaimName": "special",
        }  # fmt: skip
        assert await c.writer.patch_extended_resource_status(c.pod, "special", []) == WriteRejected(
            "nil or empty request mappings, no update of pod d/p ExtendedResourceClaimStatus"
        )


async def test_allocation_needs_a_permission_of_its_own() -> None:
    rules = tuple(r for r in KUBE_SCHEDULER_RULES if "resourceclaims/binding" not in r.resources)
    async with claims(User("system:serviceaccount:other", rules)) as c:
        outcome = await c.allocate(allocation())
        assert isinstance(outcome, WriteRejected)
        assert outcome.message == (
            'add allocation and reservation to claim d/c: ResourceClaim.resource.k8s.io "c" is '
            "invalid: status.allocation: Forbidden: changing status.allocation or "
            'status.reservedFor requires resource="resourceclaims/binding", verb="update" '
            "permission: permission denied"
        )
