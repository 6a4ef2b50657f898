"""Measures all figures of docs/explanation/performance.md and fills its tables.

    python -m benchmarks.suite --definitions kubernetes/test/integration/scheduler_perf
    python -m benchmarks.suite --part engine --runs 5

Takes half an hour on an otherwise idle machine. Figures are saved one by one.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import anyio
import msgspec
import typer

from benchmarks import checks, latency, page, results, workload_files
from benchmarks.engine import Row, measure
from benchmarks.engine_run import Workload as EngineWorkload
from benchmarks.engine_run import pods_of
from benchmarks.kinds import KINDS
from benchmarks.processes import SchedulerOptions
from benchmarks.results import (
    ComparedWorkload,
    ComparisonResult,
    Elapsed,
    ElapsedResult,
    EngineResult,
    EngineTarget,
    HttpResult,
    Machine,
    Results,
)
from benchmarks.scheduler_perf import run_workload
from benchmarks.workload_files import Workload
from benchmarks.workload_run import RunOptions

START_NODES, START_PODS = 5_000, 50_000
STEADY_PODS_PER_S, STEADY_S = 500, 20
INTERFERENCE_NODES, INTERFERENCE_PODS = 1_000, 3_000
OWN_WORKLOADS = Path(__file__).parent / "workloads"


class Part(StrEnum):
    """A part of the suite."""

    ENGINE = "engine"
    GROWTH = "growth"
    SHAPES = "shapes"
    HTTP = "http"
    START = "start"
    STEADY = "steady"
    INTERFERENCE = "interference"
    COMPARISON = "comparison"
    """With ``--kube-scheduler``."""
    LATENCY = "latency"
    """Compares with kube-scheduler if ``--kube-scheduler`` is given."""


_MAX_PODS_PER_NODE = 20
"""Limits the number of pods in small clusters."""


class _Suite(NamedTuple):
    """Measures parts and saves their figures."""

    figures: Results
    file: Path
    definitions: Path
    runs: int
    kube_scheduler: Path | None
    cluster: RunOptions
    """The cluster of comparison and latency."""
    workloads: frozenset[str]
    """Compared workloads to measure; empty for all."""

    def measure(self, part: Part) -> None:
        self.figures.machine[part] = machine()
        match part:
            case Part.ENGINE:
                self._engine()
            case Part.GROWTH:
                sizes = results.GROWTH
                self.figures.growth = [self._row(kind, nodes, 1) for kind, nodes in sizes]
            case Part.SHAPES:
                kind = results.SHAPES_KIND
                self.figures.shapes = [self._row(kind, 5_000, shapes) for shapes in results.SHAPES]
            case Part.HTTP:
                self._http()
            case Part.START:
                self.figures.start = anyio.run(checks.start, START_NODES, START_PODS, _log)
            case Part.STEADY:
                figures = anyio.run(checks.steady, START_NODES, STEADY_PODS_PER_S, STEADY_S, _log)
                self.figures.steady = [figures]
            case Part.INTERFERENCE:
                with tempfile.TemporaryDirectory() as folder:
                    self.figures.interference = anyio.run(
                        checks.interference,
                        INTERFERENCE_NODES,
                        INTERFERENCE_PODS,
                        Path(folder),
                        _log,
                    )
            case Part.COMPARISON:
                self._comparison()
            case Part.LATENCY:
                self._latency()
        self._save()

    def _save(self) -> None:
        results.save(self.file, self.figures)

    def _row(self, kind: str, nodes: int, shapes: int) -> Row:
        pods = min(pods_of(KINDS[kind], nodes, None), _MAX_PODS_PER_NODE * nodes)
        _log(f"engine: {kind}, {nodes} nodes, {shapes} shapes")
        return measure(EngineWorkload(KINDS[kind], nodes, pods, shapes), self.runs)

    def _engine(self) -> None:
        self.figures.engine = []
        for target in results.ENGINE_TARGETS:
            pods = pods_of(KINDS[target.kind], target.nodes, None)
            row = self._row(target.kind, target.nodes, pods if target.all_different else 1)
            result = EngineResult(row, target.limit_ms, _measured_ms(target, row))
            self.figures.engine.append(result)
            self._save()

    def _http(self) -> None:
        self.figures.http = []
        for target in results.HTTP_TARGETS:
            report = run_workload(self._workload(target.file, target.workload), RunOptions())
            self.figures.http.append(HttpResult(report, target.limit_ms))
            self._save()

    def _comparison(self) -> None:
        kept = [f for f in self.figures.comparison if not self._is_compared(f.workload)]
        self.figures.comparison = kept
        for compared in results.COMPARED:
            if self._is_compared(compared.workload):
                self._compare(compared)

    def _is_compared(self, workload: str) -> bool:
        return not self.workloads or workload in self.workloads

    def _compare(self, compared: ComparedWorkload) -> None:
        """Both schedulers in turns."""
        workload = self._workload(compared.file, compared.workload)
        result = ComparisonResult(compared.workload, compared.label)
        elapsed = ElapsedResult(compared.workload)
        for _ in range(self.runs):
            for binary in (None, self.kube_scheduler):
                scheduler = SchedulerOptions(kube_scheduler=binary)
                options = msgspec.structs.replace(self.cluster, scheduler=scheduler)
                phase = run_workload(workload, options).phases[0]
                cpu_ms = phase.scheduler_cpu_ms_per_pod
                times = Elapsed(phase.first_bound_s, phase.duration_s)
                _log(f"{'asched' if binary is None else binary.name}: {cpu_ms} ms CPU, {times}")
                if binary is None:
                    result.asched_ms.append(cpu_ms)
                    elapsed.asched.append(times)
                else:
                    result.kube_scheduler_ms.append(cpu_ms)
                    elapsed.kube_scheduler.append(times)
        self.figures.comparison.append(result)
        order = [each.workload for each in results.COMPARED]
        self.figures.comparison.sort(key=lambda each: order.index(each.workload))
        if compared.workload.startswith("Preemption"):
            self.figures.elapsed = [elapsed]
        self._save()

    def _latency(self) -> None:
        self.figures.latency = []
        for per_s in latency.RATES:
            load = latency.Load(latency.NODES, per_s, latency.SECONDS)
            self.figures.latency.append(
                latency.measure_in_turns(load, self.runs, self.cluster, self.kube_scheduler, _log)
            )
            self._save()

    def _workload(self, folder: str, name: str) -> Workload:
        own = folder in (results.OWN, results.DEVICES)
        file = (OWN_WORKLOADS if own else self.definitions) / folder / "performance-config.yaml"
        return workload_files.find(workload_files.load(file), name)


def _measured_ms(target: EngineTarget, row: Row) -> float:
    if target.per_pod:
        return row.per_pod_ms
    if target.rejected:
        assert row.reject_ms is not None, "the workload has unschedulable pods"
        return row.reject_ms
    return row.total_ms


def machine() -> Machine:
    """The machine, and its load now."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = os.getloadavg()[0]
    python = platform.python_version()
    return Machine(date, (names or [platform.machine()])[0], os.cpu_count() or 1, python, load)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(
    definitions: Annotated[
        Path, typer.Option(help="Kubernetes' test/integration/scheduler_perf, for the part http.")
    ] = Path("scheduler_perf"),
    part: Annotated[
        list[Part] | None, typer.Option(help="Measure only this part (repeatable).")
    ] = None,
    runs: Annotated[
        int, typer.Option(help="Runs of each workload of engine and comparison.", min=1)
    ] = 3,
    kube_scheduler: Annotated[
        Path | None, typer.Option(help="A kube-scheduler binary, for the part comparison.")
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="Compare only this workload, Case/Size (repeatable)."),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="An existing cluster for the parts comparison and latency."),
    ] = None,
    tls: Annotated[
        bool,
        typer.Option("--tls", help="Use HTTPS and token volumes in these parts; requires openssl."),
    ] = False,
    file: Annotated[
        Path, typer.Option("--results", help="The file with the figures.")
    ] = page.RESULTS,
    document: Annotated[Path, typer.Option("--page", help="The page to update.")] = page.PAGE,
) -> None:
    """Measure all or some parts, and fill the tables of the page."""
    cluster = RunOptions(kubeconfig, tls=tls, token_volumes=tls or kubeconfig is not None)
    names = frozenset(workload or ())
    suite = _Suite(results.load(file), file, definitions, runs, kube_scheduler, cluster, names)
    if kube_scheduler is None and Part.COMPARISON in (part or ()):
        raise typer.BadParameter(
            "is required for the part comparison", param_hint="--kube-scheduler"
        )
    parts = part or [each for each in Part if kube_scheduler or each is not Part.COMPARISON]
    for each in parts:
        suite.measure(each)
        document.write_text(page.rendered(document.read_text(), suite.figures))


if __name__ == "__main__":
    typer.run(main)
