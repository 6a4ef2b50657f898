"""Conditions on columns of runs, such as ``<= 1.05 * baseline``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from asched.planning.errors import PlanningError

Value = str | int | float | None

_NUMBER: Final = r"\d+(?:\.\d+)?"
_CONDITION: Final = re.compile(
    rf"(?P<operator><=|>=|<|>|==)\s*(?:(?P<factor>{_NUMBER})\s*\*\s*)?"
    rf"(?P<bound>baseline|-?{_NUMBER}(?:e[+-]?\d+)?)(?:\s*\+\s*(?P<more>{_NUMBER}))?"
)
_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}


def number(value: Value) -> float | None:
    """The value if it is a number."""
    return value if isinstance(value, int | float) else None


class Condition(NamedTuple):
    """What a column must meet."""

    column: str
    text: str
    """As it was written."""
    compare: Callable[[float, float], bool]
    factor: float
    bound: float | None
    """None for the baseline's value."""
    more: float

    @classmethod
    def parse(cls, column: str, text: str) -> Condition:
        """Parses ``<= 12``, ``<= baseline``, ``<= 1.05 * baseline`` or ``<= 1.05 * baseline + 2``.

        Raises PlanningError for other text.
        """
        match = _CONDITION.fullmatch(text.strip())
        if match is None:
            raise PlanningError(
                f'{column}: "{text}" is not a condition; write "<= 12", "<= baseline" or'
                ' "<= 1.05 * baseline + 2"'
            )
        return cls(
            column=column,
            text=text.strip(),
            compare=_OPERATORS[match["operator"]],
            factor=float(match["factor"] or 1),
            bound=None if match["bound"] == "baseline" else float(match["bound"]),
            more=float(match["more"] or 0),
        )

    @classmethod
    def parse_line(cls, text: str) -> Condition:
        """Parses a column and its condition: ``evictions <= baseline``. Raises PlanningError."""
        column, _, condition = text.strip().partition(" ")
        if not condition:
            raise PlanningError(f'"{text}" is not a condition; write "evictions <= baseline"')
        return cls.parse(column, condition)

    def limit(self, baseline: Mapping[str, Value]) -> float:
        """The number to compare with. Raises PlanningError if the baseline has no such value."""
        bound = number(baseline.get(self.column)) if self.bound is None else self.bound
        if bound is None:
            raise PlanningError(f"the baseline has no {self.column}")
        return self.factor * bound + self.more

    def holds(self, value: Value, limit: float) -> bool:
        """Whether the value is a number that meets the condition."""
        found = number(value)
        return found is not None and self.compare(found, limit)
