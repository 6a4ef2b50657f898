"""A bounded log that readers follow at their own pace."""

from __future__ import annotations

from typing import Generic, TypeVar

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
