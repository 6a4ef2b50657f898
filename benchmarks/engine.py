"""What a decision costs, without any I/O: fold and decide alone.

    python -m benchmarks.engine --kind basic --nodes 1000,5000,15000
    python -m benchmarks.engine --kind basic --shapes 1,100,10000
    python -m benchmarks.engine --kind spread --profile

Figures are CPU milliseconds per decision: folding the news of the pod, deciding, folding the
decision, and folding what the API server says after it. Decoding is shown beside, not counted.
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

from asched.daemon.interpreter import freeze_gc, tune_gc
from benchmarks.engine_run import Costs, Run, Workload, pods_of
from benchmarks.kinds import KINDS

ALL = "all"
EACH_ITS_OWN = "all-different"
_PROFILE_LINES = 40


class Row(msgspec.Struct):
    """One workload; medians of its runs, in CPU milliseconds per decision."""

    kind: str
    nodes: int
    pods: int
    shapes: int
    total_ms: float
    decide_ms: float
    """Deciding alone, where a node was found."""
    reject_ms: float | None
    """Deciding alone, where none was; None where that did not happen."""
    fold_ms: float
    observe_ms: float
    decode_ms: float
    per_pod_ms: float
    """All of it by pods rather than by decisions: more, where a pod needs several attempts."""
    runs: int


def _row(workload: Workload, measured: list[Costs]) -> Row:
    def ms(costs: Costs, ns: int, by: int) -> float:
        return ns / by / 1e6

    def middle(values: list[float]) -> float:
        return round(median(values), 4)

    decisions = measured[0].assigned + measured[0].rejected
    rejected, assigned = measured[0].rejected, measured[0].assigned
    return Row(
        workload.kind.name,
        workload.nodes,
        workload.pods,
        workload.shapes,
        middle([ms(c, c.total_ns, decisions) for c in measured]),
        middle([ms(c, c.assign_ns, assigned) for c in measured]),
        middle([ms(c, c.reject_ns, rejected) for c in measured]) if rejected else None,
        middle([ms(c, c.fold_ns, decisions) for c in measured]),
        middle([ms(c, c.observe_ns, decisions) for c in measured]),
        middle([ms(c, c.decode_ns, decisions) for c in measured]),
        middle([ms(c, c.total_ns, workload.pods) for c in measured]),
        len(measured),
    )


def measure(
    workload: Workload,
    runs: int,
    profile: cProfile.Profile | None = None,
    *,
    watched: bool = False,
) -> Row:
    """The medians of ``runs`` runs. A profiler sees the measured part only, and slows it. Garbage is
    looked for as seldom as by the daemon (:mod:`asched.daemon.interpreter`)."""
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
    kind: Annotated[str, typer.Option(help=f"Kinds, with commas between: {', '.join(KINDS)}, or all.")] = "basic",
    nodes: Annotated[str, typer.Option(help="Nodes, with commas between.")] = "5000",
    pods: Annotated[int | None, typer.Option(help="Pods to place; as Kubernetes' benchmark by default.")] = None,
    shapes: Annotated[str, typer.Option(help="Distinct pod templates, with commas between; all-different for no two alike.")] = "1",
    runs: Annotated[int, typer.Option(help="Runs of each, of which the median counts.", min=1)] = 3,
    watched: Annotated[bool, typer.Option("--watched", help="With the daemon's stopwatch on a tenth of the attempts.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes (one run each).")] = False,
    sort: Annotated[str, typer.Option(help="Order of the profile, such as tottime or cumtime.")] = "tottime",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:  # fmt: skip
    """Measure what a decision costs by kind of pod, by nodes, and by distinct pod templates."""
    names = list(KINDS) if kind == ALL else kind.split(",")
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of: {', '.join(KINDS)}, {ALL}")
    console, rows = Console(stderr=True), []
    for name in names:
        for count in _numbers(nodes):
            to_place = pods_of(KINDS[name], count, pods)
            for shape in shapes.split(","):
                distinct = to_place if shape == EACH_ITS_OWN else int(shape)
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
