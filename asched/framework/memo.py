"""A memory of bounded size for answers that cost something to work out again.

What was found out about rows, for as long as nothing about them changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np

from asched.framework.nodes import BoolColumn, Int64Column, RowArray

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Answers by question; the one not asked for the longest goes when there are too many."""

    __slots__ = ("_answers", "_most")

    def __init__(self, most: int) -> None:
        self._answers: OrderedDict[K, V] = OrderedDict()
        self._most = most

    def get(self, question: K, work_out: Callable[[], V]) -> V:
        """The remembered answer, or the one that ``work_out`` gives now."""
        try:
            answer = self._answers[question]
        except KeyError:
            answer = self._answers[question] = work_out()
            if len(self._answers) > self._most:
                self._answers.popitem(last=False)
            return answer
        self._answers.move_to_end(question)
        return answer

    def clear(self) -> None:
        self._answers.clear()


class RowMemo(Generic[V]):
    """One answer a row, good while the row's stamp (``Cluster.row_stamps``) is what it was.

    Memory, not state: forgetting all of it changes no decision.
    """

    __slots__ = ("_answers", "_stamps")

    def __init__(self) -> None:
        self._answers: dict[int, V] = {}
        self._stamps: Int64Column = np.zeros(0, np.int64)

    def stale(self, rows: RowArray, stamps: Int64Column) -> RowArray:
        """Those of ``rows`` for which there is no answer, or none that is still good."""
        return rows[self.is_stale(rows, stamps)]

    def is_stale(self, rows: RowArray, stamps: Int64Column) -> BoolColumn:
        """For each of ``rows`` whether there is no answer, or none that is still good."""
        missing = len(stamps) - len(self._stamps)
        if missing > 0:
            self._stamps = np.concatenate([self._stamps, np.full(missing, -1, np.int64)])
        changed: BoolColumn = self._stamps[rows] != stamps[rows]
        return changed

    def put(self, row: int, stamp: int, answer: V) -> None:
        """Keep an answer. The row was asked for by :meth:`stale`."""
        self._answers[row] = answer
        self._stamps[row] = stamp

    def get(self, row: int) -> V:
        """The answer of a row that is not stale."""
        return self._answers[row]
