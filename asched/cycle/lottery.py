"""The draw among equally good nodes.

kube-scheduler draws at random here. Ours is a lottery that a replay repeats: the same for the same
seed, pod, attempt and names of nodes, whatever rows the nodes are in. Each node holds a ticket, made of
its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from asched.framework.nodes import BoolColumn, RowArray, TicketColumn
from asched.framework.scoring import draw
from asched.state.records import Lottery


@dataclass(slots=True)
class BestNodes:
    """The nodes with the highest score."""

    score: int
    mask: BoolColumn
    """By row: whether it is one of them."""
    count: int
    """How many they are."""

    @property
    def rows(self) -> RowArray:
        """Ascending."""
        return np.flatnonzero(self.mask)


class TieBreakKeys(Protocol):
    """The tickets of all nodes."""

    @property
    def tickets(self) -> TicketColumn:
        """By row."""

    @property
    def by_ticket(self) -> RowArray:
        """The rows of nodes in order of their tickets."""


_FEW = 16
"""With fewer than one in so many among the best, drawing from all takes too long."""
_DRAWS = 64


def choose(
    best: BestNodes,
    table: TieBreakKeys,
    seed: int,
    uid: str,
    attempt: int,
    how: Lottery = Lottery.SAMPLE,
) -> int:
    """The row of one of the best nodes."""
    if best.count == 1:
        return int(best.mask.argmax())
    first = draw(seed, f"{uid}/{attempt}", 2**64)
    if how is Lottery.SAMPLE:
        row = _sampled(best, table.by_ticket, first)
        if row is not None:
            return row
    return _shuffled(best.rows, table.tickets, first)


def _sampled(best: BestNodes, order: RowArray, number: int) -> int | None:
    """The first of the best among so many drawn from all; None where there was none.

    Each has the same chance, as every draw is from all.
    """
    nodes, is_best = len(order), best.mask.item
    if best.count * _FEW < nodes:
        return None
    for _ in range(_DRAWS):
        row: int = order.item(number * nodes >> 64)
        if is_best(row):
            return row
        number = _mixed(number + _GOLDEN)
    return None


# SplitMix64 (Steele, Lea, Flood 2014): every bit of what comes out depends on every bit that goes in.
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = 2**64 - 1


def _mixed(number: int) -> int:
    number &= _BITS
    number = (number ^ (number >> 30)) * _FIRST & _BITS
    number = (number ^ (number >> 27)) * _SECOND & _BITS
    return number ^ (number >> 31)


def _shuffled(rows: RowArray, tickets: TicketColumn, number: int) -> int:
    shuffled = tickets[rows] ^ np.uint64(number)
    shuffled = (shuffled ^ (shuffled >> np.uint64(30))) * np.uint64(_FIRST)
    shuffled = (shuffled ^ (shuffled >> np.uint64(27))) * np.uint64(_SECOND)
    return int(rows[np.argmin(shuffled ^ (shuffled >> np.uint64(31)))])
