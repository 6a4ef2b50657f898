"""Policies: score nodes for a pod that requests cards, and select its cards.

They are those of "Beware of Fragmentation" (USENIX ATC'23) and its simulator. Constants and
rounding are equal too, because they determine ties. Scores are integers, higher is better, and
valid only for nodes on which the pod fits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asched.framework import MAX_NODE_SCORE, Int64Column
from asched_gpu.demand import MILLI, Demand
from asched_gpu.workload import CardMatrix, Workload

LARGEST_CPU_MILLI: Final = 128_000
LARGEST_GPU_MILLI: Final = 8_000
"""The largest node of the trace, to which amounts are relative."""

Draw = Callable[[int], int]
"""Returns a pseudo-random number from 0 to ``n - 1``."""


class NodeCards(NamedTuple):
    """Nodes with their cards, one row per node."""

    free: CardMatrix
    """Free thousandths of each card; 0 for missing cards."""
    size: Int64Column
    """Number of cards."""
    cpu_milli: Int64Column
    """Free cpu."""
    models: Int64Column
    """The card model, as :meth:`Workload.model_number`."""
    kinds: Int64Column
    """The kinds of pods that use its cards: a bit for each :func:`kind_of`."""

    def take(self, rows: NDArray[np.intp]) -> NodeCards:
        return NodeCards(*(column[rows] for column in self))


def kind_of(demand: Demand) -> int:
    """The kind of a pod: one for shares of cards, one for each number of whole cards."""
    if not demand.cards:
        return 0
    return 1 if demand.milli < MILLI else 1 << min(demand.cards, 62)


def fits(nodes: NodeCards, demand: Demand) -> NDArray[np.bool_]:
    """Where enough cards have the requested share free."""
    enough: NDArray[np.bool_] = (nodes.free >= demand.milli).sum(axis=1) >= demand.cards
    return enough if demand.cards else np.ones(len(nodes.size), np.bool_)


def fullest(free: list[int], demand: Demand) -> tuple[int, ...]:
    """The cards with the least sufficient free share; the first ones in case of ties."""
    able = [card for card, left in enumerate(free) if left >= demand.milli]
    return tuple(sorted(sorted(able, key=free.__getitem__)[: demand.cards]))


class Policy(ABC):
    """A policy for nodes and cards."""

    stretched: ClassVar[bool] = False
    """Whether normalization maps the lowest and highest score to 0 and 100."""
    exact: ClassVar[bool] = False
    """Whether the best node is determined before normalization."""

    @abstractmethod
    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column: ...

    def choose(self, nodes: NodeCards, demand: Demand, draw: Draw) -> tuple[int, ...]:
        """The cards for the pod on the single node of ``nodes``. Default: :func:`fullest`."""
        return fullest(nodes.free[0].tolist(), demand)


class Random(Policy):
    """Random nodes and cards."""

    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        return np.zeros(len(nodes.size), np.int64)

    def choose(self, nodes: NodeCards, demand: Demand, draw: Draw) -> tuple[int, ...]:
        able = np.flatnonzero(nodes.free[0] >= demand.milli).tolist()
        return tuple(sorted(able.pop(draw(len(able))) for _ in range(demand.cards)))


class BestFit(Policy):
    """Prefers nodes with the least cpu and cards left, relative to the largest node."""

    stretched = True

    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        cpu = (nodes.cpu_milli - demand.cpu_milli) * LARGEST_GPU_MILLI
        gpu = (nodes.free.sum(axis=1) - demand.total) * LARGEST_CPU_MILLI
        whole = 2 * LARGEST_CPU_MILLI * LARGEST_GPU_MILLI
        score: Int64Column = (whole - cpu - gpu) * MAX_NODE_SCORE // whole
        return score


class DotProduct(Policy):
    """Prefers a small dot product of free and requested amounts (Tetris, with the simulator's
    sign)."""

    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        cpu = nodes.cpu_milli * demand.cpu_milli
        gpu = nodes.free.sum(axis=1) * demand.total * (LARGEST_CPU_MILLI // LARGEST_GPU_MILLI) ** 2
        whole = 2 * LARGEST_CPU_MILLI**2 // MAX_NODE_SCORE
        score: Int64Column = MAX_NODE_SCORE - -(-(cpu + gpu) // whole)
        return np.maximum(score, 0)


class Clustering(Policy):
    """Prefers nodes with pods of the same kind, then fuller nodes."""

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
    """Prefers used cards to idle cards, and idle cards of used nodes to idle nodes."""

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
    """Prefers the smallest growth of fragmentation: FGD."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._steps = _logistic_steps(workload.size)

    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        return np.searchsorted(self._steps, self.gain(nodes, demand), side="right").astype(np.int64)

    def gain(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        """The decrease of fragmentation, with the best cards of each node."""
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
            # The simulator compares scores, not gains, and takes the first of equal scores.
            before = self._workload.fragmentation(nodes.free, nodes.cpu_milli, nodes.models)
            gains = before - self._by_card(nodes, demand)[0]
            scores = np.searchsorted(self._steps, gains, side="right")
            # A card that fits may also score 0.
            return (int(np.where(nodes.free[0] >= demand.milli, scores, -1).argmax()),)
        return super().choose(nodes, demand, draw)

    def _by_card(self, nodes: NodeCards, demand: Demand) -> NDArray[np.int64]:
        """Fragmentation with the share on each card; very large if the share does not fit."""
        cpu_milli = nodes.cpu_milli - demand.cpu_milli
        after = self._workload.with_share(nodes.free, cpu_milli, nodes.models, demand.milli)
        return np.where(nodes.free >= demand.milli, after, np.iinfo(np.int64).max // 2)


class AlignedDescent(FragmentationDescent):
    """FGD in coarser steps. Ties are broken by how well the ratio of free cpu to free cards matches
    the pod's request."""

    stretched = exact = True

    def score(self, nodes: NodeCards, demand: Demand) -> Int64Column:
        steps = self.gain(nodes, demand) // (ALIGNED_STEP_MILLI * self._workload.size)
        return steps * _LIMIT + _alignment(nodes, demand)


ALIGNED_STEP_MILLI: Final = 80
_LIMIT: Final = 1 << 30


def _alignment(nodes: NodeCards, demand: Demand) -> Int64Column:
    """How little cpu would be left over, or missing, if equal pods used all free cards of the node.
    Constant for pods without cards."""
    if not demand.cards:
        return np.zeros(len(nodes.size), np.int64)
    fitting_cpu_milli = nodes.free.sum(axis=1) * demand.cpu_milli // demand.total
    apart = np.abs(nodes.cpu_milli - fitting_cpu_milli)
    alignment: Int64Column = np.maximum(_LIMIT - 1 - apart, 0)
    return alignment


def _with_cards(free: CardMatrix, demand: Demand) -> CardMatrix:
    """The free shares after the request is taken from the :func:`fullest` cards."""
    if not demand.cards:
        return free
    order = np.argsort(np.where(free >= demand.milli, free, MILLI + 1), axis=1, kind="stable")
    left: CardMatrix = free.copy()
    chosen = order[:, : demand.cards]
    taken = np.take_along_axis(free, chosen, axis=1) - demand.milli
    np.put_along_axis(left, chosen, taken, axis=1)
    return left


def _logistic_steps(size: int) -> NDArray[np.int64]:
    """The gains at which ``int(100 * sigmoid(gain in cards))`` grows by one. Computed in decimals,
    so that they are equal on every machine."""
    with localcontext() as context:
        context.prec = 30
        steps = []
        for score in range(1, MAX_NODE_SCORE):
            part = Decimal(score) / MAX_NODE_SCORE
            steps.append(math.ceil((part / (1 - part)).ln() * size * MILLI))
    return np.array(steps, np.int64)
