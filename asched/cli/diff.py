"""``asched diff``: a recorded history, simulated with another configuration and compared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from asched.cli.errors import BadInput
from asched.cli.options import (
    HistoryReportOptions,
    SinceOption,
    UntilOption,
    installed_plugins,
    period,
    prices_of,
    query_journal,
    read_configuration,
    takes_options,
)
from asched.cli.output import (
    TableOrData,
    print_json,
    print_table,
    write_page,
)
from asched.daemon.process import escape_control

if TYPE_CHECKING:
    from asched.audit.whatif.candidate import CandidateConfig, WhatIfProgress
    from asched.audit.whatif.comparison import Comparison
    from asched.journal.store import JournalStore

_LIMIT: Final = 20
"""Pods listed in each table of a terminal."""


@dataclass(frozen=True, kw_only=True)
class DiffOptions(HistoryReportOptions):
    config: Path | None = typer.Option(
        None, "--config", metavar="FILE", help="The configuration to try (YAML)."
    )
    plugins: str | None = typer.Option(
        None,
        metavar="CHANGES",
        help="Changes to it, or to the recorded one: Name=WEIGHT, +Name, -Name; comma-separated.",
    )
    add_nodes: str = typer.Option(
        "", metavar="NODE=COUNT", help="Copies of a node to add at the beginning; comma-separated."
    )
    remove_nodes: str = typer.Option(
        "", metavar="NODE", help="Nodes to remove at the beginning; comma-separated."
    )
    since: SinceOption = None
    until: UntilOption = None


@takes_options
def diff(options: DiffOptions) -> None:
    """Simulate recorded history under another configuration.

    Takes the workload (pods and how long they ran, nodes, all other changes) from the journal and
    simulates it twice on a virtual clock, with the recorded and with the other configuration.
    Reports both next to what was recorded.
    """
    from asched.audit.whatif.candidate import compare_candidate
    from asched.audit.whatif.report import comparison_page

    candidate = _candidate(options)
    within = period(options.since, options.until)
    prices = prices_of(options.prices)

    async def query(store: JournalStore) -> Comparison:
        with _status() as show:
            return await compare_candidate(store, candidate, within, show, prices=prices)

    comparison = query_journal(options.journal, query)
    if options.html is not None:
        write_page(options.html, comparison_page(comparison, f"What if: {candidate.name}"))
    if options.output is TableOrData.JSON:
        print_json(comparison.report())
    else:
        _print(comparison)


def _candidate(options: DiffOptions) -> CandidateConfig:
    from asched.audit.whatif.candidate import WhatIfSettings, candidate_config

    file = options.config
    settings = WhatIfSettings(
        name="" if file is None else file.name,
        plugins=options.plugins or "",
        add_nodes=options.add_nodes,
        remove_nodes=options.remove_nodes,
    )
    if file is None and settings == WhatIfSettings():
        raise BadInput(
            "nothing to compare with: give --config, --plugins, --add-nodes or --remove-nodes"
        )
    registry = installed_plugins()
    configuration = None if file is None else read_configuration(file, registry)
    for line in () if configuration is None else configuration.warnings:
        typer.echo(line, err=True)
    return candidate_config(settings, configuration, registry)


@contextmanager
def _status() -> Iterator[Callable[[WhatIfProgress], None]]:
    """A function that shows the present activity, on a terminal's stderr only."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("") as status:
        shown = ""

        def show(progress: WhatIfProgress) -> None:
            nonlocal shown
            if progress.activity != shown:
                shown = progress.activity
                status.update(escape(escape_control(shown)))

        yield show


def _print(found: Comparison) -> None:
    from asched.audit.whatif.comparison import figure_rows

    report = found.report()
    nodes = len({span.node.name for span in found.baseline.run.nodes})
    print(f"{report.begin:%Y-%m-%d %H:%M:%S} to {report.end:%Y-%m-%d %H:%M:%S} UTC, {nodes} nodes")
    for note in found.notes:
        print(f"note: {note}")
    recorded = [found.recorded] if found.recorded else []
    runs = [found.baseline, found.candidate, *recorded]
    rows = [
        (row.label, *row.values[:2], row.change, *row.values[2:])
        for row in figure_rows([run.figures for run in runs])
    ]
    print_table(("", *found.names, "CHANGE", *(["AS RECORDED"] if recorded else [])), rows)
    elsewhere = [(pod.pod, pod.baseline, pod.candidate) for pod in found.placed_elsewhere]
    _print_pods("placed differently", ("POD", *found.names), elsewhere)
    only = (found.placed_in_baseline_only, found.placed_in_candidate_only)
    for name, pods in zip(found.names, only, strict=True):
        placed = [(pod.pod, pod.node, pod.message) for pod in pods]
        _print_pods(f"placed only by: {name}", ("POD", "NODE", "MESSAGE OF THE OTHER"), placed)


def _print_pods(what: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"{len(rows)} pod(s) {what}")
    if rows:
        print_table(columns, rows[:_LIMIT])
        if len(rows) > _LIMIT:
            print(f"... and {len(rows) - _LIMIT} more (-o json lists all)")
