"""One example for each rule of allocation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from asched.dra import (
    Allocated,
    AllocationError,
    AllocationRequest,
    Allocator,
    Inventory,
    NodeView,
    NotAllocated,
)
from asched.model.meta import ObjectMeta
from asched.model.resource_claims import (
    AllocationResult,
    CapacityRequirements,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceClass,
    DeviceClassConfiguration,
    DeviceClassSpec,
    DeviceConstraint,
    DeviceCounterConsumption,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSubRequest,
    DeviceTaint,
    DeviceToleration,
    ExactDeviceRequest,
    OpaqueDeviceConfiguration,
    ResourceClaim,
    ResourceClaimSpec,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from asched.model.selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from tests.dra.selector_double import TextSelector
from tests.dra.worlds import allocated, classes, on_rack, selector

NODE = NodeView("n0", {"rack": "a"})
OTHER = NodeView("n1", {"rack": "b"})
NO = NotAllocated("cannot allocate all claims")


def world(*slices: ResourceSlice, used: Iterable[ResourceClaim] = ()) -> Inventory:
    found = Inventory(TextSelector)
    for device_class in classes():
        found.put_class(device_class)
    for item in slices:
        found.put_slice(item)
    for claim in used:
        found.put_claim(claim)
    return found


def slice_of(name: str, *devices: Device, **fields: Any) -> ResourceSlice:
    pool = ResourcePool(
        name=fields.pop("pool", "p"),
        generation=fields.pop("generation", 1),
        resource_slice_count=fields.pop("count", 1),
    )
    if not {"node_selector", "all_nodes", "per_device_node_selection"} & set(fields):
        fields.setdefault("node_name", "n0")
    spec = ResourceSliceSpec(
        driver=fields.pop("driver", "gpu.example"), pool=pool, devices=devices, **fields
    )
    return ResourceSlice(metadata=ObjectMeta(name=name), spec=spec)


def named(*names: str, **fields: Any) -> tuple[Device, ...]:
    return tuple(Device(name=name, **fields) for name in names)


def kind(value: str) -> dict[str, DeviceAttribute]:
    return {"kind": DeviceAttribute(string=value)}


def request(name: str = "r", **fields: Any) -> DeviceRequest:
    fields.setdefault("device_class_name", "everything")
    fields.setdefault("count", 1)
    return DeviceRequest(name=name, exactly=ExactDeviceRequest(**fields))


def every(name: str = "r", **fields: Any) -> DeviceRequest:
    return request(name, allocation_mode="All", count=0, **fields)


def first_of(name: str, *options: dict[str, Any]) -> DeviceRequest:
    return DeviceRequest(
        name=name,
        first_available=tuple(
            DeviceSubRequest(
                **{"name": f"s{i}", "device_class_name": "everything", "count": 1, **option}
            )
            for i, option in enumerate(options)
        ),
    )


def claim(*requests: DeviceRequest, name: str = "c", **fields: Any) -> ResourceClaim:
    return ResourceClaim(
        metadata=ObjectMeta(name=name, namespace="ns"),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=requests, **fields)),
    )


def results(
    found: Inventory, *claims: ResourceClaim, node: NodeView = NODE
) -> tuple[AllocationResult, ...]:
    outcome = Allocator(found).allocate(AllocationRequest(claims), node)
    assert isinstance(outcome, Allocated), outcome
    return outcome.results(node.name, lambda: "new")


def taken(found: Inventory, *claims: ResourceClaim, node: NodeView = NODE) -> list[str]:
    """The devices with the requests that they are for."""
    return [
        f"{device.request}:{device.device}"
        for result in results(found, *claims, node=node)
        for device in result.devices.results
    ]


def refused(found: Inventory, *claims: ResourceClaim, node: NodeView = NODE) -> NotAllocated:
    outcome = Allocator(found).allocate(AllocationRequest(claims), node)
    assert isinstance(outcome, NotAllocated), outcome
    return outcome


def error(found: Inventory, *claims: ResourceClaim, node: NodeView = NODE) -> str:
    with pytest.raises(AllocationError) as caught:
        Allocator(found).allocate(AllocationRequest(claims), node)
    return str(caught.value)


def use(device: str, **fields: Any) -> ResourceClaim:
    result = DeviceRequestAllocationResult(
        request="r", driver="gpu.example", pool="p", device=device, **fields
    )
    return allocated(f"used-{device}-{len(fields)}", (result,))


# -- order, pools and slices (9-13) ---------------------------------------------------------------


def test_order_of_candidates() -> None:
    found = world(
        slice_of("z", *named("a"), pool="p2", driver="a.example"),
        slice_of("b", *named("c", "b"), pool="p1", count=2),
        slice_of("a", *named("d"), pool="p1", count=2),
        slice_of("y", *named("e"), pool="p0", driver="b.example", all_nodes=True),
        slice_of("x", *named("f", binding_conditions=("x",)), pool="p9", driver="a.example"),
    )
    assert taken(found, claim(request(count=6))) == [f"r:{name}" for name in "aedcbf"]


def test_devices_that_a_node_sees() -> None:
    found = world(
        slice_of("a", *named("a"), pool="1"),
        slice_of("b", *named("b"), pool="2", node_name="n1"),
        slice_of("c", *named("c"), pool="3", node_selector=on_rack("a")),
        slice_of("d", *named("d"), pool="4", node_selector=on_rack("b")),
        slice_of("e", *named("e"), pool="5", all_nodes=True),
        slice_of(
            "f",
            Device(name="f", node_name="n0"),
            Device(name="g", node_name="n1"),
            Device(name="h", all_nodes=True),
            Device(name="i", node_selector=on_rack("b")),
            pool="6",
            per_device_node_selection=True,
        ),
    )
    assert taken(found, claim(every())) == [f"r:{name}" for name in "acefh"]
    assert taken(found, claim(every()), node=OTHER) == [f"r:{name}" for name in "bdeghi"]


def test_only_the_highest_generation_counts() -> None:
    found = world(
        slice_of("a", *named("old"), generation=1), slice_of("b", *named("new"), generation=2)
    )
    assert taken(found, claim(every())) == ["r:new"]


def test_a_pool_whose_newer_slices_are_elsewhere_does_not_exist() -> None:
    found = world(
        slice_of("a", *named("old"), generation=1, count=2),
        slice_of("b", *named("new"), generation=2, node_name="n1"),
    )
    assert refused(found, claim(every())) == NO


@pytest.mark.parametrize("published", [1, 3])
def test_incomplete_pools(published: int) -> None:
    found = world(*(slice_of(f"s{i}", *named(f"d{i}"), count=2) for i in range(published)))
    assert refused(found, claim(request())) == NO
    assert error(found, claim(every())) == (
        "claim ns/c, request r: asks for all devices, but resource pool gpu.example/p is currently"
        " being updated"
    )


def consuming(number: int | str = 1, counter: str = "x", counter_set: str = "s") -> Any:
    counters = {counter: Counter(value=str(number))}
    return (DeviceCounterConsumption(counter_set=counter_set, counters=counters),)


def counters_of(number: int, name: str = "counters", **fields: Any) -> ResourceSlice:
    shared = CounterSet(name="s", counters={"x": Counter(value=str(number))})
    return slice_of(name, shared_counters=(shared,), count=2, **fields)


@pytest.mark.parametrize(
    "slices",
    [
        (slice_of("a", *named("d", "d")),),
        (slice_of("a", *named("d"), count=2), slice_of("b", *named("d"), count=2)),
        (counters_of(1, "a"), counters_of(1, "b")),
        (counters_of(1), slice_of("a", *named("d", consumes_counters=consuming(1, "y")), count=2)),
        (slice_of("a", *named("d", consumes_counters=consuming())),),
    ],
)
def test_invalid_pools(slices: tuple[ResourceSlice, ...]) -> None:
    found = world(*slices)
    invalid = NotAllocated("invalid resource pools were encountered")
    assert refused(found, claim(request())) == invalid
    assert "currently invalid" in error(found, claim(every()))
    found.put_slice(slice_of("ok", *named("e"), pool="q"))
    assert taken(found, claim(request())) == ["r:e"]


def test_shared_counters_are_seen_by_all_nodes() -> None:
    found = world(counters_of(1))
    assert "being updated" in error(found, claim(every()), node=OTHER)


# -- requests (14-19) -----------------------------------------------------------------------------


def test_selectors_are_evaluated_lazily() -> None:
    found = world(slice_of("a", Device(name="a", attributes=kind("big")), Device(name="b")))
    wanted = request(selectors=(selector("kind=big"),))
    assert taken(found, claim(wanted)) == ["r:a"]
    assert error(found, claim(request("q"), wanted)) == (
        "claim ns/c: selector #0: CEL runtime error: no such key: kind"
    )
    found.put_claim(use("b"))
    assert refused(found, claim(request("q"), wanted)) == NO


def test_errors_of_classes_name_the_class() -> None:
    found = world(slice_of("a", *named("a")))
    spec = DeviceClassSpec(selectors=(selector("any"), selector("kind=big")))
    found.put_class(DeviceClass(metadata=ObjectMeta(name="odd"), spec=spec))
    assert error(found, claim(request(device_class_name="odd"))) == (
        "class odd: selector #1: CEL runtime error: no such key: kind"
    )


def test_all_devices() -> None:
    found = world(slice_of("a", *named("a", "b", "c")))
    assert taken(found, claim(every())) == ["r:a", "r:b", "r:c"]
    found.put_claim(use("b"))
    assert refused(found, claim(every())) == NO
    assert refused(found, claim(every(selectors=(selector("none"),)))) == NO
    assert taken(found, claim(every(admin_access=True))) == ["r:a", "r:b", "r:c"]


def test_all_devices_against_a_constraint() -> None:
    found = world(
        slice_of(
            "a",
            Device(name="a", attributes=kind("big")),
            Device(name="b", attributes=kind("small")),
        )
    )
    constraint = DeviceConstraint(match_attribute="gpu.example/kind")
    assert error(found, claim(every(), constraints=(constraint,))) == (
        "claim ns/c, request r: cannot add device gpu.example/p/b because a claim constraint would"
        " not be satisfied"
    )


def test_limit_of_devices() -> None:
    found = world(slice_of("a", *named(*(f"d{i:02}" for i in range(40)))))
    assert error(found, claim(request(count=30), request("s", count=3))) == (
        "claim ns/c: number of requested devices 33 exceeds the claim limit of 32"
    )
    options = first_of("s", {"count": 5}, {"count": 2})
    assert taken(found, claim(request(count=30), options))[-2:] == ["s/s1:d30", "s/s1:d31"]
    assert len(taken(found, claim(request(count=30)), claim(request(count=9), name="e"))) == 39


def test_first_available() -> None:
    found = world(
        slice_of(
            "a",
            Device(name="a", attributes=kind("big")),
            Device(name="b", attributes=kind("small")),
        )
    )
    big, small = (selector("kind=big"),), (selector("kind=small"),)
    options = first_of("f", {"selectors": big}, {"selectors": small})
    assert taken(found, claim(options)) == ["f/s0:a"]
    # An earlier alternative is taken only if the rest works out.
    assert taken(found, claim(options, request(selectors=big))) == ["f/s1:b", "r:a"]
    outcome = Allocator(found).allocate(AllocationRequest((claim(options),)), NODE)
    assert isinstance(outcome, Allocated)
    assert outcome.score == 8


def test_admin_access() -> None:
    found = world(slice_of("a", *named("a")), used=[use("a")])
    admin = request(admin_access=True)
    (result,) = results(found, claim(admin))
    assert result.devices.results[0].admin_access is True
    assert refused(found, claim(admin, request("s", admin_access=True))) == NO
    assert len(taken(found, claim(admin), claim(admin, name="e"))) == 2
    found.remove_claim(use("a").key)
    assert refused(found, claim(admin), claim(request(), name="e")) == NO


def test_taints() -> None:
    taint = DeviceTaint(key="k", value="v", effect="NoSchedule")
    found = world(slice_of("a", Device(name="a", taints=(taint,)), *named("b")))
    assert taken(found, claim(request())) == ["r:b"]
    tolerations = (DeviceToleration(key="k", value="v"), DeviceToleration(operator="Exists"))
    (result,) = results(found, claim(request(tolerations=tolerations)))
    assert result.devices.results[0].device == "a"
    assert result.devices.results[0].tolerations == tolerations


# -- partitionable devices (21) -------------------------------------------------------------------


def test_counters_of_devices_in_use() -> None:
    found = world(
        counters_of(3),
        slice_of("a", *named("a", "b", "c", consumes_counters=consuming(2)), count=2),
        slice_of("z", *named("z"), pool="q"),
        used=[use("c")],
    )
    assert taken(found, claim(request())) == ["r:z"]


def test_an_overdrawn_counter_blocks_the_whole_pool() -> None:
    both = CounterSet(name="s", counters={"x": Counter(value="1"), "y": Counter(value="9")})
    found = world(
        slice_of("counters", shared_counters=(both,), count=2),
        slice_of(
            "a",
            *named("a", consumes_counters=consuming(2)),
            *named("b", consumes_counters=consuming(1, "y")),
            count=2,
        ),
        used=[use("a")],
    )
    assert refused(found, claim(request())) == NO


def test_a_device_that_is_turned_down_keeps_its_counters() -> None:
    taint = DeviceTaint(key="k", effect="NoSchedule")
    tainted = named("a", consumes_counters=consuming(2), taints=(taint,))
    found = world(
        counters_of(3),
        slice_of("a", *tainted, *named("b", consumes_counters=consuming(2)), count=2),
    )
    assert refused(found, claim(request())) == NO


def test_counters_are_kept_by_the_name_of_the_pool() -> None:
    devices = named("a", consumes_counters=consuming(1))
    found = world(
        counters_of(1),
        slice_of("a", *devices, count=2),
        counters_of(5, "more", driver="other.example"),
        slice_of("b", *devices, count=2, driver="other.example"),
    )
    assert taken(found, claim(request())) == ["r:a"]
    assert refused(found, claim(request(count=2))) == NO


def test_counters_of_the_pool_examined_first_count_if_the_search_leaves_out_devices() -> None:
    other = {"driver": "other.example", "count": 2}
    in_use = DeviceRequestAllocationResult(
        request="r", driver="other.example", pool="p", device="c"
    )
    found = world(
        slice_of("q", *(Device(name=each, attributes=kind(each)) for each in "xy"), pool="q"),
        counters_of(1, "first"),
        slice_of("a", *named("a", attributes=kind("a"), consumes_counters=consuming()), count=2),
        counters_of(1, "second", driver="other.example"),
        slice_of(
            "b", *named("b", "c", attributes=kind("b"), consumes_counters=consuming()), **other
        ),
        used=[allocated("used", (in_use,))],
    )
    asked = claim(
        first_of("q", is_kind("x", count=2), is_kind("y")),
        first_of("p", is_kind("a", count=20), is_kind("b")),
    )
    assert taken(found, asked) == ["q/s1:y", "p/s1:b"]


def is_kind(value: str, **fields: Any) -> dict[str, Any]:
    return {"selectors": (selector(f"kind?={value}"),), **fields}


# -- consumable capacity (22) ---------------------------------------------------------------------


def shareable(name: str, memory: str) -> Device:
    capacity = {"memory": DeviceCapacity(value=memory)}
    return Device(name=name, allow_multiple_allocations=True, capacity=capacity)


def wants(memory: str) -> CapacityRequirements:
    return CapacityRequirements(requests={"memory": memory})


def test_a_device_is_shared_as_long_as_capacity_is_left() -> None:
    found = world(
        slice_of("a", shareable("a", "10Gi"), shareable("b", "10Gi")),
        used=[use("a", share_id="1", consumed_capacity={"memory": "4Gi"})],
    )
    four = [request(f"r{i}", capacity=wants("3Gi")) for i in range(4)]
    (result,) = results(found, claim(*four))
    assert [device.device for device in result.devices.results] == ["a", "a", "b", "b"]
    assert {device.share_id for device in result.devices.results} == {"new"}
    assert result.devices.results[0].consumed_capacity == {"memory": "3Gi"}
    assert taken(found, claim(request(count=2, capacity=wants("1Gi")))) == ["r:a", "r:b"]
    assert taken(found, claim(request())) == ["r:b"]


def test_an_exclusive_allocation_takes_the_device_as_a_whole() -> None:
    found = world(slice_of("a", shareable("a", "8")), used=[use("a")])
    assert refused(found, claim(request(capacity=wants("1")))) == NO


def test_exclusive_devices_have_no_share_id() -> None:
    device = Device(name="a", capacity={"memory": DeviceCapacity(value="8")})
    found = world(slice_of("a", device))
    (result,) = results(found, claim(request(capacity=wants("8"))))
    assert result.devices.results[0].share_id is None
    assert result.devices.results[0].consumed_capacity == {}
    assert refused(found, claim(request(capacity=wants("9")))) == NO


# -- results (23, 24) -----------------------------------------------------------------------------


def opaque(value: str) -> OpaqueDeviceConfiguration:
    return OpaqueDeviceConfiguration(driver="gpu.example", parameters={"v": value})


def test_configuration() -> None:
    found = world(slice_of("a", *named("a", "b", "c")))
    for name in ("one", "two"):
        config = (DeviceClassConfiguration(opaque=opaque(name)),)
        spec = DeviceClassSpec(config=config)
        found.put_class(DeviceClass(metadata=ObjectMeta(name=name), spec=spec))
    wanted = claim(
        request("a", device_class_name="two"),
        first_of("b", {"device_class_name": "one"}),
        request("c", device_class_name="two"),
        config=(
            DeviceClaimConfiguration(opaque=opaque("x"), requests=("a", "b/s0", "b/s1")),
            DeviceClaimConfiguration(opaque=opaque("y")),
            DeviceClaimConfiguration(opaque=opaque("z"), requests=("b",)),
        ),
    )
    (result,) = results(found, wanted)
    assert [
        (each.source, each.requests, each.opaque and each.opaque.parameters["v"])
        for each in result.devices.config
    ] == [
        ("FromClass", ("a", "c"), "two"),
        ("FromClass", ("b/s0",), "one"),
        ("FromClaim", ("a", "b/s0", "b/s1"), "x"),
        ("FromClaim", ("a", "b/s0", "b/s1"), "x"),
        ("FromClaim", (), "y"),
        ("FromClaim", ("b",), "z"),
    ]


def only(key: str, *values: str, field: bool = False) -> NodeSelector:
    requirement = NodeSelectorRequirement(key=key, operator="In", values=values)
    kinds = {"match_fields" if field else "match_expressions": (requirement,)}
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(**kinds),))


def test_node_selector() -> None:
    local = only("metadata.name", "n0", field=True)
    everywhere = slice_of("e", *named("e"), pool="e", all_nodes=True)
    rack = slice_of("r", *named("r"), pool="r", node_selector=only("rack", "a", "b"))
    again = slice_of("q", *named("q"), pool="q", node_selector=only("rack", "b", "a"))
    bound = slice_of("b", *named("b", binds_to_node=True), pool="b", all_nodes=True)
    (result,) = results(world(everywhere), claim(request()))
    assert result.node_selector is None
    (result,) = results(world(everywhere, rack, again), claim(every()))
    assert result.node_selector == only("rack", "b", "a")
    for more in (bound, slice_of("l", *named("l"), pool="l")):
        (result,) = results(world(everywhere, rack, more), claim(every()))
        assert result.node_selector == local


def test_a_claim_without_requests() -> None:
    (result,) = results(world(), claim())
    assert result == AllocationResult()


def test_binding_conditions_are_copied() -> None:
    device = Device(name="a", binding_conditions=("x",), binding_failure_conditions=("y",))
    (result,) = results(world(slice_of("a", device)), claim(request()))
    assert result.devices.results[0].binding_conditions == ("x",)
    assert result.devices.results[0].binding_failure_conditions == ("y",)


# -- errors in claims -----------------------------------------------------------------------------


def test_node_selector_with_two_terms() -> None:
    (term,) = only("rack", "a", "b").node_selector_terms
    two = NodeSelector(node_selector_terms=(term, term))
    rack = slice_of("r", *named("r"), pool="r", node_selector=two)
    assert error(world(rack), claim(request())) == (
        "create NodeSelector for claim c: unsupported ResourceSlice.NodeSelector with 2 terms"
    )


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (
            claim(request(device_class_name="")),
            "claim ns/c, request r: missing device class name (unsupported request type?)",
        ),
        (
            claim(request(allocation_mode="Some")),
            "claim ns/c, request r: unsupported count mode Some",
        ),
        (
            claim(request(), constraints=(DeviceConstraint(),)),
            "claim ns/c, constraint #0: empty constraint (unsupported constraint type?)",
        ),
        (
            claim(request(device_class_name="nosuch")),
            (
                "claim ns/c, request r: could not retrieve device class nosuch:"
                ' deviceclass.resource.k8s.io "nosuch" not found'
            ),
        ),
    ],
)
def test_errors_in_claims(wanted: ResourceClaim, text: str) -> None:
    assert error(world(slice_of("a", *named("a"))), wanted) == text
