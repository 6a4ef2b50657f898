"""What holds for every allocation, and that an exhaustive search finds nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from asched.dra import Allocated, AllocationError, AllocationRequest, Allocator, NodeView
from asched.model.meta import ObjectMeta
from asched.model.resource_claims import (
    AllocationResult,
    CapacityRequestPolicy,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceSlice,
)
from tests.dra.reference import exact
from tests.dra.test_rules import (
    NODE,
    claim,
    consuming,
    counters_of,
    request,
    slice_of,
    use,
    wants,
    world,
)
from tests.dra.worlds import NODES, World, classes, selector, worlds
from tests.run_size import examples

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


@st.composite
def scarce_worlds(draw: st.DrawFn) -> World:
    """Worlds in which claims compete for devices, counters and capacity. All devices of the one
    pool are for all nodes, and no request excludes any."""
    shared = draw(st.lists(st.booleans(), min_size=2, max_size=4))
    offered = tuple(
        Device(name=f"d{number}", allow_multiple_allocations=True, capacity=FOUR)
        if each
        else Device(name=f"d{number}", consumes_counters=consuming(draw(st.integers(1, 3))))
        for number, each in enumerate(shared)
    )
    used = (
        use(each.name, share_id="0", consumed_capacity={"memory": "2"})
        if each.allow_multiple_allocations
        else use(each.name)
        for each in draw(
            st.lists(st.sampled_from(offered), max_size=2, unique_by=lambda each: each.name)
        )
    )
    counts = draw(st.lists(st.sampled_from((1, 1, 1, 2)), min_size=1, max_size=4))
    claims = (
        claim(
            request(count=count, capacity=draw(st.sampled_from((None, wants("2"))))), name=f"c{at}"
        )
        for at, count in enumerate(counts)
    )
    slices = (slice_of("d", *offered, count=2, all_nodes=True), counters_of(4, "c"))
    return World(slices, classes(), claims=tuple(used), requests=tuple(claims))


FOUR = {"memory": DeviceCapacity(value="4", request_policy=CapacityRequestPolicy(default="1"))}


@settings(max_examples=examples(200))
@given(scarce_worlds() | worlds())
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


@settings(max_examples=examples(200))
@given(scarce_worlds())
def test_counters_are_not_overdrawn(world: World) -> None:
    """Where one driver uses the pool's name, and no device with counters can be shared."""
    devices = current_devices(world)
    before = counter_use((each.status.allocation for each in world.claims), devices)
    for node in NODES:
        used = counter_use(allocations(world, node) or (), devices)
        assert used <= max(4, before)


def counter_use(
    found: Iterable[AllocationResult | None],
    devices: dict[DeviceKey, tuple[ResourceSlice, Device]],
) -> int:
    """What allocations take of the one counter."""
    return sum(
        int(str(counter.value))
        for result in (each for one in found if one is not None for each in one.devices.results)
        for consumed in devices[result.driver, result.pool, result.device][1].consumes_counters
        for counter in consumed.counters.values()
    )


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
