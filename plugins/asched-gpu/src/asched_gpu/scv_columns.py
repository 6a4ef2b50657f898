"""The Scv reports of nodes as columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asched.framework import BoolColumn, Cluster, Int64Column, Nodes, PodInfo
from asched_gpu.scv import HEALTHY, Card, Scv

MEMORY_LABEL: Final = "scv/memory"

Cards = NDArray[np.int64]
"""A value of each card, one row per node; 0 for missing cards."""

_FREE_MEMORY, _TOTAL_MEMORY, _CLOCK, _CORE, _BANDWIDTH, _POWER, _HEALTH, _THERE = range(8)


def whole(text: str | None) -> int:
    """The number in a label; 0 if it is invalid, as ``strconv.Atoi`` with an ignored error. A
    negative number becomes a huge one, as in a conversion to an unsigned integer in Go."""
    digits = (text or "").removeprefix("+")
    negative = digits.startswith("-")
    if not (digits := digits.removeprefix("-")).isascii() or not digits.isdecimal():
        return 0
    number = int(digits)
    if number >= 1 << 62:
        return 0
    return (1 << 62) if negative and number else number


class Reports(NamedTuple):
    """The reports of some nodes, one row per node."""

    known: BoolColumn
    """Whether the node has a report."""
    card_number: Int64Column
    free_memory: Int64Column
    total_memory: Int64Column
    allocated: Int64Column
    """Memory that the pods on the node request by label."""
    cards: NDArray[np.int64]
    """Values by node, card and field, for the properties."""

    @property
    def card_free_memory(self) -> Cards:
        return self.cards[:, :, _FREE_MEMORY]

    @property
    def card_total_memory(self) -> Cards:
        return self.cards[:, :, _TOTAL_MEMORY]

    @property
    def clock(self) -> Cards:
        return self.cards[:, :, _CLOCK]

    @property
    def core(self) -> Cards:
        return self.cards[:, :, _CORE]

    @property
    def bandwidth(self) -> Cards:
        return self.cards[:, :, _BANDWIDTH]

    @property
    def power(self) -> Cards:
        return self.cards[:, :, _POWER]

    @property
    def healthy(self) -> NDArray[np.bool_]:
        return self.cards[:, :, _HEALTH] > 0

    @property
    def there(self) -> NDArray[np.bool_]:
        """Whether the card exists."""
        return self.cards[:, :, _THERE] > 0


class ScvColumns:
    """Reports by row of the cluster's nodes, cached."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version = self._layout = -1
        self._shown: list[Scv | None] = []
        self._stamps = np.zeros(0, np.int64)
        self._numbers = np.zeros((0, 4), np.int64)
        """Card number, free and total memory, allocated memory."""
        self._cards = np.zeros((0, 1, 8), np.int64)

    def of(self, nodes: Nodes) -> Reports:
        """The reports of these nodes, which may be hypothetical."""
        self._refresh()
        rows = nodes.align(np.arange(len(self._stamps)))
        numbers = self._numbers[rows]
        for row in nodes.modified_rows:
            numbers[row, 3] = allocated(nodes.pods(row))
        known = np.array([self._shown[row] is not None for row in rows.tolist()], np.bool_)
        card_number, free_memory, total_memory, requested = numbers.T
        return Reports(known, card_number, free_memory, total_memory, requested, self._cards[rows])

    def all(self) -> Reports:
        return self.of(self._cluster.nodes)

    def _refresh(self) -> None:
        nodes, stamps = self._cluster.nodes, self._cluster.row_stamps
        self._grow(len(stamps))
        for row in np.flatnonzero(self._stamps != stamps).tolist():
            self._numbers[row, 3] = allocated(nodes.pods(row))
        version = self._cluster.objects_version(Scv)
        if version == self._version and nodes.version == self._layout:
            self._stamps[:] = stamps
            return
        scvs = self._cluster.objects(Scv)
        for row, name in enumerate(nodes.names):
            scv = scvs.get(name)
            if scv is not self._shown[row]:
                self._enter(row, scv)
        self._stamps[:] = stamps
        self._version, self._layout = version, nodes.version

    def _enter(self, row: int, scv: Scv | None) -> None:
        self._shown[row] = scv
        self._cards[row] = 0
        self._numbers[row, :3] = 0
        if scv is None:
            return
        status = scv.status
        self._numbers[row, :3] = (
            status.card_number,
            status.free_memory_sum,
            status.total_memory_sum,
        )
        missing = len(status.card_list) - self._cards.shape[1]
        if missing > 0:
            more = np.zeros((len(self._cards), missing, 8), np.int64)
            self._cards = np.concatenate([self._cards, more], axis=1)
        if status.card_list:
            self._cards[row, : len(status.card_list)] = [*map(_numbers, status.card_list)]

    def _grow(self, size: int) -> None:
        missing = size - len(self._stamps)
        if missing <= 0:
            return
        self._shown += [None] * missing
        self._stamps = np.concatenate([self._stamps, np.full(missing, -1, np.int64)])
        self._numbers = np.concatenate([self._numbers, np.zeros((missing, 4), np.int64)])
        more = np.zeros((missing, *self._cards.shape[1:]), np.int64)
        self._cards = np.concatenate([self._cards, more])


def allocated(pods: Iterable[PodInfo]) -> int:
    """The memory that pods request by label. As in Yoda, each pod counts once."""
    return sum(whole(pod.labels.get(MEMORY_LABEL)) for pod in pods)


def _numbers(card: Card) -> tuple[int, ...]:
    return (
        card.free_memory,
        card.total_memory,
        card.clock,
        card.core,
        card.bandwidth,
        card.power,
        int(card.health == HEALTHY),
        1,
    )
