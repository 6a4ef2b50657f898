"""Rejected pods by what they wait for: an index for queueing hints.

A hint is called for each rejected pod. With thousands of them, and several selectors for each, one
event would take long. The index finds the pods with queries that the event's pod begins or ceases
to match, in about the time of one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from asched.framework.caching import ChangeLog, LruCache
from asched.framework.label_conditions import LabelConditions
from asched.framework.pod_info import LabelSet, PodInfo, QueuedPod
from asched.framework.pod_queries import PodQuery

_MIN_STALE = 256
"""Unused queries are kept up to this number."""
_MAX_SELECTED = 1 << 16
"""Keys in the selections that are kept."""


class RejectedPods(NamedTuple):
    """The pods that a plugin rejected, and a log of the keys that were added, removed or updated.
    The log may contain other keys."""

    waiting: Mapping[str, QueuedPod]
    changes: ChangeLog[str]


class QueryIndex:
    """Keys by :class:`PodQuery`."""

    def __init__(self) -> None:
        self._parts: dict[str | None, _Part] = {}
        """Queries of one namespace by its name; all others with None."""
        self._queries: dict[str, Sequence[PodQuery]] = {}

    def add(self, key: str, queries: Sequence[PodQuery]) -> None:
        """``key`` must not be in the index."""
        queries = tuple(dict.fromkeys(queries))  # constraints by zone and host have one selector
        if queries:
            self._queries[key] = queries
        for query in queries:
            self._parts.setdefault(_place(query), _Part()).add(query, key)

    def remove(self, key: str) -> None:
        """Nothing if the key is not in the index."""
        for query in self._queries.pop(key, ()):
            place = _place(query)
            part = self._parts[place]
            part.remove(query, key)
            if not part:
                del self._parts[place]

    def gained(self, after: LabelSet, before: LabelSet | None) -> set[str]:
        """The keys with a query that matches ``after`` and does not match ``before``. Both are in
        the same namespace."""
        found: set[str] = set()
        if not self._parts:
            return found
        for place in (after.namespace, None):
            part = self._parts.get(place)
            if part is not None:
                for keys in part.gained(after, before):
                    found.update(keys)
        return found


def _place(query: PodQuery) -> str | None:
    namespaces = query.namespaces
    return next(iter(namespaces)) if namespaces is not None and len(namespaces) == 1 else None


class _Part:
    """Slots with the keys of each query."""

    def __init__(self) -> None:
        self._conditions = LabelConditions()
        self._slots: dict[PodQuery, int] = {}
        self._holders: list[dict[str, None]] = []
        self._namespaces: list[frozenset[str] | None] = []

    def __bool__(self) -> bool:
        return bool(self._slots)

    def add(self, query: PodQuery, key: str) -> None:
        slot = self._slots.get(query)
        if slot is None:
            slot = self._slots[query] = len(self._holders)
            self._conditions.add(*(selector.label_selector for selector in query.selectors))
            self._holders.append({})
            self._namespaces.append(query.namespaces)
        self._holders[slot][key] = None

    def remove(self, query: PodQuery, key: str) -> None:
        holders = self._holders[self._slots[query]]
        del holders[key]
        if not holders:
            del self._slots[query]
            if len(self._holders) - len(self._slots) > max(_MIN_STALE, len(self._slots)):
                self._rebuild()

    def _rebuild(self) -> None:
        slots, holders = self._slots, self._holders
        self.__init__()  # type: ignore[misc]
        for query, slot in slots.items():
            for key in holders[slot]:
                self.add(query, key)

    def gained(self, after: LabelSet, before: LabelSet | None) -> Iterator[Mapping[str, None]]:
        fulfilled = self._conditions.fulfilled(after.labels)
        if before is not None and fulfilled.any():
            fulfilled &= ~self._conditions.fulfilled(before.labels)
        for slot in fulfilled.nonzero()[0].tolist():
            namespaces = self._namespaces[slot]
            if namespaces is None or after.namespace in namespaces:
                yield self._holders[slot]


class AwaitedQueries(NamedTuple):
    """What a rejected pod waits for."""

    gained: Sequence[PodQuery] = ()
    """That a pod begins to match one of these."""
    lost: Sequence[PodQuery] = ()
    """That a pod ceases to match one of these."""
    any_pod: bool = False
    """Any change of a pod."""


class AwaitedIndex:
    """The rejected pods of a plugin by what they wait for. Follows the queue when it is read."""

    def __init__(self, awaited: Callable[[PodInfo], AwaitedQueries]) -> None:
        self._awaited = awaited
        self._gained, self._lost = QueryIndex(), QueryIndex()
        self._any: dict[str, None] = {}
        self._cursor = -1
        self._version: object = None
        self._selected: LruCache[tuple[int, int], frozenset[str]] = LruCache(
            _MAX_SELECTED, lambda keys: len(keys) + 1
        )
        """What :meth:`select` returned, by the numbers of the labels before and after the change:
        pods of a workload have the same labels."""

    def select(
        self,
        rejected: RejectedPods,
        version: object,
        before: LabelSet | None,
        after: LabelSet | None,
    ) -> Collection[str]:
        """The keys of the pods that wait for the change of a pod. ``version`` changes with the
        results of ``awaited`` for all pods."""
        if self._cursor != rejected.changes.cursor or version != self._version:
            self._follow(rejected, version)
        numbers = (0 if before is None else before.number, 0 if after is None else after.number)
        return self._selected.get(numbers, lambda: self._select(before, after))

    def _select(self, before: LabelSet | None, after: LabelSet | None) -> frozenset[str]:
        found = {*self._any}
        if after is not None:
            found |= self._gained.gained(after, before)
        if before is not None:
            found |= self._lost.gained(before, after)
        return frozenset(found)

    def _follow(self, rejected: RejectedPods, version: object) -> None:
        self._selected.clear()
        waiting, changes = rejected
        changed = changes.since(self._cursor) if version == self._version else None
        if changed is None:
            self._gained, self._lost = QueryIndex(), QueryIndex()
            self._any.clear()
            changed = [*waiting]
        self._cursor, self._version = changes.cursor, version
        for key in dict.fromkeys(changed):
            self._gained.remove(key)
            self._lost.remove(key)
            self._any.pop(key, None)
            pod = waiting.get(key)
            if pod is not None:
                awaited = self._awaited(pod.info)
                self._gained.add(key, awaited.gained)
                self._lost.add(key, awaited.lost)
                if awaited.any_pod:
                    self._any[key] = None
