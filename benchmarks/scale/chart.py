"""Draws CPU time and memory by the number of pods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from benchmarks import page
from benchmarks.scale.figures import ScaleFigures

CHART: Final = page.PAGE.parents[1] / "images" / "scale.svg"
_PANEL, _HEIGHT, _LEFT, _TOP, _BOTTOM = 380, 280, 56, 44, 36
_PLOT = _PANEL - _LEFT - 70
_STYLE = """\
  text { font: 12px system-ui, sans-serif; fill: #59636e }
  .title { font-size: 13px; fill: #1f2328 }
  .axis { stroke: #ced4da; fill: none }
  .paper { fill: #ffffff }
  .line-0 { stroke: #0b7285; fill: none; stroke-width: 2 }
  .line-1 { stroke: #e8590c; fill: none; stroke-width: 2 }
  .line-2 { stroke: #868e96; fill: none; stroke-width: 2 }"""


class _Line(NamedTuple):
    name: str
    value: Callable[[ScaleFigures], float]


_SECONDS: Final = (
    _Line("start", lambda row: row.start.cpu_s),
    _Line("restart", lambda row: row.restart.cpu_s),
    _Line("checkpoint", lambda row: row.checkpoint.cpu_s),
)
_GIB: Final = (
    _Line("start", lambda row: row.start.peak_mib / 1024),
    _Line("restart", lambda row: row.restart.peak_mib / 1024),
    _Line("checkpoint", lambda row: row.checkpoint.peak_mib / 1024),
)


def drawn(rows: Sequence[ScaleFigures]) -> str:
    """SVG with two panels: CPU seconds and GiB by the number of bound pods, on a logarithmic
    axis."""
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _PANEL} {_HEIGHT}" '
            'role="img" aria-label="CPU time and memory by the number of bound pods">'
        ),
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="paper" width="{2 * _PANEL}" height="{_HEIGHT}"/>',
        *_panel(rows, "CPU seconds", _SECONDS, 0),
        *_panel(rows, "GiB, highest", _GIB, _PANEL),
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(
    rows: Sequence[ScaleFigures], title: str, series: Sequence[_Line], left: int
) -> Iterator[str]:
    x0, y0, y1 = left + _LEFT, _TOP, _HEIGHT - _BOTTOM
    highest = max((line.value(row) for row in rows for line in series), default=1.0)
    top = _nice(highest)
    xs = [x0 + round(position * _PLOT) for position in _positions([row.pods for row in rows])]
    yield f'<text class="title" x="{x0}" y="{_TOP - 18}">{title}</text>'
    yield f'<path class="axis" d="M{x0},{y0}V{y1}H{x0 + _PLOT}"/>'
    for part in (0.0, 0.5, 1.0):
        y = y1 - round((y1 - y0) * part)
        yield f'<text x="{x0 - 8}" y="{y + 4}" text-anchor="end">{top * part:g}</text>'
    for row, x in zip(rows, xs, strict=True):
        yield f'<text x="{x}" y="{y1 + 18}" text-anchor="middle">{row.pods:,}</text>'
    for number, line in enumerate(series):
        points = [
            f"{x},{y1 - round((y1 - y0) * line.value(row) / top)}"
            for row, x in zip(rows, xs, strict=True)
        ]
        yield f'<polyline class="line-{number}" points="{" ".join(points)}"/>'
        if points:
            x_text, _, y_text = points[-1].partition(",")
            label = f"{line.name} {line.value(rows[-1]):.1f}"
            yield f'<text x="{int(x_text) + 6}" y="{int(y_text) + 4}">{label}</text>'


def _positions(pods: Sequence[int]) -> list[float]:
    """From 0 to 1, by the logarithm of the number of pods."""
    if len(pods) < 2:
        return [0.5] * len(pods)
    logs = [math.log(number) for number in pods]
    return [(value - logs[0]) / (logs[-1] - logs[0]) for value in logs]


def _nice(value: float) -> float:
    """The least of 1, 2, 4, 6 and 8 times a power of ten that is not below ``value``."""
    power = 10.0 ** math.floor(math.log10(max(value, 1e-9)))
    return next(power * step for step in (1, 2, 4, 6, 8, 10) if power * step >= value)
