"""A subscription to the changes of one storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from asched.apiserver.selectors import Predicate
from asched.apiserver.store import ADDED, Storage, StoreChange, StoredObject, View, watch_line


class ServedWatchEvent(NamedTuple):
    """What one watcher sees of one change."""

    type: str
    stored: StoredObject
    change: StoreChange | None
    """The change itself when the watcher sees it unfiltered: its encoded line is shared."""

    def line(self, view: View | None = None) -> bytes:
        if self.change is not None and view is None:
            return self.change.line()
        return watch_line(self.type, self.stored.encoded_as(view))


class Watcher:
    """Buffers the events that one watch has not consumed yet.

    Use as a context manager: leaving it ends the subscription.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        namespace: str = "",
        predicate: Predicate | None = None,
    ) -> None:
        self._storage = storage
        self._prefix = f"{namespace}/" if namespace else ""
        self._predicate = predicate
        self._buffer: list[ServedWatchEvent] = []
        self._wake = asyncio.Event()
        self._stop: Callable[[], None] | None = None
        self.closed = False

    def begin_from(self, rv: int) -> None:
        """See every change after revision ``rv``. Raises StatusError 410 for a forgotten one."""
        for change in self._storage.history.since(rv):
            self._offer(change)
        self._stop = self._storage.listen(self._offer)

    def begin_with_state(self) -> None:
        """See an ADDED event for everything that exists, then every change."""
        for stored in self._storage.ordered():
            if stored.key.startswith(self._prefix) and self._wants(stored):
                self._buffer.append(ServedWatchEvent(ADDED, stored, None))
        self._stop = self._storage.listen(self._offer)
        self._wake.set()

    def _wants(self, stored: StoredObject) -> bool:
        return self._predicate is None or self._predicate(stored.obj)

    def _offer(self, change: StoreChange) -> None:
        if self._prefix and not change.new.key.startswith(self._prefix):
            return
        if self._predicate is None:
            self._buffer.append(ServedWatchEvent(change.type, change.new, change))
        else:
            seen = change.seen_through(self._predicate)
            if seen is None:
                return
            self._buffer.append(ServedWatchEvent(seen[0], seen[1], None))
        self._wake.set()

    def drain(self) -> list[ServedWatchEvent]:
        """Everything buffered, without waiting."""
        events, self._buffer = self._buffer, []
        self._wake.clear()
        return events

    async def next_batch(self, timeout_s: float | None = None) -> list[ServedWatchEvent]:
        """The events that have arrived; waits for one, at most ``timeout_s``.

        Empty after the time-out or once the watcher is closed.
        """
        if not self._buffer and not self.closed:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                return []
        return self.drain()

    def close(self) -> None:
        """End the subscription and wake whoever waits; what is buffered can still be drained."""
        if self._stop is not None:
            self._stop()
            self._stop = None
        self.closed = True
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[ServedWatchEvent]:
        while not self.closed:
            for event in await self.next_batch():
                yield event

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
