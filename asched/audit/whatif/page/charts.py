"""Charts as inline SVG: step functions over time, and distributions.

Colours and fonts are the page's (``style.py``): an element only says which run it belongs to.

Where the marks of an axis are, and what they say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from asched.audit.whatif.occupancy import Steps
from asched.audit.whatif.page.markup import Html, joined, tag, text
from asched.model.quantity import NS_PER_S

_SPANS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
    3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
)  # fmt: skip
"""Round stretches of time, in seconds."""
_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))


class Mark(NamedTuple):
    """A labelled place on an axis."""

    at: float
    """In units of the axis."""
    label: str


def span_label(seconds: float) -> str:
    """A stretch of time in its largest unit that leaves no long fraction.

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
    """Round times from 0 up to ``span_s``, at most so many steps."""
    step_s = next((span for span in _SPANS_S if span_s / span <= most), None)
    if step_s is None:
        step_s = math.ceil(span_s / most / _SPANS_S[-1]) * _SPANS_S[-1]
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
    """(A round number not below any of the values, the distance of its marks)."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return 1.0, 1.0
    raw = highest / most_marks
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999999)
    return math.ceil(highest / step - 1e-9) * step, step


WIDTH: Final = 560
HEIGHT: Final = 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 28, 12, 40
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

MOST_STEPS: Final = 480
"""Steps drawn of one line: about one a pixel."""
LEAST_WAIT_S: Final = 0.001
"""A logarithmic axis has no zero: what is shorter is drawn there."""


class Role(Enum):
    """Which of the runs a line shows; the value is its class in the page's style."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"
    RECORDED = "recorded"


class ChartLine(NamedTuple):
    """A step function to be drawn."""

    role: Role
    name: str
    steps: Steps


class Sample(NamedTuple):
    """Measured times to be drawn as their cumulative distribution."""

    role: Role
    name: str
    ordered_ns: Sequence[int]
    """Ascending."""
    total: int
    """How many there would be, had all ended: the rest never did."""


class _Frame(NamedTuple):
    """Maps the units of both axes to places in the picture."""

    low_x: float
    high_x: float
    high_y: float

    def x(self, value: float) -> str:
        part = (value - self.low_x) / ((self.high_x - self.low_x) or 1.0)
        return _coordinate(_LEFT + _PLOT_WIDTH * part)

    def y(self, value: float) -> str:
        part = value / self.high_y
        return _coordinate(_TOP + _PLOT_HEIGHT * (1 - part))


def _coordinate(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def share_chart(caption: str, lines: Sequence[ChartLine]) -> Html:
    """Shares of one, over time: from 0 to 100 %, or to the next round number if a line is higher."""
    drawn = [line._replace(steps=line.steps.thinned(MOST_STEPS)) for line in lines]
    highest = max((float(line.steps.values.max()) for line in drawn), default=0.0)
    bound, step = (1.0, 0.25) if highest <= 1.0 else upper_bound([highest])
    marks = [Mark(i * step, f"{i * step:.0%}") for i in range(round(bound / step) + 1)]
    return _over_time(caption, drawn, bound, marks)


def count_chart(caption: str, lines: Sequence[ChartLine]) -> Html:
    """Numbers of something, over time."""
    drawn = [line._replace(steps=line.steps.thinned(MOST_STEPS)) for line in lines]
    bound, step = upper_bound([float(line.steps.values.max()) for line in drawn])
    marks = [Mark(i * step, f"{i * step:,g}") for i in range(round(bound / step) + 1)]
    return _over_time(caption, drawn, bound, marks)


def _over_time(
    caption: str, lines: Sequence[ChartLine], bound: float, marks: Sequence[Mark]
) -> Html:
    span_s = max(((_span_s(line.steps)) for line in lines), default=0.0) or 1.0
    frame = _Frame(0.0, span_s, bound)
    grid = _grid(frame, time_marks(span_s), marks)
    return _figure(caption, lines, grid, [_step_path(frame, line) for line in lines])


def _span_s(steps: Steps) -> float:
    return (steps.end_ns - steps.start_ns) / NS_PER_S


def _step_path(frame: _Frame, line: ChartLine) -> Html:
    steps = line.steps
    places = ((steps.at_ns - steps.start_ns) / NS_PER_S).tolist()
    parts = [f"M{frame.x(places[0])} {frame.y(float(steps.values[0]))}"]
    for place, value in zip(places[1:], steps.values[1:].tolist(), strict=True):
        parts.append(f"H{frame.x(place)}V{frame.y(value)}")
    parts.append(f"H{frame.x(_span_s(steps))}")
    return _path("".join(parts), line.role, line.name)


def wait_chart(caption: str, samples: Sequence[Sample]) -> Html:
    """The share of pods that were bound within a time, over that time on a logarithmic scale."""
    longest_s = max((s.ordered_ns[-1] / NS_PER_S for s in samples if s.ordered_ns), default=0.0)
    high = max(math.log10(max(longest_s, LEAST_WAIT_S)) * 1.0, math.log10(LEAST_WAIT_S) + 1)
    frame = _Frame(math.log10(LEAST_WAIT_S), high, 1.0)
    across = [
        Mark(math.log10(mark.at), ("≤ " if mark.at == LEAST_WAIT_S else "") + mark.label)
        for mark in decade_marks(LEAST_WAIT_S, 10**high)
    ]
    up = [Mark(part / 4, f"{part / 4:.0%}") for part in range(5)]
    paths = [_distribution_path(frame, sample) for sample in samples if sample.ordered_ns]
    return _figure(caption, samples, _grid(frame, across, up), paths)


def _distribution_path(frame: _Frame, sample: Sample) -> Html:
    ordered, count = sample.ordered_ns, len(sample.ordered_ns)
    stride = max(1, count // MOST_STEPS)
    parts = [f"M{frame.x(frame.low_x)} {frame.y(0.0)}"]
    for index in [*range(0, count - 1, stride), count - 1]:
        place = frame.x(math.log10(max(ordered[index] / NS_PER_S, LEAST_WAIT_S)))
        parts.append(f"H{place}V{frame.y((index + 1) / sample.total)}")
    parts.append(f"H{frame.x(frame.high_x)}")
    longest = span_label(round(ordered[-1] / NS_PER_S, 3))
    return _path("".join(parts), sample.role, f"{sample.name}: longest {longest}")


def _path(d: str, role: Role, name: str) -> Html:
    return tag("path", tag("title", text(name)), class_=f"line {role.value}", d=d)


def _grid(frame: _Frame, across: Sequence[Mark], up: Sequence[Mark]) -> Html:
    bottom, right = _TOP + _PLOT_HEIGHT, _LEFT + _PLOT_WIDTH
    parts = []
    for mark in up:
        y = frame.y(mark.at)
        parts += [
            tag("line", class_="grid", x1=_LEFT, x2=right, y1=y, y2=y),
            tag("text", text(mark.label), class_="up", x=_LEFT - 8, y=y),
        ]
    for mark in across:
        x = frame.x(mark.at)
        parts += [
            tag("line", class_="tick", x1=x, x2=x, y1=bottom, y2=bottom + 5),
            tag("text", text(mark.label), class_="across", x=x, y=bottom + 20),
        ]
    return joined(parts)


def _figure(
    caption: str, drawn: Sequence[ChartLine] | Sequence[Sample], grid: Html, paths: Sequence[Html]
) -> Html:
    legend = [
        tag("span", tag("i", class_=f"swatch {one.role.value}"), text(one.name), class_="key")
        for one in drawn
    ]
    picture = tag(
        "svg", tag("title", text(caption)), grid, *paths,
        viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img",
    )  # fmt: skip
    return tag(
        "figure", tag("figcaption", text(caption)), picture, tag("div", *legend, class_="legend")
    )
