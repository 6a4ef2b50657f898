"""Waiting lines of jobs, queues and tasks: the first in order is served first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from asched.batch.binary_heap import BinaryHeap

T = TypeVar("T")


class Line(Protocol[T]):
    """Who waits. An element is pushed again to wait again."""

    def __len__(self) -> int: ...

    def push(self, item: T) -> None: ...

    def pop(self) -> T: ...


class OrderedLine(Generic[T]):
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


def line(key: Callable[[T], Any], items: Iterable[T], *, live: bool) -> Line[T]:
    """``live``: keys are compared as they are at the moment, as kube-batch does."""
    made: Line[T] = BinaryHeap(key) if live else OrderedLine(key)
    for item in items:
        made.push(item)
    return made
