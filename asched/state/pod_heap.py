"""Queued pods in order of a sort key."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

from asched.framework.pod_info import QueuedPod

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
