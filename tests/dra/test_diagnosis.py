"""Why claims cannot be allocated, and what would help."""

from __future__ import annotations

from typing import Any

from asched.dra import Inventory, NodeView
from asched.dra.diagnosis import ClaimDiagnoser, NodeDiagnosis
from asched.model.meta import ObjectMeta
from asched.model.resource_claims import (
    CapacityRequirements,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceConstraint,
    DeviceCounterConsumption,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceTaint,
    ExactDeviceRequest,
    ResourceClaim,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from tests.dra.test_search_effort import NODE, claim, exactly, inventory, text
from tests.dra.worlds import allocated


def kind(value: str) -> dict[str, DeviceAttribute]:
    return {"kind": text(value)}


def used(name: str, device: str, **fields: Any) -> ResourceClaim:
    result = DeviceRequestAllocationResult(
        request="r", driver="gpu.example", pool="p", device=device, **fields
    )
    return allocated(name, (result,))


def diagnose(
    inventory: Inventory, claims: tuple[ResourceClaim, ...], node: NodeView
) -> NodeDiagnosis:
    return ClaimDiagnoser(inventory).run(claims, node)


def test_every_device_is_counted_once() -> None:
    found = inventory(
        Device(name="a", attributes=kind("big")),
        Device(name="b", attributes=kind("big")),
        Device(name="c", attributes=kind("small")),
        Device(
            name="d",
            attributes=kind("big"),
            taints=(DeviceTaint(key="broken", value="yes", effect="NoExecute"),),
        ),
    )
    found.put_claim(used("x", "a"))
    found.put_claim(used("y", "c"))
    wanted = claim(exactly("r", 2, "kind=big"))
    diagnosis = diagnose(found, (wanted,), NODE)
    (request,) = diagnosis.requests
    assert (request.claim, request.request, request.wanted) == ("ns/c", "r", 2)
    assert (request.considered, request.suitable) == (4, 1)
    assert request.refused == (
        ("in use", 1),
        ("not selected by selector #0 of the request", 1),
        ("taint broken=yes:NoExecute is not tolerated", 1),
    )
    assert request.users == ("ns/x",)


def test_nothing_is_in_the_way() -> None:
    found = inventory(Device(name="a"))
    wanted = (claim(exactly("r", 1)),)
    assert diagnose(found, wanted, NODE).requests[0].suitable == 1


def test_constraints_and_missing_attributes() -> None:
    found = inventory(
        Device(name="a", attributes=kind("big")),
        Device(name="b", attributes=kind("small")),
        Device(name="c"),
    )
    constraint = DeviceConstraint(match_attribute="gpu.example/kind")
    wanted = (claim(exactly("r", 2), constraints=(constraint,)),)
    (request,) = diagnose(found, wanted, NODE).requests
    assert request.refused == (("attribute gpu.example/kind of a constraint is missing", 1),)
    assert request.suitable == 2
    assert request.limited_by == (("constraint matchAttribute gpu.example/kind", 1),)
    assert request.attainable == 1


def test_distinct_values_of_equal_devices() -> None:
    constraint = DeviceConstraint(distinct_attribute="gpu.example/kind")
    wanted = (claim(exactly("r", 3), constraints=(constraint,)),)
    alike = [Device(name=name, attributes=kind("big")) for name in "abc"]
    (request,) = diagnose(inventory(*alike), wanted, NODE).requests
    assert request.limited_by == (("constraint distinctAttribute gpu.example/kind", 1),)
    other = Device(name="d", attributes=kind("small"))
    (request,) = diagnose(inventory(*alike, other), wanted, NODE).requests
    assert request.limited_by == ()


def test_capacity() -> None:
    found = inventory(
        Device(
            name="a",
            allow_multiple_allocations=True,
            capacity={"memory": DeviceCapacity(value="8")},
        ),
        Device(
            name="b",
            allow_multiple_allocations=True,
            capacity={"memory": DeviceCapacity(value="2")},
        ),
        Device(name="c"),
    )
    found.put_claim(used("x", "a", share_id="s", consumed_capacity={"memory": "6"}))
    body = ExactDeviceRequest(
        device_class_name="everything",
        count=1,
        capacity=CapacityRequirements(requests={"memory": "4"}),
    )
    wanted = (claim(DeviceRequest(name="r", exactly=body)),)
    (request,) = diagnose(found, wanted, NODE).requests
    assert dict(request.refused) == {
        "in use: capacity memory": 1,
        "not enough capacity memory": 1,
        "the requested capacity is missing or not allowed": 1,
    }
    assert request.users == ("ns/x",)


def test_counters() -> None:
    consumed = DeviceCounterConsumption(counter_set="s", counters={"x": Counter(value="1")})
    found = inventory(
        *(Device(name=name, consumes_counters=(consumed,)) for name in "ab"),
        counters=(CounterSet(name="s", counters={"x": Counter(value="1")}),),
    )
    found.put_claim(used("x", "a"))
    wanted = (claim(exactly("r", 1)),)
    (request,) = diagnose(found, wanted, NODE).requests
    assert dict(request.refused) == {"in use": 1, "in use: counter s/x": 1}


def test_counters_for_several_devices() -> None:
    def partition(name: str, amount: str) -> Device:
        used_up = {"x": Counter(value=amount), "y": Counter(value="1")}
        consumed = DeviceCounterConsumption(counter_set="s", counters=used_up)
        return Device(name=name, consumes_counters=(consumed,))

    counters = {"x": Counter(value="7"), "y": Counter(value="9")}
    found = inventory(
        partition("a", "4"),
        partition("b", "2"),
        partition("c", "4"),
        Device(name="whole"),
        counters=(CounterSet(name="s", counters=counters),),
    )
    (request,) = diagnose(found, (claim(exactly("r", 4)),), NODE).requests
    assert (request.suitable, request.attainable) == (4, 3)
    assert request.limited_by == (("counter s/x", 3),)
    (request,) = diagnose(found, (claim(exactly("r", 3)),), NODE).requests
    assert request.limited_by == ()


def test_pools_that_offer_nothing() -> None:
    found = inventory(Device(name="a"))
    spec = ResourceSliceSpec(
        driver="nic.example",
        pool=ResourcePool(name="q", generation=1, resource_slice_count=2),
        all_nodes=True,
        devices=(Device(name="n"),),
    )
    found.put_slice(ResourceSlice(metadata=ObjectMeta(name="n"), spec=spec))
    twice = ResourceSliceSpec(
        driver="odd.example",
        pool=ResourcePool(name="o", generation=1, resource_slice_count=1),
        all_nodes=True,
        devices=(Device(name="n"), Device(name="n")),
    )
    found.put_slice(ResourceSlice(metadata=ObjectMeta(name="o"), spec=twice))
    pools = diagnose(found, (claim(exactly("r", 1)),), NODE).pools
    assert [(pool.pool, pool.problem) for pool in pools] == [
        ("gpu.example/p", ""),
        ("nic.example/q", "not all of its slices are published"),
        ("odd.example/o", "duplicate device name n"),
    ]


def test_errors_in_claims() -> None:
    found = inventory(Device(name="a"))
    missing = claim(
        DeviceRequest(name="r", exactly=ExactDeviceRequest(device_class_name="nosuch", count=1))
    )
    diagnosis = diagnose(found, (missing,), NODE)
    assert diagnosis.requests == ()
    assert len(diagnosis.problems) == 1
    failing = diagnose(found, (claim(exactly("r", 1, "kind=big")),), NODE)
    assert failing.requests[0].refused == (
        ("claim ns/c: selector #0: CEL runtime error: no such key: kind", 1),
    )


def test_later_claims_are_compared_on_their_own() -> None:
    found = inventory(Device(name="a"))
    diagnoser = ClaimDiagnoser(found)
    for count in (1, 2):
        (request,) = diagnoser.run((claim(exactly("r", count)),), NODE).requests
        assert request.wanted == count
