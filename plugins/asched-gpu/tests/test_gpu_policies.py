"""Policies on columns compared with the reference implementation."""

from __future__ import annotations

from collections.abc import Callable

import gpu_paper as paper
import numpy as np
import pytest
from asched_gpu.demand import Demand
from asched_gpu.policies import (
    ALIGNED_STEP_MILLI,
    AlignedDescent,
    BestFit,
    Clustering,
    DotProduct,
    FragmentationDescent,
    Packing,
    Policy,
    Random,
    fits,
    kind_of,
)
from asched_gpu.workload import TaskClass, Workload
from gpu_strategies import as_columns, demands, placements, plain_nodes, workloads
from hypothesis import given
from hypothesis import strategies as st


def never(below: int) -> int:
    raise AssertionError("nothing is to be drawn here")


some_nodes = st.lists(plain_nodes, min_size=1, max_size=6)


@given(some_nodes, demands())
def test_fits_equals_reference(nodes: list[paper.PlainNode], demand: Demand) -> None:
    task = TaskClass(1, 0, demand.cards, demand.milli)
    assert fits(as_columns(nodes), demand).tolist() == [paper.fits(node, task) for node in nodes]


@given(placements(), workloads)
def test_fgd_equals_reference(
    placement: tuple[Demand, list[paper.PlainNode]], classes: list[TaskClass]
) -> None:
    demand, able = placement
    workload = Workload(classes)
    policy = FragmentationDescent(workload)
    expected = [paper.descent(node, demand, classes) for node in able]
    found = policy.score(as_columns(able, workload), demand)
    assert found.tolist() == [score for score, _ in expected]
    for node, (_, cards) in zip(able, expected, strict=True):
        assert policy.choose(as_columns([node], workload), demand, never) == tuple(sorted(cards))


@pytest.mark.parametrize(
    ("policy", "definition"),
    [(Packing(), paper.packing), (BestFit(), paper.best_fit), (DotProduct(), paper.dot_product)],
    ids=["packing", "best-fit", "dot-product"],
)
@given(placement=placements())
def test_scores_equal_reference(
    policy: Policy,
    definition: Callable[[paper.PlainNode, Demand], int],
    placement: tuple[Demand, list[paper.PlainNode]],
) -> None:
    demand, able = placement
    if isinstance(policy, Packing) and not demand.cards:
        assert not policy.score(as_columns(able), demand).any()
        return
    expected = [definition(node, demand) for node in able]
    assert policy.score(as_columns(able), demand).tolist() == expected
    for node in able:
        cards = policy.choose(as_columns([node]), demand, never)
        assert cards == tuple(sorted(paper.fullest(node, demand)))


def test_clustering_prefers_its_own_kind_then_idle_nodes() -> None:
    nodes = as_columns([paper.PlainNode((500, 500), 0)] * 4)
    share, whole = Demand(1, 500), Demand(2, 1000)
    kinds = [kind_of(share), kind_of(share) | kind_of(whole), 0, kind_of(whole)]
    nodes.kinds[:] = kinds
    scores = Clustering().score(nodes, share).tolist()
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 4
    assert not Clustering().score(nodes, Demand(0, 0)).any()


def test_random_policy_selects_fitting_cards() -> None:
    nodes = as_columns([paper.PlainNode((1000, 100, 600, 1000), 0)])
    drawn = [2, 0]
    assert Random().choose(nodes, Demand(2, 600), lambda below: drawn.pop(0)) == (0, 3)


@given(placements(), workloads)
def test_aligned_policy_prefers_fragmentation_steps(
    placement: tuple[Demand, list[paper.PlainNode]], classes: list[TaskClass]
) -> None:
    """A node with a larger gain, in steps, is better regardless of cpu. Within a step, the node is
    better that matches the pod's ratio of cpu to cards."""
    demand, able = placement
    workload = Workload(classes)
    nodes = as_columns(able, workload)
    policy = AlignedDescent(workload)
    best = int(policy.score(nodes, demand).argmax())
    steps = policy.gain(nodes, demand) // (ALIGNED_STEP_MILLI * workload.size)
    assert steps[best] == steps.max()
    if not demand.cards:
        return
    apart = [
        abs(node.cpu_milli - sum(node.free) * demand.cpu_milli // demand.total) for node in able
    ]
    assert apart[best] == min(
        a for a, step in zip(apart, steps, strict=True) if step == steps[best]
    )


def test_scores_of_very_large_nodes_are_in_range() -> None:
    huge = as_columns([paper.PlainNode((1000,) * 8, 4_000_000)])
    wide = huge._replace(free=np.full((1, 64), 1000), size=np.array([64]))
    demand = Demand(16, 1000, 1_000_000)
    for policy in (DotProduct(), Clustering(), Packing()):
        assert 0 <= policy.score(wide, demand)[0] <= 100


def test_fgd_selects_fitting_card_if_all_gains_are_minimal() -> None:
    """Tasks request all eight cards, so that any used share makes all cards useless: score 0."""
    workload = Workload([TaskClass(1, gpus=8, gpu_milli=900)])
    node = as_columns([paper.PlainNode((900, *[1000] * 7), 0)], workload)
    policy = FragmentationDescent(workload)
    assert policy.score(node, Demand(1, 950)).tolist() == [0]
    assert policy.choose(node, Demand(1, 950), never) == (1,)
