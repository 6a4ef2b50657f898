"""Explanations, suggestions and timelines of pods with ResourceClaims."""

from __future__ import annotations

import msgspec
import pytest

from asched.audit.entries import AssignmentEntry, ClaimReleaseEntry, RejectionEntry
from asched.audit.entry_text import describe
from asched.audit.explain import explain
from asched.audit.explanation import Explanation
from asched.audit.history import timelines
from asched.audit.lookup import PodName
from asched.audit.unblock import ChangeKind, UnblockingChange
from asched.dra import Inventory
from asched.model.resource_claims import AllocationResult, DeviceConstraint, ResourceSlice
from asched.state.records import Assigned, ClaimReleaseEnded, Rejected
from tests.audit.recording import REGISTRY, Recording, node
from tests.plugins.dynamic_resources.objects import (
    a_claim,
    a_class,
    a_pod,
    a_request,
    a_slice,
    an_allocation,
)

TAINT = {"key": "broken", "value": "yes", "effect": "NoSchedule"}


def recorded(*slices: ResourceSlice) -> Recording:
    """Node n0 with slices, and a pod that wants two devices."""
    recording = Recording()
    recording.see(node("n0"), a_class(), *slices)
    recording.see(a_claim("c", a_request(count=2)), a_pod("p", "c"))
    return recording


async def explained(recording: Recording) -> Explanation:
    return await explain(await recording.journal(), PodName.parse("d/p"), REGISTRY.load)


def changes(found: Explanation) -> dict[ChangeKind, UnblockingChange]:
    assert found.unblocking is not None
    return {change.kind: change for each in found.unblocking for change in each.changes}


async def test_rejected_node_has_counts_of_its_devices() -> None:
    other = {"name": "nic", "attributes": {"kind": {"string": "nic"}}}
    recording = recorded(
        a_slice("n0", "gpu-0", {"name": "gpu-1", "taints": [TAINT]}, "gpu-2", other)
    )
    own = 'device.attributes["gpu.example.com"].?kind.orValue("gpu") == "gpu"'
    recording.see(a_class(expression=own))
    recording.see(a_claim("held", allocation=an_allocation("n0", "gpu-0")))
    recording.decide()
    found = await explained(recording)
    assert found.reproduced
    (request,) = found.nodes[0].requests
    assert (request.claim, request.request, request.wanted) == ("d/c", "r", 2)
    assert (request.considered, request.suitable) == (4, 1)
    assert request.refused == {
        "in use": 1,
        "not selected by selector #0 of class gpu": 1,
        "taint broken=yes:NoSchedule is not tolerated": 1,
    }
    assert request.users == ("d/held",)


async def test_allocations_are_read_once_for_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = recorded(a_slice("n0"))
    recording.see(node("n1"), node("n2"))
    recording.decide()
    reads = 0

    def counted(self: Inventory) -> dict[str, AllocationResult]:
        nonlocal reads
        reads += 1
        return allocations(self)

    allocations = Inventory.allocations
    monkeypatch.setattr(Inventory, "allocations", counted)
    found = await explained(recording)
    assert [len(each.requests) for each in found.nodes] == [1, 1, 1]
    assert reads == 1


async def test_pool_that_cannot_be_used_is_named() -> None:
    complete = a_slice("n0", "gpu-0")
    pool = msgspec.structs.replace(complete.spec.pool, resource_slice_count=2)
    incomplete = msgspec.structs.replace(
        complete, spec=msgspec.structs.replace(complete.spec, pool=pool)
    )
    recording = recorded(incomplete)
    recording.decide()
    found = await explained(recording)
    assert found.nodes[0].device_problems == (
        "pool gpu.example.com/n0: not all of its slices are published",
    )


async def test_changes_of_devices_unblock_a_pod() -> None:
    recording = recorded(a_slice("n0", "gpu-0", {"name": "gpu-1", "taints": [TAINT]}, "gpu-2"))
    recording.see(a_claim("held", allocation=an_allocation("n0", "gpu-2")))
    recording.decide()
    found = changes(await explained(recording))
    taint = found[ChangeKind.DEVICE_TAINT]
    assert (taint.key, taint.value, taint.effect) == ("broken", "yes", "NoSchedule")
    assert taint.summary == (
        "without the taint broken=yes:NoSchedule on the devices of gpu.example.com/n0"
    )
    assert found[ChangeKind.CLAIM].claim == "d/held"
    assert found[ChangeKind.MORE_DEVICES].devices == 1


async def test_fewest_additional_devices_are_suggested() -> None:
    recording = recorded(a_slice("n0", {"name": "gpu-0", "taints": [TAINT]}, "gpu-1"))
    recording.see(a_claim("held", allocation=an_allocation("n0", "gpu-1")))
    recording.decide()
    found = changes(await explained(recording))
    assert {*found} == {ChangeKind.MORE_DEVICES}
    assert found[ChangeKind.MORE_DEVICES].devices == 2


async def test_each_kind_of_rejected_node_has_changes_and_equal_nodes_are_one() -> None:
    recording = Recording()
    recording.see(a_class())
    for number in range(8):
        recording.see(node(f"one-{number}"), a_slice(f"one-{number}", "gpu-0"))
        recording.see(node(f"none-{number}"))
    broken = [{"name": name, "taints": [TAINT]} for name in "ab"]
    recording.see(node("tainted"), a_slice("tainted", *broken))
    recording.see(a_claim("c", a_request(count=2)), a_pod("p", "c"))
    recording.decide()
    found = (await explained(recording)).unblocking
    assert found is not None
    summaries = {
        each.node: (each.alike, {change.summary for change in each.changes}) for each in found
    }
    fewer = "claim d/c with count 1 instead of 2 in request r"
    assert summaries == {
        "one-0": (7, {"1 more device like gpu.example.com/one-0/gpu-0", fewer}),
        "none-0": (7, {"2 devices like gpu.example.com/one-0/gpu-0 of another node"}),
        "tainted": (
            0,
            {
                "without the taint broken=yes:NoSchedule on the devices of gpu.example.com/tainted",
                "2 devices like gpu.example.com/one-0/gpu-0 of another node",
            },
        ),
    }


async def test_constraint_and_selector_that_refuse_are_named() -> None:
    devices = [{"name": f"gpu-{n}", "attributes": {"numa": {"int": n}}} for n in range(2)]
    recording = Recording()
    recording.see(node("n0"), a_class(), a_slice("n0", *devices))
    claim = a_claim("c", a_request(count=2))
    constraint = DeviceConstraint(match_attribute="gpu.example.com/numa")
    asked = msgspec.structs.replace(claim.spec.devices, constraints=(constraint,))
    spec = msgspec.structs.replace(claim.spec, devices=asked)
    recording.see(msgspec.structs.replace(claim, spec=spec), a_pod("p", "c"))
    recording.decide()
    found = await explained(recording)
    (request,) = found.nodes[0].requests
    assert request.limited_by == {"constraint matchAttribute gpu.example.com/numa": 1}
    assert (request.suitable, request.missing) == (2, 1)
    assert found.unblocking is not None
    assert {change.summary for change in found.unblocking[0].changes} == {
        "1 more device like gpu.example.com/n0/gpu-0",
        "1 more device like gpu.example.com/n0/gpu-1",
        "claim d/c without the constraint matchAttribute gpu.example.com/numa",
        "claim d/c with count 1 instead of 2 in request r",
    }


async def test_selector_without_which_devices_are_found() -> None:
    expression = 'device.attributes["gpu.example.com"].model == "B"'
    devices = [{"name": f"gpu-{n}", "attributes": {"model": {"string": "A"}}} for n in range(2)]
    recording = Recording()
    recording.see(node("n0"), a_class(), a_slice("n0", *devices))
    selectors = [{"cel": {"expression": expression}}]
    recording.see(a_claim("c", a_request(selectors=selectors)), a_pod("p", "c"))
    recording.decide()
    found = await explained(recording)
    assert changes(found)[ChangeKind.CLAIM_SPEC].summary == (
        f"claim d/c without selector #0 of request r: {expression}"
    )


async def test_many_missing_devices_are_counted_exactly() -> None:
    recording = Recording()
    recording.see(node("n0"), a_class(), a_slice("n0", "gpu-0"))
    recording.see(a_claim("c", a_request(count=21)), a_pod("p", "c"))
    recording.decide()
    assert changes(await explained(recording))[ChangeKind.MORE_DEVICES].devices == 20


async def test_claim_that_asched_allocated_can_be_given_back() -> None:
    recording = Recording()
    recording.see(node("n0"), a_class(), a_slice("n0", "gpu-0"), a_claim("held"))
    recording.see(a_pod("first", "held"))
    recording.bind(recording.decide())
    recording.see(a_claim("held", allocation=an_allocation("n0", "gpu-0")))
    recording.see(a_claim("c"), a_pod("p", "c"))
    recording.decide()
    assert changes(await explained(recording))[ChangeKind.CLAIM].claim == "d/held"


async def test_special_claim_that_asched_allocated_can_be_given_back() -> None:
    recording, resource = Recording(), "example.com/gpu"
    recording.see(node("n0"), a_class(extendedResourceName=resource), a_slice("n0", "gpu-0"))
    recording.see(a_pod("first", resources=[{resource: "1"}]))
    recording.bind(recording.decide())
    owner = {"kind": "Pod", "name": "first", "uid": "Pod-first", "apiVersion": "v1"}
    special = a_claim(
        "first-extended-resources-x",
        allocation=an_allocation("n0", "gpu-0"),
        annotations={"resource.kubernetes.io/extended-resource-claim": "true"},
        ownerReferences=[{**owner, "controller": True}],
    )
    recording.see(special, a_claim("c"), a_pod("p", "c"))
    recording.decide()
    assert changes(await explained(recording))[ChangeKind.CLAIM].claim == special.key


async def test_assignment_names_the_devices() -> None:
    recording = recorded(a_slice("n0", "gpu-0", "gpu-1"))
    (decision,) = recording.decide()
    assert isinstance(decision, Assigned)
    expected = ("c/r: gpu.example.com/n0/gpu-0", "c/r: gpu.example.com/n0/gpu-1")
    assert (await explained(recording)).decision.devices == expected
    (timeline,) = await timelines(await recording.journal(), PodName.parse("d/p"), REGISTRY.load)
    (entry,) = [each for each in timeline.entries if isinstance(each, AssignmentEntry)]
    assert entry.devices == expected
    assert "devices c/r: gpu.example.com/n0/gpu-0, c/r:" in describe(entry)[1]


async def test_timeline_has_the_released_claim() -> None:
    recording = Recording()
    gone = a_claim("c", allocation=an_allocation("gone", "gpu-0"))
    recording.see(node("n0"), a_class(), gone, a_pod("p", "c"))
    (decision,) = recording.decide()
    assert isinstance(decision, Rejected)
    recording.turn(1.0)
    recording.add(ClaimReleaseEnded("d/p", "Pod-p", "ResourceClaim-c", "forbidden"))
    (timeline,) = await timelines(await recording.journal(), PodName.parse("d/p"), REGISTRY.load)
    (rejected,) = [each for each in timeline.entries if isinstance(each, RejectionEntry)]
    assert rejected.released_claim == "d/c"
    assert describe(rejected)[1].endswith("; releases claim d/c")
    (ended,) = [each for each in timeline.entries if isinstance(each, ClaimReleaseEntry)]
    assert describe(ended) == ("claim released", "forbidden")
    assert (await explained(recording)).decision.released_claim == "d/c"
