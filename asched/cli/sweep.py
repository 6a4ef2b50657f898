"""``asched sweep`` and ``asched planning``: many simulations, here or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from asched.cli.errors import EXIT_FAILURE
from asched.cli.execution import JobsOption, SchedulerOption, executor_of, item_progress
from asched.cli.options import PricesOption, takes_options
from asched.cli.output import (
    HtmlOption,
    OutputOption,
    TableOrData,
    print_as,
    print_json,
    print_table,
    print_text,
    write_page,
)

if TYPE_CHECKING:
    from asched.planning import RunTable, WorkerReport
    from asched.planning.conditions import Value

_FIGURES: Final = (
    *("nodes", "placed", "p50_wait_s", "p95_wait_s", "evictions", "node_hours"),
    *("cost", "idle_cost", "wait_cost"),
)


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    file: Path = typer.Argument(Path("sweep.yaml"), help="The sweep (docs/how-to/planning.md).")
    journal: str | None = typer.Option(
        None, metavar="URL", help="The journal, instead of the one that the file names."
    )
    jobs: JobsOption = None
    scheduler: SchedulerOption = None
    prices: PricesOption = None
    cache: Path | None = typer.Option(
        None, metavar="FOLDER", help="Keep results there: an interrupted sweep continues."
    )
    parquet: Path | None = typer.Option(
        None, metavar="FILE", help="Write all columns as Parquet (asched[parquet])."
    )
    best: str | None = typer.Option(
        None, metavar="COLUMN", help="Show the best run by this column."
    )
    subject_to: list[str] = typer.Option(
        [],
        metavar="CONDITION",
        help='What the best run must meet, such as "evictions <= baseline"; may be repeated.',
    )
    html: HtmlOption = None
    output: OutputOption = TableOrData.TABLE


@takes_options
def sweep(options: SweepOptions) -> None:
    """Simulate one workload under all combinations of settings.

    The workload is a period of a journal, a scenario or a trace; the axes are configurations,
    plugin changes, seeds and numbers of nodes. Prints one row for each run. Results do not depend
    on where they are computed. Exits with 1 if a run failed.
    """
    from asched.planning import PlanningError
    from asched.planning.report import sweep_page
    from asched.planning.sweep_file import SweepReport, read_sweep

    conditions = _conditions(options.subject_to)
    runs = read_sweep(options.file, options.journal, options.prices)
    with executor_of(options.jobs, options.scheduler) as executor, item_progress("runs") as show:
        table = runs.run(executor, cache=options.cache, progress=show)
    # The rows come first: a mistake in another option must not cost them.
    best, failure = None, None
    if options.best is not None:
        try:
            best = table.best(options.best, conditions)
        except PlanningError as error:
            failure = error
    if options.output is TableOrData.JSON:
        print_json(SweepReport.of(table, best))
    else:
        _print(table)
        if best is not None and options.best is not None:
            print_text(f"best {options.best}: {_described(best, table, options.best)}")
    if options.parquet is not None:
        table.write_parquet(options.parquet)
    if options.html is not None:
        write_page(options.html, sweep_page(table, f"Sweep: {options.file.stem}"))
    if failure is not None:
        raise failure
    if any(row.error for row in table.rows):
        raise typer.Exit(EXIT_FAILURE)


def _conditions(given: Sequence[str]) -> dict[str, str]:
    from asched.planning.conditions import Condition

    found = map(Condition.parse_line, given)
    return {condition.column: condition.text for condition in found}


def _print(table: RunTable) -> None:
    from asched.planning.report import cell_text, notes_of, varied_axes

    columns = [*varied_axes(table), *(name for name in _FIGURES if name in table.columns)]
    rows = [[cell_text(name, values.get(name)) for name in columns] for values in table.values]
    print_text(f"{table.workload}, {len(table)} runs")
    print_table([name.upper() for name in columns], rows)
    for note in notes_of(table):
        print_text(f"note: {note}")
    for row, values in zip(table.rows, table.values, strict=True):
        if row.error:
            print_text(f"failed: {_described(values, table)}: {row.error}")


def _described(values: Mapping[str, Value], table: RunTable, column: str = "") -> str:
    """The run and its figures, with those of ``column``."""
    from asched.planning.report import cell_text, value_text, varied_axes

    settings = [f"{name}={cell_text(name, values[name]) or '-'}" for name in varied_axes(table)]
    names = dict.fromkeys(name for name in (*_FIGURES, column) if values.get(name) is not None)
    figures = [f"{name} {value_text(values[name])}" for name in names]
    return ", ".join([*settings, *figures])


def planning(
    scheduler: Annotated[
        str, typer.Option(metavar="URL", help="The Dask scheduler, such as tcp://host:8786.")
    ],
    output: OutputOption = TableOrData.TABLE,
) -> None:
    """List the workers of a Dask cluster and compare their code.

    Results depend on the code of asched and its plugins, so a worker with other code does no work.
    Exits with 1 if a worker differs, or if there is none.
    """
    from asched.planning import workers_of

    workers = workers_of(scheduler)
    print_as(output, workers, _print_workers)
    if not workers or any(worker.differences for worker in workers):
        raise typer.Exit(EXIT_FAILURE)


def _print_workers(workers: Sequence[WorkerReport]) -> None:
    rows = [
        (one.address, one.threads, one.memory_bytes >> 20, one.differences or "same code")
        for one in workers
    ]
    print_table(("WORKER", "THREADS", "MEMORY MIB", "CODE"), rows)
