"""Nodes, pods and workloads for property tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from asched_gpu.demand import Demand
from asched_gpu.policies import NodeCards
from asched_gpu.workload import TaskClass, Workload
from gpu_paper import PlainNode
from hypothesis import strategies as st

MODELS = ("", "T4", "V100", "P100")
MILLIS = st.sampled_from([50, 160, 200, 470, 500, 810, 1000])
CPUS = st.sampled_from([0, 1000, 4000, 11_000, 12_000, 96_000])

plain_nodes = st.builds(
    PlainNode,
    st.lists(st.sampled_from([0, 30, 190, 340, 500, 530, 1000]), max_size=8).map(tuple),
    CPUS,
    st.sampled_from(MODELS),
)


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    cards = draw(st.integers(0, 4))
    milli = draw(MILLIS) if cards == 1 else 1000 * bool(cards)
    return Demand(cards, milli, draw(CPUS))


@st.composite
def task_classes(draw: st.DrawFn) -> TaskClass:
    demand = draw(demands())
    models = draw(st.sets(st.sampled_from(MODELS[1:]), max_size=2)) if demand.cards else set()
    count = draw(st.integers(1, 50))
    return TaskClass(count, demand.cpu_milli, demand.cards, demand.milli, tuple(sorted(models)))


@st.composite
def placements(draw: st.DrawFn) -> tuple[Demand, list[PlainNode]]:
    """A pod with a request, and feasible nodes."""
    demand = draw(demands())
    nodes = draw(st.lists(plain_nodes, min_size=1, max_size=6))
    return demand, [
        PlainNode(
            (*node.free[: 8 - demand.cards], *[1000] * demand.cards),
            node.cpu_milli + demand.cpu_milli,
            node.model,
        )
        for node in nodes
    ]


workloads = st.lists(task_classes(), min_size=1, max_size=8)


def as_columns(nodes: Sequence[PlainNode], workload: Workload | None = None) -> NodeCards:
    free = np.zeros((len(nodes), 8), np.int64)
    for row, node in enumerate(nodes):
        free[row, : len(node.free)] = node.free
    models = [workload.model_number(node.model) if workload else 0 for node in nodes]
    return NodeCards(
        free,
        np.array([len(node.free) for node in nodes], np.int64),
        np.array([node.cpu_milli for node in nodes], np.int64),
        np.array(models, np.int64),
        np.zeros(len(nodes), np.int64),
    )
