"""How a session came to its decisions, noted only for whoever asks.

A session is told a :class:`Trace` and tells it everything; :class:`NoTrace` forgets it at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from asched.framework.session_objects import Task


class TracedPlacement(NamedTuple):
    """allocate chose a node."""

    scores: Mapping[str, int]
    """Of the nodes that passed."""
    best: tuple[str, ...]
    chosen: str


class TracedVictimSearch(NamedTuple):
    """Who could go on one node, and who of them may."""

    candidates: tuple[str, ...]
    victims: tuple[str, ...]


class TracedPreemption(NamedTuple):
    """preempt or reclaim looked for victims."""

    scores: Mapping[str, int]
    node_order: tuple[str, ...]
    searches: dict[str, TracedVictimSearch]
    """By node, of those that were looked at."""


class Backfilling(NamedTuple):
    """backfill looked for a node."""

    feasible: tuple[str, ...]


Decision = TracedPlacement | TracedPreemption | Backfilling


class SessionTrace(Protocol):
    @property
    def wanted(self) -> bool:
        """Whether it is worth finding out what only a trace is interested in."""

    def begin_action(self, name: str) -> None: ...

    def line(self, *words: str | int) -> None:
        """What the action did next: a verb and what it did that to."""

    def decide(self, task: Task, decision: Decision) -> None: ...


class ActionTrace(NamedTuple):
    """What one action did."""

    action: str
    lines: list[str]
    decisions: dict[str, Decision]
    """By pod; of a pod that is handled twice, the later one."""


class Trace:
    """Keeps all of it."""

    def __init__(self) -> None:
        self.actions: list[ActionTrace] = []

    @property
    def wanted(self) -> bool:
        return True

    def begin_action(self, name: str) -> None:
        self.actions.append(ActionTrace(name, [], {}))

    def line(self, *words: str | int) -> None:
        self.actions[-1].lines.append(" ".join(map(str, words)))

    def decide(self, task: Task, decision: Decision) -> None:
        self.actions[-1].decisions[task.key] = decision


class NoTrace:
    """Keeps none of it."""

    @property
    def wanted(self) -> bool:
        return False

    def begin_action(self, name: str) -> None:
        """Forgotten."""

    def line(self, *words: str | int) -> None:
        """Forgotten."""

    def decide(self, task: Task, decision: Decision) -> None:
        """Forgotten."""


def keys(tasks: Sequence[Task]) -> tuple[str, ...]:
    return tuple(sorted(task.key for task in tasks))
