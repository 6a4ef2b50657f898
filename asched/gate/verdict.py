"""The verdict of a gate."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from asched.audit.timeline import time_of
from asched.gate.agreement import DecisionDifference
from asched.gate.side import SideRequest, SideResult
from asched.planning.conditions import Condition, number
from asched.planning.errors import PlanningError

FORMAT: Final = 1


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"


class ThresholdCheck(msgspec.Struct, frozen=True, rename="camel"):
    """One threshold and whether the candidate meets it."""

    column: str
    condition: str
    baseline: float | None
    candidate: float | None
    limit: float
    """The number that the condition means."""
    passed: bool


class GateReport(msgspec.Struct, frozen=True, rename="camel"):
    """The JSON form of a gate's result."""

    format: int
    verdict: Verdict
    begin: datetime
    end: datetime
    candidate_name: str
    checks: tuple[ThresholdCheck, ...]
    baseline: SideResult
    candidate: SideResult

    @property
    def reasons(self) -> list[str]:
        """Why the candidate failed, one a line."""
        found = [self.candidate.error] if self.candidate.error else []
        return found + [_reason(check) for check in self.checks if not check.passed]

    @property
    def differences(self) -> tuple[DecisionDifference, ...]:
        """Decisions that the candidate makes differently."""
        found = self.candidate.agreement
        return () if found is None else found.differences


def _reason(check: ThresholdCheck) -> str:
    limit = f"{check.condition.split()[0]} {number_text(check.limit)}"
    relative = f" ({check.condition})" if "baseline" in check.condition else ""
    return f"{check.column} is {number_text(check.candidate)}, expected {limit}{relative}"


def judged(
    request: SideRequest,
    candidate_name: str,
    sides: tuple[SideResult, SideResult],
    thresholds: Iterable[Condition],
) -> GateReport:
    """Applies thresholds to the baseline and the candidate, in this order.

    A candidate without figures fails. Raises PlanningError for a column that the baseline lacks,
    and for a period in which no pod gets a node.
    """
    baseline, candidate = sides
    if baseline.figures.get("placed") == 0:
        raise PlanningError(
            f"no pod gets a node from {time_of(request.since_ns):%Y-%m-%dT%H:%M:%SZ} to"
            f" {time_of(request.until_ns):%Y-%m-%dT%H:%M:%SZ}, so there is nothing to judge;"
            " give more --days"
        )
    checks = []
    for condition in () if candidate.error else thresholds:
        if condition.column not in baseline.figures:
            columns = ", ".join(sorted(baseline.figures))
            raise PlanningError(f"{condition.column} is not a column; columns are {columns}")
        limit = condition.limit(baseline.figures)
        value = candidate.figures.get(condition.column)
        checks.append(
            ThresholdCheck(
                column=condition.column,
                condition=condition.text,
                baseline=number(baseline.figures.get(condition.column)),
                candidate=number(value),
                limit=limit,
                passed=condition.holds(value, limit),
            )
        )
    passed = not candidate.error and all(check.passed for check in checks)
    return GateReport(
        format=FORMAT,
        verdict=Verdict.PASS if passed else Verdict.FAIL,
        begin=time_of(request.since_ns),
        end=time_of(request.until_ns),
        candidate_name=candidate_name,
        checks=tuple(checks),
        baseline=baseline,
        candidate=candidate,
    )


def number_text(value: float | None) -> str:
    """A number for a table; a dash for None."""
    return "–" if value is None else f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
