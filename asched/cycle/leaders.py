"""The nodes with the highest total, kept while totals change one by one.

With each placement one node's total changes, and mostly it was one of the best and is no more: then
there is one best node less, and nobody need look at all of them.
"""

from __future__ import annotations

import numpy as np

from asched.cycle.lottery import Best
from asched.framework.change_log import ChangeLog
from asched.framework.nodes import Int64Column, RowArray


def highest(totals: Int64Column) -> Best:
    """The rows with the highest of these totals. There must be one."""
    # Half the time that max() takes.
    score = totals.item(totals.argmax())
    mask = totals == score
    return Best(score, mask, int(np.count_nonzero(mask)))


class Leaders:
    """A column of totals and the best of its rows."""

    __slots__ = ("_best", "moved", "totals")

    def __init__(self, totals: Int64Column) -> None:
        self.totals = totals
        """By row. To be changed by :meth:`set` and :meth:`set_many` alone."""
        self.moved: ChangeLog[int] = ChangeLog()
        """Rows whose total became another one."""
        self._best: Best | None = None

    def set(self, row: int, total: int) -> None:
        """The row's total is another one now."""
        totals, best = self.totals, self._best
        before = totals.item(row)
        if total == before:
            return
        totals[row] = total
        self.moved.append(row)
        if best is None:
            return
        if total > best.score or (before == best.score and best.count == 1):
            self._best = None
        elif total == best.score:
            best.mask[row] = True
            best.count += 1
        elif before == best.score:
            best.mask[row] = False
            best.count -= 1

    def set_many(self, rows: RowArray, totals: Int64Column) -> None:
        """These rows have other totals now, so many that it is not worth telling which."""
        self.totals[rows] = totals
        self._best = None
        self.moved.forget()

    @property
    def best(self) -> Best:
        """Good until the next change. There must be a row with a total."""
        if self._best is None:
            self._best = highest(self.totals)
        return self._best
