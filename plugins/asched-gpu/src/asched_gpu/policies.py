"""Policies: how good each node is for a pod that shares cards, and which cards it gets there.

They are those of "Beware of Fragmentation" (USENIX ATC'23) and of its simulator, whose constants and
roundings count here too, since who shares a best score is drawn by lot. Scores are whole numbers, the
higher the better, and only of meaning where the pod fits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asched.framework.nodes import MAX_NODE_SCORE, Int64Column
from asched_gpu.demand import MILLI, Demand
from asched_gpu.workload import CardMatrix, Workload

LARGEST_CPU_MILLI: Final = 128_000
LARGEST_GPU_MILLI: Final = 8_000
"""The largest node of the trace, by which amounts are measured; a larger one is rated as that."""

Draw = Callable[[int], int]
"""A number from 0 to one less than given, in place of a random one."""


class NodeCards(NamedTuple):
    """Nodes and their cards, a row per node."""

    free: CardMatrix
    """Thousandths that are free on each card, 0 where a node has fewer cards."""
    size: Int64Column
    """How many cards the node has."""
    cpu_milli: Int64Column
    """What is free of its cpu."""
    models: Int64Column
    """The model of its cards, as :meth:`Workload.model_number`."""
    kinds: Int64Column
    """What kinds of pods hold its cards: a bit for each :func:`kind_of`."""

    def take(self, rows: NDArray[np.intp]) -> NodeCards:
        return NodeCards(*(column[rows] for column in self))


def kind_of(demand: Demand) -> int:
    """Pods that share a card are of one kind, those with as many whole cards each of another."""
    if not demand.cards:
        return 0
    return 1 if demand.milli < MILLI else 1 << min(demand.cards, 62)


def fits(nodes: NodeCards, demand: Demand) -> NDArray[np.bool_]:
    """Where enough cards have the share free, one share a card."""
    enough: NDArray[np.bool_] = (nodes.free >= demand.milli).sum(axis=1) >= demand.cards
    return enough if demand.cards else np.ones(len(nodes.size), np.bool_)


def fullest(free: list[int], demand: Demand) -> tuple[int, ...]:
    """The cards with the least left that suffices, the first ones of equals."""
    able = [card for card, left in enumerate(free) if left >= demand.milli]
    return tuple(sorted(sorted(able, key=free.__getitem__)[: demand.cards]))


class Policy(ABC):
    """One way to place pods on cards."""

    stretched: ClassVar[bool] = False
    """Whether scores are still to be stretched to 0 to 100, lowest to highest."""
    exact: ClassVar[bool] = False
    """Whether the best node is the one that was before that, rather than any that is as good after."""

    @abstractmethod
    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column: ...

    def choose(self, nodes: NodeCards, demand: Demand, draw: Draw) -> tuple[int, ...]:
        """The cards of the one node of ``nodes``, on which the pod fits: the fullest that do."""
        return fullest(nodes.free[0].tolist(), demand)


class Random(Policy):
    """All nodes are equally good, and all cards."""

    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        return np.zeros(len(nodes.size), np.int64)

    def choose(self, nodes: NodeCards, demand: Demand, draw: Draw) -> tuple[int, ...]:
        able = np.flatnonzero(nodes.free[0] >= demand.milli).tolist()
        return tuple(sorted(able.pop(draw(len(able))) for _ in range(demand.cards)))


class BestFit(Policy):
    """Where cpu and cards have the least left afterwards, as shares of the largest node's."""

    stretched = True

    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        cpu = (nodes.cpu_milli - demand.cpu_milli) * LARGEST_GPU_MILLI
        gpu = (nodes.free.sum(axis=1) - demand.total) * LARGEST_CPU_MILLI
        whole = 2 * LARGEST_CPU_MILLI * LARGEST_GPU_MILLI
        score: Int64Column = (whole - cpu - gpu) * MAX_NODE_SCORE // whole
        return score


class DotProduct(Policy):
    """The smaller the product of what is free and what is asked for, the better (Tetris, with the
    sign that the simulator gives it)."""

    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        cpu = nodes.cpu_milli * demand.cpu_milli
        gpu = nodes.free.sum(axis=1) * demand.total * (LARGEST_CPU_MILLI // LARGEST_GPU_MILLI) ** 2
        whole = 2 * LARGEST_CPU_MILLI**2 // MAX_NODE_SCORE
        score: Int64Column = MAX_NODE_SCORE - -(-(cpu + gpu) // whole)
        return np.maximum(score, 0)


class Clustering(Policy):
    """To pods of the same kind, the fuller the node the better."""

    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        kind = kind_of(demand)
        if not kind:
            return np.zeros(len(nodes.size), np.int64)
        quarter = MAX_NODE_SCORE // 4
        left = np.minimum(nodes.free.sum(axis=1), LARGEST_GPU_MILLI)
        full = quarter * (LARGEST_GPU_MILLI - left) // LARGEST_GPU_MILLI
        among_like = np.where(nodes.kinds == kind, 3, 2)
        among_others = np.where(nodes.kinds == 0, 1, 0)
        group = np.where(nodes.kinds & kind != 0, among_like, among_others)
        score: Int64Column = full + quarter * group
        return score


class Packing(Policy):
    """Cards in use before idle ones, and idle cards of nodes in use before idle nodes."""

    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        if not demand.cards:
            return np.zeros(len(nodes.size), np.int64)
        free = nodes.free
        idle = (free == MILLI).sum(axis=1)
        able = free >= demand.milli
        ranked = np.sort(np.where(able, free, MILLI + 1), axis=1)[:, : demand.cards]
        new = (ranked == MILLI).sum(axis=1)
        shared = MAX_NODE_SCORE - (ranked * 100 // MILLI).sum(axis=1) // 10
        shared = np.maximum(shared, MAX_NODE_SCORE // 2)
        opened = np.maximum(MAX_NODE_SCORE // 2 - new, MAX_NODE_SCORE // 3)
        fresh = np.maximum(MAX_NODE_SCORE // 3 - idle, idle)
        score: Int64Column = np.where(
            idle == nodes.size, fresh, np.where(new > 0, opened, shared)
        ).astype(np.int64)
        return score


class FragmentationDescent(Policy):
    """Where the node's fragmentation grows least (or shrinks most): FGD."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._steps = _logistic_steps(workload.size)

    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        return np.searchsorted(self._steps, self.gain(nodes, demand), side="right").astype(np.int64)

    def gain(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        """By how much fragmentation shrinks, with the best cards of each node."""
        before = self._workload.fragmentation(nodes.free, nodes.cpu_milli, nodes.models)
        after: Int64Column
        if demand.cards == 1 and demand.milli < MILLI:
            after = self._by_card(nodes, demand).min(axis=1)
            return before - after
        after = self._workload.fragmentation(
            _with_cards(nodes.free, demand), nodes.cpu_milli - demand.cpu_milli, nodes.models
        )
        return before - after

    def choose(self, nodes: NodeCards, demand: Demand, draw: Draw) -> tuple[int, ...]:
        if demand.cards == 1 and demand.milli < MILLI:
            # The simulator compares scores, not gains: the first of those that score alike.
            before = self._workload.fragmentation(nodes.free, nodes.cpu_milli, nodes.models)
            gains = before - self._by_card(nodes, demand)[0]
            scores = np.searchsorted(self._steps, gains, side="right")
            # A card that fits may score 0 as well.
            return (int(np.where(nodes.free[0] >= demand.milli, scores, -1).argmax()),)
        return super().choose(nodes, demand, draw)

    def _by_card(self, nodes: NodeCards, demand: Demand) -> NDArray[np.int64]:
        """Fragmentation with the share on each card; more than any where it does not fit."""
        cpu_milli = nodes.cpu_milli - demand.cpu_milli
        after = self._workload.with_share(nodes.free, cpu_milli, nodes.models, demand.milli)
        return np.where(nodes.free >= demand.milli, after, np.iinfo(np.int64).max // 2)


class AlignedDescent(FragmentationDescent):
    """FGD in coarser steps, and among nodes that are alike in that, the one whose free cpu and cards
    stand in the ratio most like the pod's."""

    stretched = exact = True

    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        steps = self.gain(nodes, demand) // (ALIGNED_STEP_MILLI * self._workload.size)
        return steps * _LIMIT + _alignment(nodes, demand)


ALIGNED_STEP_MILLI: Final = 80
_LIMIT: Final = 1 << 30


def _alignment(nodes: NodeCards, demand: Demand) -> Int64Column:
    """How little cpu would be left over, or short, were the rest of a node's cards given to pods like
    this one. To pods without cards all are alike."""
    if not demand.cards:
        return np.zeros(len(nodes.size), np.int64)
    fitting_cpu_milli = nodes.free.sum(axis=1) * demand.cpu_milli // demand.total
    apart = np.abs(nodes.cpu_milli - fitting_cpu_milli)
    liking: Int64Column = np.maximum(_LIMIT - 1 - apart, 0)
    return liking


def _with_cards(free: CardMatrix, demand: Demand) -> CardMatrix:
    """What is left when the share is taken of the fullest cards that suffice."""
    if not demand.cards:
        return free
    order = np.argsort(np.where(free >= demand.milli, free, MILLI + 1), axis=1, kind="stable")
    left: CardMatrix = free.copy()
    chosen = order[:, : demand.cards]
    taken = np.take_along_axis(free, chosen, axis=1) - demand.milli
    np.put_along_axis(left, chosen, taken, axis=1)
    return left


def _logistic_steps(size: int) -> NDArray[np.int64]:
    """The gains at which ``int(100 * sigmoid(gain in cards))`` grows by one, worked out in decimals,
    so that they are the same on every machine."""
    with localcontext() as context:
        context.prec = 30
        steps = []
        for score in range(1, MAX_NODE_SCORE):
            part = Decimal(score) / MAX_NODE_SCORE
            steps.append(math.ceil((part / (1 - part)).ln() * size * MILLI))
    return np.array(steps, np.int64)
