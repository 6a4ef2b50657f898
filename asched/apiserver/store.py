"""The key-value heart of the simulated API server: objects, one revision counter, their history.

A :class:`Storage` keeps the objects of one resource. Objects are plain JSON dictionaries which
nobody may change once they are stored: a write stores a new dictionary. Each stored object keeps
its encoded bytes, so that neither a list nor the fan-out of a watch encodes it again.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from asched.apiserver.errors import too_old
from asched.apiserver.resources import ServedResource
from asched.apiserver.selectors import Predicate

Object = dict[str, Any]
View = Callable[[Object], Object]

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"

encode = msgspec.json.Encoder().encode


class StoredObject:
    """One object at one revision, with its encoded forms."""

    __slots__ = ("_encoded", "_views", "key", "obj", "rv")

    def __init__(self, key: str, obj: Object, rv: int) -> None:
        self.key = key
        self.obj = obj
        self.rv = rv
        self._encoded: bytes | None = None
        self._views: dict[View, bytes] | None = None

    @property
    def encoded(self) -> bytes:
        """The whole object as JSON, encoded at most once."""
        if self._encoded is None:
            self._encoded = encode(self.obj)
        return self._encoded

    def encoded_as(self, view: View | None) -> bytes:
        """The object as another API version shows it, encoded at most once a view."""
        if view is None:
            return self.encoded
        if self._views is None:
            self._views = {}
        found = self._views.get(view)
        if found is None:
            found = self._views[view] = encode(view(self.obj))
        return found


class StoreChange:
    """One write: what the watch history holds."""

    __slots__ = ("_line", "new", "old", "rv", "type")

    def __init__(self, rv: int, kind: str, new: StoredObject, old: StoredObject | None) -> None:
        self.rv = rv
        self.type = kind
        self.new = new
        self.old = old
        self._line: bytes | None = None

    def line(self) -> bytes:
        """The watch line of an unfiltered watcher, shared by all of them."""
        if self._line is None:
            self._line = watch_line(self.type, self.new.encoded)
        return self._line

    def seen_through(self, predicate: Predicate) -> tuple[str, StoredObject] | None:
        """Event type and object for a watcher with a selector, or None when it sees nothing.

        An object that stops matching arrives as DELETED in its last matching state under the
        new resourceVersion, one that starts matching as ADDED (cacher.go, ``convertToWatchEvent``).
        """
        before = self.old is not None and predicate(self.old.obj)
        after = self.type != DELETED and predicate(self.new.obj)
        if before and after:
            return MODIFIED, self.new
        if after:
            return ADDED, self.new
        if before and self.old is not None:
            return DELETED, self.new if self.type == DELETED else at_revision(self.old, self.rv)
        return None


def watch_line(kind: str, encoded: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), encoded)


def at_revision(stored: StoredObject, rv: int) -> StoredObject:
    """The same object stamped with another resourceVersion."""
    metadata = {**stored.obj["metadata"], "resourceVersion": str(rv)}
    return StoredObject(stored.key, {**stored.obj, "metadata": metadata}, rv)


class RevisionCounter:
    """The cluster-wide revision counter (etcd's revision: every write takes the next)."""

    __slots__ = ("current",)

    def __init__(self, current: int = 1) -> None:
        self.current = current

    def take(self) -> int:
        self.current += 1
        return self.current


class History:
    """The last changes of one storage; older ones are forgotten and cannot be watched from."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.floor_rv = 0
        """A watch may start from this revision or a later one."""
        self._changes: list[StoreChange] = []

    def append(self, change: StoreChange) -> None:
        self._changes.append(change)
        # Trimmed in blocks, so that the cost of a write stays constant.
        if len(self._changes) >= 2 * self.limit:
            self._forget(len(self._changes) - self.limit)

    def _forget(self, count: int) -> None:
        if count:
            self.floor_rv = self._changes[count - 1].rv
            del self._changes[:count]

    def expire(self, current_rv: int) -> None:
        """Forget everything: as if etcd was compacted at ``current_rv``."""
        self._changes.clear()
        self.floor_rv = current_rv

    def since(self, rv: int) -> list[StoreChange]:
        """The changes after ``rv``. Raises StatusError 410 when some of them are forgotten."""
        if rv < self.floor_rv:
            raise too_old(rv, self.floor_rv)
        start = bisect.bisect_right(self._changes, rv, key=lambda change: change.rv)
        return self._changes[start:]


class ObjectRange(NamedTuple):
    """Part of a resource's objects, in key order."""

    objects: Iterator[StoredObject]
    """To be read before the next write."""
    number: int


class _Snapshot(NamedTuple):
    """The objects of an earlier revision."""

    keys: list[str]
    """In order."""
    objects: dict[str, StoredObject]


class Storage:
    """All objects of one resource, ordered by key as etcd orders them."""

    def __init__(self, resource: ServedResource, revisions: RevisionCounter, history_limit: int) -> None:
        self.resource = resource
        self.history = History(history_limit)
        self.last_rv = revisions.current
        """Revision of the latest write to this storage (what its watch cache has seen)."""
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

    def __iter__(self) -> Iterator[StoredObject]:
        return iter(self._objects.values())

    def listen(self, listener: Callable[[StoreChange], None]) -> Callable[[], None]:
        """Call ``listener`` with every later change; the answer ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @property
    def listener_count(self) -> int:
        return len(self._listeners)

    def write(self, key: str, obj: Object) -> StoredObject:
        """Store ``obj`` under the next revision, which is stamped into its metadata."""
        rv = self._revisions.take()
        # The caller hands over a fresh metadata dictionary; it is ours from here on.
        obj["metadata"]["resourceVersion"] = str(rv)
        new = StoredObject(key, obj, rv)
        old = self._objects.get(key)
        if old is None:
            self._keys_stale = True
        self._objects[key] = new
        self._publish(StoreChange(rv, ADDED if old is None else MODIFIED, new, old))
        return new

    def remove(self, key: str) -> StoredObject:
        """Delete the object; the answer is its last state at the revision of the deletion."""
        old = self._objects.pop(key)
        rv = self._revisions.take()
        last = at_revision(old, rv)
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
            # Nearly sorted already when only a few came or went: timsort makes that cheap.
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
        """The objects now, in key order; of one namespace or of all."""
        return list(self.stretch(namespace).objects)

    def stretch(self, namespace: str = "", start: str = "", rv: int | None = None) -> ObjectRange:
        """The objects of a namespace (or of all) from the key ``start`` on, in key order, as they were
        at revision ``rv``; None is now.

        Raises StatusError 410 when the history does not reach back to ``rv``.
        """
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
            if len(self._snapshots) >= _SNAPSHOTS_KEPT:
                del self._snapshots[next(iter(self._snapshots))]
            self._snapshots[rv] = found
        return found

    def expire(self) -> None:
        """Forget the history up to now."""
        self._snapshots.clear()
        self.history.expire(self._revisions.current)


_SNAPSHOTS_KEPT = 8
