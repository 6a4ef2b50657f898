"""``asched audit-quality``: placements compared with the best that any scheduler could reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from asched.cli.errors import EXIT_FAILURE, BadInput
from asched.cli.execution import JobsOption, SchedulerOption, executor_of, item_progress
from asched.cli.options import (
    JOURNAL_ENV,
    PricesOption,
    installed_plugins,
    prices_of,
    query_journal,
    takes_options,
)
from asched.cli.output import OutputOption, TableOrData, print_json, print_table, print_text

if TYPE_CHECKING:
    from asched.planning.bounds import ProvenBound
    from asched.planning.quality import Quality
    from asched.planning.sweeps import QualityRow


@dataclass(frozen=True, kw_only=True)
class AuditQualityOptions:
    file: Path | None = typer.Argument(
        None, metavar="[SWEEP]", help="A sweep (docs/how-to/planning.md): audits each of its runs."
    )
    journal: str | None = typer.Option(
        None,
        metavar="URL",
        envvar=JOURNAL_ENV,
        help="Without a sweep: audits the placements in this journal.",
    )
    at: str | None = typer.Option(
        None, metavar="TIME", help="The moment in the journal. Default: its end."
    )
    moments: int = typer.Option(10, help="Moments of each run of a sweep.", min=1)
    limit: float = typer.Option(
        30.0, metavar="SECONDS", help="Time for the solver, for each bound.", min=0.1
    )
    jobs: JobsOption = None
    scheduler: SchedulerOption = None
    prices: PricesOption = None
    cache: Path | None = typer.Option(
        None, metavar="FOLDER", help="Keep results of a sweep there, as asched sweep does."
    )
    output: OutputOption = TableOrData.TABLE


@takes_options
def audit_quality(options: AuditQualityOptions) -> None:
    """Compare placements with proven bounds.

    Bounds the least number of nodes for the pods that run, and the most pods and the greatest
    allocation that any scheduler could reach, by mixed-integer programming; with --prices also the
    least price of those nodes. For a moment of a journal, or for the runs of a sweep: then the
    regret of each policy.
    """
    if options.file is not None:
        _audit_sweep(options, options.file)
        return
    if options.journal is None:
        raise BadInput("give a sweep file or --journal; see asched audit-quality --help")
    from asched.audit.times import TimeTextError, parse_time_ns
    from asched.planning.quality import recorded_quality

    try:
        at_ns = None if options.at is None else parse_time_ns(options.at)
    except TimeTextError as error:
        raise BadInput(f"--at: {error}") from None
    load, prices = installed_plugins().load, prices_of(options.prices)
    found = query_journal(
        options.journal, lambda store: recorded_quality(store, load, at_ns, options.limit, prices)
    )
    if options.output is TableOrData.JSON:
        print_json(found)
    else:
        print_table(("", "NOW", "BOUND", "GAP"), _lines(found))


def _lines(found: Quality) -> Iterator[Sequence[str]]:
    from asched.audit.unblock import amount_text

    least = found.least_nodes
    yield "nodes in use, of " + f"{found.nodes:,}", f"{found.nodes_in_use:,}", *_bound(least, "≥")
    yield f"pods placed, of {found.pods:,}", f"{found.placed:,}", *_bound(found.most_pods, "≤")
    for name, one in found.resources.items():
        label = f"{name} allocated, of {amount_text(name, one.allocatable)}"
        most = f"≤ {amount_text(name, one.most.value)}", f"{one.most.gap:.1%}"
        yield label, amount_text(name, one.allocated), *most
    if found.costs is not None:
        unit = f"{found.costs.currency} an hour".strip()
        yield f"nodes cost, {unit}", f"{found.costs.nodes:,.2f}", "", ""
        yield f"of this, not requested, {unit}", f"{found.costs.idle:,.2f}", "", ""
        cost = found.least_cost
        bound = ("-", "-") if cost is None else (f"≥ {cost.value:,.2f}", f"{cost.gap:.1%}")
        yield f"nodes in use cost, {unit}", f"{found.costs.in_use:,.2f}", *bound


def _bound(bound: ProvenBound | None, sign: str) -> tuple[str, str]:
    return ("-", "-") if bound is None else (f"{sign} {bound.value:,}", f"{bound.gap:.1%}")


def _audit_sweep(options: AuditQualityOptions, file: Path) -> None:
    from asched.planning.sweep_file import read_sweep

    runs = read_sweep(file, options.journal, options.prices)
    with executor_of(options.jobs, options.scheduler) as executor, item_progress("runs") as show:
        rows = runs.quality(
            executor,
            moments=options.moments,
            limit_s=options.limit,
            cache=options.cache,
            progress=show,
        )
    if options.output is TableOrData.JSON:
        print_json([_plain(row) for row in rows])
    else:
        _print_rows(rows)
    if any(row.error for row in rows):
        raise typer.Exit(EXIT_FAILURE)


def _print_rows(rows: Sequence[QualityRow]) -> None:
    from asched.planning.table import settings_values

    settings = [{**settings_values(row.settings), "config": _config(row)} for row in rows]
    axes = [name for name in settings[0] if any(one[name] not in ("", None) for one in settings)]
    columns = [name.removesuffix("_nodes").replace("_", " ").upper() for name in axes]
    columns += ["EXCESS NODES", "MISSED PODS", "GAP"]
    if any(row.quality and row.quality.mean_idle_cost is not None for row in rows):
        columns += ["EXCESS COST / H", "IDLE COST / H"]
    cells = [
        [*("" if one[name] is None else str(one[name]) for name in axes), *_cells(row)]
        for one, row in zip(settings, rows, strict=True)
    ]
    print_table(columns, cells)
    for row in rows:
        if row.error:
            print_text(f"failed: {row.error}")


def _config(row: QualityRow) -> str:
    return "recorded" if row.settings.config is None else row.settings.config.name


def _cells(row: QualityRow) -> Sequence[str]:
    if row.quality is None:
        return ("failed", "", "")
    gaps = [moment.most_pods.gap for moment in row.quality.moments]
    for moment in row.quality.moments:
        least = (moment.least_nodes, moment.least_cost)
        gaps += [bound.gap for bound in least if bound is not None]
    excess, missed = row.quality.mean_excess_nodes, row.quality.mean_missed_pods
    cells = (f"{excess:,.2f}", f"{missed:,.2f}", f"{max(gaps, default=0.0):.1%}")
    regret, idle = row.quality.mean_excess_cost, row.quality.mean_idle_cost
    return cells if idle is None or regret is None else (*cells, f"{regret:,.2f}", f"{idle:,.2f}")


def _plain(row: QualityRow) -> Mapping[str, Any]:
    found: dict[str, Any] = {"settings": row.settings, "error": row.error}
    if row.quality is not None:
        found |= {
            "meanExcessNodes": row.quality.mean_excess_nodes,
            "meanMissedPods": row.quality.mean_missed_pods,
            "meanExcessCost": row.quality.mean_excess_cost,
            "meanIdleCost": row.quality.mean_idle_cost,
            "moments": row.quality.moments,
        }
    return found
