"""Priority queues of jobs, queues and tasks.

kube-batch changes the sort keys of elements that are in a heap, which then does not notice. The
order of elements depends on the exact steps of Go's ``container/heap``, which :class:`BinaryHeap`
copies.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")


class BinaryHeap(Generic[T]):
    """Go's ``container/heap``: evaluates keys at each comparison."""

    __slots__ = ("_items", "_key")

    def __init__(self, key: Callable[[T], Any]) -> None:
        self._key = key
        self._items: list[T] = []

    def __len__(self) -> int:
        return len(self._items)

    def push(self, item: T) -> None:
        self._items.append(item)
        self._up(len(self._items) - 1)

    def pop(self) -> T:
        """Raises IndexError if the heap is empty."""
        items = self._items
        last = len(items) - 1
        items[0], items[last] = items[last], items[0]
        self._down(0, last)
        return items.pop()

    def _less(self, first: int, second: int) -> bool:
        return bool(self._key(self._items[first]) < self._key(self._items[second]))

    def _up(self, child: int) -> None:
        items = self._items
        while child > 0:
            parent = (child - 1) // 2
            if not self._less(child, parent):
                break
            items[parent], items[child] = items[child], items[parent]
            child = parent

    def _down(self, parent: int, size: int) -> None:
        items = self._items
        while (child := 2 * parent + 1) < size:
            right = child + 1
            if right < size and self._less(right, child):
                child = right
            if not self._less(child, parent):
                break
            items[parent], items[child] = items[child], items[parent]
            parent = child


class OrderedSessionQueue(Generic[T]):
    """Evaluates each key once, at push."""

    __slots__ = ("_items", "_key", "_sequence")

    def __init__(self, key: Callable[[T], Any]) -> None:
        self._key = key
        self._items: list[tuple[Any, int, T]] = []
        self._sequence = count()

    def __len__(self) -> int:
        return len(self._items)

    def push(self, item: T) -> None:
        heapq.heappush(self._items, (self._key(item), next(self._sequence), item))

    def pop(self) -> T:
        return heapq.heappop(self._items)[2]


SessionQueue: TypeAlias = BinaryHeap[T] | OrderedSessionQueue[T]


def priority_queue(key: Callable[[T], Any], items: Iterable[T], *, live: bool) -> SessionQueue[T]:
    """``live`` evaluates keys at each comparison, as kube-batch does."""
    queue: SessionQueue[T] = BinaryHeap(key) if live else OrderedSessionQueue(key)
    for item in items:
        queue.push(item)
    return queue
