"""CPU cost of a decision without I/O: fold and decide only.

    python -m benchmarks.engine --kind basic --nodes 1000,5000,15000
    python -m benchmarks.engine --kind basic --shapes 1,100,10000
    python -m benchmarks.engine --kind spread --profile

Figures are CPU milliseconds per decision. They include folding the new pod, deciding, folding the
decision, and folding the changes that follow from it. Decoding is shown separately.
"""

from __future__ import annotations

import cProfile
import gc
import json
import pstats
from statistics import median
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from asched.core.heap import freeze_gc, tune_gc
from benchmarks.engine_run import Costs, Run, Workload, pods_of
from benchmarks.kinds import KINDS

ALL = "all"
ALL_DIFFERENT = "all-different"
_PROFILE_LINES = 40


class Row(msgspec.Struct):
    """One workload; medians of its runs, in CPU milliseconds per decision."""

    kind: str
    nodes: int
    pods: int
    shapes: int
    total_ms: float
    decide_ms: float
    """Deciding, when a node was found."""
    reject_ms: float | None
    """Deciding, when no node was found; None if that did not happen."""
    fold_ms: float
    observe_ms: float
    decode_ms: float
    per_pod_ms: float
    """Total by pods instead of decisions: higher if pods need several attempts."""
    runs: int


def _row(workload: Workload, measured: list[Costs]) -> Row:
    def median_ms(spent_ns: list[int], count: int) -> float:
        return round(median(ns / count / 1e6 for ns in spent_ns), 4)

    decisions = measured[0].assigned + measured[0].rejected
    rejected, assigned = measured[0].rejected, measured[0].assigned
    return Row(
        kind=workload.kind.name,
        nodes=workload.nodes,
        pods=workload.pods,
        shapes=workload.shapes,
        total_ms=median_ms([c.total_ns for c in measured], decisions),
        decide_ms=median_ms([c.assign_ns for c in measured], assigned),
        reject_ms=median_ms([c.reject_ns for c in measured], rejected) if rejected else None,
        fold_ms=median_ms([c.fold_ns for c in measured], decisions),
        observe_ms=median_ms([c.observe_ns for c in measured], decisions),
        decode_ms=median_ms([c.decode_ns for c in measured], decisions),
        per_pod_ms=median_ms([c.total_ns for c in measured], workload.pods),
        runs=len(measured),
    )


def measure(
    workload: Workload,
    runs: int,
    profile: cProfile.Profile | None = None,
    *,
    watched: bool = False,
) -> Row:
    """Medians of ``runs`` runs, with the garbage collector set up as in the daemon.

    A profiler covers only the measured part, and slows it down.
    """
    measured = []
    tune_gc()
    for _ in range(runs):
        run = Run(workload, watched=watched)
        freeze_gc()
        if profile is not None:
            profile.enable()
        measured.append(run.measure())
        if profile is not None:
            profile.disable()
        del run
        gc.unfreeze()
    return _row(workload, measured)


def _table(rows: list[Row]) -> Table:
    table = Table(title="CPU milliseconds per decision, engine alone")
    for field in msgspec.structs.fields(Row):
        table.add_column(field.name, justify="left" if field.name == "kind" else "right")
    for row in rows:
        values = msgspec.structs.astuple(row)
        table.add_row(*("" if value is None else str(value) for value in values))
    return table


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main(
    kind: Annotated[
        str, typer.Option(help=f"Comma-separated kinds, or all: {', '.join(KINDS)}.")
    ] = "basic",
    nodes: Annotated[str, typer.Option(help="Comma-separated numbers of nodes.")] = "5000",
    pods: Annotated[
        int | None, typer.Option(help="Pods to schedule. Default: as in Kubernetes' benchmark.")
    ] = None,
    shapes: Annotated[
        str, typer.Option(help="Comma-separated numbers of pod templates, or all-different.")
    ] = "1",
    runs: Annotated[int, typer.Option(help="Runs of each; the median is reported.", min=1)] = 3,
    watched: Annotated[
        bool, typer.Option("--watched", help="Time a tenth of the attempts, as the daemon does.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print a cProfile report (one run each).")
    ] = False,
    sort: Annotated[str, typer.Option(help="Sort order of the profile.")] = "tottime",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure the CPU cost of a decision by kind of pod, nodes and distinct pod templates."""
    names = list(KINDS) if kind == ALL else kind.split(",")
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is not one of: {', '.join(KINDS)}, {ALL}")
    console, rows = Console(stderr=True), []
    for name in names:
        for count in _numbers(nodes):
            to_place = pods_of(KINDS[name], count, pods)
            for shape in shapes.split(","):
                distinct = to_place if shape == ALL_DIFFERENT else int(shape)
                workload = Workload(KINDS[name], count, to_place, distinct)
                console.print(f"{name}, {count} nodes, {to_place} pods, {distinct} shapes ...")
                profiler = cProfile.Profile() if profile else None
                rows.append(measure(workload, 1 if profile else runs, profiler, watched=watched))
                if profiler is not None:
                    pstats.Stats(profiler).sort_stats(sort).print_stats(_PROFILE_LINES)
    if as_json:
        print(json.dumps([msgspec.to_builtins(row) for row in rows], indent=2))
    else:
        Console(width=160).print(_table(rows))


if __name__ == "__main__":
    typer.run(main)
