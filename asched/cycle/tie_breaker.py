"""Tie-breaking among the nodes with the highest score.

kube-scheduler picks one of them at random. Here the pick is a function of the seed, the pod, the
attempt and the names of the nodes, so a replay picks the same node, whatever rows the nodes occupy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from asched.framework.nodes import BoolColumn, RowArray, TieBreakColumn
from asched.framework.scoring import stable_random


@dataclass(slots=True)
class BestNodes:
    """The nodes with the highest score."""

    score: int
    mask: BoolColumn
    """By row: whether the node is one of them."""
    count: int

    @property
    def rows(self) -> RowArray:
        """Ascending."""
        return np.flatnonzero(self.mask)


class TieBreakKeys(Protocol):
    """A pseudorandom key of each node, derived from its name."""

    @property
    def tie_break_keys(self) -> TieBreakColumn:
        """By row."""

    @property
    def by_tie_break_key(self) -> RowArray:
        """Rows of nodes, sorted by key."""


_MAX_NODES_PER_BEST = 16
"""Rejection sampling is used only if at least one node in 16 is among the best."""
_MAX_SAMPLES = 64


def select_node(best: BestNodes, nodes: TieBreakKeys, seed: int, uid: str, attempt: int) -> int:
    """The row of one of the best nodes, each with the same probability."""
    if best.count == 1:
        return int(best.mask.argmax())
    number = stable_random(seed, f"{uid}/{attempt}", 2**64)
    row = _sample(best, nodes.by_tie_break_key, number)
    return _lowest_key(best.rows, nodes.tie_break_keys, number) if row is None else row


def _sample(best: BestNodes, order: RowArray, number: int) -> int | None:
    """Draw from all nodes until one of the best comes up; None if they are too few for that."""
    nodes, is_best = len(order), best.mask.item
    if best.count * _MAX_NODES_PER_BEST < nodes:
        return None
    for _ in range(_MAX_SAMPLES):
        row: int = order.item(number * nodes >> 64)
        if is_best(row):
            return row
        number = _mix(number + _GOLDEN)
    return None


# SplitMix64 (Steele, Lea, Flood 2014): each output bit depends on every input bit.
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = 2**64 - 1


def _mix(number: int) -> int:
    number &= _BITS
    number = (number ^ (number >> 30)) * _FIRST & _BITS
    number = (number ^ (number >> 27)) * _SECOND & _BITS
    return number ^ (number >> 31)


def _lowest_key(rows: RowArray, keys: TieBreakColumn, number: int) -> int:
    """The row with the lowest key after mixing ``number`` into each."""
    mixed = keys[rows] ^ np.uint64(number)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
    return int(rows[np.argmin(mixed ^ (mixed >> np.uint64(31)))])
