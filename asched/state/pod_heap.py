"""Queued pods in order of a sort key, and the sort keys of QueueSort plugins."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable
from copy import copy
from functools import cmp_to_key
from typing import Any, Self, TypeVar

from asched.framework.pod_info import QueuedPod
from asched.framework.runtime.observation import CURRENT_CALL, FAILURES, failure_reason
from asched.framework.runtime.profile import Profile
from asched.state.stored_form import STEP, Steps

_T = TypeVar("_T")

_SLACK = 64


class PodHeap:
    """Pods by key, and in order of a sort key and then of insertion.

    A pod that is removed leaves its entry in the heap until the entry reaches the top or too many
    have accumulated. Entries are numbered, so a stale entry never refers to the same pod pushed
    again, and the order depends on the contents alone.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, str]] = []
        self.pods: dict[str, QueuedPod] = {}
        """By key, in no particular order. Read-only."""
        self._numbers: dict[str, int] = {}
        self._pushed = 0

    def push(self, pod: QueuedPod, sort_key: Any) -> None:
        """Add a pod, or move it. ``sort_key`` must never change."""
        key = pod.info.key
        self._pushed += 1
        self.pods[key] = pod
        self._numbers[key] = self._pushed
        heapq.heappush(self._entries, (sort_key, self._pushed, key))
        if len(self._entries) > 2 * len(self.pods) + _SLACK:
            numbers = self._numbers
            self._entries = [e for e in self._entries if numbers.get(e[2]) == e[1]]
            heapq.heapify(self._entries)

    def pop(self, key: str) -> QueuedPod | None:
        """Remove the pod of that key; None if there is none."""
        self._numbers.pop(key, None)
        return self.pods.pop(key, None)

    def head(self) -> tuple[Any, QueuedPod] | None:
        """The first pod and its sort key, without removing it."""
        entries, numbers = self._entries, self._numbers
        while entries:
            sort_key, number, key = entries[0]
            if numbers.get(key) == number:
                return sort_key, self.pods[key]
            heapq.heappop(entries)
        return None

    def position_of(self, key: str) -> int:
        """The position of a pod, from 1; 0 for a pod that is not here."""
        numbers = self._numbers
        entries = [entry for entry in self._entries if numbers.get(entry[2]) == entry[1]]
        own = next((entry for entry in entries if entry[2] == key), None)
        return 0 if own is None else 1 + sum(entry < own for entry in entries)

    def first(self, count: int) -> list[QueuedPod]:
        """The first pods in order, without removing them."""
        numbers = self._numbers
        entries = (entry for entry in self._entries if numbers.get(entry[2]) == entry[1])
        return [self.pods[key] for _, _, key in heapq.nsmallest(count, entries)]

    def take_in_order(self, convert: Callable[[Any, QueuedPod], _T]) -> Steps[tuple[_T, ...]]:
        """Remove the pods in order. Returns the conversions of each sort key and pod."""
        taken: list[_T] = []
        while (first := self.head()) is not None:
            taken.append(convert(*first))
            self.pop(first[1].info.key)
            if len(taken) % STEP == 0:
                yield
        return tuple(taken)

    def copy(self) -> Self:
        """A heap with the same pods that can be changed on its own."""
        copied = copy(self)
        vars(copied).update(
            pods={**self.pods}, _entries=[*self._entries], _numbers={**self._numbers}
        )
        return copied

    def clear(self) -> None:
        self._entries.clear()
        self.pods.clear()
        self._numbers.clear()


class ActivePods(PodHeap):
    """A heap that counts its pods by namespace, and knows those with the key :data:`FIRST`."""

    def __init__(self) -> None:
        super().__init__()
        self._first: set[str] = set()
        self._counts: dict[str, int] = {}
        """By namespace; none is 0."""

    def has_others(self, namespace: str) -> bool:
        """Whether there are pods of other namespaces."""
        return len(self._counts) > (namespace in self._counts)

    def has_first_place(self, key: str) -> bool:
        """Whether the pod was pushed with the key :data:`FIRST`."""
        return key in self._first

    def push(self, pod: QueuedPod, sort_key: Any) -> None:
        if sort_key == FIRST:
            self._first.add(pod.info.key)
        else:
            self._first.discard(pod.info.key)
        if pod.info.key not in self.pods:
            namespace = pod.info.namespace
            self._counts[namespace] = self._counts.get(namespace, 0) + 1
        super().push(pod, sort_key)

    def pop(self, key: str) -> QueuedPod | None:
        pod = super().pop(key)
        self._first.discard(key)
        if pod is not None:
            namespace = pod.info.namespace
            left = self._counts[namespace] - 1
            if left:
                self._counts[namespace] = left
            else:
                del self._counts[namespace]
        return pod

    def copy(self) -> Self:
        copied = super().copy()
        vars(copied).update(_counts={**self._counts}, _first={*self._first})
        return copied

    def clear(self) -> None:
        super().clear()
        self._counts.clear()
        self._first.clear()


SortKey = tuple[Any, ...]

FIRST: SortKey = (0,)
"""Sorts before every key of a plugin."""
_LAST: SortKey = (2,)
_INT_LIMIT = 1 << 63
"""MessagePack has no larger integers."""
_MAX_DEPTH = 8
"""Of nested tuples."""


class SafeKey:
    """A sort key of plugin code with comparisons that never raise: keys that cannot be compared are
    equal, and go in order of insertion."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def _compare(self, how: Callable[[Any, Any], Any], other: object, otherwise: bool) -> bool:
        try:
            return bool(how(self.key, other.key if isinstance(other, SafeKey) else other))
        except BaseException:  # noqa: BLE001  plugin code
            return otherwise

    def __lt__(self, other: object) -> bool:
        return self._compare(operator.lt, other, False)

    def __gt__(self, other: object) -> bool:
        return self._compare(operator.gt, other, False)

    def __eq__(self, other: object) -> bool:
        return not self < other and not self > other

    __hash__ = None  # type: ignore[assignment]  # it is compared, never hashed


def sort_key(profile: Profile, pod: QueuedPod) -> SortKey:
    """The key for the heap. A pod sorts last if QueueSort raises."""
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (profile.queue_sort.name, "QueueSort")
    try:
        key = _plugin_key(profile, pod)
    except BaseException as error:  # noqa: BLE001  plugin code, called while a record is folded
        FAILURES.note(profile.queue_sort.name, "QueueSort", failure_reason(error))
        return _LAST
    finally:
        CURRENT_CALL.call = outer
    return _safe(key)


def _safe(key: Any) -> SortKey:
    if not isinstance(key, tuple):
        return (1, SafeKey(key))
    for part in key:
        if type(part) is not int and type(part) is not float:
            return (1, SafeKey(key))
    return (1, key)


def to_stored_key(key: SortKey) -> tuple[Any, ...]:
    """The key for a checkpoint: a plugin that reads more than the pod may return another one by
    then. Empty for a key that is no plain value and cannot be stored."""
    if len(key) == 1:
        return key
    value = key[1].key if isinstance(key[1], SafeKey) else key[1]
    return (key[0], value) if _is_plain(value) else ()


def from_stored_key(stored: tuple[Any, ...]) -> SortKey:
    """The key that :func:`to_stored_key` stored; empty if it stored none."""
    return _safe(_with_tuples(stored[1])) if len(stored) > 1 else stored


def _is_plain(value: Any, depth: int = _MAX_DEPTH) -> bool:
    kind = type(value)
    if kind is tuple:
        return depth > 0 and all(_is_plain(part, depth - 1) for part in value)
    if kind is int:
        return bool(-_INT_LIMIT <= value < _INT_LIMIT)
    if kind is str:
        # Other strings may be invalid Unicode, and names of Kubernetes are ASCII.
        return bool(value.isascii())
    return value is None or kind in (float, bool)


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list | tuple) else value


def _plugin_key(profile: Profile, pod: QueuedPod) -> Any:
    sort = profile.queue_sort
    key = sort.sort_key(pod)
    if key is not None:
        return key

    def compare(first: QueuedPod, second: QueuedPod) -> int:
        with CURRENT_CALL.of(sort.name, "QueueSort"):
            return -1 if sort.less(first, second) else int(sort.less(second, first))

    # The queue changes the pod later; the order must be that of the moment it was pushed.
    return cmp_to_key(compare)(copy(pod))
