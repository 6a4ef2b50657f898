"""``asched diff``: a recorded history, simulated with another configuration and compared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import typer

from asched.cli.errors import BadInput, CommandError
from asched.cli.options import (
    DEFAULT_JOURNAL,
    JournalOption,
    SinceOption,
    UntilOption,
    period,
    query_journal,
    read_configuration,
    takes_options,
)
from asched.cli.output import (
    HtmlOption,
    OutputOption,
    TableOrData,
    print_json,
    print_table,
    write_page,
)
from asched.daemon.process import escape_control

if TYPE_CHECKING:
    from asched.audit.whatif.candidate import PluginChange
    from asched.audit.whatif.comparison import Comparison, PlacedOnce
    from asched.audit.whatif.recorded_history import RecordedHistory
    from asched.config.file import Configuration
    from asched.config.registry import PluginRegistry
    from asched.journal.store import JournalStore
    from asched.simulator.loop import SchedulerSettings
    from asched.simulator.trace import WorkloadRun

BASELINE: Final = "recorded configuration"
_LIMIT: Final = 20
"""Pods listed in each table of a terminal."""


@dataclass(frozen=True, kw_only=True)
class DiffOptions:
    journal: JournalOption = DEFAULT_JOURNAL
    config: Path | None = typer.Option(
        None, "--config", metavar="FILE", help="The configuration to try (YAML)."
    )
    plugins: str | None = typer.Option(
        None,
        metavar="CHANGES",
        help="Changes to it, or to the recorded one: Name=WEIGHT, +Name, -Name; comma-separated.",
    )
    since: SinceOption = None
    until: UntilOption = None
    html: HtmlOption = None
    output: OutputOption = TableOrData.TABLE


class _CandidateConfig(NamedTuple):
    """What to compare with the recorded configuration."""

    configuration: Configuration | None
    """None for the recorded one."""
    changes: tuple[PluginChange, ...]
    name: str


@takes_options
def diff(options: DiffOptions) -> None:
    """Simulate recorded history under another configuration.

    Takes the workload (pods and how long they ran, nodes, all other changes) from the journal and
    simulates it twice on a virtual clock, with the recorded and with the other configuration.
    Reports both next to what was recorded.
    """
    from asched.audit.whatif.report import comparison_page

    candidate = _candidate(options)
    comparison = _compare(options, candidate)
    if options.html is not None:
        write_page(options.html, comparison_page(comparison, f"What if: {candidate.name}"))
    if options.output is TableOrData.JSON:
        print_json(comparison.report())
    else:
        _print(comparison)


def _candidate(options: DiffOptions) -> _CandidateConfig:
    from asched.audit.lookup import AuditError
    from asched.audit.whatif.candidate import parse_changes
    from asched.config.registry import PluginRegistry

    config, plugins = options.config, options.plugins
    if config is None and plugins is None:
        raise BadInput("nothing to compare with: give --config, --plugins or both")
    try:
        changes = () if plugins is None else parse_changes(plugins)
    except AuditError as error:
        raise BadInput(str(error)) from None
    configuration = None
    if config is not None:
        configuration = read_configuration(config, PluginRegistry.discover())
        for line in configuration.warnings:
            typer.echo(line, err=True)
    name = BASELINE if config is None else config.name
    return _CandidateConfig(configuration, changes, f"{name} with {plugins}" if plugins else name)


def _compare(options: DiffOptions, candidate: _CandidateConfig) -> Comparison:
    from asched.audit.whatif.candidate import candidate_scheduler
    from asched.audit.whatif.comparison import NamedRun, compare
    from asched.audit.whatif.recorded_history import recorded_history
    from asched.config.registry import PluginRegistry
    from asched.simulator.loop import Latencies, scheduler_from_config

    within = period(options.since, options.until)

    async def query(store: JournalStore) -> Comparison:
        registry = PluginRegistry.discover()
        with _status() as show:
            show("reading the journal")
            history = await recorded_history(store, registry.load, within)
            configured = None
            if candidate.configuration is not None:
                configured = scheduler_from_config(candidate.configuration, Latencies())
            scheduler = candidate_scheduler(
                history, configured, candidate.changes, registry, candidate.name
            )
            show("simulating the recorded configuration")
            baseline = _simulate(history, history.scheduler, registry)
            show(f"simulating {candidate.name}")
            other = _simulate(history, scheduler, registry)
            show("comparing")
            return compare(
                NamedRun(BASELINE, baseline),
                NamedRun(candidate.name, other),
                history.recorded,
                _notes(history, candidate),
            )

    return query_journal(options.journal, query)


def _simulate(
    history: RecordedHistory, scheduler: SchedulerSettings, registry: PluginRegistry
) -> WorkloadRun:
    from asched.simulator.loop import SimulationStuckError, simulate
    from asched.state.fold import FoldError

    try:
        return simulate(history.trace, scheduler, registry.load)
    except (SimulationStuckError, FoldError) as error:
        raise CommandError(f"the simulation failed: {error}") from None


def _notes(history: RecordedHistory, candidate: _CandidateConfig) -> Iterator[str]:
    yield from history.notes
    if candidate.configuration is not None and candidate.configuration.scheduler.extenders:
        yield f"{candidate.name} configures extenders; a simulation does not call them"


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """A function that shows the present activity, on a terminal's stderr only."""
    if not sys.stderr.isatty():
        yield lambda activity: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("") as status:
        yield lambda activity: status.update(escape(escape_control(activity)))


def _print(found: Comparison) -> None:
    from asched.audit.whatif.comparison import figure_rows

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
    _print_placed_once(first, found.placed_in_baseline_only)
    _print_placed_once(second, found.placed_in_candidate_only)


def _print_placed_once(name: str, pods: Sequence[PlacedOnce]) -> None:
    rows = [(pod.pod, pod.node, pod.message) for pod in pods]
    _print_pods(f"placed only by: {name}", ("POD", "NODE", "MESSAGE OF THE OTHER"), rows)


def _print_pods(what: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"{len(rows)} pod(s) {what}")
    if rows:
        print_table(columns, rows[:_LIMIT])
        if len(rows) > _LIMIT:
            print(f"... and {len(rows) - _LIMIT} more (-o json lists all)")
