"""``asched diff``: a recorded history under another configuration, side by side with what was."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from asched.audit.lookup import AuditError
from asched.audit.whatif.candidate import PluginChange, candidate_scheduler, parse_changes
from asched.audit.whatif.comparison import Comparison, NamedRun, PlacedOnce, compare, figure_rows
from asched.audit.whatif.extraction import RecordedHistory, recorded_history
from asched.audit.whatif.page.document import comparison_page
from asched.cli.errors import BadInput, CommandError
from asched.cli.main import command_app
from asched.cli.options import (
    DEFAULT_URL,
    JournalOption,
    SinceOption,
    UntilOption,
    ask_journal,
    period,
    read_configuration,
)
from asched.cli.output import (
    HtmlOption,
    OutputOption,
    TableOrData,
    print_json,
    print_table,
    write_page,
)
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.daemon.interpreter import infrequent_gc
from asched.daemon.terminal import escape_control
from asched.journal.store import JournalStore
from asched.simulator.loop import Pace, Scheduler, SimulationStuckError, simulate
from asched.simulator.settings import scheduler_of
from asched.simulator.trace import Run
from asched.state.fold import FoldError

app = command_app("Simulate a recorded history under another configuration, and compare.")

BASELINE: Final = "recorded configuration"
_SHOWN: Final = 20
"""Pods told one by one in each table of a terminal."""


class _Candidate(NamedTuple):
    """What is to be tried."""

    configuration: Configuration | None
    """None for the recorded one."""
    changes: tuple[PluginChange, ...]
    name: str


@app.command(name="diff")
def diff(
    journal: JournalOption = DEFAULT_URL,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The configuration to try (YAML)."),
    ] = None,
    plugins: Annotated[
        str | None,
        typer.Option(
            metavar="CHANGES",
            help="Changes to it, or else to the recorded one: Name=WEIGHT, +Name, -Name; commas between.",
        ),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    html: HtmlOption = None,
    output: OutputOption = TableOrData.TABLE,
) -> None:
    """Simulate a recorded history under another configuration, and compare.

    What happened by itself (pods that came and how long they ran, nodes, all other changes) is taken
    from the journal, and simulated twice on a virtual clock: under the recorded configuration and
    under another one. Told are both, and what really was.
    """
    asked = period(since, until)
    candidate = _candidate(config, plugins)

    async def question(store: JournalStore, registry: PluginRegistry) -> Comparison:
        with _doing() as doing:
            doing("reading the journal")
            history = await recorded_history(store, registry.load, asked)
            configured = None
            if candidate.configuration is not None:
                configured = scheduler_of(candidate.configuration, Pace())
            scheduler = candidate_scheduler(
                history, configured, candidate.changes, registry, candidate.name
            )
            doing("simulating the recorded configuration")
            baseline = _simulated(history, history.scheduler, registry)
            doing(f"simulating {candidate.name}")
            other = _simulated(history, scheduler, registry)
            doing("comparing")
            return compare(
                NamedRun(BASELINE, baseline),
                NamedRun(candidate.name, other),
                history.recorded,
                _notes(history, candidate),
            )

    with infrequent_gc():
        comparison = ask_journal(journal, question)
    if html is not None:
        write_page(html, comparison_page(comparison, f"What if: {candidate.name}"))
    if output is TableOrData.JSON:
        print_json(comparison.report())
    else:
        _print(comparison)


def _candidate(config: Path | None, plugins: str | None) -> _Candidate:
    if config is None and plugins is None:
        raise BadInput("asched: nothing to compare with: give --config, --plugins or both")
    try:
        changes = () if plugins is None else parse_changes(plugins)
    except AuditError as error:
        raise BadInput(f"asched: {error}") from None
    configuration = (
        None if config is None else read_configuration(config, PluginRegistry.discover())
    )
    for line in configuration.warnings if configuration is not None else ():
        typer.echo(line, err=True)
    name = BASELINE if config is None else config.name
    return _Candidate(configuration, changes, f"{name} with {plugins}" if plugins else name)


def _simulated(history: RecordedHistory, scheduler: Scheduler, registry: PluginRegistry) -> Run:
    try:
        return simulate(history.history, scheduler, registry.load)
    except (SimulationStuckError, FoldError) as error:
        raise CommandError(f"asched: the simulation cannot go on: {error}") from None


def _notes(history: RecordedHistory, candidate: _Candidate) -> Iterator[str]:
    yield from history.notes
    if candidate.configuration is not None and candidate.configuration.scheduler.extenders:
        yield f"{candidate.name} names extenders; none is asked here"


@contextmanager
def _doing() -> Iterator[Callable[[str], None]]:
    """Tells what is being done, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("") as status:
        yield lambda what: status.update(escape(escape_control(what)))


# -- the table ------------------------------------------------------------------------------------


def _print(found: Comparison) -> None:
    run = found.baseline.run
    report = found.report()
    nodes = len({span.node.name for span in run.nodes})
    print(f"{report.begin:%Y-%m-%d %H:%M:%S} to {report.end:%Y-%m-%d %H:%M:%S} UTC, {nodes} nodes")
    for note in found.notes:
        print(f"note: {note}")
    runs = [found.baseline, found.candidate, *([found.recorded] if found.recorded else [])]
    rows = [
        (row.label, *row.values[:2], row.change, *row.values[2:])
        for row in figure_rows([one.figures for one in runs])
    ]
    columns = ("", *found.names, "CHANGE", *(["AS RECORDED"] if found.recorded else []))
    print_table(columns, rows)
    first, second = found.names
    elsewhere = [(pod.pod, pod.baseline, pod.candidate) for pod in found.placed_elsewhere]
    _print_pods("placed differently", ("POD", first, second), elsewhere)
    for name, only in (
        (first, found.placed_in_baseline_only),
        (second, found.placed_in_candidate_only),
    ):
        _print_once(name, only)


def _print_once(name: str, pods: Sequence[PlacedOnce]) -> None:
    rows = [(pod.pod, pod.node, pod.message) for pod in pods]
    _print_pods(f"placed only by: {name}", ("POD", "NODE", "WHAT THE OTHER SAID"), rows)


def _print_pods(what: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"{len(rows)} pod(s) {what}")
    if rows:
        print_table(columns, rows[:_SHOWN])
        if len(rows) > _SHOWN:
            print(f"... and {len(rows) - _SHOWN} more (-o json tells all)")
