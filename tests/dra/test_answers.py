"""Answers for all nodes equal those of an inventory that is built from scratch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from asched.dra import (
    Allocated,
    AllocationError,
    AllocationFailed,
    AllocationRequest,
    Allocator,
    Inventory,
    NodeAnswers,
    NodeView,
    NotAllocated,
    SearchLimits,
)
from asched.dra import allocator as allocators
from asched.dra.allocator import SiteAnswers
from asched.dra.outcomes import TOO_EXPENSIVE
from asched.dra.requests import ClaimError
from asched.dra.sites import SiteTable
from asched.dra.steps import StepMeter
from asched.model.meta import ObjectMeta
from asched.model.resource_claims import (
    ALL_DEVICES,
    AllocationResult,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceClass,
    DeviceCounterConsumption,
    DeviceRequest,
    DeviceTaint,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from tests.dra.node_rows import Rows
from tests.dra.selector_double import TextSelector
from tests.dra.worlds import NODES, World, classes, selector, worlds

ALL_VIEWS = (*NODES, NodeView("n0", {"rack": "b"}), NodeView("n2", {"rack": "a"}))


def summary(outcome: Any, node_name: str) -> object:
    """What an outcome comes to, without identities of devices."""
    if isinstance(outcome, Allocated):
        return outcome.results(node_name, lambda: "new"), outcome.score
    return outcome


def answer_of(answers: NodeAnswers, row: int, name: str) -> object:
    solution = answers.solution(row)
    if solution is not None:
        assert answers.scores(np.array([row], np.int32)) == [solution.score]
        return summary(solution, name)
    return answers.refusal(row)


class FromScratch:
    """Everything that happened to an inventory, without the order."""

    def __init__(self) -> None:
        self.slices: dict[str, ResourceSlice] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self.assumed: dict[str, AllocationResult] = {}
        self.classes: dict[str, DeviceClass] = {}

    def inventory(self) -> Inventory:
        inventory = Inventory(TextSelector)
        for item in self.slices.values():
            inventory.put_slice(item)
        for device_class in self.classes.values():
            inventory.put_class(device_class)
        for claim in self.claims.values():
            inventory.put_claim(claim)
        for key, allocation in self.assumed.items():
            inventory.assume(key, allocation)
        return inventory

    def answer(self, request: AllocationRequest, node: NodeView) -> object:
        try:
            return summary(Allocator(self.inventory()).allocate(request, node), node.name)
        except AllocationError as error:
            return AllocationFailed(str(error))


class History:
    """Changes to an inventory, to the nodes, and to a description of both."""

    def __init__(self, world: World, draw: st.DataObject) -> None:
        self.world, self.draw = world, draw
        self.inventory, self.now = Inventory(TextSelector), FromScratch()
        self.rows = Rows(NODES)
        for device_class in world.classes:
            self.inventory.put_class(device_class)
            self.now.classes[device_class.name] = device_class

    def change(self, answers: NodeAnswers | None) -> None:
        kinds = (self._slice, self._slice, self._claim, self._node, self._class, self._assume)
        self.draw.draw(st.sampled_from(kinds))(answers)

    def _slice(self, _: NodeAnswers | None) -> None:
        if not self.world.slices:
            return
        item = self.draw.draw(st.sampled_from(self.world.slices))
        if self.draw.draw(st.integers(0, 2)) == 0:
            self.inventory.remove_slice(item.key)
            self.now.slices.pop(item.key, None)
        else:
            self.inventory.put_slice(item)
            self.now.slices[item.key] = item

    def _claim(self, _: NodeAnswers | None) -> None:
        if not self.world.claims:
            return
        claim = self.draw.draw(st.sampled_from(self.world.claims))
        if self.draw.draw(st.booleans()):
            self.inventory.put_claim(claim)
            self.now.claims[claim.key] = claim
        else:
            self.inventory.remove_claim(claim.key)
            self.now.claims.pop(claim.key, None)

    def _node(self, _: NodeAnswers | None) -> None:
        view = self.draw.draw(st.sampled_from(ALL_VIEWS))
        if self.draw.draw(st.integers(0, 2)) == 0:
            self.rows.remove(view.name)
        else:
            self.rows.put(view)

    def _class(self, _: NodeAnswers | None) -> None:
        changed = self.draw.draw(st.sampled_from(classes()))
        if self.draw.draw(st.integers(0, 3)) == 0:
            self.inventory.remove_class(changed.name)
            self.now.classes.pop(changed.name, None)
        else:
            self.inventory.put_class(changed)
            self.now.classes[changed.name] = changed

    def _assume(self, answers: NodeAnswers | None) -> None:
        key = self.draw.draw(st.sampled_from(("ns/a", "ns/b")))
        feasible = [] if answers is None else np.flatnonzero(answers.codes == 0).tolist()
        if not feasible or answers is None or self.draw.draw(st.integers(0, 3)) == 0:
            self.inventory.forget(key)
            self.now.assumed.pop(key, None)
            return
        row = self.draw.draw(st.sampled_from(feasible))
        solution = answers.solution(row)
        assert solution is not None
        allocation = solution.results("any", lambda: "new")[0]
        self.inventory.assume(key, allocation)
        self.now.assumed[key] = allocation


@given(worlds(), st.data())
def test_kept_answers_equal_those_from_scratch(world: World, data: st.DataObject) -> None:
    history = History(world, data)
    allocator = Allocator(history.inventory)
    requests = [AllocationRequest(world.requests), AllocationRequest(world.requests[:1])]
    answers: NodeAnswers | None = None
    for _ in range(data.draw(st.integers(1, 12))):
        for _ in range(data.draw(st.integers(1, 3))):
            history.change(answers if answers is not None and _fits(answers, history) else None)
        for request in requests:
            answers = allocator.allocate_all(request, history.rows)
            for row, view in history.rows.views():
                assert answer_of(answers, row, view.name) == history.now.answer(request, view)
    fresh = history.now.inventory().usage.snapshot()
    assert history.inventory.usage.snapshot() == fresh


def _fits(answers: NodeAnswers, history: History) -> bool:
    return len(answers.codes) == len(history.rows.names)


# -- how much is searched -------------------------------------------------------------------------


def local_slice(node: str, number: int, **fields: Any) -> ResourceSlice:
    offered = tuple(Device(name=f"d{index}", **fields) for index in range(number))
    return ResourceSlice(
        metadata=ObjectMeta(name=f"slice-{node}"),
        spec=ResourceSliceSpec(
            driver="gpu.example",
            node_name=node,
            pool=ResourcePool(name=node, generation=1, resource_slice_count=1),
            devices=offered,
        ),
    )


def simple_claim(name: str, number: int = 1) -> ResourceClaim:
    exactly = ExactDeviceRequest(device_class_name="everything", count=number)
    return ResourceClaim(
        metadata=ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}"),
        spec=ResourceClaimSpec(
            devices=DeviceClaim(requests=(DeviceRequest(name="r", exactly=exactly),))
        ),
    )


def cluster(nodes: int, number: int, *, serials: bool = True) -> tuple[Inventory, Rows]:
    """``serials``: whether the devices of each node differ from those of the others."""
    inventory = Inventory(TextSelector)
    for device_class in classes():
        inventory.put_class(device_class)
    names = [f"node-{index}" for index in range(nodes)]
    for name in names:
        serial = {"serial": DeviceAttribute(string=name)} if serials else {}
        inventory.put_slice(local_slice(name, number, attributes=serial))
    return inventory, Rows(NodeView(name, {}) for name in names)


def test_a_placement_makes_one_search_new() -> None:
    inventory, rows = cluster(50, 2)
    allocator = Allocator(inventory)
    for index in range(6):
        request = AllocationRequest((simple_claim(f"c{index}"),))
        answers = allocator.allocate_all(request, rows)
        solution = answers.solution(7 + index % 2)
        if solution is not None:
            inventory.assume(f"ns/c{index}", solution.results("n", lambda: "new")[0])
    assert allocator.searches == 50 + 4
    assert np.flatnonzero(answers.codes != 0).tolist() == [7, 8]


def test_nodes_with_equal_devices_in_use_share_the_search() -> None:
    inventory, rows = cluster(50, 2, serials=False)
    allocator = Allocator(inventory)
    devices = []
    for index in range(6):
        request = AllocationRequest((simple_claim(f"c{index}"),))
        answers = allocator.allocate_all(request, rows)
        solution = answers.solution(7 + index % 2)
        if solution is not None:
            (found,) = solution.results("n", lambda: "new")
            inventory.assume(f"ns/c{index}", found)
            devices += [(each.pool, each.device) for each in found.devices.results]
    assert devices == [(f"node-{row}", f"d{number}") for number in (0, 1) for row in (7, 8)]
    assert allocator.searches == 3
    assert np.flatnonzero(answers.codes != 0).tolist() == [7, 8]


def test_taints_and_shares_distinguish_nodes() -> None:
    inventory, rows = cluster(4, 1, serials=False)
    tainted = DeviceTaint(key="bad", effect="NoSchedule")
    inventory.put_slice(local_slice("node-0", 1, taints=(tainted,)))
    for row in (2, 3):
        capacity = {"memory": DeviceCapacity(value="4Gi")}
        inventory.put_slice(
            local_slice(f"node-{row}", 1, allow_multiple_allocations=True, capacity=capacity)
        )
    allocator = Allocator(inventory)
    request = AllocationRequest((simple_claim("c"),))
    answers = allocator.allocate_all(request, rows)
    assert answers.codes.tolist() == [1, 0, 0, 0]
    assert allocator.searches == 3
    solution = answers.solution(2)
    assert solution is not None
    inventory.assume("ns/c", solution.results("n", lambda: "new")[0])
    assert allocator.allocate_all(request, rows).codes.tolist() == [1, 0, 1, 0]


def partitions(node: str) -> tuple[ResourceSlice, ResourceSlice]:
    """A slice with counters, and a slice with two devices that consume them."""
    pool = ResourcePool(name=node, generation=1, resource_slice_count=2)
    counters = {"part": Counter(value="1")}
    sets = ResourceSliceSpec(
        driver="gpu.example",
        node_name=node,
        pool=pool,
        shared_counters=(CounterSet(name="card", counters=counters),),
    )
    uses = (DeviceCounterConsumption(counter_set="card", counters=counters),)
    devices = local_slice(node, 2, consumes_counters=uses)
    return (
        ResourceSlice(metadata=ObjectMeta(name=f"counters-{node}"), spec=sets),
        replace(devices, spec=replace(devices.spec, pool=pool)),
    )


def test_partitions_of_a_node_matter_to_that_node_only() -> None:
    inventory, rows = cluster(20, 0)
    for name in rows.names:
        for item in partitions(name):
            inventory.put_slice(item)
    allocator = Allocator(inventory)
    for index in range(3):
        request = AllocationRequest((simple_claim(f"c{index}"),))
        answers = allocator.allocate_all(request, rows)
        solution = answers.solution(7 + index)
        assert solution is not None
        inventory.assume(f"ns/c{index}", solution.results("n", lambda: "new")[0])
    assert allocator.searches == 20 + 2
    assert np.flatnonzero(answers.codes).tolist() == [7, 8]
    inventory.put_slice(partitions("node-7")[0])
    allocator.allocate_all(request, rows)
    assert allocator.searches == 20 + 2 + 2


def test_broken_partitions_of_a_node_matter_to_all_nodes() -> None:
    inventory, rows = cluster(3, 1)
    counters, devices = partitions("node-1")
    inventory.put_slice(devices)
    double = replace(
        counters, spec=replace(counters.spec, shared_counters=counters.spec.shared_counters * 2)
    )
    allocator = Allocator(inventory)
    request = AllocationRequest((simple_claim("c", 2),))
    found = []
    for item in (double, counters, double):
        inventory.put_slice(item)
        answers = allocator.allocate_all(request, rows)
        found.append([str(answers.refusal(row)) for row in range(3)])
    assert ["invalid" in each for each in found[0]] == [True] * 3
    assert ["invalid" in each for each in found[1]] == [False] * 3
    assert found[2] == found[0]


def test_nodes_that_see_the_same_pools_share_the_search() -> None:
    inventory, rows = cluster(0, 0)
    shared = local_slice("fabric", 3)
    spec = ResourceSliceSpec(
        driver="gpu.example", pool=shared.spec.pool, all_nodes=True, devices=shared.spec.devices
    )
    inventory.put_slice(ResourceSlice(metadata=shared.metadata, spec=spec))
    for index in range(20):
        rows.put(NodeView(f"node-{index}", {"kubernetes.io/hostname": f"node-{index}"}))
    allocator = Allocator(inventory)
    answers = allocator.allocate_all(AllocationRequest((simple_claim("c"),)), rows)
    assert allocator.searches == 1
    assert (answers.codes == 0).all()


def test_only_the_rows_that_are_asked_for_are_searched() -> None:
    inventory, rows = cluster(10, 1)
    allocator = Allocator(inventory)
    request = AllocationRequest((simple_claim("c"),))
    answers = allocator.allocate_all(request, rows, np.array([2, 5], np.int32))
    assert allocator.searches == 2
    assert np.flatnonzero(answers.codes == 0).tolist() == [2, 5]
    assert answers.refusal(0) is None
    assert answers.solution(0) is None


def test_answers_beyond_the_budget_do_not_depend_on_what_is_known() -> None:
    inventory, rows = cluster(9, 1)
    request = AllocationRequest((simple_claim("c"),))
    limits = SearchLimits(steps_per_attempt=12)
    fresh = Allocator(inventory, limits).allocate_all(request, rows).codes
    warm = Allocator(inventory, limits)
    for row in (8, 3, 6, 4):
        warm.allocate_all(request, rows, np.array([row], np.int32))
    answers = warm.allocate_all(request, rows)
    assert answers.codes.tolist() == fresh.tolist()
    refused = np.flatnonzero(fresh != 0).tolist()
    assert refused
    assert refused != list(range(9))
    assert answers.refusal(refused[0]) == NotAllocated(TOO_EXPENSIVE)


def site_answers(sites: int) -> SiteAnswers:
    inventory, rows = cluster(sites, 1)
    table = SiteTable(inventory)
    table.refresh(rows)
    answers = SiteAnswers([])
    answers.adapt(table)
    return answers


FIRST = np.zeros(1, np.int32)


def test_repeated_searches_of_a_site_are_kept_once() -> None:
    answers = site_answers(2)
    for steps in (100, 50, 70):
        meter = StepMeter(1_000)
        meter.add(steps)
        answers.store(FIRST, answers.outcome(NotAllocated("none"), meter))
    assert answers.kept_steps == answers.steps.sum() == 70


def test_many_different_errors() -> None:
    answers = site_answers(1)
    for number in range(40_000):
        error = ClaimError(f", request r: pool p{number} is invalid", 0)
        answers.store(FIRST, answers.outcome(error, StepMeter(1)))
    assert answers.codes[0] == 40_000
    assert answers.has_old_refusals


def test_errors_of_the_past_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocators, "KEPT_REFUSALS", 5)
    inventory, rows = cluster(0, 0)
    rows.put(NodeView("n0", {}))
    allocator = Allocator(inventory)
    exactly = ExactDeviceRequest(device_class_name="everything", allocation_mode=ALL_DEVICES)
    spec = ResourceClaimSpec(
        devices=DeviceClaim(requests=(DeviceRequest(name="r", exactly=exactly),))
    )
    claim = ResourceClaim(metadata=ObjectMeta(name="c", namespace="ns"), spec=spec)
    for number in range(150):
        pool = ResourcePool(name=f"p{number}", generation=1, resource_slice_count=2)
        incomplete = ResourceSliceSpec(driver="gpu.example", pool=pool, node_name="n0")
        inventory.put_slice(ResourceSlice(metadata=ObjectMeta(name="s"), spec=incomplete))
        answers = allocator.allocate_all(AllocationRequest((claim,)), rows)
        found = answers.refusal(0)
        assert isinstance(found, AllocationFailed)
        assert f"pool gpu.example/p{number} is currently being updated" in found.error
        assert len(answers.refusals) < 100


def dear_claim() -> ResourceClaim:
    exactly = ExactDeviceRequest(
        device_class_name="everything", count=1, selectors=(selector("dear"),)
    )
    devices = DeviceClaim(requests=(DeviceRequest(name="r", exactly=exactly),))
    return ResourceClaim(
        metadata=ObjectMeta(name="dear", namespace="ns"), spec=ResourceClaimSpec(devices=devices)
    )


@pytest.mark.parametrize(("kinds", "searched"), [(1, 20), (20, 3)])
def test_expensive_selectors_count_once_for_equal_devices(kinds: int, searched: int) -> None:
    inventory, rows = cluster(0, 0)
    for index in range(20):
        attributes = {"kind": DeviceAttribute(string=str(index % kinds))}
        inventory.put_slice(local_slice(f"node-{index}", 1, attributes=attributes))
        rows.put(NodeView(f"node-{index}", {}))
    allocator = Allocator(inventory, SearchLimits(steps_per_attempt=2500))
    request = AllocationRequest((dear_claim(),))
    for _ in range(2):
        codes = allocator.allocate_all(request, rows).codes
        assert np.count_nonzero(codes == 0) == searched


def test_one_search_cannot_evaluate_too_much() -> None:
    inventory, rows = cluster(0, 0)
    inventory.put_slice(local_slice("n0", 1))
    rows.put(NodeView("n0", {}))
    allocator = Allocator(inventory, SearchLimits(steps_per_node=900))
    answers = allocator.allocate_all(AllocationRequest((dear_claim(),)), rows)
    assert answers.refusal(0) == NotAllocated(TOO_EXPENSIVE)
