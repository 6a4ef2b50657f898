"""What is due when: the heap that a virtual clock runs on."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TypeAlias

Action: TypeAlias = Callable[[int], None]
"""Something that happens; it is told when, in nanoseconds."""


class Agenda:
    """Actions by the time they are due; those of the same time in the order they were entered."""

    __slots__ = ("_entered", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Action]] = []
        self._entered = 0

    def enter(self, due_ns: int, action: Action) -> None:
        self._entered += 1
        heapq.heappush(self._heap, (due_ns, self._entered, action))

    @property
    def next_ns(self) -> int | None:
        """When the first is due; None for none."""
        return self._heap[0][0] if self._heap else None

    def act(self) -> None:
        """Let the first happen. Raises IndexError for none."""
        due_ns, _, action = heapq.heappop(self._heap)
        action(due_ns)
