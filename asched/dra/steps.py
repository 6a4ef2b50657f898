"""Steps of searches, counted instead of measured time: a replay stops at the same place.

A step takes about two microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FREE_SELECTOR_COST: Final = 100
"""Evaluations that cost up to this many CEL units are free."""
SELECTOR_COST_PER_STEP: Final = 8


class SearchBudgetExceededError(Exception):
    """The search took more steps than it may."""


class StepMeter:
    """Counts the steps of one search."""

    __slots__ = ("evaluations", "limit", "steps")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.steps = 0
        """Without those of :attr:`evaluations`."""
        self.evaluations: dict[int, int] = {}
        """The steps of expensive evaluations, by identity: several searches may need the same."""

    def add(self, steps: int = 1) -> None:
        """Raises SearchBudgetExceededError beyond the limit."""
        self.steps += steps
        if self.steps > self.limit:
            raise SearchBudgetExceededError

    def add_evaluations(self, evaluations: Mapping[int, int]) -> None:
        """Count evaluations, whether or not their answers were known. Each counts once."""
        self.evaluations.update(evaluations)
        if self.steps + sum(self.evaluations.values()) > self.limit:
            raise SearchBudgetExceededError


def selector_steps(cost: int) -> int:
    """The steps of an evaluation that costs so many CEL units."""
    return cost // SELECTOR_COST_PER_STEP if cost > FREE_SELECTOR_COST else 0


class AttemptMeter:
    """Counts the steps of the searches of one attempt. Shared evaluations count once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._steps = 0
        self._evaluations: dict[int, int] = {}

    def add(self, steps: int, evaluations: Mapping[int, int] | None = None) -> None:
        """Count a search."""
        self._steps += steps
        for identity, cost in (evaluations or {}).items():
            if identity not in self._evaluations:
                self._evaluations[identity] = cost
                self._steps += cost

    @property
    def is_exceeded(self) -> bool:
        """Whether the steps are more than an attempt may take."""
        return self._steps > self._limit
