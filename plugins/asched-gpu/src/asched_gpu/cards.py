"""Free shares of the cards of each node, as columns that are updated with the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np

from asched.framework import Cluster, Nodes, PodInfo
from asched_gpu.demand import (
    GPU_INDEX,
    GPU_MILLI,
    GPU_MODEL,
    MILLI,
    DemandError,
    demand_of,
    index_of,
)
from asched_gpu.policies import NodeCards, kind_of

CPU: Final = "cpu"


class AssignedCards:
    """The cards assigned to pods, from the decision until the pod is deleted."""

    def __init__(self) -> None:
        self._cards: dict[str, tuple[int, ...]] = {}

    def add(self, uid: str, cards: tuple[int, ...]) -> None:
        self._cards[uid] = cards

    def remove(self, uid: str) -> None:
        self._cards.pop(uid, None)

    def get(self, uid: str) -> tuple[int, ...] | None:
        return self._cards.get(uid)

    def cards_of(self, pod: PodInfo) -> tuple[int, ...] | None:
        """The cards in the pod's annotation, else those that were decided; None if unknown."""
        text = pod.shape.annotations.get(GPU_INDEX)
        annotated = index_of(text) if text is not None else None
        return self._cards.get(pod.uid) if annotated is None else annotated


def free_of(count: int, pods: Iterable[PodInfo], assigned: AssignedCards) -> tuple[list[int], int]:
    """Free thousandths of each card of a node, and the kinds of the pods that use cards.

    If the cards of a pod are unknown, its share counts on each card, so that no card is assigned
    twice. A pod with an invalid request leaves no card free.
    """
    free, kinds = [MILLI] * count, 0
    for pod in pods:
        if GPU_MILLI not in pod.shape.requests:
            continue
        try:
            demand = demand_of(pod.shape)
        except DemandError:
            return [0] * count, kinds
        kinds |= kind_of(demand)
        cards = assigned.cards_of(pod)
        if cards is None or len(cards) != demand.cards or max(cards, default=0) >= count:
            cards = tuple(range(count))
        for card in cards:
            free[card] -= demand.milli
    return [max(0, left) for left in free], kinds


class CardTable:
    """The cards of all nodes, cached: derived from the cluster and the assigned cards."""

    def __init__(
        self, cluster: Cluster, assigned: AssignedCards, number: Callable[[str], int]
    ) -> None:
        """``number`` maps a card model to a number."""
        self._cluster = cluster
        self._assigned = assigned
        self._number = number
        self._stamps = np.zeros(0, np.int64)
        self._free = np.zeros((0, 1), np.int64)
        self._count, self._models, self._kinds = (np.zeros(0, np.int64) for _ in range(3))

    def of(self, nodes: Nodes) -> NodeCards:
        """The cards of these nodes, which may be hypothetical; read-only."""
        self._refresh()
        cpu_milli = nodes.allocatable(CPU) - nodes.requested(CPU)
        if nodes is self._cluster.nodes:
            return NodeCards(self._free, self._count, cpu_milli, self._models, self._kinds)
        rows = nodes.align(np.arange(len(self._stamps)))
        free, kinds = self._free[rows], self._kinds[rows]
        for row in nodes.modified_rows:
            count = int(self._count[rows[row]])
            left, kinds[row] = free_of(count, nodes.pods(row), self._assigned)
            free[row, :count] = left
        return NodeCards(free, self._count[rows], cpu_milli, self._models[rows], kinds)

    def _refresh(self) -> None:
        stamps, nodes = self._cluster.row_stamps, self._cluster.nodes
        missing = len(stamps) - len(self._stamps)
        if missing > 0:
            self._grow(missing)
        stale = np.flatnonzero(self._stamps != stamps).tolist()
        if not stale:
            return
        counts = nodes.allocatable(GPU_MILLI) // MILLI
        self._widen(int(counts.max(initial=0)))
        models = nodes.label(GPU_MODEL)
        for row in stale:
            count = int(counts[row])
            self._count[row] = count
            number = int(models.ids[row])
            self._models[row] = self._number(models.word(number) if number >= 0 else "")
            self._free[row] = 0
            left, self._kinds[row] = free_of(count, nodes.pods(row), self._assigned)
            self._free[row, :count] = left
        self._stamps[stale] = stamps[stale]

    def _grow(self, rows: int) -> None:
        self._stamps = np.concatenate([self._stamps, np.full(rows, -1, np.int64)])
        more = np.zeros((rows, self._free.shape[1]), np.int64)
        self._free = np.concatenate([self._free, more])
        self._count, self._models, self._kinds = (
            np.concatenate([column, np.zeros(rows, np.int64)])
            for column in (self._count, self._models, self._kinds)
        )

    def _widen(self, cards: int) -> None:
        missing = cards - self._free.shape[1]
        if missing > 0:
            more = np.zeros((len(self._free), missing), np.int64)
            self._free = np.concatenate([self._free, more], axis=1)


def reservation_of(cards: tuple[int, ...]) -> dict[str, list[int]]:
    """The reservation that records the cards with a decision."""
    return {"cards": [*cards]}


def cards_from(reservation: Mapping[str, list[int]]) -> tuple[int, ...]:
    return tuple(reservation["cards"])
