"""Draws the comparison with kube-scheduler as bars.

    python -m benchmarks.chart

writes ``docs/images/cpu-per-pod.svg`` from the saved figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from statistics import median
from typing import Final

import typer

from benchmarks import page, results
from benchmarks.results import ComparisonResult

CHART: Final = page.PAGE.parents[1] / "images" / "cpu-per-pod.svg"
_WIDTH, _LABELS, _FIGURES = 760, 210, 130
_ROW, _BAR, _TOP = 40, 14, 48
_BARS = _WIDTH - _LABELS - _FIGURES
_STYLE = """\
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .figure { font-size: 12px; fill: #59636e }
  .asched { fill: #0b7285 }
  .kube-scheduler { fill: #ced4da }
  .paper { fill: #ffffff }"""


def drawn(compared: Sequence[ComparisonResult]) -> str:
    """SVG with a row of two bars for each workload: medians of CPU milliseconds per pod. The length
    of a bar is its part of the longer one of the row, because workloads differ by two orders of
    magnitude."""
    height = _TOP + _ROW * len(compared) + 8
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
            'aria-label="CPU time per pod of asched and of kube-scheduler">'
        ),
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
        *_legend(),
    ]
    for number, result in enumerate(compared):
        lines += _row(result, _TOP + _ROW * number)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    yield f'<rect class="asched" x="{_LABELS}" y="14" width="{_BAR}" height="{_BAR}"/>'
    yield f'<text x="{_LABELS + 20}" y="26">asched</text>'
    yield f'<rect class="kube-scheduler" x="{_LABELS + 90}" y="14" width="{_BAR}" height="{_BAR}"/>'
    yield f'<text x="{_LABELS + 110}" y="26">kube-scheduler, CPU ms per pod</text>'


def _row(result: ComparisonResult, top: int) -> Iterator[str]:
    yield f'<text x="{_LABELS - 12}" y="{top + 21}" text-anchor="end">{escape(result.label)}</text>'
    values = {
        "asched": median(result.asched_ms),
        "kube-scheduler": median(result.kube_scheduler_ms),
    }
    for number, (name, value_ms) in enumerate(values.items()):
        width = max(1, round(_BARS * value_ms / max(values.values())))
        y = top + 3 + number * (_BAR + 1)
        yield f'<rect class="{name}" x="{_LABELS}" y="{y}" width="{width}" height="{_BAR}"/>'
        figure = f"{value_ms:.2f}" if value_ms < 10 else f"{value_ms:.1f}"
        if number == 0:
            figure += f"  ({1 / result.ratio:.1f} times less)"
        yield f'<text class="figure" x="{_LABELS + width + 6}" y="{y + 11}">{figure}</text>'


def main() -> None:
    """Write the chart of the saved figures."""
    CHART.write_text(drawn(results.load(page.RESULTS).comparison))


if __name__ == "__main__":
    typer.run(main)
