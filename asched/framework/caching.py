"""Building blocks for answers that are cached and updated incrementally.

None of this is cluster state: dropping a cache changes no decision.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import count
from typing import Generic, TypeVar

import numpy as np

from asched.framework.nodes import BoolColumn, Int64Column, RowArray

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_numbers = count(1)


class ChangeLog(Generic[T]):
    """A bounded log of changes. Each reader keeps its own cursor."""

    __slots__ = ("_entries", "_most", "_start", "cursor")

    def __init__(self, most: int = 256) -> None:
        """``most``: the log drops its older half when it grows beyond this."""
        self._most = most
        self._entries: list[T] = []
        self._start = 0
        self.cursor = 0
        """The current end of the log."""

    def append(self, entry: T) -> None:
        self._entries.append(entry)
        self.cursor += 1
        if len(self._entries) > self._most:
            drop = self._most // 2
            del self._entries[:drop]
            self._start += drop

    def trim(self, keep: int) -> None:
        """Drop all but the last ``keep`` changes."""
        drop = len(self._entries) - keep
        if drop > 0:
            del self._entries[:drop]
            self._start += drop

    def forget(self) -> None:
        """Drop all changes: every reader has to start over."""
        self._entries.clear()
        self.cursor += 1
        self._start = self.cursor

    def since(self, cursor: int) -> list[T] | None:
        """The changes after ``cursor``; None if they are no longer in the log."""
        start = cursor - self._start
        return None if start < 0 else self._entries[start:]


class RowCounts:
    """The number of pods of some kind by row, with a log of changes. Only its owner changes it."""

    __slots__ = ("column", "moves", "number")

    def __init__(self, column: Int64Column | None = None) -> None:
        self.number = next(_numbers)
        """Unique within the process."""
        self.column: Int64Column = np.zeros(0, np.int64) if column is None else column
        """By row; read-only, and valid until the next change."""
        self.moves: ChangeLog[tuple[int, int]] = ChangeLog()
        """Rows and the difference of their counts."""

    def move(self, row: int, difference: int) -> None:
        self.column[row] += difference
        self.moves.append((row, difference))

    def resize(self, size: int) -> None:
        """Append rows with a count of zero."""
        if len(self.column) != size:
            longer = np.zeros(size, np.int64)
            longer[: len(self.column)] = self.column
            self.column = longer

    def begin(self, size: int) -> None:
        """Reset all counts to zero."""
        self.column = np.zeros(size, np.int64)
        self.moves.forget()


class LruCache(Generic[K, V]):
    """A cache that drops the least recently used entries if the sum of their sizes exceeds
    ``most``."""

    __slots__ = ("_entries", "_most", "_size", "_size_of")

    def __init__(self, most: int, size_of: Callable[[V], int] | None = None) -> None:
        """``size_of`` returns the constant size of a value; by default it is 1."""
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._most = most
        self._size = 0
        self._size_of = size_of

    def get(self, key: K, compute: Callable[[], V]) -> V:
        """The cached value, or the result of ``compute``, which is cached."""
        try:
            value = self._entries[key]
        except KeyError:
            value = compute()
            self._entries[key] = value
            self._size += self._size_of(value) if self._size_of is not None else 1
            while self._size > self._most and len(self._entries) > 1:
                _, dropped = self._entries.popitem(last=False)
                self._size -= self._size_of(dropped) if self._size_of is not None else 1
            return value
        self._entries.move_to_end(key)
        return value

    def clear(self) -> None:
        self._entries.clear()
        self._size = 0


class RowCache(Generic[V]):
    """One value per row, valid while the row's stamp (``Cluster.row_stamps``) is unchanged."""

    __slots__ = ("_stamps", "_values")

    def __init__(self) -> None:
        self._values: dict[int, V] = {}
        self._stamps: Int64Column = np.zeros(0, np.int64)

    def stale(self, rows: RowArray, stamps: Int64Column) -> RowArray:
        """The rows of ``rows`` without a valid value."""
        return rows[self.is_stale(rows, stamps)]

    def is_stale(self, rows: RowArray, stamps: Int64Column) -> BoolColumn:
        """For each of ``rows``, whether it has no valid value."""
        missing = len(stamps) - len(self._stamps)
        if missing > 0:
            self._stamps = np.concatenate([self._stamps, np.full(missing, -1, np.int64)])
        changed: BoolColumn = self._stamps[rows] != stamps[rows]
        return changed

    def put(self, row: int, stamp: int, value: V) -> None:
        """Store a value for a row that :meth:`is_stale` or :meth:`stale` covered before."""
        self._values[row] = value
        self._stamps[row] = stamp

    def get(self, row: int) -> V:
        """The value of a row that is not stale."""
        return self._values[row]
