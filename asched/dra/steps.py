"""Steps of searches, counted instead of measured time: a replay stops at the same place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final, Protocol

STEP: Final = timedelta(microseconds=2)
"""About how long a step takes."""
LONG_SEARCH_STEPS: Final = 5_000
"""Searches of a node that take more steps are repeated at a price: ten milliseconds."""
SITE_STEPS: Final = 12
"""Of each search, whatever it finds."""
CHEAP_SELECTOR_COST: Final = 100
"""Evaluations that cost more CEL units than this are expensive."""
SELECTOR_COST_PER_STEP: Final = 8
CHEAP_SELECTOR_STEPS: Final = 8
CHARACTERS_PER_STEP: Final = 1
"""Characters of an expression that are compiled in one step."""
OPTIONS_PER_STEP: Final = 2
"""Requests, or alternatives, that are prepared for a search in one step."""
CONSTRAINTS_PER_STEP: Final = 2
"""Constraints that a device is compared with in one step."""


class SearchBudgetExceededError(Exception):
    """The search took more steps than it may."""


class Evaluated(Protocol):
    """Evaluations of the selectors of a request for equal devices."""

    @property
    def evaluations(self) -> Mapping[int, int]:
        """The steps of each, by identity: several searches may need the same."""
        ...

    @property
    def expensive_steps(self) -> int:
        """The steps of those that are expensive."""
        ...


class StepMeter:
    """Counts the steps of one search."""

    __slots__ = ("_expensive_steps", "evaluated", "limit", "steps")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.steps = 0
        """Without those of evaluations."""
        self.evaluated: dict[int, Evaluated] = {}
        """By identity."""
        self._expensive_steps = 0

    def add(self, steps: int = 1) -> None:
        """Raises SearchBudgetExceededError beyond the limit."""
        self.steps += steps
        if self.steps > self.limit:
            raise SearchBudgetExceededError

    def add_evaluated(self, evaluated: Evaluated) -> None:
        """Count evaluations, whether or not their answers were known. Each counts once."""
        if id(evaluated) in self.evaluated:
            return
        self.evaluated[id(evaluated)] = evaluated
        self._expensive_steps += evaluated.expensive_steps
        if self.steps + self._expensive_steps > self.limit:
            raise SearchBudgetExceededError


def selector_steps(cost: int) -> int:
    """The steps of an evaluation that costs so many CEL units."""
    return cost // SELECTOR_COST_PER_STEP if cost > CHEAP_SELECTOR_COST else CHEAP_SELECTOR_STEPS


class AttemptMeter:
    """Counts the steps of the searches of one attempt. Shared evaluations count once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._steps = 0
        self._evaluated: dict[int, Evaluated] = {}
        self._evaluations: set[int] = set()

    def add(self, steps: int, evaluated: Iterable[Evaluated] = ()) -> None:
        """Count a search."""
        self._steps += steps
        for answer in evaluated:
            if id(answer) not in self._evaluated:
                self._evaluated[id(answer)] = answer
                self._add_evaluations(answer.evaluations)

    def _add_evaluations(self, evaluations: Mapping[int, int]) -> None:
        for identity, cost in evaluations.items():
            if identity not in self._evaluations:
                self._evaluations.add(identity)
                self._steps += cost

    @property
    def is_exceeded(self) -> bool:
        """Whether the steps are more than an attempt may take."""
        return self._steps > self._limit
