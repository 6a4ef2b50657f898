"""Fragmentation on columns compared with the reference implementation."""

from __future__ import annotations

from fractions import Fraction

import gpu_paper as paper
import numpy as np
import pytest
from asched_gpu.expected import expected_workload
from asched_gpu.workload import TaskClass, Workload
from gpu_strategies import MILLIS, as_columns, plain_nodes, workloads
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(plain_nodes, min_size=1, max_size=6), workloads)
def test_fragmentation_equals_reference(
    nodes: list[paper.PlainNode], classes: list[TaskClass]
) -> None:
    workload = Workload(classes)
    columns = as_columns(nodes, workload)
    found = workload.fragmentation(columns.free, columns.cpu_milli, columns.models)
    expected = [paper.fragmentation(node, classes) * workload.size for node in nodes]
    assert [Fraction(int(number)) for number in found] == expected


@given(plain_nodes, workloads, MILLIS)
def test_with_share_equals_reference_for_each_card(
    node: paper.PlainNode, classes: list[TaskClass], milli: int
) -> None:
    workload = Workload(classes)
    columns = as_columns([node], workload)
    [found] = workload.with_share(columns.free, columns.cpu_milli, columns.models, milli)
    for card, left in enumerate(node.free):
        if left < milli:
            continue
        free = tuple(f - milli * (other == card) for other, f in enumerate(node.free))
        expected = paper.fragmentation(node._replace(free=free), classes) * workload.size
        assert found[card] == expected


def test_fragmentation_of_a_small_example() -> None:
    """Half of the tasks request a whole card, half request 300; 500 and 1000 are free."""
    workload = Workload([TaskClass(1, gpus=1, gpu_milli=1000), TaskClass(1, gpus=1, gpu_milli=300)])
    node = as_columns([paper.PlainNode((500, 1000), 0)], workload)
    found = workload.fragmentation(node.free, node.cpu_milli, node.models)
    assert found.tolist() == [500]  # over 2 tasks: 500 are of no use to the first


def test_tasks_without_cards_can_use_nothing() -> None:
    workload = Workload([TaskClass(1, 1000), TaskClass(3, gpus=1, gpu_milli=1000)])
    node = as_columns([paper.PlainNode((1000,), 8000)], workload)
    assert workload.fragmentation(node.free, node.cpu_milli, node.models).tolist() == [1000]


@pytest.mark.parametrize(
    ("count", "gpus", "gpu_milli"), [(0, 0, 0), (1, 1, 0), (1, 0, 5), (1, -1, 0), (1, 1, 1001)]
)
def test_invalid_task_class_is_rejected(count: int, gpus: int, gpu_milli: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        TaskClass(count, 1000, gpus, gpu_milli)


def test_empty_workload_is_rejected() -> None:
    with pytest.raises(ValueError, match="expected at least one task"):
        Workload([])


def test_expected_workload_has_the_most_frequent_kinds() -> None:
    def row(cpu: int, gpus: int, milli: int, spec: str = "") -> dict[str, str]:
        amounts = {"cpu_milli": str(cpu), "num_gpu": str(gpus), "gpu_milli": str(milli)}
        return {**amounts, "gpu_spec": spec}

    rows = [row(1000, 1, 500)] * 60 + [row(2000, 8, 1000, "T4|V100")] * 35 + [row(9, 0, 0)] * 5
    assert expected_workload(rows) == (
        TaskClass(60, 1000, 1, 500),
        TaskClass(35, 2000, 8, 1000, ("T4", "V100")),
    )
    assert len(expected_workload(rows, share=1.0)) == 3
    assert np.sum([c.count for c in expected_workload(rows, share=1.0)]) == 100
