"""What searches of a hostile tenant cost: everything that takes time is counted."""

from __future__ import annotations

import numpy as np
import pytest

from asched.dra import (
    AllocationRequest,
    Allocator,
    Inventory,
    NodeView,
    SearchLimits,
    selectors,
)
from asched.dra import allocator as allocators
from asched.dra.outcomes import TOO_EXPENSIVE, NotAllocated
from asched.dra.selectors import CompiledSelector, SelectorAnswer, selector_fields
from asched.model.meta import ObjectMeta
from asched.model.resource_claims import (
    Device,
    DeviceAttribute,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from tests.dra.node_rows import Rows
from tests.dra.worlds import classes, selector

NODES = 400


class Counting:
    """Matches every device, and counts evaluations."""

    def __init__(self) -> None:
        self.compiled = 0
        self.evaluated = 0

    def compile(self, expression: str) -> CompiledSelector:
        self.compiled += 1
        return self

    def evaluate(self, driver: str, device: Device) -> SelectorAnswer:
        self.evaluated += 1
        return SelectorAnswer(True, cost=5)


class Cluster:
    """Nodes with one device each; all devices differ."""

    def __init__(self, limit: int) -> None:
        self.selectors = Counting()
        self.inventory = Inventory(self.selectors.compile)
        self.rows = Rows()
        for device_class in classes():
            self.inventory.put_class(device_class)
        for number in range(NODES):
            name = f"n{number:03}"
            device = Device(name="d", attributes={"serial": DeviceAttribute(string=name)})
            pool = ResourcePool(name=name, generation=1, resource_slice_count=1)
            spec = ResourceSliceSpec(
                driver="gpu.example", pool=pool, node_name=name, devices=(device,)
            )
            self.inventory.put_slice(ResourceSlice(metadata=ObjectMeta(name=name), spec=spec))
            self.rows.put(NodeView(name, {}))
        self.allocator = Allocator(self.inventory, SearchLimits(steps_per_attempt=limit))

    def allocate(self, *requests: DeviceRequest, constraints: int = 0) -> list[int]:
        """Nodes on which the search was made."""
        constraint = DeviceConstraint(match_attribute="gpu.example/serial")
        devices = DeviceClaim(requests=requests, constraints=(constraint,) * constraints)
        claim = ResourceClaim(
            metadata=ObjectMeta(name="c", namespace="ns"), spec=ResourceClaimSpec(devices=devices)
        )
        answers = self.allocator.allocate_all(AllocationRequest((claim,)), self.rows)
        skipped = NotAllocated(TOO_EXPENSIVE)
        return [row for row in range(NODES) if answers.refusal(row) != skipped]


def wanting(expressions: int, unlike: str = "") -> DeviceRequest:
    """A request with selectors that read everything."""
    found = tuple(selector(f"{unlike}{number}") for number in range(expressions))
    return DeviceRequest(
        name="r",
        exactly=ExactDeviceRequest(device_class_name="everything", count=1, selectors=found),
    )


def test_cheap_evaluations_of_different_devices_are_counted() -> None:
    cluster = Cluster(limit=20_000)
    searched = cluster.allocate(wanting(32))
    assert 0 < len(searched) < NODES
    assert cluster.selectors.evaluated < 20_000 // 8 + 32
    assert cluster.allocator.searches <= len(searched) + 1


def test_answers_do_not_depend_on_what_is_known() -> None:
    cluster = Cluster(limit=20_000)
    first = cluster.allocate(wanting(32))
    searches, evaluated = cluster.allocator.searches, cluster.selectors.evaluated
    assert cluster.allocate(wanting(32)) == first
    assert (cluster.allocator.searches, cluster.selectors.evaluated) == (searches, evaluated)
    assert Cluster(limit=20_000).allocate(wanting(32)) == first


def test_alternatives_are_counted() -> None:
    options = tuple(
        DeviceSubRequest(name=f"s{number}", device_class_name="everything", count=2)
        for number in range(8)
    )
    requests = [DeviceRequest(name=f"r{n}", first_available=options) for n in range(16)]
    searched = Cluster(limit=10_000).allocate(*requests)
    assert 0 < len(searched) < 10_000 // (8 * 16 // 2) + 2


def test_constraints_are_counted() -> None:
    few = Cluster(limit=3_000).allocate(wanting(0), constraints=1)
    many = Cluster(limit=3_000).allocate(wanting(0), constraints=32)
    assert 0 < len(many) * 4 < len(few)


def test_long_expressions_are_counted() -> None:
    cluster = Cluster(limit=20_000)
    assert cluster.allocate(wanting(3, "x" * 10_000)) == []


def test_fields_of_long_expressions_are_read_once() -> None:
    one = " || ".join(f"device.attributes['d'].serial == '{n}'" for n in range(100))
    fields = selector_fields(one)
    assert fields is not None
    assert len(fields.attributes) == 1
    assert selector_fields(" || ".join(f"device.attributes['d'].a{n}" for n in range(17))) is None


def test_answers_of_expressions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "KEPT_ANSWERS", 10 * NODES)
    cluster = Cluster(limit=400_000)
    for number in range(30):
        searched = cluster.allocate(wanting(1, f"{number}-"))
        assert len(searched) == NODES
        assert len(cluster.inventory.selectors._selectors) <= 13
    assert cluster.selectors.compiled >= 30


def test_expressions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "KEPT_EXPRESSION_BYTES", 10_000)
    cluster = Cluster(limit=400_000)
    for number in range(30):
        cluster.allocate(wanting(1, f"{number}-" + "x" * 1000))
        assert len(cluster.inventory.selectors._selectors) <= 12


def test_kept_answers_are_limited_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocators, "KEPT_STEPS", 10 * NODES)
    cluster = Cluster(limit=400_000)
    for number in range(20):
        cluster.allocate(wanting(1, f"{number}-"))
    assert len(cluster.allocator._answers) < 5
    codes = cluster.allocate(wanting(1, "19-"))
    assert np.array_equal(codes, range(NODES))
