"""GpuShare in a profile: no card is assigned twice, and replays are equal."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from asched_gpu.demand import GPU_COUNT, GPU_INDEX, GPU_MILLI, DemandError, demand_of, index_of
from asched_gpu.gpu_share import GpuShare, GpuShareArgs, PolicyName, Ties
from asched_gpu.workload import TaskClass
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.framework import ActionType, EventResource, PodInfo, PodShape, QueueingHint
from asched.model import Node, Pod
from asched.state.records import Assigned
from asched.testing import instance, node, pod, profile, run_filter, schedule
from asched.testing.placements import Placements

WORKLOAD = (
    TaskClass(5, 4000, 1, 500),
    TaskClass(3, 8000, 1, 1000),
    TaskClass(1, 8000, 4, 1000, ("T4",)),
    TaskClass(2, 1000),
)


def gpu_node(name: str, cards: int, *, cpu: str = "64", model: str = "T4") -> Node:
    labels = {"alibabacloud.com/gpu-card-model": model}
    return node(name, cpu=cpu, labels=labels, allocatable={GPU_MILLI: str(cards * 1000)})


def gpu_pod(name: str, milli: int, *, cpu: str = "1", **more: Any) -> Pod:
    return pod(name, cpu=cpu, requests={GPU_MILLI: str(milli)}, **more)


def arguments(policy: PolicyName, ties: Ties | None = None) -> GpuShareArgs:
    return GpuShareArgs(policy, WORKLOAD, ties)


def cards_of(found: Placements) -> dict[str, tuple[str, list[int]]]:
    """Node and cards of each pod in its decision."""
    return {
        record.key.rpartition("/")[2]: (record.node, reservation.value["cards"])
        for record in found.records
        if isinstance(record, Assigned)
        for reservation in record.reservations
        if reservation.plugin == "GpuShare"
    }


requests = st.lists(
    st.sampled_from([100, 300, 500, 700, 1000, 2000, 4000]), min_size=1, max_size=24
)


@settings(max_examples=40)
@given(
    st.sampled_from(PolicyName),
    st.sampled_from([None, *Ties]),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    requests,
)
def test_no_card_is_assigned_twice(
    policy: PolicyName, ties: Ties | None, sizes: list[int], asked: list[int]
) -> None:
    nodes = [gpu_node(f"n{number}", cards) for number, cards in enumerate(sizes)]
    waiting = [gpu_pod(f"p{number}", milli) for number, milli in enumerate(asked)]
    setup = profile(GpuShare, args_by_plugin={"GpuShare": arguments(policy, ties)})
    found = schedule(setup, nodes, waiting)
    taken: dict[tuple[str, int], int] = defaultdict(int)
    for name, (place, cards) in cards_of(found).items():
        milli = asked[int(name[1:])]
        assert len(cards) == len(set(cards)) == max(1, milli // 1000)
        for card in cards:
            assert card < sizes[int(place[1:])]
            taken[place, card] += milli // len(cards)
    assert max(taken.values(), default=0) <= 1000
    # Whoever waits fits on no node: not on the cards as they are now.
    for name in found.pending:
        milli = asked[int(name.rpartition("/")[2][1:])]
        share, cards_asked = min(milli, 1000), max(1, milli // 1000)
        for number, size in enumerate(sizes):
            able = sum(1000 - taken[f"n{number}", card] >= share for card in range(size))
            assert able < cards_asked
    assert found.divergence() is None


def test_share_prefers_shared_card() -> None:
    setup = profile(GpuShare, args_by_plugin={"GpuShare": arguments(PolicyName.PACKING)})
    waiting = [gpu_pod("a", 600), gpu_pod("b", 600), gpu_pod("c", 300), gpu_pod("d", 400)]
    found = schedule(setup, [gpu_node("n", 2)], waiting)
    cards = {name: cards for name, (_, cards) in cards_of(found).items()}
    assert cards["a"] != cards["b"]
    assert cards["c"] == cards["a"]
    assert cards["d"] == cards["b"]


def test_whole_card_needs_one_free_card() -> None:
    there = [
        gpu_pod("a", 500, node="n", annotations={GPU_INDEX: "0"}),
        gpu_pod("b", 500, node="n", annotations={GPU_INDEX: "1"}),
    ]
    args = arguments(PolicyName.FGD)
    said = run_filter(GpuShare, gpu_pod("p", 1000), [gpu_node("n", 2), *there], args=args)
    assert said["n"].message == "Insufficient alibabacloud.com/gpu-milli on a card"
    both_on_one = [
        gpu_pod("a", 500, node="n", annotations={GPU_INDEX: "1"}),
        gpu_pod("b", 500, node="n", annotations={GPU_INDEX: "1"}),
    ]
    said = run_filter(GpuShare, gpu_pod("p", 1000), [gpu_node("n", 2), *both_on_one], args=args)
    assert said["n"].is_success


@pytest.mark.parametrize("text", [None, "x", "7", "0-1"])
def test_pod_with_unknown_card_counts_on_each_card(text: str | None) -> None:
    annotations = {} if text is None else {GPU_INDEX: text}
    stranger = gpu_pod("stranger", 600, node="n", annotations=annotations)
    cluster = [gpu_node("n", 2), stranger]
    args = arguments(PolicyName.FGD)
    assert not run_filter(GpuShare, gpu_pod("p", 500), cluster, args=args)["n"].is_success
    assert run_filter(GpuShare, gpu_pod("p", 400), cluster, args=args)["n"].is_success


def test_preemption_frees_cards() -> None:
    """A pod that requests a whole card preempts a pod of lower priority."""
    setup = profile(GpuShare, args_by_plugin={"GpuShare": arguments(PolicyName.FGD)})
    low = gpu_pod("low", 700, priority=1)
    high = gpu_pod("high", 1000, priority=1000)
    found = schedule(setup, [gpu_node("n", 1)], [low, high])
    assert cards_of(found)["high"] == ("n", [0])
    assert found.divergence() is None


def shape(milli: int, count: str | None = None) -> PodShape:
    annotations = {} if count is None else {GPU_COUNT: count}
    return PodInfo(gpu_pod("p", milli, annotations=annotations)).shape


@pytest.mark.parametrize(
    ("milli", "count", "cards"),
    [(470, None, (1, 470)), (1000, None, (1, 1000)), (3000, None, (3, 1000)), (900, "3", (3, 300))],
)
def test_demand_of_pod(milli: int, count: str | None, cards: tuple[int, int]) -> None:
    assert demand_of(shape(milli, count))[:2] == cards


@pytest.mark.parametrize(("milli", "count"), [(1500, "1"), (1001, None), (500, "0"), (500, "two")])
def test_invalid_demand_is_rejected(milli: int, count: str | None) -> None:
    with pytest.raises(DemandError):
        demand_of(shape(milli, count))
    annotations = {} if count is None else {GPU_COUNT: count}
    setup = profile(GpuShare)
    wrong = gpu_pod("p", milli, annotations=annotations)
    found = schedule(setup, [gpu_node("n", 8)], [wrong])
    [message] = found.pending.values()
    assert "alibabacloud.com/gpu-" in message


@pytest.mark.parametrize(
    ("text", "cards"), [("0", (0,)), ("3-1", (3, 1)), ("1-1", None), ("", None)]
)
def test_gpu_index_is_parsed(text: str, cards: tuple[int, ...] | None) -> None:
    assert index_of(text) == cards


def test_fgd_policies_require_a_workload() -> None:
    with pytest.raises(ValueError, match="policy fgd needs a workload"):
        GpuShareArgs(PolicyName.FGD)


def test_hint_queues_only_for_deleted_pods_with_cards() -> None:
    plugin = instance(GpuShare)
    [of_pods] = [
        entry
        for entry in plugin.events_to_register()
        if entry.event.resource is EventResource.ASSIGNED_POD
    ]
    assert of_pods.event.action & ActionType.DELETE
    assert of_pods.hint is not None
    waiting = gpu_pod("p", 500)
    assert of_pods.hint(waiting, gpu_pod("gone", 100), None) is QueueingHint.QUEUE
    assert of_pods.hint(waiting, pod("gone"), None) is QueueingHint.SKIP
