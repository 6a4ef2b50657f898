"""Shares of the Events that the scheduler writes: by namespace and by object.

Tenants can cause Events: by pods that do not fit, and by changes that give each attempt another
message. They must not displace Events of others, nor fill the API server's storage.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

OBJECT_BURST: Final = 25
"""New Events about one object at once, as in client-go's ``EventSourceObjectSpamFilter``."""
OBJECT_INTERVAL_S: Final = 300.0
"""After that one in this time."""
_OBJECTS: Final = 4096


class FairQueue(Generic[T]):
    """A bounded queue with turns: each namespace in it is served equally often."""

    def __init__(self, limit: int, namespace_of: Callable[[T], str]) -> None:
        self._limit = limit
        self._namespace_of = namespace_of
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, item: T) -> T | None:
        """Add an item. Returns the one that is dropped for it if the queue is full: the oldest of
        the namespace with the most items."""
        dropped = None
        if self._size >= self._limit:
            longest = max(self._queues, key=lambda namespace: len(self._queues[namespace]))
            dropped = self._take_from(longest)
        namespace = self._namespace_of(item)
        queue = self._queues.get(namespace)
        if queue is None:
            queue = self._queues[namespace] = deque()
        queue.append(item)
        self._size += 1
        return dropped

    def take(self) -> T:
        """Remove and return the next item. Raises StopIteration if there is none."""
        namespace = next(iter(self._queues))
        item = self._take_from(namespace)
        if namespace in self._queues:
            self._queues.move_to_end(namespace)
        return item

    def _take_from(self, namespace: str) -> T:
        queue = self._queues[namespace]
        item = queue.popleft()
        if not queue:
            del self._queues[namespace]
        self._size -= 1
        return item


class ObjectLimit:
    """Limits new Events about one object: a token bucket for each of the last objects."""

    def __init__(self) -> None:
        self._paid_at_s: OrderedDict[Hashable, float] = OrderedDict()

    def allows(self, regarding: Hashable, now_s: float) -> bool:
        """Whether one more Event about the object may be written; it is counted."""
        paid_at_s = max(self._paid_at_s.get(regarding, now_s), now_s)
        if paid_at_s - now_s > (OBJECT_BURST - 1) * OBJECT_INTERVAL_S:
            return False
        self._paid_at_s[regarding] = paid_at_s + OBJECT_INTERVAL_S
        self._paid_at_s.move_to_end(regarding)
        if len(self._paid_at_s) > _OBJECTS:
            self._paid_at_s.popitem(last=False)
        return True


class Deferral:
    """Whether Events wait for other requests to the API server: at most ``limit_s`` at a time."""

    def __init__(self, limit_s: float) -> None:
        self.busy: Callable[[], bool] = lambda: False
        """Whether there are such requests."""
        self._limit_s = limit_s
        self._busy_since_s: float | None = None

    def waits(self, now_s: float) -> bool:
        """Whether Events wait at this time."""
        if not self.busy():
            self._busy_since_s = None
            return False
        if self._busy_since_s is None:
            self._busy_since_s = now_s
        return now_s - self._busy_since_s < self._limit_s
