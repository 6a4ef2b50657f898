"""Optional trace of a session's decisions, for explanations and conformance tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from asched.framework.session_objects import Task


class TracedPlacement(NamedTuple):
    """The node choice of allocate."""

    scores: Mapping[str, int]
    """By feasible node."""
    best: tuple[str, ...]
    chosen: str


class TracedVictimSearch(NamedTuple):
    """The candidates on one node, and those that plugins permit to evict."""

    candidates: tuple[str, ...]
    victims: tuple[str, ...]


class TracedPreemption(NamedTuple):
    """A search for victims by preempt or reclaim."""

    scores: Mapping[str, int]
    node_order: tuple[str, ...]
    searches: dict[str, TracedVictimSearch]
    """By examined node."""


class TracedBackfill(NamedTuple):
    """The feasible nodes in backfill."""

    feasible: tuple[str, ...]


TracedDecision = TracedPlacement | TracedPreemption | TracedBackfill


class SessionTrace:
    """Receives what a session does. This base class drops everything."""

    wanted = False
    """Whether to compute details that only a trace needs."""

    def begin_action(self, name: str) -> None:
        """An action starts."""

    def line(self, *words: str | int) -> None:
        """A step of the action: a verb and its objects."""

    def decide(self, task: Task, decision: TracedDecision) -> None:
        """The details of a decision about the task."""


class ActionTrace(NamedTuple):
    action: str
    lines: list[str]
    decisions: dict[str, TracedDecision]
    """By pod; the last one of each."""


class Trace(SessionTrace):
    """Keeps the trace of every action."""

    wanted = True

    def __init__(self) -> None:
        self.actions: list[ActionTrace] = []

    def begin_action(self, name: str) -> None:
        self.actions.append(ActionTrace(name, [], {}))

    def line(self, *words: str | int) -> None:
        self.actions[-1].lines.append(" ".join(map(str, words)))

    def decide(self, task: Task, decision: TracedDecision) -> None:
        self.actions[-1].decisions[task.key] = decision


def keys(tasks: Sequence[Task]) -> tuple[str, ...]:
    return tuple(sorted(task.key for task in tasks))
