"""Queued pods in order of a sort key.

What the active queue is ordered by: the word of a QueueSort plugin, made safe to compare.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Mapping
from copy import copy
from functools import cmp_to_key
from typing import Any

from asched.framework.pod_info import QueuedPod
from asched.framework.runtime.observation import CURRENT_CALL, FAILURES, failure_reason
from asched.framework.runtime.profile import Profile

_SLACK = 64


class PodHeap:
    """Pods by key of their own, handed out in order of a sort key, then of arrival.

    A pod that is taken out leaves its entry in the heap until that comes up or too many have
    gathered. Entries are told apart by number, so what was left behind never stands for the same
    pod pushed again, and the order depends on what is in the heap alone, not on who looked when.
    """

    __slots__ = ("_arrivals", "_entries", "_numbers", "_pods")

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, str]] = []
        self._pods: dict[str, QueuedPod] = {}
        self._numbers: dict[str, int] = {}
        self._arrivals = 0

    @property
    def pods(self) -> Mapping[str, QueuedPod]:
        """The pods by key, in no particular order."""
        return self._pods

    def push(self, pod: QueuedPod, sort_key: Any) -> None:
        """Add a pod, or move it where it is there already. ``sort_key`` must never change."""
        key = pod.info.key
        self._arrivals += 1
        self._pods[key] = pod
        self._numbers[key] = self._arrivals
        heapq.heappush(self._entries, (sort_key, self._arrivals, key))
        if len(self._entries) > 2 * len(self._pods) + _SLACK:
            self._entries = [entry for entry in self._entries if self._is_live(entry)]
            heapq.heapify(self._entries)

    def pop(self, key: str) -> QueuedPod | None:
        """Take out the pod of that key; None where there is none."""
        self._numbers.pop(key, None)
        return self._pods.pop(key, None)

    def head(self) -> tuple[Any, QueuedPod] | None:
        """The first pod and its sort key; it stays in."""
        entries, numbers = self._entries, self._numbers
        while entries:
            sort_key, number, key = entries[0]
            if numbers.get(key) == number:
                return sort_key, self._pods[key]
            heapq.heappop(entries)
        return None

    def in_order(self) -> list[QueuedPod]:
        """All pods in the order in which they would be handed out."""
        return [pod for _, pod in self.keys_in_order()]

    def keys_in_order(self) -> list[tuple[Any, QueuedPod]]:
        """As :meth:`in_order`, with the sort keys."""
        live = sorted(filter(self._is_live, self._entries))
        return [(sort_key, self._pods[key]) for sort_key, _, key in live]

    def clear(self) -> None:
        self._entries.clear()
        self._pods.clear()
        self._numbers.clear()

    def _is_live(self, entry: tuple[Any, int, str]) -> bool:
        return self._numbers.get(entry[2]) == entry[1]


SortKey = tuple[Any, ...]

FIRST_OF_ALL: SortKey = (0,)
"""Before whatever a plugin says."""
_MOST_STORED = 1 << 63
"""Larger integers have no place in MessagePack."""
_MOST_LEVELS = 8
"""Of tuples in tuples."""


class Guarded:
    """A sort key of foreign code whose comparisons cannot raise: what cannot be compared is equal,
    and goes in order of arrival."""

    __slots__ = ("_key",)

    def __init__(self, key: Any) -> None:
        self._key = key

    def _compare(self, how: Callable[[Any, Any], Any], other: object, otherwise: bool) -> bool:
        try:
            return bool(how(self._key, other._key if isinstance(other, Guarded) else other))
        except BaseException:  # noqa: BLE001  that is what it is for
            return otherwise

    def __lt__(self, other: object) -> bool:
        return self._compare(operator.lt, other, False)

    def __gt__(self, other: object) -> bool:
        return self._compare(operator.gt, other, False)

    def __eq__(self, other: object) -> bool:
        return not self < other and not self > other

    __hash__ = None  # type: ignore[assignment]  # it is compared, never looked up


def sort_key(profile: Profile, pod: QueuedPod) -> SortKey:
    """What the heap sorts by. A pod whose QueueSort raises comes after all others: one pod must not
    stop the queue."""
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (profile.queue_sort.name, "QueueSort")
    try:
        key = _plugin_key(profile, pod)
    except BaseException as error:  # noqa: BLE001  third-party code, asked while a record is folded
        FAILURES.note(profile.queue_sort.name, "QueueSort", failure_reason(error))
        return (2,)
    finally:
        CURRENT_CALL.call = outer
    return _safe(key)


def _safe(key: Any) -> SortKey:
    if not isinstance(key, tuple):
        return (1, Guarded(key))
    for part in key:
        if type(part) is not int and type(part) is not float:
            return (1, Guarded(key))
    return (1, key)


def stored(key: SortKey) -> tuple[Any, ...]:
    """The key as a checkpoint holds it: where a plugin looked at more than the pod, it would say
    something else by now. Empty for one that cannot be stored, as it is no plain value."""
    if len(key) == 1:
        return key
    said = key[1]._key if isinstance(key[1], Guarded) else key[1]
    return (key[0], said) if _is_plain(said) else ()


def _is_plain(value: Any, levels: int = _MOST_LEVELS) -> bool:
    kind = type(value)
    if kind is tuple:
        return levels > 0 and all(_is_plain(part, levels - 1) for part in value)
    if kind is int:
        return bool(-_MOST_STORED <= value < _MOST_STORED)
    if kind is str:
        # Others may be no Unicode, and what Kubernetes names is ASCII.
        return bool(value.isascii())
    return value is None or kind in (float, bool)


def from_stored(form: tuple[Any, ...]) -> SortKey:
    """The key that :func:`stored` gave; empty where it gave none."""
    return _safe(_as_it_was(form[1])) if len(form) > 1 else form


def _as_it_was(value: Any) -> Any:
    return tuple(map(_as_it_was, value)) if isinstance(value, list | tuple) else value


def _plugin_key(profile: Profile, pod: QueuedPod) -> Any:
    sort = profile.queue_sort
    key = sort.sort_key(pod)
    if key is not None:
        return key

    def compare(first: QueuedPod, second: QueuedPod) -> int:
        with CURRENT_CALL.of(sort.name, "QueueSort"):
            return -1 if sort.less(first, second) else int(sort.less(second, first))

    # The queue goes on to change the pod: its place must be that of the moment it was pushed.
    return cmp_to_key(compare)(copy(pod))
