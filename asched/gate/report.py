"""The HTML report of a gate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from asched.gate.verdict import GateReport, number_text
from asched.planning.conditions import number
from asched.planning.table import COST_COLUMNS

_TEMPLATES: Final = Environment(
    loader=ChoiceLoader([PackageLoader("asched.gate"), PackageLoader("asched.audit.whatif")]),
    autoescape=True,
    undefined=StrictUndefined,
    keep_trailing_newline=True,
)


def gate_page(report: GateReport) -> str:
    """The page of a gate: verdict, thresholds, environments, differences and all figures."""
    return _TEMPLATES.get_template("gate.html.jinja").render(
        report=report,
        title=f"Gate: {report.candidate_name}",
        checks=check_rows(report),
        environments=environment_rows(report),
        differences=difference_rows(report),
        figures=[*_figure_rows(report)],
        notes=list(dict.fromkeys((*report.baseline.notes, *report.candidate.notes))),
    )


CHECK_COLUMNS: Final = ("threshold", "condition", "baseline", "candidate", "limit", "result")


def check_rows(report: GateReport) -> list[Sequence[str]]:
    """The thresholds as rows of :data:`CHECK_COLUMNS`."""
    return [
        (
            check.column,
            check.condition,
            number_text(check.baseline),
            number_text(check.candidate),
            number_text(check.limit),
            "pass" if check.passed else "FAIL",
        )
        for check in report.checks
    ]


def environment_rows(report: GateReport) -> list[Sequence[str]]:
    """What differs between both environments: name, baseline, candidate."""
    before, after = report.baseline, report.candidate
    rows = [("Python", before.python, after.python)]
    names = dict.fromkeys((*before.distributions, *after.distributions))
    rows += [
        (name, before.distributions.get(name, "–"), after.distributions.get(name, "–"))
        for name in names
    ]
    return [row for row in rows if row[1] != row[2]]


DIFFERENCE_COLUMNS: Final = ("record", "time", "pod", "recorded", "candidate")


def difference_rows(report: GateReport) -> list[Sequence[str]]:
    """Decisions that differ, as rows of :data:`DIFFERENCE_COLUMNS`."""
    return [
        (
            f"{one.seq:,}",
            f"{one.at:%Y-%m-%d %H:%M:%S}",
            one.pod,
            one.recorded or "no node",
            ", ".join(one.decided) or one.message or "no node",
        )
        for one in report.differences
    ]


def cost_rows(report: GateReport) -> list[Sequence[str]]:
    """The costs as rows of name, baseline, candidate and change; none without prices."""
    return [row for row in _figure_rows(report) if row[0] in COST_COLUMNS]


def _figure_rows(report: GateReport) -> Iterator[Sequence[str]]:
    for name, value in report.baseline.figures.items():
        before, after = number(value), number(report.candidate.figures.get(name))
        change = "" if before is None or after is None else number_text(after - before)
        yield name, number_text(before), number_text(after), "" if change == "0" else change
