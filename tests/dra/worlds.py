"""Small worlds of devices and claims, generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from asched.dra import Inventory, NodeView
from asched.model.meta import ObjectMeta
from asched.model.resource_claims import (
    AllocationResult,
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    CapacityRequirements,
    CELDeviceSelector,
    Counter,
    CounterSet,
    Device,
    DeviceAllocationResult,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceConstraint,
    DeviceCounterConsumption,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSelector,
    DeviceSubRequest,
    DeviceTaint,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from asched.model.selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from tests.dra.selector_double import TextSelector

NODES = (NodeView("n0", {"rack": "a"}), NodeView("n1", {"rack": "b"}))
DRIVERS = ("gpu.example", "nic.example")
KINDS = ("big", "small")
EXPRESSIONS = ("any", "any", "driver=gpu.example", "kind=big", "kind?=big", "kind?=small", "none")
ATTRIBUTES = ("gpu.example/kind", "gpu.example/lane", "nic.example/kind")


@dataclass(frozen=True)
class World:
    slices: tuple[ResourceSlice, ...]
    classes: tuple[DeviceClass, ...]
    claims: tuple[ResourceClaim, ...]
    """Allocated claims."""
    requests: tuple[ResourceClaim, ...]
    """Claims to be allocated."""

    def inventory(self) -> Inventory:
        inventory = Inventory(TextSelector)
        for item in self.slices:
            inventory.put_slice(item)
        for device_class in self.classes:
            inventory.put_class(device_class)
        for claim in self.claims:
            inventory.put_claim(claim)
        return inventory


def selector(expression: str) -> DeviceSelector:
    return DeviceSelector(cel=CELDeviceSelector(expression=f"device {expression}"))


def on_rack(rack: str) -> NodeSelector:
    requirement = NodeSelectorRequirement(key="rack", operator="In", values=(rack,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(requirement,)),))


def _attribute(values: tuple[str, ...]) -> st.SearchStrategy[DeviceAttribute]:
    return st.sampled_from(values).map(lambda text: DeviceAttribute(string=text))


_POLICIES = st.sampled_from(
    (
        None,
        None,
        CapacityRequestPolicy(default="1"),
        CapacityRequestPolicy(
            default="2", valid_range=CapacityRequestPolicyRange(min="2", max="6", step="2")
        ),
        CapacityRequestPolicy(default="1", valid_values=("1", "4")),
    )
)


@st.composite
def devices(draw: st.DrawFn, name: str, *, counters: bool, per_device: bool) -> Device:
    attributes: dict[str, DeviceAttribute] = {}
    if draw(st.integers(0, 9)) > 0:
        attributes["kind"] = draw(_attribute(KINDS))
    if draw(st.booleans()):
        attributes["lane"] = draw(_attribute(("1", "2", "3")))
    multiple = draw(st.integers(0, 3)) == 0
    capacity: dict[str, DeviceCapacity] = {}
    if multiple or draw(st.integers(0, 4)) == 0:
        policy = draw(_POLICIES) if multiple else None
        value = draw(st.sampled_from(("4", "8")))
        capacity["memory"] = DeviceCapacity(value=value, request_policy=policy)
    if multiple and draw(st.integers(0, 5)) == 0:
        capacity = {}
    consumes: tuple[DeviceCounterConsumption, ...] = ()
    if counters and draw(st.booleans()):
        amount = draw(st.sampled_from(("1", "2", "3")))
        consumes = (
            DeviceCounterConsumption(counter_set="set", counters={"slots": Counter(value=amount)}),
        )
    taints: tuple[DeviceTaint, ...] = ()
    if draw(st.integers(0, 5)) == 0:
        taints = (DeviceTaint(key="bad", effect=draw(st.sampled_from(("NoSchedule", "None")))),)
    place: dict[str, Any] = {}
    if per_device:
        place = draw(
            st.sampled_from(({"node_name": "n0"}, {"all_nodes": True}, {"node_name": "n1"}))
        )
    return Device(
        name=name,
        attributes=attributes,
        capacity=capacity,
        consumes_counters=consumes,
        taints=taints,
        allow_multiple_allocations=multiple,
        binding_conditions=("ready",) if draw(st.integers(0, 11)) == 0 else (),
        **place,
    )


_PLACES: tuple[dict[str, Any], ...] = (
    {"node_name": "n0"},
    {"node_name": "n1"},
    {"all_nodes": True},
    {"node_selector": on_rack("a")},
    {"per_device_node_selection": True},
)


@st.composite
def pools(draw: st.DrawFn, driver: str, name: str) -> tuple[ResourceSlice, ...]:
    """The slices of one pool, sometimes incomplete, outdated or invalid."""
    counters = draw(st.integers(0, 2)) == 0
    number = draw(st.integers(1, 2))
    published: list[ResourceSlice] = []
    total = number + counters
    generation = 2 if draw(st.integers(0, 9)) == 0 else 1
    for index in range(number):
        place = draw(st.sampled_from(_PLACES))
        prefix = "d" if draw(st.integers(0, 30)) == 0 else f"d{index}"
        per_device = "per_device_node_selection" in place
        offered = [
            draw(devices(f"{prefix}-{i}", counters=counters, per_device=per_device))
            for i in range(draw(st.integers(0, 4)))
        ]
        spec = ResourceSliceSpec(
            driver=driver,
            pool=ResourcePool(
                name=name,
                generation=draw(st.sampled_from((1, 1, 1, generation))),
                resource_slice_count=total + (draw(st.integers(0, 15)) == 0),
            ),
            devices=tuple(offered),
            **place,
        )
        published.append(_slice(f"{driver}-{name}-{index}", spec))
    if counters:
        shared = CounterSet(name="set", counters={"slots": Counter(value="5")})
        spec = ResourceSliceSpec(
            driver=driver,
            pool=ResourcePool(name=name, generation=1, resource_slice_count=total),
            all_nodes=True,
            shared_counters=(shared,),
        )
        published.append(_slice(f"{driver}-{name}-counters", spec))
    return tuple(published)


def _slice(name: str, spec: ResourceSliceSpec) -> ResourceSlice:
    return ResourceSlice(metadata=ObjectMeta(name=name), spec=spec)


def _bodies(*, simple: bool) -> st.SearchStrategy[dict[str, Any]]:
    tolerate_all = (DeviceToleration(operator="Exists"),)
    modes = ("ExactCount",) * 4 if simple else ("ExactCount",) * 4 + ("All",)
    return st.fixed_dictionaries(
        {
            "device_class_name": st.sampled_from(("everything", "gpus")),
            "selectors": st.lists(st.sampled_from(EXPRESSIONS).map(selector), max_size=1).map(
                tuple
            ),
            "allocation_mode": st.sampled_from(modes),
            "count": st.sampled_from((1, 1, 1, 2, 2, 3, 4, 33)),
            "tolerations": st.sampled_from(((), (), tolerate_all)),
            "capacity": st.sampled_from(
                (
                    None,
                    None,
                    CapacityRequirements(requests={"memory": "1"}),
                    CapacityRequirements(requests={"memory": "3"}),
                    CapacityRequirements(requests={"other": "1"}),
                )
            ),
        }
    )


@st.composite
def device_requests(draw: st.DrawFn, name: str) -> DeviceRequest:
    if draw(st.integers(0, 3)) == 0:
        bodies = draw(st.lists(_bodies(simple=False), min_size=1, max_size=3))
        return DeviceRequest(
            name=name,
            first_available=tuple(
                DeviceSubRequest(name=f"s{index}", **body) for index, body in enumerate(bodies)
            ),
        )
    admin = draw(st.integers(0, 7)) == 0
    body = draw(_bodies(simple=False))
    if body["count"] == 33 and draw(st.booleans()):
        body["count"] = 1
    return DeviceRequest(name=name, exactly=ExactDeviceRequest(admin_access=admin, **body))


@st.composite
def claims(draw: st.DrawFn, name: str) -> ResourceClaim:
    requests = tuple(draw(device_requests(f"r{index}")) for index in range(draw(st.integers(1, 3))))
    names = [request.name for request in requests]
    constraints = draw(
        st.lists(
            st.builds(
                _constraint,
                st.lists(st.sampled_from(names), unique=True).map(tuple),
                st.sampled_from(ATTRIBUTES),
                st.booleans(),
            ),
            max_size=draw(st.sampled_from((0, 0, 2))),
        )
    )
    return ResourceClaim(
        metadata=ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}"),
        spec=ResourceClaimSpec(
            devices=DeviceClaim(requests=requests, constraints=tuple(constraints))
        ),
    )


def _constraint(requests: tuple[str, ...], attribute: str, match: bool) -> DeviceConstraint:
    if match:
        return DeviceConstraint(requests=requests, match_attribute=attribute)
    return DeviceConstraint(requests=requests, distinct_attribute=attribute)


@st.composite
def uses(draw: st.DrawFn, slices: tuple[ResourceSlice, ...]) -> tuple[ResourceClaim, ...]:
    """Allocated claims: some of the devices, as a whole or in part."""
    found: list[ResourceClaim] = []
    for item in slices:
        for device in item.spec.devices:
            if draw(st.integers(0, 3)) > 0:
                continue
            shared = device.allow_multiple_allocations and draw(st.booleans())
            result = DeviceRequestAllocationResult(
                request="r",
                driver=item.spec.driver,
                pool=item.spec.pool.name,
                device=device.name,
                admin_access=True if draw(st.integers(0, 7)) == 0 else None,
                share_id=f"share-{len(found)}" if shared else None,
                consumed_capacity=dict.fromkeys(device.capacity, "2") if shared else {},
            )
            found.append(allocated(f"used-{len(found)}", (result,)))
    return tuple(found)


def allocated(name: str, results: tuple[DeviceRequestAllocationResult, ...]) -> ResourceClaim:
    allocation = AllocationResult(devices=DeviceAllocationResult(results=results))
    return ResourceClaim(
        metadata=ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}"),
        status=ResourceClaimStatus(allocation=allocation),
    )


def classes() -> tuple[DeviceClass, ...]:
    return (
        DeviceClass(metadata=ObjectMeta(name="everything")),
        DeviceClass(
            metadata=ObjectMeta(name="gpus"),
            spec=DeviceClassSpec(selectors=(selector("driver=gpu.example"),)),
        ),
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    slices: tuple[ResourceSlice, ...] = ()
    for driver in DRIVERS:
        for name in draw(st.sampled_from((("n0",), ("n0",), ("n0", "n1")))):
            slices += draw(pools(driver, name))
    number = draw(st.integers(1, 2))
    return World(
        slices=slices,
        classes=classes(),
        claims=draw(uses(slices)),
        requests=tuple(draw(claims(f"c{index}")) for index in range(number)),
    )
