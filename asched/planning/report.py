"""The HTML report of a sweep, with charts as inline SVG."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from asched import __version__
from asched.audit.whatif.report import FRAME, Mark, span_label, time_marks, upper_bound
from asched.planning.conditions import Value
from asched.planning.sweep_file import RECORDED
from asched.planning.table import AXES, RunRow, RunTable

WAIT: Final = "p95_wait_s"
MAX_LINES: Final = 8
"""Runs with a line in the chart of waits: readers cannot distinguish more colors."""
MAX_CLASSES: Final = 20
MAX_NOTES: Final = 10
_COLUMNS: Final = (
    *("nodes", "placed", "pending_at_end", "p50_wait_s", "p95_wait_s", "p99_wait_s", "evictions"),
    *("cpu_utilisation_mean", "node_hours", "cost", "idle_cost", "wait_cost"),
)
SEED_COLUMNS: Final = (
    *("placed", "mean_wait_s", "p95_wait_s", "p99_wait_s", "evictions", "node_hours", "cost"),
)
_COST_NAMES: Final = {"cost": "cost of the nodes", "node_hours": "node hours"}
_MIN_WAIT_S: Final = 0.001

_TEMPLATES: Final = Environment(
    loader=ChoiceLoader([PackageLoader("asched.planning"), PackageLoader("asched.audit.whatif")]),
    autoescape=True,
    undefined=StrictUndefined,
    keep_trailing_newline=True,
)


class Point(NamedTuple):
    """A run in the chart of cost against wait, in SVG coordinates."""

    x: float
    y: float
    title: str
    series: int
    """The number of its value of the axis that colors distinguish."""
    on_front: bool
    is_baseline: bool


class Line(NamedTuple):
    """The distribution of the waits of a run."""

    name: str
    path: str
    number: int


class PlotAxes(NamedTuple):
    """Labelled marks in SVG coordinates."""

    x_marks: Sequence[Mark]
    y_marks: Sequence[Mark]


class ReportTable(NamedTuple):
    """Rows of text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def sweep_page(table: RunTable, title: str) -> str:
    """The page of a sweep; ``title`` is plain text."""
    shown = [row for row in table.rows if row.figures is not None][:MAX_LINES]
    series = color_axis(table)
    points, axes = _points(table, series)
    lines, line_axes = _lines(shown, table)
    columns = [name for name in (*varied_axes(table), *_COLUMNS) if name in table.columns]
    return _TEMPLATES.get_template("sweep.html.jinja").render(
        title=title,
        workload=table.workload,
        runs=len(table),
        version=__version__,
        failed=[(name_of(row, table), row.error) for row in table.rows if row.error],
        notes=notes_of(table),
        cost_name=_COST_NAMES[cost_column(table)],
        columns=columns,
        rows=[[cell_text(name, values.get(name)) for name in columns] for values in table.values],
        points=points,
        axes=axes,
        series=_values_of(series, table),
        over_seeds=_over_seeds(table),
        lines=lines,
        line_axes=line_axes,
        classes=_classes(shown, table),
        frame=FRAME,
        omitted_lines=sum(row.figures is not None for row in table.rows) - len(shown),
    )


def varied_axes(table: RunTable) -> list[str]:
    """The settings in which the runs differ."""
    return [name for name in AXES if len({values[name] for values in table.values}) > 1]


def name_of(row: RunRow, table: RunTable) -> str:
    """The settings in which the run differs from the first one, as text."""
    values, baseline = row.values(), table.values[0]
    parts = [
        f"{name} {cell_text(name, values[name]) or 'none'}"
        for name in varied_axes(table)
        if values[name] != baseline[name]
    ]
    return ", ".join(parts) or "baseline"


def notes_of(table: RunTable) -> list[str]:
    """What the runs note for the reader, without repetitions and at most :data:`MAX_NOTES`."""
    found = (note for row in table.rows if row.figures is not None for note in row.figures.notes)
    notes = list(dict.fromkeys(found))
    omitted = len(notes) - MAX_NOTES
    return notes if omitted <= 0 else [*notes[:MAX_NOTES], f"{omitted:,} more notes are omitted"]


def cost_column(table: RunTable) -> str:
    """The column of the Pareto front: the price of the nodes, or without prices their hours."""
    return "cost" if "cost" in table.columns else "node_hours"


def value_text(value: Value) -> str:
    """A value for a table; empty for None."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


def cell_text(column: str, value: Value) -> str:
    """As :func:`value_text`. The recorded configuration, which has no name, is called so."""
    return value_text(value) or (RECORDED if column == "config" else "")


def color_axis(table: RunTable) -> str | None:
    """The first setting in which runs differ with few enough values for a color each."""
    for name in varied_axes(table):
        if name != "seed" and len(_values_of(name, table)) <= MAX_LINES:
            return name
    return None


def _values_of(name: str | None, table: RunTable) -> list[str]:
    if name is None:
        return []
    return list(dict.fromkeys(cell_text(name, values[name]) or "none" for values in table.values))


def _over_seeds(table: RunTable) -> ReportTable:
    """Runs that differ in the seed only as one row, with the median and the range of figures."""
    axes = varied_axes(table)
    if "seed" not in axes or len(axes) == 1:
        return ReportTable((), ())
    axes.remove("seed")
    groups: dict[tuple[str, ...], list[Mapping[str, Value]]] = {}
    for values in table.values:
        key = tuple(cell_text(name, values[name]) for name in axes)
        groups.setdefault(key, []).append(values)
    columns = [name for name in SEED_COLUMNS if name in table.columns]
    rows = [
        [*key, str(len(found)), *(_range_text(name, found) for name in columns)]
        for key, found in groups.items()
    ]
    return ReportTable([*axes, "runs", *columns], rows)


def _range_text(name: str, runs: Sequence[Mapping[str, Value]]) -> str:
    """``12 (10 to 15)``, or one number if all are equal; empty if no run has the figure."""
    numbers = [found for values in runs if (found := _number(values, name)) is not None]
    if not numbers:
        return ""
    middle, *ends = map(value_text, (statistics.median(numbers), min(numbers), max(numbers)))
    return middle if ends[0] == ends[1] else f"{middle} ({ends[0]} to {ends[1]})"


def _points(table: RunTable, series: str | None) -> tuple[list[Point], PlotAxes]:
    """Cost against wait, both from zero."""
    column = cost_column(table)
    placed = [
        (index, cost, wait)
        for index, values in enumerate(table.values)
        if (cost := _number(values, column)) is not None
        and (wait := _number(values, WAIT)) is not None
    ]
    if not placed:
        return [], PlotAxes((), ())
    front = set(table.pareto(column, WAIT))
    names = _values_of(series, table)
    most_x, step_x = upper_bound([cost for _, cost, _ in placed])
    most_y = max(wait for _, _, wait in placed) or 1.0
    points = [
        Point(
            _x(cost / most_x),
            _y(wait / most_y),
            f"{name_of(table.rows[index], table)}: {column} {value_text(cost)},"
            f" {WAIT} {value_text(wait)}",
            _series_number(table.values[index], series, names),
            index in front,
            index == 0,
        )
        for index, cost, wait in placed
    ]
    x_marks = [Mark(_x(value / most_x), f"{value:,.6g}") for value in _steps(most_x, step_x)]
    y_marks = [Mark(_y(mark.at / most_y), mark.label) for mark in time_marks(most_y, most=5)]
    return points, PlotAxes(x_marks, y_marks)


def _series_number(values: Mapping[str, Value], series: str | None, names: Sequence[str]) -> int:
    if series is None:
        return MAX_LINES - 1
    return names.index(cell_text(series, values[series]) or "none")


def _number(values: Mapping[str, Value], name: str) -> float | None:
    found = values.get(name)
    return float(found) if isinstance(found, int | float) else None


def _steps(most: float, step: float) -> Iterator[float]:
    return (number * step for number in range(round(most / step) + 1))


def _x(part: float) -> float:
    return round(FRAME.left + (FRAME.right - FRAME.left) * part, 1)


def _y(part: float) -> float:
    return round(FRAME.bottom - (FRAME.bottom - FRAME.top) * part, 1)


def _lines(rows: Sequence[RunRow], table: RunTable) -> tuple[list[Line], PlotAxes]:
    """The fraction of pods that are bound within a time, on a logarithmic time axis."""
    waits = [max(row.figures.waits.seconds, default=0.0) for row in rows if row.figures is not None]
    low = math.log10(_MIN_WAIT_S)
    high = max(math.log10(max([*waits, _MIN_WAIT_S])), low + 1)
    lines = [
        Line(name_of(row, table), _distribution(row, low, high), number)
        for number, row in enumerate(rows)
    ]
    decades = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 86400, 864000)
    x_marks = [
        Mark(_x((math.log10(at) - low) / (high - low)), span_label(at))
        for at in decades
        if math.log10(at) <= high
    ]
    y_marks = [Mark(_y(part / 4), f"{part / 4:.0%}") for part in range(5)]
    return lines, PlotAxes(x_marks, y_marks)


def _distribution(row: RunRow, low: float, high: float) -> str:
    if row.figures is None or not row.figures.waits.seconds:
        return ""
    bound_share = row.figures.figures.time_to_bind.count / max(1, row.figures.figures.pods)
    parts: list[str] = []
    for percent, wait_s in zip(row.figures.waits.percents, row.figures.waits.seconds, strict=True):
        x = _x((math.log10(max(wait_s, _MIN_WAIT_S)) - low) / (high - low))
        parts.append(f"{'L' if parts else 'M'}{x} {_y(percent / 100 * bound_share)}")
    return "".join(parts)


def _classes(rows: Sequence[RunRow], table: RunTable) -> ReportTable:
    """Median and 99th percentile of the waits by job class."""
    found = [row.figures.classes for row in rows if row.figures is not None]
    names = list(dict.fromkeys(name for classes in found for name in classes))[:MAX_CLASSES]
    lines = []
    for name in names:
        cells = []
        for classes in found:
            one = classes.get(name)
            times = None if one is None else one.time_to_bind
            if times is None or times.p50_seconds is None or times.p99_seconds is None:
                cells.append("–")
            else:
                cells.append(f"{span_label(times.p50_seconds)} / {span_label(times.p99_seconds)}")
        lines.append([name, *cells])
    return ReportTable(["job class", *(name_of(row, table) for row in rows)], lines)
