"""Waiting lines of jobs, queues and tasks: the first in order is served first.

A binary heap as Go's ``container/heap`` makes it, with comparisons made when they are needed.

kube-batch sorts by what changes while it is sorted, and the heap does not notice. Which element
comes first then depends on the very steps of the heap, so these are Go's.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class BinaryHeap(Generic[T]):
    """The element with the smallest key first, as far as keys stay what they were."""

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
        """Raises IndexError where there is none."""
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


class SessionQueue(Protocol[T]):
    """Who waits. An element is pushed again to wait again."""

    def __len__(self) -> int: ...

    def push(self, item: T) -> None: ...

    def pop(self) -> T: ...


class OrderedSessionQueue(Generic[T]):
    """The order is that of the keys when the elements were pushed."""

    __slots__ = ("_items", "_key", "_tickets")

    def __init__(self, key: Callable[[T], Any]) -> None:
        self._key = key
        self._items: list[tuple[Any, int, T]] = []
        self._tickets = count()

    def __len__(self) -> int:
        return len(self._items)

    def push(self, item: T) -> None:
        heapq.heappush(self._items, (self._key(item), next(self._tickets), item))

    def pop(self) -> T:
        return heapq.heappop(self._items)[2]


def line(key: Callable[[T], Any], items: Iterable[T], *, live: bool) -> SessionQueue[T]:
    """``live``: keys are compared as they are at the moment, as kube-batch does."""
    made: SessionQueue[T] = BinaryHeap(key) if live else OrderedSessionQueue(key)
    for item in items:
        made.push(item)
    return made
