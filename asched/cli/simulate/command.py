"""The command itself: options, and the order in which things happen."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import typer

from asched.audit.whatif.measures import measured
from asched.audit.whatif.occupancy import workload_of
from asched.audit.whatif.page.document import run_page
from asched.cli.errors import BadInput, CommandError, as_command_error
from asched.cli.main import command_app
from asched.cli.options import read_configuration
from asched.cli.output import HtmlOption, OutputOption, TableOrData, print_json, write_page
from asched.cli.simulate.output import (
    JournalWriter,
    SimulationReport,
    openb_history,
    print_summary,
    scenario_history,
)
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.daemon.interpreter import infrequent_gc
from asched.framework.runtime.profile import PluginLoader
from asched.journal.opening import open_journal
from asched.model.quantity import parse_duration
from asched.simulator.loop import Pace, Scheduler, Simulation, SimulationStuckError
from asched.simulator.settings import scheduler_of
from asched.simulator.trace import Run, WorkloadTrace

app = command_app("Schedule a scenario or a trace on a virtual clock.")

_US = timedelta(microseconds=1)
_PROGRESS_S = 0.1


@app.command()
def simulate(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="SCENARIO", help="A scenario (docs/simulate.md).")
    ] = None,
    openb_nodes: Annotated[
        Path | None, typer.Option(help="Instead: the nodes of the openb trace, a CSV file.")
    ] = None,
    openb_pods: Annotated[
        Path | None, typer.Option(help="And the pods of the openb trace, a CSV file.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="The scheduler's configuration, as for asched run. Default: defaults."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Stop at so much virtual time after the beginning, such as 2h."
        ),
    ] = None,
    decision_time: Annotated[
        str, typer.Option(metavar="DURATION", help="How long each decision takes.")
    ] = "0s",
    bind_time: Annotated[
        str, typer.Option(metavar="DURATION", help="From a decision to the pod running.")
    ] = "0s",
    output: OutputOption = TableOrData.TABLE,
    html: HtmlOption = None,
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Also write a new journal: for history, explain, replay and diff."
        ),
    ] = None,
) -> None:
    """Schedule a scenario or a trace on a virtual clock.

    The fold, the queue and the plugins are those of asched run; the cluster is simulated, and the
    clock moves from one thing that happens to the next. The same input gives the same result, to
    the byte.
    """
    registry = PluginRegistry.discover()
    configuration = _configuration(config, registry)
    pace = Pace(
        _duration_ns("--decision-time", decision_time), _duration_ns("--bind-time", bind_time)
    )
    names = [profile.scheduler_name for profile in configuration.profiles]
    name = [*names, *(session.scheduler_name for session in configuration.sessions)][0]
    history = _history(scenario, openb_nodes, openb_pods, name)
    if until is not None:
        history = _cut(history, _duration_ns("--until", until))
    run = _run(history, scheduler_of(configuration, pace), registry.load, journal)
    source = scenario or openb_pods
    _report(name, f"Simulation of {source.name if source else name}", run, html, output)


def _configuration(config: Path | None, registry: PluginRegistry) -> Configuration:
    configuration = read_configuration(config, registry)
    for warning in configuration.warnings:
        typer.echo(warning, err=True)
    if configuration.scheduler.extenders:
        typer.echo("asched: extenders are not asked in a simulation", err=True)
    return configuration


def _report(name: str, title: str, run: Run, html: Path | None, output: TableOrData) -> None:
    measures = measured(run, workload_of(run.pods))
    if html is not None:
        write_page(html, run_page(name, measures, title))
    if output is TableOrData.JSON:
        print_json(SimulationReport.of(name, measures))
    else:
        print_summary(measures)


def _history(
    scenario: Path | None, nodes: Path | None, pods: Path | None, scheduler_name: str
) -> WorkloadTrace:
    if scenario is not None and nodes is None and pods is None:
        return scenario_history(scenario, scheduler_name)
    if scenario is None and nodes is not None and pods is not None:
        return openb_history(nodes, pods, scheduler_name)
    raise BadInput(
        "asched: expected a SCENARIO, or --openb-nodes and --openb-pods together; see asched"
        " simulate --help"
    )


def _cut(history: WorkloadTrace, until_ns: int) -> WorkloadTrace:
    end_ns = history.begin_ns + until_ns
    if history.end_ns is not None:
        end_ns = min(end_ns, history.end_ns)
    return msgspec.structs.replace(history, end_ns=end_ns)


def _duration_ns(option: str, text: str) -> int:
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise BadInput(f"asched: {option}: {error}") from None
    if duration < timedelta():
        raise BadInput(f"asched: {option}: expected no less than 0s, got {text}")
    return duration // _US * 1000


def _run(
    history: WorkloadTrace, scheduler: Scheduler, load_plugin: PluginLoader, journal: str | None
) -> Run:
    """The whole simulation. Raises CommandError."""

    async def run() -> Run:
        simulation = Simulation(history, scheduler, load_plugin)
        with _progress(len(history.events)) as progress:
            if journal is None:
                for _ in simulation.turns():
                    progress(simulation.events_happened)
                return simulation.result()
            async with open_journal(journal) as store:
                writer = await JournalWriter.claim(store, history.begin_ns)
                for turn in simulation.turns():
                    await writer.add(turn)
                    progress(simulation.events_happened)
                await writer.flush()
            return simulation.result()

    try:
        with infrequent_gc():
            return anyio.run(run)
    except SimulationStuckError as error:
        raise CommandError(f"asched: {error}") from None
    except Exception as error:  # noqa: BLE001  whatever it is is raised again
        raise as_command_error(error) from None


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda happened: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("simulating", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulate", total=total)
        shown_s = time.monotonic()

        def show(happened: int) -> None:
            nonlocal shown_s
            now_s = time.monotonic()
            if now_s - shown_s >= _PROGRESS_S:
                shown_s = now_s
                bar.update(task, completed=happened)

        yield show
