"""Storage of the embedded API server: objects, one revision counter, and their watch history.

A :class:`Storage` holds the objects of one resource and a :class:`Watcher` subscribes to its
changes, like etcd and the watch cache of kube-apiserver. Objects are plain JSON dictionaries that
are immutable once stored: a write stores a new dictionary. Each stored object caches its encoded
bytes, which lists and watches share.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from asched.apiserver.errors import Object, too_old
from asched.apiserver.resources import ServedResource
from asched.apiserver.selectors import Predicate

View = Callable[[Object], Object]

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
_MAX_SNAPSHOTS = 8

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def deep_copy(obj: Object) -> Object:
    """A copy that shares nothing with ``obj``."""
    copied: Object = _decode(encode(obj))
    return copied


class StoredObject:
    """One object at one revision, with its encoded forms."""

    __slots__ = ("_encoded", "key", "obj", "rv")

    def __init__(self, key: str, obj: Object, rv: int) -> None:
        self.key = key
        self.obj = obj
        self.rv = rv
        self._encoded: dict[View | None, bytes] = {}

    def encoded(self, view: View | None = None) -> bytes:
        """The object as JSON, in another API version with a ``view``. Encoded at most once each."""
        found = self._encoded.get(view)
        if found is None:
            obj = self.obj if view is None else view(self.obj)
            found = self._encoded[view] = encode(obj)
        return found

    def at_revision(self, rv: int) -> StoredObject:
        """The same object with another resourceVersion."""
        metadata = {**self.obj["metadata"], "resourceVersion": str(rv)}
        return StoredObject(self.key, {**self.obj, "metadata": metadata}, rv)


class StoreChange:
    """One write, as kept in the watch history."""

    __slots__ = ("_line", "new", "old", "rv", "type")

    def __init__(self, rv: int, kind: str, new: StoredObject, old: StoredObject | None) -> None:
        self.rv = rv
        self.type = kind
        self.new = new
        self.old = old
        self._line: bytes | None = None

    def line(self) -> bytes:
        """The watch line that all unfiltered watchers share."""
        if self._line is None:
            self._line = watch_line(self.type, self.new.encoded())
        return self._line

    def filtered(self, predicate: Predicate) -> tuple[str, StoredObject] | None:
        """Event type and object for a watcher with a selector; None for no event.

        An object that stops matching yields DELETED with its last matching state under the new
        resourceVersion; one that starts matching yields ADDED (cacher.go, ``convertToWatchEvent``).
        """
        before = self.old is not None and predicate(self.old.obj)
        after = self.type != DELETED and predicate(self.new.obj)
        if before and after:
            return MODIFIED, self.new
        if after:
            return ADDED, self.new
        if before and self.old is not None:
            return DELETED, self.new if self.type == DELETED else self.old.at_revision(self.rv)
        return None


def watch_line(kind: str, encoded: bytes) -> bytes:
    """One line of a watch response."""
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), encoded)


class RevisionCounter:
    """The cluster-wide revision, which every write increments (as in etcd)."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = 1

    def increment(self) -> int:
        self.current += 1
        return self.current


class WatchHistory:
    """The latest changes of one storage."""

    def __init__(self) -> None:
        self.limit = 100_000
        """The number of changes that are kept at least."""
        self.oldest_rv = 0
        """The oldest revision that a watch may start from."""
        self._changes: list[StoreChange] = []

    def append(self, change: StoreChange) -> None:
        self._changes.append(change)
        # Trimmed in blocks, which keeps the cost of a write constant.
        if len(self._changes) >= 2 * self.limit:
            count = len(self._changes) - self.limit
            self.oldest_rv = self._changes[count - 1].rv
            del self._changes[:count]

    def expire(self, current_rv: int) -> None:
        """Drop all changes, as a compaction of etcd at ``current_rv`` does."""
        self._changes.clear()
        self.oldest_rv = current_rv

    def since(self, rv: int) -> list[StoreChange]:
        """The changes after ``rv``. Raises StatusError 410 if some of them were dropped."""
        if rv < self.oldest_rv:
            raise too_old(rv, self.oldest_rv)
        start = bisect.bisect_right(self._changes, rv, key=lambda change: change.rv)
        return self._changes[start:]


class ObjectRange(NamedTuple):
    """Consecutive objects of a resource, in key order."""

    objects: Iterator[StoredObject]
    """Valid until the next write."""
    total: int


class _Snapshot(NamedTuple):
    """The objects of an earlier revision; ``keys`` are sorted."""

    keys: list[str]
    objects: dict[str, StoredObject]


class Storage:
    """All objects of one resource, in key order as in etcd."""

    def __init__(self, resource: ServedResource, revisions: RevisionCounter) -> None:
        self.resource = resource
        self.history = WatchHistory()
        self.last_rv = revisions.current
        """Revision of the latest write to this storage, which is what its watch cache shows."""
        self._revisions = revisions
        self._objects: dict[str, StoredObject] = {}
        self._keys: list[str] = []
        self._keys_stale = False
        self._listeners: list[Callable[[StoreChange], None]] = []
        self._snapshots: dict[int, _Snapshot] = {}

    @staticmethod
    def key_of(namespace: str, name: str) -> str:
        return f"{namespace}/{name}" if namespace else name

    def get(self, namespace: str, name: str) -> StoredObject | None:
        return self._objects.get(self.key_of(namespace, name))

    def __len__(self) -> int:
        return len(self._objects)

    def listen(self, listener: Callable[[StoreChange], None]) -> Callable[[], None]:
        """Call ``listener`` with every later change. Returns a function that unsubscribes."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def write(self, key: str, obj: Object) -> StoredObject:
        """Store ``obj`` and set the next revision in its metadata, which the caller must own."""
        rv = self._revisions.increment()
        obj["metadata"]["resourceVersion"] = str(rv)
        new = StoredObject(key, obj, rv)
        old = self._objects.get(key)
        if old is None:
            self._keys_stale = True
        self._objects[key] = new
        self._publish(StoreChange(rv, ADDED if old is None else MODIFIED, new, old))
        return new

    def remove(self, key: str) -> StoredObject:
        """Delete the object. Returns its last state at the revision of the deletion."""
        old = self._objects.pop(key)
        rv = self._revisions.increment()
        last = old.at_revision(rv)
        self._keys_stale = True
        self._publish(StoreChange(rv, DELETED, last, old))
        return last

    def _publish(self, change: StoreChange) -> None:
        self.last_rv = change.rv
        self.history.append(change)
        for listener in tuple(self._listeners):
            listener(change)

    def _sorted_keys(self) -> list[str]:
        if self._keys_stale:
            # After few additions the list is nearly sorted, which timsort handles in linear time.
            known = self._objects
            kept = [key for key in self._keys if key in known]
            if len(kept) != len(known):
                present = set(kept)
                kept.extend(key for key in known if key not in present)
                kept.sort()
            self._keys = kept
            self._keys_stale = False
        return self._keys

    def ordered(self, namespace: str = "") -> list[StoredObject]:
        """The current objects of one namespace, or of all, in key order."""
        return list(self.range(namespace).objects)

    def range(self, namespace: str = "", start: str = "", rv: int | None = None) -> ObjectRange:
        """The objects of a namespace, or of all, from the key ``start`` on, in key order, now or at
        the revision ``rv``. Raises StatusError 410 if the history no longer reaches back to it."""
        undo = [] if rv is None else self.history.since(rv)
        keys, objects = self._sorted_keys(), self._objects
        if undo:
            assert rv is not None
            keys, objects = self._as_of(rv, undo)
        # "0" is the character after "/".
        first = bisect.bisect_left(keys, max(start, f"{namespace}/" if namespace else ""))
        last = bisect.bisect_left(keys, f"{namespace}0") if namespace else len(keys)
        found = itertools.islice(keys, first, last)
        return ObjectRange(map(objects.__getitem__, found), max(0, last - first))

    def _as_of(self, rv: int, undo: Sequence[StoreChange]) -> _Snapshot:
        found = self._snapshots.get(rv)
        if found is None:
            objects = dict(self._objects)
            for change in reversed(undo):
                if change.old is None:
                    objects.pop(change.new.key, None)
                else:
                    objects[change.new.key] = change.old
            found = _Snapshot(sorted(objects), objects)
            if len(self._snapshots) >= _MAX_SNAPSHOTS:
                del self._snapshots[next(iter(self._snapshots))]
            self._snapshots[rv] = found
        return found

    def expire(self) -> None:
        """Drop the watch history up to the current revision."""
        self._snapshots.clear()
        self.history.expire(self._revisions.current)


class ServedWatchEvent(NamedTuple):
    """One event of one watcher."""

    type: str
    stored: StoredObject
    change: StoreChange | None
    """The change if the watcher is unfiltered; its encoded line is shared."""

    def line(self, view: View | None = None) -> bytes:
        if self.change is not None and view is None:
            return self.change.line()
        return watch_line(self.type, self.stored.encoded(view))


class Watcher:
    """Buffers the events of one storage; leaving its ``with`` block ends the subscription."""

    def __init__(
        self, storage: Storage, *, namespace: str = "", predicate: Predicate | None = None
    ) -> None:
        self._storage = storage
        self._prefix = f"{namespace}/" if namespace else ""
        self._predicate = predicate
        self._buffer: list[ServedWatchEvent] = []
        self._wake = asyncio.Event()
        self._unsubscribe: Callable[[], None] | None = None
        self.closed = False

    def begin_from(self, rv: int) -> None:
        """Receive every change after ``rv``. Raises StatusError 410 if ``rv`` is too old."""
        for change in self._storage.history.since(rv):
            self._offer(change)
        self._unsubscribe = self._storage.listen(self._offer)

    def begin_with_state(self) -> None:
        """Receive ADDED for every existing object, then every change."""
        for stored in self._storage.ordered():
            if not stored.key.startswith(self._prefix):
                continue
            if self._predicate is None or self._predicate(stored.obj):
                self._buffer.append(ServedWatchEvent(ADDED, stored, None))
        self._unsubscribe = self._storage.listen(self._offer)
        self._wake.set()

    def _offer(self, change: StoreChange) -> None:
        if self._prefix and not change.new.key.startswith(self._prefix):
            return
        if self._predicate is None:
            self._buffer.append(ServedWatchEvent(change.type, change.new, change))
        else:
            event = change.filtered(self._predicate)
            if event is None:
                return
            self._buffer.append(ServedWatchEvent(*event, None))
        self._wake.set()

    def drain(self) -> list[ServedWatchEvent]:
        """All buffered events, without waiting."""
        events, self._buffer = self._buffer, []
        self._wake.clear()
        return events

    async def next_batch(self, timeout_s: float | None = None) -> list[ServedWatchEvent]:
        """The buffered events; waits for one. Empty after ``timeout_s`` or once it is closed."""
        if not self._buffer and not self.closed:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                return []
        return self.drain()

    def close(self) -> None:
        """End the subscription and wake waiters. Buffered events can still be drained."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
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
