"""A bounded log that readers follow at their own pace.

Counts by row that tell what moved lately, so that nobody need compare columns to find out.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np

from asched.framework.nodes import Int64Column

T = TypeVar("T")


class ChangeLog(Generic[T]):
    """The latest changes, in order. Each reader keeps its own cursor; one that fell behind the log's
    memory is told so and starts afresh."""

    __slots__ = ("_entries", "_most", "_start", "cursor")

    def __init__(self, most: int = 256) -> None:
        """``most``: how many changes it remembers, or half of that right after it forgot the older
        half."""
        self._most = most
        self._entries: list[T] = []
        self._start = 0
        self.cursor = 0
        """The present end."""

    def append(self, entry: T) -> None:
        self._entries.append(entry)
        self.cursor += 1
        if len(self._entries) > self._most:
            drop = self._most // 2
            del self._entries[:drop]
            self._start += drop

    def forget(self) -> None:
        """So much changed that every reader has to start afresh."""
        self._entries.clear()
        self.cursor += 1
        self._start = self.cursor

    def since(self, cursor: int) -> list[T] | None:
        """The changes after ``cursor``; None where that is too long ago."""
        start = cursor - self._start
        return None if start < 0 else self._entries[start:]


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
