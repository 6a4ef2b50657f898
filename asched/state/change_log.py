"""A bounded log that readers follow at their own pace."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

_LIMIT = 1 << 16


class ChangeLog(Generic[T]):
    """What changed, in order. Each reader keeps its own cursor; one that fell behind the log's
    memory is told so and starts afresh."""

    __slots__ = ("_entries", "_start", "cursor")

    def __init__(self) -> None:
        self._entries: list[T] = []
        self._start = 0
        self.cursor = 0
        """The present end."""

    def append(self, entry: T) -> None:
        self._entries.append(entry)
        self.cursor += 1
        if len(self._entries) > _LIMIT:
            drop = _LIMIT // 2
            del self._entries[:drop]
            self._start += drop

    def since(self, cursor: int) -> list[T] | None:
        """The entries after ``cursor``; None where the log does not reach back that far."""
        start = cursor - self._start
        return None if start < 0 else self._entries[start:]
