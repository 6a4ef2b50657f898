"""The report: one HTML file about one run, or about two runs side by side.

The look of a page, light and dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from asched.audit.timeline import time_of
from asched.audit.whatif.comparison import Comparison, figure_rows
from asched.audit.whatif.measures import MeasuredRun
from asched.audit.whatif.page.charts import (
    ChartLine,
    Role,
    Sample,
    count_chart,
    share_chart,
    wait_chart,
)
from asched.audit.whatif.page.markup import NOTHING, Html, joined, tag, text
from asched.simulator.trace import Run

STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1b2430; --quiet: #5c6877; --rule: #dfe4ea; --shade: #f5f7f9;
  --baseline: #2563c9; --candidate: #c2570c; --recorded: #7a8594;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181e; --ink: #e4e9ef; --quiet: #9aa6b4; --rule: #303843; --shade: #1c222a;
    --baseline: #74a9ff; --candidate: #ff9f55; --recorded: #8894a3;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
}
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .75rem; }
p { margin: .25rem 0; max-width: 60rem; }
.quiet, figcaption, .key { color: var(--quiet); }
.charts { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); }
figure { margin: 0; }
figcaption { font-size: .9rem; margin-bottom: .25rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 11px; fill: var(--quiet); font-variant-numeric: tabular-nums; }
.up { text-anchor: end; dominant-baseline: central; }
.across { text-anchor: middle; }
.grid { stroke: var(--rule); }
.tick { stroke: var(--quiet); }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.line.baseline { stroke: var(--baseline); }
.line.candidate { stroke: var(--candidate); stroke-dasharray: 7 2; }
.line.recorded { stroke: var(--recorded); stroke-width: 1.1; stroke-dasharray: 2 2; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; font-size: .85rem; }
.key { overflow-wrap: anywhere; }
.swatch {
  display: inline-block; width: 1.5rem; height: 0; margin-right: .4rem; vertical-align: middle;
  border-top: 3px solid;
}
.swatch.baseline { border-color: var(--baseline); }
.swatch.candidate { border-color: var(--candidate); border-top-style: dashed; }
.swatch.recorded { border-color: var(--recorded); border-top-style: dotted; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top; }
td { border-top: 1px solid var(--rule); overflow-wrap: anywhere; }
th { color: var(--quiet); font-weight: 600; }
.figures td + td, .figures th + th { text-align: right; padding-left: 1.2rem; white-space: nowrap; }
ul { padding-left: 1.2rem; max-width: 60rem; }
@media print { body { max-width: none; } }
"""


MOST_PODS: Final = 500
"""Pods told one by one in each table; the rest are counted."""

_FRAGMENTATION: Final = (
    "Fragmentation of a resource is the share of what is free that a typical pod of this history,"
    " among those that ask for the resource, cannot use, because it lies on nodes where the pod does"
    " not fit (F_n(M) of FGD, Weng et al., USENIX ATC 2023, by node and for any resource)."
)
_WAITING: Final = (
    "Time to bind is drawn on a logarithmic scale. A line that does not reach 100 % leaves out the"
    " pods that were never bound."
)
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


class _Shown(NamedTuple):
    role: Role
    name: str
    run: MeasuredRun


def comparison_page(comparison: Comparison, title: str) -> str:
    """The page of a comparison. ``title`` is a line of plain text, as are all names."""
    shown = [
        _Shown(Role.BASELINE, comparison.names[0], comparison.baseline),
        _Shown(Role.CANDIDATE, comparison.names[1], comparison.candidate),
    ]
    if comparison.recorded is not None:
        shown.append(_Shown(Role.RECORDED, "as recorded", comparison.recorded))
    return _page(title, shown, comparison.notes, _differences(comparison))


def run_page(name: str, run: MeasuredRun, title: str, notes: Iterable[str] = ()) -> str:
    """The page of one run alone."""
    return _page(title, [_Shown(Role.BASELINE, name, run)], notes, NOTHING)


def _page(title: str, shown: Sequence[_Shown], notes: Iterable[str], differences: Html) -> str:
    body = [
        tag("h1", text(title)),
        tag("p", text(_period(shown[0].run.run)), class_="quiet"),
        _notes(notes),
        tag("h2", text("In figures")),
        _figures(shown),
        tag("h2", text("Waiting")),
        tag("div", _wait_chart(shown), _pending_chart(shown), class_="charts"),
        tag("p", text(_WAITING), class_="quiet"),
        tag("h2", text("Resources over time")),
        tag("div", *_resource_charts(shown), class_="charts"),
        tag("p", text(_FRAGMENTATION), class_="quiet"),
        differences,
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", text(title)),
        # Ours, and without a character that ends a style element.
        tag("style", Html(STYLE)),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", *body), lang="en") + "\n"


def _period(run: Run) -> str:
    begin, end = time_of(run.begin_ns), time_of(run.end_ns)
    nodes = len({span.node.name for span in run.nodes})
    return f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC, {nodes:,} nodes"


def _notes(notes: Iterable[str]) -> Html:
    items = [tag("li", text(note)) for note in notes]
    return tag("ul", *items) if items else NOTHING


def _figures(shown: Sequence[_Shown]) -> Html:
    compared = len(shown) > 1
    names = [one.name for one in shown]
    if compared:
        names.insert(2, "change")
    rows = []
    for row in figure_rows([one.run.figures for one in shown]):
        values = [*row.values]
        if compared:
            values.insert(2, row.change)
        rows.append([row.label, *values])
    return _table(["", *names], rows, class_="figures")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], class_: str = "pods") -> Html:
    head = tag("tr", *(tag("th", text(name)) for name in columns))
    body = [tag("tr", *(tag("td", text(cell)) for cell in row)) for row in rows]
    table = tag("table", tag("thead", head), tag("tbody", *body), class_=class_)
    return tag("div", table, class_="scroll")


def _wait_chart(shown: Sequence[_Shown]) -> Html:
    samples = [
        Sample(one.role, one.name, one.run.to_bind_ns, one.run.figures.pods) for one in shown
    ]
    return wait_chart("Pods bound within so long of their creation", samples)


def _pending_chart(shown: Sequence[_Shown]) -> Html:
    lines = [ChartLine(one.role, one.name, one.run.pending) for one in shown]
    return count_chart("Pods that wait for a node", lines)


def _resource_charts(shown: Sequence[_Shown]) -> list[Html]:
    charts = []
    for resource in shown[0].run.utilisation:
        for what, found in (
            ("utilisation: requested, of allocatable", [one.run.utilisation for one in shown]),
            ("fragmentation: free in vain, of free", [one.run.fragmentation for one in shown]),
        ):
            lines = [
                ChartLine(one.role, one.name, steps[resource])
                for one, steps in zip(shown, found, strict=True)
                if resource in steps
            ]
            if lines:
                charts.append(share_chart(f"{resource} {what}", lines))
    return charts


def _differences(comparison: Comparison) -> Html:
    first, second = comparison.names
    elsewhere = [(p.pod, p.baseline, p.candidate) for p in comparison.placed_elsewhere]
    parts = [_listed("Pods placed differently", ("pod", first, second), elsewhere)]
    for name, other, only in (
        (first, second, comparison.placed_in_baseline_only),
        (second, first, comparison.placed_in_candidate_only),
    ):
        rows = [(p.pod, p.node, p.message) for p in only]
        columns = ("pod", "node", f"what was said of it: {other}")
        parts.append(_listed(f"Pods placed only in one run: {name}", columns, rows))
    return joined(parts)


def _listed(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    head = tag("h2", text(f"{title} ({len(rows):,})"))
    if not rows:
        return joined([head, tag("p", text("None."), class_="quiet")])
    left_out = len(rows) - MOST_PODS
    rest = (
        tag("p", text(f"… and {left_out:,} more; -o json tells all."), class_="quiet")
        if left_out > 0
        else NOTHING
    )
    return joined([head, _table(columns, rows[:MOST_PODS]), rest])
