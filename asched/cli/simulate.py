"""``asched simulate``: a scenario or a trace, scheduled on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec
import typer

from asched import __version__
from asched.cli.errors import BadInput
from asched.cli.options import (
    FeatureGatesOption,
    PricesOption,
    installed_plugins,
    prices_of,
    read_configuration,
    takes_options,
)
from asched.cli.output import (
    HtmlOption,
    OutputOption,
    TableOrData,
    print_json,
    progress_bar,
    write_page,
)

if TYPE_CHECKING:
    from asched.audit.whatif.node_changes import ChangedTrace
    from asched.config.file import Configuration
    from asched.config.registry import PluginRegistry
    from asched.pricing.prices import Prices
    from asched.simulator.loop import Simulation
    from asched.simulator.trace import WorkloadRun, WorkloadTrace

_US = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    scenario: Path | None = typer.Argument(
        None, metavar="SCENARIO", help="A scenario (docs/how-to/simulate.md)."
    )
    openb_nodes: Path | None = typer.Option(
        None, help="Instead of a scenario: nodes of the openb trace (CSV)."
    )
    openb_pods: Path | None = typer.Option(None, help="Pods of the openb trace (CSV).")
    config: list[Path] | None = typer.Option(
        None,
        help="The configuration, as for asched run. Given twice, both are compared. Default: the"
        " default settings.",
    )
    feature_gates: FeatureGatesOption = None
    load: float = typer.Option(
        1.0,
        min=0.0,
        max=100.0,
        metavar="FACTOR",
        help="How many pods arrive for one of the workload.",
    )
    seed: int = typer.Option(0, help="Seed of --load: which pods are left out or copied.")
    only_nodes: str = typer.Option(
        "", metavar="PATTERN", help="Only these nodes, such as gpu-*; comma-separated."
    )
    add_nodes: str = typer.Option(
        "", metavar="NODE=COUNT", help="Copies of a node to add; comma-separated."
    )
    remove_nodes: str = typer.Option(
        "", metavar="NODE", help="Nodes to remove at the beginning; comma-separated."
    )
    until: str | None = typer.Option(
        None, metavar="DURATION", help="Virtual time to simulate, such as 2h."
    )
    decision_time: str = typer.Option("0s", metavar="DURATION", help="Duration of each decision.")
    bind_time: str = typer.Option(
        "0s", metavar="DURATION", help="From a decision to the running pod."
    )
    output: OutputOption = TableOrData.TABLE
    prices: PricesOption = None
    html: HtmlOption = None
    journal: str | None = typer.Option(
        None, metavar="URL", help="Also write a new journal, for history, explain, replay and diff."
    )


@takes_options
def simulate(options: SimulateOptions) -> None:
    """Schedule a scenario or a trace on a virtual clock.

    Uses the queue, plugins and state of asched run with a simulated cluster. The clock advances
    from event to event. The same input gives the same result, byte for byte.
    """
    from asched.audit.whatif.measures import measured
    from asched.audit.whatif.occupancy import workload_of
    from asched.audit.whatif.report import run_page
    from asched.cli.simulation import SimulationReport, print_summary

    registry, prices = installed_plugins(), prices_of(options.prices)
    files: Sequence[Path | None] = options.config or (None,)
    if len(files) > 2:
        raise BadInput("--config: two configurations can be compared; asched sweep runs more")
    if len(files) == 2:
        _compare(options, [_named(file, options, registry) for file in files], registry, prices)
        return
    one = _named(files[0], options, registry)
    run, notes = _run(options, one, registry)
    measures = measured(run, workload_of(run.pods), prices)
    if options.html is not None:
        write_page(options.html, run_page(one.name, measures, _title(options), notes))
    if options.output is TableOrData.JSON:
        print_json(SimulationReport.of(one.name, measures, notes))
    else:
        print_summary(measures, notes)


class _Named(NamedTuple):
    """A configuration and its name in reports."""

    name: str
    configuration: Configuration


def _named(file: Path | None, options: SimulateOptions, registry: PluginRegistry) -> _Named:
    configuration = read_configuration(file, registry, options.feature_gates)
    for warning in configuration.warnings:
        typer.echo(warning, err=True)
    if configuration.scheduler.extenders:
        typer.echo("asched: a simulation does not call extenders", err=True)
    return _Named("default settings" if file is None else str(file), configuration)


def _title(options: SimulateOptions) -> str:
    source = options.scenario or options.openb_pods
    return f"Simulation of {source.name if source else 'a workload'}"


def _compare(
    options: SimulateOptions,
    both: Sequence[_Named],
    registry: PluginRegistry,
    prices: Prices | None,
) -> None:
    from asched.audit.whatif.comparison import NamedRun, compare
    from asched.audit.whatif.report import comparison_page
    from asched.cli.simulation import print_comparison

    if options.journal is not None:
        raise BadInput("--journal: a journal holds one run; give one --config")
    runs, notes = [], dict[str, None]()
    for one in both:
        run, about = _run(options, one, registry)
        runs.append(NamedRun(one.name, run))
        notes |= dict.fromkeys(about)
    found = compare(runs[0], runs[1], notes=notes, prices=prices)
    if options.html is not None:
        write_page(options.html, comparison_page(found, _title(options)))
    if options.output is TableOrData.JSON:
        print_json(found.report())
    else:
        print_comparison(found)


def _run(
    options: SimulateOptions, one: _Named, registry: PluginRegistry
) -> tuple[WorkloadRun, tuple[str, ...]]:
    """The run, and notes that state what was simulated."""
    from asched.audit.whatif.scenarios import default_scheduler_name
    from asched.simulator.loop import Latencies, Simulation, scheduler_from_config

    decision_ns = _duration_ns("--decision-time", options.decision_time)
    latencies = Latencies(decision_ns, _duration_ns("--bind-time", options.bind_time))
    changed = _changed(options, _trace(options, default_scheduler_name(one.configuration)))
    scheduler = scheduler_from_config(one.configuration, latencies)
    simulation = Simulation(changed.trace, scheduler, registry.load)
    run = anyio.run(_simulate, simulation, changed.trace, options.journal)
    made_by = f"asched {__version__}; configuration: {one.name}, seed {scheduler.seed}"
    return run, (made_by, *changed.notes)


def _changed(options: SimulateOptions, found: ChangedTrace) -> ChangedTrace:
    """The workload with the nodes and the load of the options."""
    from asched.audit.whatif.node_changes import (
        ChangedTrace,
        parse_node_changes,
        with_node_changes,
        with_only_nodes,
    )
    from asched.capacity.load import LoadForecast, with_load

    changes = parse_node_changes(options.add_nodes, options.remove_nodes)
    some = with_only_nodes(found.trace, options.only_nodes)
    nodes = with_node_changes(some, changes)
    loaded = with_load(nodes.trace, LoadForecast(options.load), options.seed)
    notes = [f"load {options.load:g}, seed {options.seed}"] if options.load != 1 else []
    if options.only_nodes:
        notes.append(f"only nodes {options.only_nodes}")
    if str(changes):
        notes.append(str(changes))
    return ChangedTrace(loaded.trace, (*found.notes, *notes, *nodes.notes, *loaded.notes))


async def _simulate(
    simulation: Simulation, trace: WorkloadTrace, journal: str | None
) -> WorkloadRun:
    from asched.cli.simulation import JournalWriter
    from asched.journal.opening import open_journal

    with progress_bar("simulating", len(trace.events)) as progress:
        if journal is None:
            for _ in simulation.turns():
                progress(simulation.events_applied)
            return simulation.result()
        async with open_journal(journal) as store:
            writer = await JournalWriter.claim(store, trace.begin_ns)
            for turn in simulation.turns():
                await writer.add(turn)
                progress(simulation.events_applied)
            await writer.flush()
        return simulation.result()


def _trace(options: SimulateOptions, scheduler_name: str) -> ChangedTrace:
    """The workload in the given files, up to ``--until``."""
    from asched.audit.whatif.node_changes import ChangedTrace
    from asched.audit.whatif.scenarios import scenario_trace
    from asched.cli.simulation import openb_trace
    from asched.config.file import read_text

    scenario, nodes, pods = options.scenario, options.openb_nodes, options.openb_pods
    if scenario is not None and nodes is None and pods is None:
        text = read_text(scenario)
        found = ChangedTrace(scenario_trace(text, str(scenario), scheduler_name))
    elif scenario is None and nodes is not None and pods is not None:
        found = openb_trace(nodes, pods, scheduler_name)
    else:
        expected = "a SCENARIO, or --openb-nodes and --openb-pods together"
        raise BadInput(f"expected {expected}; see asched simulate --help")
    if options.until is None:
        return found
    end_ns = found.trace.begin_ns + _duration_ns("--until", options.until)
    if found.trace.end_ns is not None:
        end_ns = min(end_ns, found.trace.end_ns)
    return found._replace(trace=msgspec.structs.replace(found.trace, end_ns=end_ns))


def _duration_ns(option: str, text: str) -> int:
    from asched.model.quantity import parse_duration

    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None
    if duration < timedelta():
        raise BadInput(f"{option}: expected at least 0s, got {text}")
    return duration // _US * 1000
