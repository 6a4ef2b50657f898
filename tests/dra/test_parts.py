"""Quantities, policies of capacity, taints, constraints, counters, use and binding conditions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from asched.dra import Inventory, NodeView
from asched.dra import inventory as inventories
from asched.dra.binding_conditions import Readiness, is_usable, readiness
from asched.dra.capacity import (
    binary_notation,
    consumption,
    decimal_notation,
    fits,
    stored_notation,
)
from asched.dra.cel_selectors import cel_selector
from asched.dra.constraints import DistinctAttribute, MatchAttribute, attribute_value
from asched.dra.devices import PooledDevice, PoolID, tolerates, untolerated
from asched.dra.outcomes import allocation_score
from asched.dra.selectors import selector_fields
from asched.model.meta import ObjectMeta
from asched.model.resource_claims import (
    AllocatedDeviceStatus,
    AllocationResult,
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    CapacityRequirements,
    Device,
    DeviceAllocationResult,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceCondition,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSubRequest,
    DeviceTaint,
    DeviceToleration,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from asched.model.selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from tests.dra.selector_double import TextSelector

# -- notation -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("1Gi", "1Gi"),
        ("1024Mi", "1Gi"),
        ("8Gi", "8Gi"),
        ("01Gi", "01Gi"),
        ("1500M", "1500M"),
        ("1500000000", "1500M"),
        ("1000m", "1"),
        ("+5", "+5"),
        ("0.5", "500m"),
        ("1.0", "1"),
        ("1.500", "1.500"),
        ("1e3", "1e3"),
        ("1e1", "10"),
        ("2000e3", "2e6"),
        ("1e-1", "100e-3"),
        ("0Mi", "0"),
        ("16Ei", "9223372036854775807"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        (7, "7"),
    ],
)
def test_notation_of_a_quantity_that_was_read(text: str | int, stored: str) -> None:
    assert stored_notation(text) == stored


def test_canonical_notation() -> None:
    assert binary_notation(0) == "0"
    assert binary_notation(1023) == "1023"
    assert binary_notation(2000 * 1024**2) == "2000Mi"
    assert binary_notation(9_000_000_000) == "9000000000"
    assert decimal_notation(1) == "1n"
    assert decimal_notation(9 * 10**18) == "9G"


# -- capacity -------------------------------------------------------------------------------------

RANGE = CapacityRequestPolicy(
    default="2Gi", valid_range=CapacityRequestPolicyRange(min="1Gi", max="8Gi", step="1Gi")
)
VALUES = CapacityRequestPolicy(default="1", valid_values=("1", "4", "1k"))


@pytest.mark.parametrize(
    ("policy", "requested", "consumed"),
    [
        (None, None, "40Gi"),
        (None, "3G", "3G"),
        (RANGE, None, "2Gi"),
        (RANGE, "1", "1Gi"),
        (RANGE, "1Gi", "1Gi"),
        (RANGE, "2500Mi", "3Gi"),
        (RANGE, "2G", "2Gi"),
        (RANGE, "8Gi", "8Gi"),
        (RANGE, "9Gi", None),
        (VALUES, "2", "4"),
        (VALUES, "5", "1k"),
        (VALUES, "1001", None),
        (CapacityRequestPolicy(default="7"), "3", "3"),
        (CapacityRequestPolicy(default="7"), None, "7"),
    ],
)
def test_consumption_follows_the_policy(
    policy: CapacityRequestPolicy | None, requested: str | None, consumed: str | None
) -> None:
    capacity = {"memory": DeviceCapacity(value="40Gi", request_policy=policy)}
    requests = CapacityRequirements(requests={"memory": requested} if requested else {})
    found = consumption(requests, capacity)
    assert (found and found.notation) == (consumed and {"memory": consumed})


def test_unknown_capacity_and_all_capacities() -> None:
    capacity = {"memory": DeviceCapacity(value="8"), "slots": DeviceCapacity(value="2")}
    assert consumption(CapacityRequirements(requests={"x": "1"}), capacity) is None
    found = consumption(CapacityRequirements(requests={"memory": "5"}), capacity)
    assert found is not None
    assert found.notation == {"memory": "5", "slots": "2"}
    assert fits(found.amounts, capacity)
    assert fits(found.amounts, capacity, {"memory": 3 * 10**9})
    assert not fits(found.amounts, capacity, {"memory": 3 * 10**9}, {"memory": 1})


# -- taints ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (DeviceToleration(operator="Exists"), True),
        (DeviceToleration(key="k", operator="Exists"), True),
        (DeviceToleration(key="k", value="v"), True),
        (DeviceToleration(key="k", operator="", value="v", effect="NoSchedule"), True),
        (DeviceToleration(key="k", value="w"), False),
        (DeviceToleration(key="other", operator="Exists"), False),
        (DeviceToleration(operator="Exists", effect="NoExecute"), False),
        (DeviceToleration(operator="Unknown"), False),
    ],
)
def test_tolerations(toleration: DeviceToleration, tolerated: bool) -> None:
    taint = DeviceTaint(key="k", value="v", effect="NoSchedule")
    assert tolerates(toleration, taint) is tolerated
    assert (untolerated((taint,), (toleration,)) is None) is tolerated


def test_other_effects_are_ignored() -> None:
    taints = (DeviceTaint(key="k", effect="None"), DeviceTaint(key="k", effect="Unknown"))
    device = PooledDevice(Device(name="a", taints=taints), ResourceSlice(), 0, 0)
    assert not device.taints


# -- constraints ----------------------------------------------------------------------------------


def test_attributes_are_looked_up_in_full_first() -> None:
    device = Device(
        attributes={
            "numa": DeviceAttribute(integer=1),
            "d.example/numa": DeviceAttribute(string="1"),
            "rack": DeviceAttribute(version="1.0.0"),
            "ecc": DeviceAttribute(boolean=True),
        }
    )
    assert attribute_value(device, "d.example", "d.example/numa") == ("string", "1")
    assert attribute_value(device, "other", "other/numa") == ("int", 1)
    assert attribute_value(device, "other", "d.example/rack") is None
    assert attribute_value(device, "other", "other/rack") == ("version", "1.0.0")
    assert attribute_value(device, "other", "other/ecc") == ("bool", True)


def test_match_attribute_compares_with_the_first_device() -> None:
    match = MatchAttribute((), "d/x")
    assert match.add("r", "", ("int", 1))
    assert not match.add("r", "", ("bool", True))
    assert not match.add("r", "", None)
    assert match.add("s", "", ("int", 1))
    match.remove("s", "")
    match.remove("r", "")
    assert match.add("r", "", ("int", 2))


def test_constraints_name_requests_or_alternatives() -> None:
    match = MatchAttribute(("a", "b/x"), "d/x")
    assert match.applies_to("a", "any")
    assert match.applies_to("b", "x")
    assert not match.applies_to("b", "y")
    assert not match.applies_to("b", "")
    assert match.add("c", "", None)


def test_distinct_attribute_remembers_the_latest_value_of_a_request() -> None:
    distinct = DistinctAttribute((), "d/x")
    assert distinct.add("r", "", ("int", 1))
    assert not distinct.add("r", "", ("int", 1))
    assert distinct.add("r", "", ("int", 2))
    # The value of the first device is no longer known.
    assert distinct.add("s", "", ("int", 1))
    distinct.remove("r", "")
    # Nor is the value of the second one, although it is still allocated.
    assert distinct.add("t", "", ("int", 2))


def test_distinct_attribute_with_a_value_of_an_unsupported_type() -> None:
    distinct = DistinctAttribute((), "d/x")
    assert distinct.add("r", "", ("unknown", ""))
    assert not distinct.add("s", "", ("unknown", ""))
    distinct.remove("r", "")
    assert distinct.add("r", "", ("int", 1))
    assert not distinct.add("s", "", ("unknown", ""))


# -- what is in use -------------------------------------------------------------------------------


def result(
    device: str,
    *,
    share_id: str | None = None,
    memory: str = "",
    admin_access: bool | None = None,
) -> DeviceRequestAllocationResult:
    return DeviceRequestAllocationResult(
        request="r",
        driver="d",
        pool="p",
        device=device,
        share_id=share_id,
        admin_access=admin_access,
        consumed_capacity={"memory": memory} if memory else {},
    )


def allocation(*results: DeviceRequestAllocationResult) -> AllocationResult:
    return AllocationResult(devices=DeviceAllocationResult(results=results))


def claim(found: AllocationResult | None, **fields: object) -> ResourceClaim:
    status = ResourceClaimStatus(allocation=found, **fields)  # type: ignore[arg-type]
    return ResourceClaim(metadata=ObjectMeta(name="c", namespace="ns"), status=status)


POOL = PoolID("d", "p")


def test_devices_in_use() -> None:
    inventory = Inventory(TextSelector)
    inventory.put_claim(
        claim(
            allocation(
                result("whole"),
                result("shared", share_id="1", memory="2Gi"),
                result("shared", share_id="2", memory="1Gi"),
                result("seen", admin_access=True),
            )
        )
    )
    usage = inventory.usage
    assert usage.of(POOL, "whole").exclusive == 1
    shared = usage.of(POOL, "shared")
    assert (shared.exclusive, shared.shares) == (0, 2)
    assert shared.consumed == {"memory": 3 * 2**30 * 10**9}
    assert usage.of(POOL, "seen").is_empty
    version = usage.version
    inventory.put_claim(claim(allocation(result("other"))))
    assert list(usage.changed_since(version)) == [POOL]
    assert usage.of(POOL, "whole").is_empty
    inventory.remove_claim("ns/c")
    assert usage.snapshot() == {}


def test_an_assumed_allocation_counts_once() -> None:
    inventory = Inventory(TextSelector)
    assumed = allocation(result("x", share_id="1", memory="1"))
    inventory.assume("ns/c", assumed)
    assert inventory.allocations() == {"ns/c": assumed}
    inventory.put_claim(claim(assumed))
    assert inventory.usage.of(POOL, "x").shares == 1
    inventory.forget("ns/c")
    assert inventory.usage.of(POOL, "x").shares == 1
    inventory.put_claim(claim(None))
    assert inventory.usage.snapshot() == {}


# -- binding conditions ---------------------------------------------------------------------------

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NODE = NodeView("n", {"zone": "a"})


def bound(
    *conditions: tuple[str, str], age_s: int | None = None, device: str = "x"
) -> ResourceClaim:
    found = DeviceRequestAllocationResult(
        request="r",
        driver="d",
        pool="p",
        device="x",
        binding_conditions=("ready",),
        binding_failure_conditions=("broken",),
    )
    stamp = None if age_s is None else NOW - timedelta(seconds=age_s)
    status = AllocatedDeviceStatus(
        driver="d",
        pool="p",
        device=device,
        conditions=tuple(DeviceCondition(type=t, status=s) for t, s in conditions),
    )
    return claim(
        AllocationResult(
            devices=DeviceAllocationResult(results=(found,)), allocation_timestamp=stamp
        ),
        devices=(status,),
    )


@pytest.mark.parametrize(
    ("found", "state", "available"),
    [
        (bound(("ready", "True")), Readiness.READY, True),
        (bound(("ready", "False")), Readiness.PENDING, True),
        (bound(("ready", "False"), age_s=600), Readiness.PENDING, True),
        (bound(("ready", "False"), age_s=601), Readiness.PENDING, False),
        (bound(("ready", "True"), age_s=601), Readiness.READY, True),
        (bound(("ready", "True"), ("broken", "True")), Readiness.FAILED, False),
        (bound(("ready", "True"), ("broken", "Unknown")), Readiness.READY, True),
        (bound(("broken", "True"), device="another"), Readiness.PENDING, True),
        (claim(allocation(result("x"))), Readiness.READY, True),
        (claim(None), Readiness.PENDING, False),
    ],
)
def test_binding_conditions(found: ResourceClaim, state: Readiness, available: bool) -> None:
    assert readiness(found) is state
    assert (found.status.allocation is not None and is_usable(found, NOW)) is available


# -- scores and selectors -------------------------------------------------------------------------


def test_score_of_an_allocated_claim() -> None:
    options = tuple(DeviceSubRequest(name=f"s{index}") for index in range(3))
    spec = ResourceClaimSpec(
        devices=DeviceClaim(
            requests=(
                DeviceRequest(name="a", first_available=options),
                DeviceRequest(name="b", first_available=options),
            )
        )
    )
    results = (
        DeviceRequestAllocationResult(request="a/s2"),
        DeviceRequestAllocationResult(request="b/s0"),
        DeviceRequestAllocationResult(request="b/s0"),
    )
    assert allocation_score(spec, allocation(*results)) == 6 + 8


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["d"].exists(k, true)',
        '"x" in device.attributes["d"]',
        'device.attributes["d"]["x"] == 1',
        "cel.bind(d, device, d.driver == 'd')",
        "[1].exists(device, device == 1)",
        'device.attributes["d"].?x.orValue(1) == 1',
    ],
)
def test_expressions_that_may_read_everything(expression: str) -> None:
    assert selector_fields(expression) is None


def test_fields_of_an_expression() -> None:
    fields = selector_fields(
        'device.driver == "d" && has(device.attributes["d"].x) && '
        "device.attributes[device.driver].y.startsWith('q') && device.capacity['e'].z == 1"
    )
    assert fields is not None
    device = Device(
        attributes={
            name: DeviceAttribute(string=name) for name in ("x", "d/x", "y", "d/y", "z", "e/x")
        },
        capacity={"e/z": DeviceCapacity(value="1"), "z": DeviceCapacity(value="2")},
        allow_multiple_allocations=True,
    )
    seen = fields.project("d", device)
    assert set(seen.attributes) == {"x", "d/x", "y", "d/y"}
    assert set(seen.capacity) == {"e/z"}
    assert seen.allow_multiple_allocations
    assert set(fields.project("e", device).attributes) == {"d/x", "y"}


@pytest.mark.parametrize(
    ("invalid", "problem"),
    [
        (DeviceAttribute(), "unsupported attribute value"),
        (DeviceAttribute(version="1"), "parse semantic version: "),
    ],
)
def test_invalid_attribute_is_an_error_for_every_expression(
    invalid: DeviceAttribute, problem: str
) -> None:
    device = Device(name="g", attributes={"model": DeviceAttribute(string="A"), "other": invalid})
    pool = ResourcePool(name="p", generation=1, resource_slice_count=1)
    inventory = Inventory(cel_selector)
    inventory.put_slice(
        ResourceSlice(
            metadata=ObjectMeta(name="s"),
            spec=ResourceSliceSpec(driver="d", pool=pool, all_nodes=True, devices=(device,)),
        )
    )
    (view,) = inventory.pools_of(NodeView("n", {}))
    for expression in ('device.attributes["d"].model == "A"', "true"):
        error = inventory.selectors.answer(expression, view.devices[0]).error
        assert error.startswith(f"CEL runtime error: attribute other: {problem}")


def test_unchanged_devices_of_a_published_slice_are_not_evaluated_again() -> None:
    inventory = Inventory(TextSelector)
    pool = ResourcePool(name="p", generation=1, resource_slice_count=1)
    contents = []
    for kind in ("a", "b"):
        changed = Device(name="changed", attributes={"kind": DeviceAttribute(string=kind)})
        devices = (Device(name="same", attributes={"kind": DeviceAttribute(string="x")}), changed)
        spec = ResourceSliceSpec(driver="d", pool=pool, all_nodes=True, devices=devices)
        inventory.put_slice(ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec))
        (view,) = inventory.pools_of(NodeView("n", {}))
        contents.append([device.content for device in view.devices])
    (same, changed_before), (same_after, changed_after) = contents
    assert same == same_after
    assert changed_before != changed_after


def test_views_of_nodes_that_are_gone_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventories, "_KEPT_VIEWS", 10)
    inventory = Inventory(TextSelector)
    pool = ResourcePool(name="p", generation=1, resource_slice_count=1)
    spec = ResourceSliceSpec(
        driver="d", pool=pool, node_selector=only_rack("a"), devices=(Device(name="x"),)
    )
    inventory.put_slice(ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec))
    for number in range(50):
        assert inventory.pools_of(NodeView(f"n{number}", {"rack": str(number)})) == ()
        assert len(inventory._shared_views) <= 10
    assert inventory.pools_of(NodeView("n", {"rack": "a"}))


def only_rack(value: str) -> NodeSelector:
    requirement = NodeSelectorRequirement(key="rack", operator="In", values=(value,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(requirement,)),))
