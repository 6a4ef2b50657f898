"""Fills the columns of all rows of a node table at once, for a table that is restored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from asched.framework.nodes import Int64Column, RowArray
from asched.framework.pod_info import PodInfo, PodShape
from asched.model.node import Node
from asched.model.quantity import QuantityText, saturated
from asched.model.requests import PODS, amounts
from asched.state.node_columns import NodeColumns

_SAFE: Final = 1 << 62
"""Sums below this cannot leave 64 bits."""


class _PodRows(NamedTuple):
    """The pods of a table in columns."""

    rows: RowArray
    shapes: RowArray
    """The number of each pod's shape."""
    distinct: Sequence[PodShape]
    """By number."""
    most: int
    """The highest number of pods on a row."""

    def amounts(self, amount: Callable[[PodShape], int]) -> Int64Column:
        """An amount of each pod."""
        return np.array([amount(shape) for shape in self.distinct], np.int64)[self.shapes]

    def add(self, column: Int64Column, amount: Callable[[PodShape], int]) -> None:
        """Add the sum of each row to a column of zeros, saturated at 64 bits."""
        amounts = self.amounts(amount)
        if max(map(abs, map(amount, self.distinct)), default=0) * self.most < _SAFE:
            np.add.at(column, self.rows, amounts)
            return
        totals: Counter[int] = Counter()
        for row, number in zip(self.rows.tolist(), amounts.tolist(), strict=True):
            totals[row] += number
        for row, total in totals.items():
            column[row] = saturated(total)


def add_all(
    columns: NodeColumns, row_ends: Sequence[int], pods: Sequence[PodInfo]
) -> Iterable[PodShape]:
    """Count pods in rows without pods, and return their shapes. Those of row ``n`` are
    ``pods[row_ends[n - 1]:row_ends[n]]``."""
    if not pods:
        return ()
    of_pods = [pod.shape for pod in pods]
    numbers = {shape: number for number, shape in enumerate(dict.fromkeys(of_pods))}
    shapes = np.fromiter(map(numbers.__getitem__, of_pods), np.intp, len(of_pods))
    ends = np.array(row_ends, np.int64)
    counts = ends.copy()
    counts[1:] -= ends[:-1]
    rows = np.repeat(np.arange(len(row_ends), dtype=np.intp), counts)
    table = _PodRows(rows, shapes, tuple(numbers), int(counts.max()))
    columns.pod_count[: len(counts)] += counts
    for name in _resources(table.distinct):
        _add_resource(columns, table, name)
    table.add(columns.scoring_cpu_milli, lambda shape: shape.scoring_cpu_milli)
    table.add(columns.scoring_memory_bytes, lambda shape: shape.scoring_memory_bytes)
    return numbers


def offer_all(columns: NodeColumns, placed: Iterable[tuple[int, Node]]) -> None:
    """What nodes offer, in rows without a node."""
    # Most nodes offer the same.
    alike: dict[tuple[tuple[str, QuantityText], ...], list[int]] = {}
    for row, node in placed:
        alike.setdefault(tuple(node.status.allocatable.items()), []).append(row)
    for texts, rows in alike.items():
        offered = amounts(dict(texts))
        for name, number in offered.items():
            columns.offer(name, len(rows))[rows] = number
        columns.allowed_pods[rows] = offered.get(PODS, 0)


def _resources(shapes: Iterable[PodShape]) -> list[str]:
    """What at least one shape requests."""
    requested = (name for shape in shapes for name, number in shape.requests.items() if number)
    return [*dict.fromkeys(requested)]


def _add_resource(columns: NodeColumns, table: _PodRows, name: str) -> None:
    if name in columns.allocatable:
        column = columns.resource(columns.requested, name)
        table.add(column, lambda shape: shape.requests.get(name, 0))
        return
    amounts = table.amounts(lambda shape: shape.requests.get(name, 0))
    for place in np.flatnonzero(amounts).tolist():
        columns.unoffered.add(name, int(table.rows[place]), int(amounts[place]))
