"""Writes the figures of the suite into the tables of a page.

    python -m benchmarks.page

A table is between ``<!-- figures: NAME -->`` and ``<!-- end -->``; the rest is unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer

from benchmarks import results as results_file
from benchmarks.measurement import Percentiles
from benchmarks.results import (
    GROWTH_FROM,
    GROWTH_LIMIT,
    GROWTH_NODES,
    GROWTH_TO,
    Results,
)

RESULTS: Final = Path(__file__).parent / "results.json"
PAGE: Final = Path(__file__).parents[1] / "docs" / "explanation" / "performance.md"
_MARKED_TABLE = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NOT_MEASURED = "Not measured yet.\n"


def rendered(page: str, results: Results) -> str:
    """The page with the tables of ``results``. Raises KeyError for an unknown table."""

    def table(found: re.Match[str]) -> str:
        return found.group(1) + _TABLES[found.group(2)](results) + found.group(3)

    return _MARKED_TABLE.sub(table, page)


def _table(head: Iterable[str], rows: Sequence[tuple[str, ...]]) -> str:
    """Markdown, with the first column left-aligned and the others right-aligned."""
    if not rows:
        return _NOT_MEASURED
    names = list(head)
    lines = [" | ".join(names), " | ".join(["---"] + ["---:"] * (len(names) - 1))]
    lines += [" | ".join(row) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _limit(measured: float, limit: float | None) -> tuple[str, str]:
    if limit is None:
        return "", ""
    return f"{limit:g}", "yes" if measured <= limit else "**no**"


def _machine(results: Results) -> str:
    rows = [
        (part, m.date, f"{m.processors} x {m.processor}", m.python, f"{m.load_before:.1f}")
        for part, m in results.machine.items()
    ]
    return _table(("part", "date", "processors", "Python", "load before"), rows)


def _engine(results: Results) -> str:
    rows = []
    for result in results.engine:
        row = result.row
        kind = f"{row.kind}, all different" if row.shapes == row.pods else row.kind
        parts = (row.decide_ms, row.reject_ms, row.fold_ms, row.observe_ms, row.per_pod_ms)
        figures = (_ms(row.total_ms), *map(_ms, parts))
        limit = _limit(result.measured_ms, result.limit_ms)
        rows.append((kind, str(row.nodes), *figures, *limit))
    phases = ("total", "decide: node found", "decide: none", "fold decision", "fold observation")
    return _table(("kind", "nodes", *phases, "per pod", "limit", "met"), rows)


def _growth(results: Results) -> str:
    by_kind: dict[str, dict[int, float]] = {}
    for row in results.growth:
        by_kind.setdefault(row.kind, {})[row.nodes] = row.total_ms
    rows = []
    for kind, by_nodes in by_kind.items():
        ratio = by_nodes[GROWTH_TO] / by_nodes[GROWTH_FROM]
        sizes = [_ms(by_nodes[nodes]) if nodes in by_nodes else "" for nodes in GROWTH_NODES]
        rows.append((kind, *sizes, f"{ratio:.2f}", *_limit(ratio, GROWTH_LIMIT)))
    nodes = [f"{nodes:,} nodes" for nodes in GROWTH_NODES]
    ratio_title = f"{GROWTH_TO:,} / {GROWTH_FROM:,}"
    return _table(("kind", *nodes, ratio_title, "limit", "met"), rows)


def _shapes(results: Results) -> str:
    rows = [(f"{row.shapes} of {row.pods}", _ms(row.total_ms)) for row in results.shapes]
    return _table(("distinct templates", "ms per decision"), rows)


def _http(results: Results) -> str:
    rows = []
    for result in results.http:
        report, phase = result.report, result.report.phases[0]
        cpu_ms = phase.scheduler_cpu_ms_per_pod
        rows.append(
            (
                report.workload,
                f"{phase.pods_per_s:.0f}",
                _percentiles(phase.throughput),
                "" if report.threshold_pods_per_s is None else f"{report.threshold_pods_per_s}",
                _ms(cpu_ms),
                *_limit(cpu_ms, result.limit_ms),
                f"{report.scheduler_peak_rss_mib:.0f}",
                str(report.journal_bytes_per_pod),
                str(report.journal_record_bytes_per_pod),
            )
        )
    throughput = ("pods/s", "p50/p90/p95/p99 of pods/s", "Kubernetes' minimum")
    sizes = ("MiB", "journal B/pod", "records B/pod")
    return _table(("workload", *throughput, "CPU ms/pod", "limit", "met", *sizes), rows)


def _percentiles(values: Percentiles | None) -> str:
    if values is None:
        return ""
    shown = (values.perc50, values.perc90, values.perc95, values.perc99)
    return "/".join(f"{value:.0f}" for value in shown)


def _start(results: Results) -> str:
    rows = [
        (
            f.name,
            str(f.nodes),
            str(f.pods),
            f"{f.first_decision_s:.1f}",
            f"{f.cpu_s:.1f}",
            f"{f.peak_rss_mib:.0f}",
        )
        for f in results.start
    ]
    return _table(("start", "nodes", "bound pods", "s to first binding", "CPU s", "MiB"), rows)


def _steady(results: Results) -> str:
    rows = [
        (
            str(f.pods_per_s),
            f"{f.observed_to_decided_p50_ms:.0f}",
            f"{f.observed_to_decided_p99_ms:.0f}",
            f"{f.created_to_bound_p50_ms:.0f}",
            f"{f.created_to_bound_p99_ms:.0f}",
            _ms(f.scheduler_cpu_ms_per_pod),
        )
        for f in results.steady
    ]
    latencies = ("observed to decided p50 ms", "p99 ms", "created to bound p50 ms", "p99 ms")
    return _table(("pods/s", *latencies, "CPU ms/pod"), rows)


def _interference(results: Results) -> str:
    rows = [
        (f.fault, f"{f.pods_per_s:.0f}", _ms(f.scheduler_cpu_ms_per_pod))
        for f in results.interference
    ]
    return _table(("fault", "plain pods/s", "CPU ms/pod"), rows)


def _comparison(results: Results) -> str:
    rows = [
        (f.workload, _runs(f.asched_ms), _runs(f.kube_scheduler_ms), f"{f.ratio:.2f}")
        for f in results.comparison
    ]
    return _table(("workload", "asched", "kube-scheduler", "ratio"), rows)


def _elapsed(results: Results) -> str:
    rows = []
    for f in results.elapsed:
        firsts = _runs([e.first_s for e in f.asched]), _runs([e.first_s for e in f.kube_scheduler])
        lasts = _runs([e.last_s for e in f.asched]), _runs([e.last_s for e in f.kube_scheduler])
        ratio = median(e.last_s for e in f.asched) / median(e.last_s for e in f.kube_scheduler)
        rows.append((f.workload, *firsts, *lasts, f"{ratio:.2f}"))
    firsts_title = ("first binding s: asched", "kube-scheduler")
    lasts_title = ("last binding s: asched", "kube-scheduler")
    return _table(("workload", *firsts_title, *lasts_title, "ratio"), rows)


def _latency(results: Results) -> str:
    rows = []
    for result in results.latency:
        for name, runs in (("asched", result.asched), ("kube-scheduler", result.kube_scheduler)):
            if runs:
                figures = (
                    [each.p50_ms for each in runs],
                    [each.p99_ms for each in runs],
                    [each.cpu_ms_per_pod for each in runs],
                )
                rows.append((str(result.pods_per_s), name, *map(_runs, figures)))
    return _table(("pods/s", "scheduler", "p50 ms", "p99 ms", "CPU ms/pod"), rows)


def _runs(values_ms: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" if value < 10 else f"{value:.1f}" for value in values_ms)


def _scale(results: Results) -> str:
    rows = []
    for f in results.scale:
        runs = (f.start, f.checkpoint, f.restart)
        parts = [_seconds(run.elapsed_s, run.cpu_s, run.peak_mib) for run in runs]
        latency = f"{f.churn_p50_ms:.0f} / {f.churn_p99_ms:.0f}"
        churn = (f"{f.churn_pods_per_s:.0f}", latency, _ms(f.churn_cpu_ms_per_pod))
        size = (f"{f.nodes:,} / {f.pods:,}", parts[0])
        rows.append((*size, *churn, f"{f.journal_mib:.0f}", *parts[1:]))
    runs_title = ("`asched checkpoint`", "restart")
    churn_title = ("pods/s", "created to bound p50 / p99 ms", "CPU ms/pod", "journal MiB")
    return _table(("nodes / bound pods", "start", *churn_title, *runs_title), rows)


def _seconds(elapsed_s: float, cpu_s: float, mib: float) -> str:
    return f"{elapsed_s:.1f} s, {cpu_s:.1f} s, {mib:,.0f} MiB"


_TABLES: Final[dict[str, Callable[[Results], str]]] = {
    "machine": _machine,
    "engine": _engine,
    "growth": _growth,
    "shapes": _shapes,
    "http": _http,
    "start": _start,
    "steady": _steady,
    "interference": _interference,
    "comparison": _comparison,
    "scale": _scale,
    "elapsed": _elapsed,
    "latency": _latency,
}


def main(
    results: Annotated[Path, typer.Option(help="The file with the figures.")] = RESULTS,
    page: Annotated[Path, typer.Option(help="The page to update.")] = PAGE,
) -> None:
    """Fill the tables of the page with the figures of the last measurement."""
    page.write_text(rendered(page.read_text(), results_file.load(results)))


if __name__ == "__main__":
    typer.run(main)
