"""The allocator gives the answers of a plain implementation of the rules."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import assume, given

from asched.dra import Allocated, AllocationError, AllocationRequest, Allocator, NodeView
from asched.model.resource_claims import AllocationResult
from tests.dra.reference import Cluster, Reference, ReferenceError, Taken, TooManyStepsError, exact
from tests.dra.worlds import NODES, World, worlds

Answer = list[list[Taken]] | str


def reference_answer(world: World, node: NodeView) -> Answer:
    cluster = Cluster(world.slices, {c.name: c for c in world.classes}, world.claims)
    try:
        return Reference(cluster, node, world.requests).allocate()
    except ReferenceError as error:
        return f"error: {error}"
    except TooManyStepsError:
        assume(False)
        raise


def answer(allocator: Allocator, world: World, node: NodeView) -> Answer:
    try:
        outcome = allocator.allocate(AllocationRequest(world.requests), node)
    except AllocationError as error:
        return f"error: {error}"
    if not isinstance(outcome, Allocated):
        return outcome.reason
    return [_taken(result) for result in outcome.results(node.name, lambda: "new")]


def _taken(result: AllocationResult) -> list[Taken]:
    found: list[Taken] = []
    for device in result.devices.results:
        consumed: dict[str, Fraction] | None = None
        if device.share_id is not None:
            consumed = {name: exact(text) for name, text in device.consumed_capacity.items()}
        found.append((device.request, (device.driver, device.pool, device.device), consumed))
    return found


@given(worlds())
def test_answers_equal_those_of_the_reference(world: World) -> None:
    allocator = Allocator(world.inventory())
    for node in NODES:
        expected = reference_answer(world, node)
        assert answer(allocator, world, node) == expected
