"""Reference implementation of the paper's definitions, for single nodes and tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from asched_gpu.demand import Demand
from asched_gpu.workload import TaskClass


class PlainNode(NamedTuple):
    """The free resources of a node."""

    free: tuple[int, ...]
    cpu_milli: int
    model: str = ""


def fits(node: PlainNode, task: TaskClass) -> bool:
    if task.models and node.model not in task.models:
        return False
    able = sum(left >= task.gpu_milli for left in node.free)
    return node.cpu_milli >= task.cpu_milli and able >= task.gpus


def fragment(node: PlainNode, task: TaskClass) -> int:
    """The part of the free cards that the task cannot use."""
    if not task.gpus or not fits(node, task):
        return sum(node.free)
    return sum(left for left in node.free if left < task.gpu_milli)


def fragmentation(node: PlainNode, workload: Sequence[TaskClass]) -> Fraction:
    """The mean over the workload, in thousandths of a card."""
    size = sum(task.count for task in workload)
    return sum((Fraction(t.count, size) * fragment(node, t) for t in workload), Fraction())


def fullest(node: PlainNode, demand: Demand) -> tuple[int, ...]:
    """The cards with the least sufficient free share, the first ones in case of ties."""
    able = [card for card, left in enumerate(node.free) if left >= demand.milli]
    return tuple(sorted(able, key=lambda card: (node.free[card], card))[: demand.cards])


def with_pod(node: PlainNode, demand: Demand, cards: Sequence[int]) -> PlainNode:
    free = [left - demand.milli * (card in cards) for card, left in enumerate(node.free)]
    return PlainNode(tuple(free), node.cpu_milli - demand.cpu_milli, node.model)


def descent(
    node: PlainNode, demand: Demand, workload: Sequence[TaskClass]
) -> tuple[int, tuple[int, ...]]:
    """FGD's score of a feasible node, 0 to 100, and the cards."""
    before = fragmentation(node, workload)

    def score(cards: Sequence[int]) -> int:
        shrinks = before - fragmentation(with_pod(node, demand, cards), workload)
        return int(100 / (1 + math.exp(-shrinks / 1000)))

    if demand.cards == 1 and demand.milli < 1000:
        able = [(card,) for card, left in enumerate(node.free) if left >= demand.milli]
        best = max(able, key=score)
        return score(best), best
    cards = fullest(node, demand)
    return score(cards), cards


def packing(node: PlainNode, demand: Demand) -> int:
    """GpuPacking's score of a feasible node, on which all cards have free shares."""
    idle = sum(left == 1000 for left in node.free)
    if idle == len(node.free):
        return max(33 - idle, idle)
    cards = fullest(node, demand)
    new = sum(node.free[card] == 1000 for card in cards)
    if new:
        return max(50 - new, 33)
    return max(100 - sum(node.free[card] * 100 // 1000 for card in cards) // 10, 50)


def best_fit(node: PlainNode, demand: Demand) -> int:
    cpu = Fraction(node.cpu_milli - demand.cpu_milli, 128_000)
    gpu = Fraction(sum(node.free) - demand.total, 8_000)
    return math.floor((1 - (cpu + gpu) / 2) * 100)


def dot_product(node: PlainNode, demand: Demand) -> int:
    cpu = Fraction(node.cpu_milli, 128_000) * Fraction(demand.cpu_milli, 128_000)
    gpu = Fraction(sum(node.free), 8_000) * Fraction(demand.total, 8_000)
    return math.floor((1 - (cpu + gpu) / 2) * 100)
