"""Counts by row that tell what moved lately, so that nobody need compare columns to find out."""

from __future__ import annotations

import numpy as np

from asched.framework.change_log import ChangeLog
from asched.framework.nodes import Int64Column


class RowCounts:
    """How many pods of some kind each row's node has. Only whoever counts them moves it."""

    __slots__ = ("column", "moves")

    def __init__(self, column: Int64Column | None = None) -> None:
        self.column: Int64Column = np.zeros(0, np.int64) if column is None else column
        """By row; read-only for everybody else, and valid until the next move."""
        self.moves: ChangeLog[tuple[int, int]] = ChangeLog()
        """Rows, and by how much their counts changed."""

    def move(self, row: int, difference: int) -> None:
        self.column[row] += difference
        self.moves.append((row, difference))

    def resize(self, size: int) -> None:
        """Rows were added, which have none."""
        if len(self.column) != size:
            longer = np.zeros(size, np.int64)
            longer[: len(self.column)] = self.column
            self.column = longer

    def begin(self, size: int) -> None:
        """Count afresh, from zero."""
        self.column = np.zeros(size, np.int64)
        self.moves.forget()
