"""Steps of a search, counted instead of measured time: a replay stops at the same place."""

from __future__ import annotations

from typing import Final

FREE_SELECTOR_COST: Final = 100
"""Selectors that cost up to this many CEL units for a device are free."""


class SearchBudgetExceededError(Exception):
    """The search took more steps than it may."""


class StepMeter:
    """Counts the steps of one search."""

    __slots__ = ("limit", "steps")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.steps = 0

    def add(self, steps: int = 1) -> None:
        """Raises SearchBudgetExceededError beyond the limit."""
        self.steps += steps
        if self.steps > self.limit:
            raise SearchBudgetExceededError

    def add_selector(self, cost: int) -> None:
        """Count an evaluation that cost so many CEL units, whether or not its answer was known."""
        if cost > FREE_SELECTOR_COST:
            self.add(cost - FREE_SELECTOR_COST)
