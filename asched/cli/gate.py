"""``asched gate``: a candidate decides recorded history; thresholds decide about the candidate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from asched.cli.errors import EXIT_FAILURE, BadInput
from asched.cli.options import (
    HistoryReportOptions,
    prices_of,
    takes_options,
)
from asched.cli.output import (
    TableOrData,
    print_json,
    print_table,
    print_text,
    write_page,
)

if TYPE_CHECKING:
    from asched.gate.verdict import GateReport

_SHOWN: Final = 10
"""Different decisions listed on a terminal."""


@dataclass(frozen=True, kw_only=True)
class GateOptions(HistoryReportOptions):
    candidate: list[Path] = typer.Option(
        [],
        metavar="PATH",
        help="A configuration file or the folder of a virtual environment, or one of each.",
    )
    days: float = typer.Option(7.0, help="The last days of the journal.", min=0.001, max=36500)
    thresholds: Path | None = typer.Option(
        None, metavar="FILE", help="Thresholds, instead of the default ones (docs/how-to/gate.md)."
    )
    require: list[str] = typer.Option(
        [],
        metavar="CONDITION",
        help='A threshold, such as "p95_wait_s <= 1.1 * baseline"; may be repeated.',
    )


@takes_options
def gate(options: GateOptions) -> None:
    """Decide whether a new configuration or version may be used.

    Decides the last days of a journal with the recorded configuration and with the candidate: a
    configuration, or asched and plugins in a virtual environment. Applies thresholds. Exits with 0
    if the candidate passes, with 1 if it fails, and with 2 for bad input.
    """
    from asched.gate.candidate import candidate_of
    from asched.gate.candidate import gate as run_gate
    from asched.gate.report import gate_page
    from asched.gate.thresholds import DEFAULTS, read_thresholds, with_requirements
    from asched.gate.verdict import Verdict
    from asched.planning.history import open_history

    if not options.candidate:
        raise BadInput("give --candidate; see asched gate --help")
    base = DEFAULTS if options.thresholds is None else read_thresholds(options.thresholds)
    report = run_gate(
        open_history(options.journal),
        candidate_of(options.candidate),
        with_requirements(base, options.require),
        days=options.days,
        prices=prices_of(options.prices),
    )
    if options.html is not None:
        write_page(options.html, gate_page(report))
    if options.output is TableOrData.JSON:
        print_json(report)
    else:
        _print(report)
    if report.verdict is not Verdict.PASS:
        raise typer.Exit(EXIT_FAILURE)


def _print(report: GateReport) -> None:
    from asched.gate.report import (
        CHECK_COLUMNS,
        DIFFERENCE_COLUMNS,
        check_rows,
        cost_rows,
        difference_rows,
        environment_rows,
    )

    print_text(f"{report.begin:%Y-%m-%d %H:%M:%S} to {report.end:%Y-%m-%d %H:%M:%S} UTC")
    for note in dict.fromkeys((*report.baseline.notes, *report.candidate.notes)):
        print_text(f"note: {note}")
    environments = environment_rows(report)
    if environments:
        print_table(("CODE", "BASELINE", "CANDIDATE"), environments)
    if report.checks:
        print_table([name.upper() for name in CHECK_COLUMNS], check_rows(report))
    costs = cost_rows(report)
    if costs:
        print_table(("COST", "BASELINE", "CANDIDATE", "CHANGE"), costs)
    rows = difference_rows(report)
    if rows:
        found = report.candidate.agreement
        assert found is not None, "differences are those of the agreement"
        agreed = found.agreed_bindings + found.agreed_rejections
        print_text(f"{found.bindings + found.rejections - agreed:,} decision(s) differ")
        print_table([name.upper() for name in DIFFERENCE_COLUMNS], rows[:_SHOWN])
        if len(rows) > _SHOWN:
            print_text("... and more (-o json lists 100)")
    print_text(f"{report.verdict.value}: {report.candidate_name}")
    for reason in report.reasons:
        print_text(f"  {reason}")
