"""Renders the HTML report about one run, or about two runs for comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from asched.audit.timeline import time_of
from asched.audit.whatif.charts import (
    FRAME,
    Chart,
    ChartLine,
    Role,
    Sample,
    time_chart,
    wait_chart,
)
from asched.audit.whatif.comparison import Comparison, figure_rows
from asched.audit.whatif.measures import MeasuredRun
from asched.simulator.trace import WorkloadRun

MAX_PODS: Final = 500
"""Rows of each table of pods."""

TEMPLATES: Final = Environment(
    loader=PackageLoader("asched.audit.whatif"),
    autoescape=True,
    undefined=StrictUndefined,
    keep_trailing_newline=True,
)


class _LabelledRun(NamedTuple):
    role: Role
    name: str
    run: MeasuredRun


class _DifferenceTable(NamedTuple):
    """A section with the pods that differ between the runs."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def comparison_page(comparison: Comparison, title: str) -> str:
    """The page of a comparison; ``title`` is plain text."""
    runs = [
        _LabelledRun(Role.BASELINE, comparison.names[0], comparison.baseline),
        _LabelledRun(Role.CANDIDATE, comparison.names[1], comparison.candidate),
    ]
    if comparison.recorded is not None:
        runs.append(_LabelledRun(Role.RECORDED, "as recorded", comparison.recorded))
    return _page(title, runs, comparison.notes, _differences(comparison))


def run_page(name: str, run: MeasuredRun, title: str, notes: Iterable[str] = ()) -> str:
    """The page of a single run."""
    return _page(title, [_LabelledRun(Role.BASELINE, name, run)], notes, ())


def _page(
    title: str,
    runs: Sequence[_LabelledRun],
    notes: Iterable[str],
    differences: Sequence[_DifferenceTable],
) -> str:
    columns = ["", *(one.name for one in runs)]
    rows = []
    for row in figure_rows([one.run.figures for one in runs]):
        cells = [row.label, *row.values]
        if len(runs) > 1:
            cells.insert(3, row.change)
        rows.append(cells)
    if len(runs) > 1:
        columns.insert(3, "change")
    return TEMPLATES.get_template("report.html.jinja").render(
        title=title,
        period=_period(runs[0].run.run),
        notes=[*notes],
        figure_columns=columns,
        figure_rows=rows,
        waiting_charts=_waiting_charts(runs),
        resource_charts=_resource_charts(runs),
        differences=differences,
        frame=FRAME,
        max_pods=MAX_PODS,
    )


def _period(run: WorkloadRun) -> str:
    begin, end = time_of(run.begin_ns), time_of(run.end_ns)
    nodes = len({span.node.name for span in run.nodes})
    return f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC, {nodes:,} nodes"


def _waiting_charts(runs: Sequence[_LabelledRun]) -> list[Chart]:
    samples = [Sample(one.role, one.name, one.run.to_bind_ns, one.run.figures.pods) for one in runs]
    lines = [ChartLine(one.role, one.name, one.run.pending) for one in runs]
    return [
        wait_chart("Pods bound, by time since creation", samples),
        time_chart("Pods without a node", lines, shares=False),
    ]


def _resource_charts(runs: Sequence[_LabelledRun]) -> list[Chart]:
    charts = []
    for resource in runs[0].run.utilisation:
        for measure, by_run in (
            ("utilisation: requested / allocatable", [one.run.utilisation for one in runs]),
            ("fragmentation: unusable / free", [one.run.fragmentation for one in runs]),
        ):
            lines = [
                ChartLine(one.role, one.name, steps[resource])
                for one, steps in zip(runs, by_run, strict=True)
                if resource in steps
            ]
            if lines:
                charts.append(time_chart(f"{resource} {measure}", lines, shares=True))
    return charts


def _differences(comparison: Comparison) -> list[_DifferenceTable]:
    first, second = comparison.names
    elsewhere = [(p.pod, p.baseline, p.candidate) for p in comparison.placed_elsewhere]
    sections = [_DifferenceTable("Pods placed differently", ("pod", first, second), elsewhere)]
    for name, other, only in (
        (first, second, comparison.placed_in_baseline_only),
        (second, first, comparison.placed_in_candidate_only),
    ):
        rows = [(p.pod, p.node, p.message) for p in only]
        columns = ("pod", "node", f"message of {other}")
        sections.append(_DifferenceTable(f"Pods placed only in one run: {name}", columns, rows))
    return sections
