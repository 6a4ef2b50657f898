"""``asched diff``: a recorded history, simulated with another configuration and compared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    write_page,
)
from asched.daemon.process import escape_control

if TYPE_CHECKING:
    from asched.audit.whatif.candidate import CandidateConfig, WhatIfProgress
    from asched.audit.whatif.comparison import Comparison
    from asched.journal.store import JournalStore


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
    from asched.cli.simulation import print_comparison

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
        print_comparison(comparison)


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
