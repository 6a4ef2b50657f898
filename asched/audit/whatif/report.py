"""Renders the HTML report about one run, or about two runs for comparison, with charts.

The template renders a :class:`Chart`, a step function over time or a distribution, as inline SVG.
Its style sheet sets the colors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from asched.audit.timeline import time_of
from asched.audit.whatif.comparison import Comparison, figure_rows
from asched.audit.whatif.measures import MeasuredRun
from asched.audit.whatif.occupancy import Steps
from asched.model.quantity import NS_PER_S
from asched.simulator.trace import WorkloadRun

_TICK_SPANS_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800),
)
_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))

MAX_STEPS: Final = 480
"""Steps per line: about one per pixel."""
MIN_WAIT_S: Final = 0.001
"""Start of the logarithmic axis, which also shows shorter times."""


class Mark(NamedTuple):
    """A labelled value on an axis."""

    at: float
    """In units of the axis."""
    label: str


def span_label(seconds: float) -> str:
    """A time span in its largest unit without a long fraction.

    >>> span_label(5400), span_label(0.25), span_label(0)
    ('90 min', '250 ms', '0')
    """
    if not seconds:
        return "0"
    for size, unit in _UNITS:
        if abs(seconds) < size:
            continue
        number = seconds / size
        if math.isclose(number, round(number, 1), rel_tol=1e-6):
            return f"{number:.6g} {unit}"
    return f"{seconds:.3g} s"


def time_marks(span_s: float, most: int = 7) -> list[Mark]:
    """Round times from 0 to ``span_s``, with at most ``most`` steps."""
    step_s = next((span for span in _TICK_SPANS_S if span_s / span <= most), None)
    if step_s is None:
        step_s = math.ceil(span_s / most / _TICK_SPANS_S[-1]) * _TICK_SPANS_S[-1]
    unit_s, unit = next((u for u in _UNITS if step_s >= u[0]), _UNITS[-1])
    count = math.floor(span_s / step_s + 1e-9)
    return [
        Mark(i * step_s, f"{i * step_s / unit_s:g} {unit}" if i else "0") for i in range(count + 1)
    ]


def decade_marks(low_s: float, high_s: float) -> list[Mark]:
    """Round times on a logarithmic axis, bounds included."""
    marks = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36000, 86400, 864000, 8640000)
    return [Mark(at, span_label(at)) for at in marks if low_s <= at <= high_s * 1.0001]


def upper_bound(values: Sequence[float], most_marks: int = 5) -> tuple[float, float]:
    """(A round number that is at least the maximum, the distance of its marks)."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return 1.0, 1.0
    raw = highest / most_marks
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999999)
    return math.ceil(highest / step - 1e-9) * step, step


class Frame(NamedTuple):
    """The plot area in the coordinates of the SVG image."""

    width: int = 560
    height: int = 250
    left: int = 52
    top: int = 12
    right: int = 532
    bottom: int = 210


FRAME: Final = Frame()


class Role(Enum):
    """The run of a line; the value is its CSS class."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"
    RECORDED = "recorded"


class ChartLine(NamedTuple):
    """A step function to plot."""

    role: Role
    name: str
    steps: Steps


class Sample(NamedTuple):
    """Measured times, to plot as cumulative distribution."""

    role: Role
    name: str
    ordered_ns: Sequence[int]
    """Ascending."""
    total: int
    """The number of measurements if all had ended."""


class ChartPath(NamedTuple):
    role: Role
    title: str
    data: str
    """The ``d`` attribute of the SVG path."""


class Scale(NamedTuple):
    """Maps values to SVG coordinates."""

    low_x: float
    high_x: float
    high_y: float

    def x(self, value: float) -> str:
        part = (value - self.low_x) / ((self.high_x - self.low_x) or 1.0)
        return _coordinate(FRAME.left + (FRAME.right - FRAME.left) * part)

    def y(self, value: float) -> str:
        part = value / self.high_y
        return _coordinate(FRAME.top + (FRAME.bottom - FRAME.top) * (1 - part))


def _coordinate(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Chart(NamedTuple):
    """Marks in units of the axes, and paths in SVG coordinates."""

    caption: str
    legend: Sequence[ChartLine | Sample]
    scale: Scale
    x_marks: Sequence[Mark]
    y_marks: Sequence[Mark]
    paths: Sequence[ChartPath]


def time_chart(caption: str, lines: Sequence[ChartLine], *, shares: bool) -> Chart:
    """Counts over time, or ``shares``: up to 100 % or the next round number above the maximum."""
    plotted = (line.steps.thinned(MAX_STEPS).values for line in lines)
    highest = max((float(values.max()) for values in plotted), default=0.0)
    bound, step = (1.0, 0.25) if shares and highest <= 1.0 else upper_bound([highest])
    values = [i * step for i in range(round(bound / step) + 1)]
    marks = [Mark(value, f"{value:.0%}" if shares else f"{value:,g}") for value in values]
    span_s = max((_span_s(line.steps) for line in lines), default=0.0) or 1.0
    scale = Scale(0.0, span_s, bound)
    paths = [_step_path(scale, line) for line in lines]
    return Chart(caption, lines, scale, time_marks(span_s), marks, paths)


def _span_s(steps: Steps) -> float:
    return (steps.end_ns - steps.start_ns) / NS_PER_S


def _step_path(scale: Scale, line: ChartLine) -> ChartPath:
    steps = line.steps.thinned(MAX_STEPS)
    times_s = ((steps.at_ns - steps.start_ns) / NS_PER_S).tolist()
    parts = [f"M{scale.x(times_s[0])} {scale.y(float(steps.values[0]))}"]
    for time_s, value in zip(times_s[1:], steps.values[1:].tolist(), strict=True):
        parts.append(f"H{scale.x(time_s)}V{scale.y(value)}")
    parts.append(f"H{scale.x(_span_s(steps))}")
    return ChartPath(line.role, line.name, "".join(parts))


def wait_chart(caption: str, samples: Sequence[Sample]) -> Chart:
    """The fraction of pods that are bound within a time, on a logarithmic time axis."""
    longest_s = max((s.ordered_ns[-1] / NS_PER_S for s in samples if s.ordered_ns), default=0.0)
    low = math.log10(MIN_WAIT_S)
    high = max(math.log10(max(longest_s, MIN_WAIT_S)), low + 1)
    scale = Scale(low, high, 1.0)
    x_marks = [
        Mark(math.log10(mark.at), ("≤ " if mark.at == MIN_WAIT_S else "") + mark.label)
        for mark in decade_marks(MIN_WAIT_S, 10**high)
    ]
    y_marks = [Mark(part / 4, f"{part / 4:.0%}") for part in range(5)]
    paths = [_distribution_path(scale, sample) for sample in samples if sample.ordered_ns]
    return Chart(caption, samples, scale, x_marks, y_marks, paths)


def _distribution_path(scale: Scale, sample: Sample) -> ChartPath:
    ordered, count = sample.ordered_ns, len(sample.ordered_ns)
    stride = max(1, count // MAX_STEPS)
    parts = [f"M{scale.x(scale.low_x)} {scale.y(0.0)}"]
    for index in [*range(0, count - 1, stride), count - 1]:
        x = scale.x(math.log10(max(ordered[index] / NS_PER_S, MIN_WAIT_S)))
        parts.append(f"H{x}V{scale.y((index + 1) / sample.total)}")
    parts.append(f"H{scale.x(scale.high_x)}")
    longest = span_label(round(ordered[-1] / NS_PER_S, 3))
    return ChartPath(sample.role, f"{sample.name}: longest {longest}", "".join(parts))


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
