"""What holds for every allocation, and that an exhaustive search finds nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from asched.dra import Allocated, AllocationError, AllocationRequest, Allocator, NodeView
from asched.model.meta import ObjectMeta
from asched.model.resource_claims import (
    AllocationResult,
    Device,
    DeviceAttribute,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceSlice,
)
from tests.dra.reference import exact
from tests.dra.test_rules import NODE, slice_of, world
from tests.dra.worlds import NODES, World, selector, worlds

DeviceKey = tuple[str, str, str]


def current_devices(world: World) -> dict[DeviceKey, tuple[ResourceSlice, Device]]:
    newest: dict[tuple[str, str], int] = {}
    for item in world.slices:
        pool = (item.spec.driver, item.spec.pool.name)
        newest[pool] = max(newest.get(pool, 0), item.spec.pool.generation)
    return {
        (item.spec.driver, item.spec.pool.name, device.name): (item, device)
        for item in world.slices
        for device in item.spec.devices
        if item.spec.pool.generation == newest[item.spec.driver, item.spec.pool.name]
    }


def allocations(world: World, node: NodeView) -> tuple[AllocationResult, ...] | None:
    """Those of the claims that are in use already, and of the new ones."""
    try:
        outcome = Allocator(world.inventory()).allocate(AllocationRequest(world.requests), node)
    except AllocationError:
        return None
    if not isinstance(outcome, Allocated):
        return None
    new = outcome.results(node.name, lambda: "new")
    old = (claim.status.allocation for claim in world.claims)
    return (*new, *(each for each in old if each is not None))


@given(worlds())
def test_nothing_is_allocated_beyond_what_there_is(world: World) -> None:
    devices = current_devices(world)
    for node in NODES:
        found = allocations(world, node)
        if found is None:
            continue
        whole: Counter[DeviceKey] = Counter()
        parts: dict[tuple[DeviceKey, str], Fraction] = {}
        for result in (each for allocation in found for each in allocation.devices.results):
            key = (result.driver, result.pool, result.device)
            if result.admin_access:
                continue
            if result.share_id is None:
                whole[key] += 1
            for name, amount in result.consumed_capacity.items():
                parts[key, name] = parts.get((key, name), Fraction()) + exact(amount)
        assert all(number == 1 for number in whole.values())
        for (key, name), total in parts.items():
            if key in devices and name in devices[key][1].capacity:
                assert total <= exact(devices[key][1].capacity[name].value)


@given(worlds())
def test_counters_are_not_overdrawn(world: World) -> None:
    """Where one driver uses the pool's name, and no device can be shared."""
    devices = current_devices(world)
    shareable = any(device.allow_multiple_allocations for _, device in devices.values())
    if shareable or len({key[:2] for key in devices}) > len({key[1] for key in devices}):
        return
    before = counter_use((each.status.allocation for each in world.claims), devices)
    for node in NODES:
        used = counter_use(allocations(world, node) or (), devices)
        assert all(total <= max(5, before[pool]) for pool, total in used.items())


def counter_use(
    found: Iterable[AllocationResult | None],
    devices: dict[DeviceKey, tuple[ResourceSlice, Device]],
) -> Counter[tuple[str, str]]:
    """What allocations take of the counter of each pool."""
    used: Counter[tuple[str, str]] = Counter()
    for result in (each for one in found if one is not None for each in one.devices.results):
        key = (result.driver, result.pool, result.device)
        if key in devices and not result.admin_access:
            for consumed in devices[key][1].consumes_counters:
                used[key[:2]] += int(str(consumed.counters["slots"].value))
    return used


# -- an exhaustive search -------------------------------------------------------------------------

KINDS = ("big", "small")
LANES = ("1", "2")


@st.composite
def plain_devices(draw: st.DrawFn) -> tuple[Device, ...]:
    number = draw(st.integers(0, 6))
    return tuple(
        Device(
            name=f"d{index}",
            attributes={
                "kind": DeviceAttribute(string=draw(st.sampled_from(KINDS))),
                "lane": DeviceAttribute(string=draw(st.sampled_from(LANES))),
            },
        )
        for index in range(number)
    )


@st.composite
def plain_claims(draw: st.DrawFn) -> ResourceClaim:
    requests = tuple(
        DeviceRequest(
            name=f"r{index}",
            exactly=ExactDeviceRequest(
                device_class_name="everything",
                count=draw(st.integers(1, 3)),
                selectors=draw(st.sampled_from(((), (selector("kind=big"),)))),
            ),
        )
        for index in range(draw(st.integers(1, 3)))
    )
    constraints = draw(
        st.lists(
            st.builds(
                lambda names, attribute: DeviceConstraint(
                    requests=tuple(names), match_attribute=f"gpu.example/{attribute}"
                ),
                st.sets(st.sampled_from([request.name for request in requests])),
                st.sampled_from(("kind", "lane")),
            ),
            max_size=2,
        )
    )
    return ResourceClaim(
        metadata=ObjectMeta(name="c", namespace="ns"),
        spec=ResourceClaimSpec(
            devices=DeviceClaim(requests=requests, constraints=tuple(constraints))
        ),
    )


def assignments(
    requests: tuple[DeviceRequest, ...], devices: tuple[Device, ...]
) -> Iterator[tuple[tuple[Device, ...], ...]]:
    """All ways to give devices to requests, in the order in which they are tried."""
    if not requests:
        yield ()
        return
    first, *rest = requests
    assert first.exactly is not None
    wants_big = bool(first.exactly.selectors)
    fitting = [d for d in devices if not wants_big or d.attributes["kind"].string == "big"]
    for chosen in combinations(fitting, first.exactly.count):
        left = tuple(device for device in devices if device not in chosen)
        for others in assignments(tuple(rest), left):
            yield (chosen, *others)


def satisfies(claim: ResourceClaim, assignment: tuple[tuple[Device, ...], ...]) -> bool:
    for constraint in claim.spec.devices.constraints:
        assert constraint.match_attribute is not None
        attribute = constraint.match_attribute.partition("/")[2]
        values = {
            device.attributes[attribute]
            for request, chosen in zip(claim.spec.devices.requests, assignment, strict=True)
            for device in chosen
            if not constraint.requests or request.name in constraint.requests
        }
        if len(values) > 1:
            return False
    return True


@given(plain_devices(), plain_claims())
def test_the_first_assignment_of_an_exhaustive_search(
    devices: tuple[Device, ...], claim: ResourceClaim
) -> None:
    requests = claim.spec.devices.requests
    expected = next((a for a in assignments(requests, devices) if satisfies(claim, a)), None)
    inventory = world(slice_of("s", *devices))
    outcome = Allocator(inventory).allocate(AllocationRequest((claim,)), NODE)
    if not isinstance(outcome, Allocated):
        assert expected is None
        return
    assert expected is not None
    found = [device.candidate.device.name for device in outcome.claims[0].devices]
    assert found == [device.name for chosen in expected for device in chosen]
