"""Searches that would take exponential time end soon, with the answer of a patient search."""

from __future__ import annotations

import pytest

from asched.dra import (
    Allocated,
    AllocationRequest,
    Allocator,
    Inventory,
    NodeView,
    NotAllocated,
    SearchLimits,
)
from asched.dra.outcomes import CANNOT_ALLOCATE, TOO_EXPENSIVE
from asched.model.meta import ObjectMeta
from asched.model.resource_claims import (
    CapacityRequirements,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceConstraint,
    DeviceCounterConsumption,
    DeviceRequest,
    DeviceSubRequest,
    DeviceTaint,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from tests.dra.selector_double import TextSelector
from tests.dra.worlds import classes, selector

NODE = NodeView("n0", {})
FEW_STEPS = SearchLimits(steps_per_node=20_000)


def inventory(*devices: Device, counters: tuple[CounterSet, ...] = ()) -> Inventory:
    found = Inventory(TextSelector)
    for device_class in classes():
        found.put_class(device_class)
    pool = ResourcePool(name="p", generation=1, resource_slice_count=1 + bool(counters))
    spec = ResourceSliceSpec(driver="gpu.example", pool=pool, node_name="n0", devices=devices)
    found.put_slice(ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec))
    if counters:
        spec = ResourceSliceSpec(
            driver="gpu.example", pool=pool, node_name="n0", shared_counters=counters
        )
        found.put_slice(ResourceSlice(metadata=ObjectMeta(name="c"), spec=spec))
    return found


def text(value: object) -> DeviceAttribute:
    return DeviceAttribute(string=str(value))


def exactly(name: str, number: int, *expressions: str) -> DeviceRequest:
    return DeviceRequest(
        name=name,
        exactly=ExactDeviceRequest(
            device_class_name="everything",
            count=number,
            selectors=tuple(map(selector, expressions)),
        ),
    )


def claim(
    *requests: DeviceRequest, constraints: tuple[DeviceConstraint, ...] = ()
) -> ResourceClaim:
    return ResourceClaim(
        metadata=ObjectMeta(name="c", namespace="ns", uid="uid"),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=requests, constraints=constraints)),
    )


def outcome(found: Inventory, *claims: ResourceClaim) -> Allocated | NotAllocated:
    return Allocator(found, FEW_STEPS).allocate(AllocationRequest(claims), NODE)


def distinct(number: int, kinds: int = 1) -> tuple[Device, ...]:
    """Devices that differ in their serial number."""
    return tuple(
        Device(
            name=f"d{index}",
            attributes={"serial": text(index), "kind": text(f"k{index % kinds}")},
        )
        for index in range(number)
    )


def test_more_devices_than_there_are() -> None:
    found = inventory(*distinct(19))
    assert outcome(found, claim(exactly("r", 20))) == NotAllocated(CANNOT_ALLOCATE)


def test_more_matching_devices_than_there_are() -> None:
    found = inventory(*distinct(38, kinds=2))
    assert outcome(found, claim(exactly("r", 20, "kind=k1"))) == NotAllocated(CANNOT_ALLOCATE)


def test_two_requests_for_more_than_there_is() -> None:
    found = inventory(*distinct(24, kinds=2))
    wanted = claim(exactly("a", 11), exactly("b", 7, "kind=k1"), exactly("c", 7, "kind=k1"))
    assert outcome(found, wanted) == NotAllocated(CANNOT_ALLOCATE)


def test_a_later_claim_that_cannot_be_satisfied() -> None:
    found = inventory(*distinct(24, kinds=24))
    later = claim(exactly("r", 1, "kind=k99"))
    assert outcome(found, claim(exactly("r", 12)), later) == NotAllocated(CANNOT_ALLOCATE)


def test_a_group_that_is_too_small() -> None:
    found = inventory(*distinct(30, kinds=2))
    constraint = DeviceConstraint(match_attribute="gpu.example/kind")
    wanted = claim(exactly("r", 16), constraints=(constraint,))
    assert outcome(found, wanted) == NotAllocated(CANNOT_ALLOCATE)


def test_a_group_is_found_after_groups_that_are_too_small() -> None:
    small = [
        Device(name=f"d{i:02}", attributes={"kind": text(i // 5), "serial": text(i)})
        for i in range(25)
    ]
    large = [
        Device(name=f"e{i:02}", attributes={"kind": text("x"), "serial": text(i)}) for i in range(8)
    ]
    constraint = DeviceConstraint(match_attribute="gpu.example/kind")
    solution = outcome(inventory(*small, *large), claim(exactly("r", 8), constraints=(constraint,)))
    assert isinstance(solution, Allocated)
    names = [device.candidate.device.name for device in solution.claims[0].devices]
    assert names == [device.name for device in large]


def test_devices_without_enough_capacity_left() -> None:
    devices = [
        Device(
            name=f"d{i}",
            allow_multiple_allocations=True,
            attributes={"serial": text(i)},
            capacity={"memory": DeviceCapacity(value="8" if i < 11 else "1")},
        )
        for i in range(24)
    ]
    body = ExactDeviceRequest(
        device_class_name="everything",
        count=12,
        capacity=CapacityRequirements(requests={"memory": "5"}),
    )
    wanted = claim(DeviceRequest(name="r", exactly=body))
    assert outcome(inventory(*devices), wanted) == NotAllocated(CANNOT_ALLOCATE)


def test_counters_for_fewer_devices() -> None:
    consumed = DeviceCounterConsumption(counter_set="s", counters={"x": Counter(value="1")})
    devices = [
        Device(name=f"d{i}", attributes={"serial": text(i)}, consumes_counters=(consumed,))
        for i in range(24)
    ]
    found = inventory(
        *devices, counters=(CounterSet(name="s", counters={"x": Counter(value="11")}),)
    )
    assert outcome(found, claim(exactly("r", 12))) == NotAllocated(CANNOT_ALLOCATE)


def test_a_search_that_stays_too_long_is_stopped() -> None:
    """Distinct values with several devices of one request: the bookkeeping forbids shortcuts."""
    found = inventory(*distinct(24, kinds=3))
    constraint = DeviceConstraint(distinct_attribute="gpu.example/kind")
    wanted = claim(
        exactly("a", 12),
        exactly("b", 1, "kind=k0"),
        exactly("c", 1, "kind=k0"),
        constraints=(constraint,),
    )
    assert outcome(found, wanted) == NotAllocated(TOO_EXPENSIVE)


def test_bookkeeping_does_not_forbid_the_proof_that_a_search_is_impossible() -> None:
    found = inventory(*distinct(24, kinds=3))
    constraint = DeviceConstraint(distinct_attribute="gpu.example/kind")
    wanted = claim(exactly("a", 12), exactly("b", 1, "kind=k9"), constraints=(constraint,))
    assert outcome(found, wanted) == NotAllocated(CANNOT_ALLOCATE)


def test_all_devices_with_a_constraint_fail_at_a_tainted_one() -> None:
    """A constraint that forbids one of all devices is an error, but the taint comes first."""
    taint = DeviceTaint(key="k", effect="NoSchedule")
    tainted = Device(name="a", attributes={"kind": text("k1")}, taints=(taint,))
    constraint = DeviceConstraint(distinct_attribute="gpu.example/kind")
    every = DeviceRequest(
        name="all",
        exactly=ExactDeviceRequest(
            device_class_name="everything",
            allocation_mode="All",
            selectors=(selector("kind=k1"),),
        ),
    )
    found = inventory(tainted, *distinct(24))
    wanted = claim(every, constraints=(constraint,))
    assert outcome(found, claim(exactly("a", 6)), wanted) == NotAllocated(CANNOT_ALLOCATE)


@pytest.mark.parametrize("amount", ["1", "4"])
def test_all_devices_need_their_counters_together(amount: str) -> None:
    """Tainted devices stay booked, so nothing is left out of the search; but it is impossible."""
    uses = (DeviceCounterConsumption(counter_set="s", counters={"x": Counter(value=amount)}),)
    devices = [
        Device(
            name=f"d{i:02}",
            attributes={"half": text(i % 2)},
            consumes_counters=uses if i % 2 else (),
            taints=(DeviceTaint(key="k", effect="NoSchedule"),) if i % 4 == 1 else (),
        )
        for i in range(24)
    ]
    found = inventory(
        *devices, counters=(CounterSet(name="s", counters={"x": Counter(value="3")}),)
    )
    every = DeviceRequest(
        name="all",
        exactly=ExactDeviceRequest(
            device_class_name="everything",
            allocation_mode="All",
            selectors=(selector("half=1"),),
            tolerations=(DeviceToleration(operator="Exists"),),
        ),
    )
    found_outcome = outcome(found, claim(exactly("a", 6)), claim(every))
    assert found_outcome == NotAllocated(CANNOT_ALLOCATE)


def test_many_claims_do_not_exhaust_the_stack() -> None:
    found = inventory(*distinct(1500))
    claims = [claim(exactly("r", 1)) for _ in range(1200)]
    solution = outcome(found, *claims)
    assert isinstance(solution, Allocated)
    assert len(solution.claims) == 1200


@pytest.mark.parametrize("number", [3, 12])
def test_alternatives_beyond_the_limit_are_passed_over(number: int) -> None:
    found = inventory(*distinct(40))
    alternatives = tuple(
        DeviceSubRequest(name=f"s{size}", device_class_name="everything", count=size)
        for size in (30, number)
    )
    wanted = claim(exactly("a", 20), DeviceRequest(name="b", first_available=alternatives))
    solution = outcome(found, wanted)
    assert isinstance(solution, Allocated)
    assert len(solution.claims[0].devices) == 20 + number
