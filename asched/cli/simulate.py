"""``asched simulate``: a scenario or a trace, scheduled on a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
import typer

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
    from asched.config.file import Configuration
    from asched.config.registry import PluginRegistry
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
    config: Path | None = typer.Option(
        None, help="The configuration, as for asched run. Default: the default settings."
    )
    feature_gates: FeatureGatesOption = None
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
    from asched.audit.whatif.scenarios import default_scheduler_name
    from asched.cli.simulation import SimulationReport, print_summary

    registry, prices = installed_plugins(), prices_of(options.prices)
    configuration = _configuration(options, registry)
    name = default_scheduler_name(configuration)
    run = _run(options, configuration, registry, name)
    measures = measured(run, workload_of(run.pods), prices)
    source = options.scenario or options.openb_pods
    if options.html is not None:
        title = f"Simulation of {source.name if source else name}"
        write_page(options.html, run_page(name, measures, title))
    if options.output is TableOrData.JSON:
        print_json(SimulationReport.of(name, measures))
    else:
        print_summary(measures)


def _configuration(options: SimulateOptions, registry: PluginRegistry) -> Configuration:
    configuration = read_configuration(options.config, registry, options.feature_gates)
    for warning in configuration.warnings:
        typer.echo(warning, err=True)
    if configuration.scheduler.extenders:
        typer.echo("asched: a simulation does not call extenders", err=True)
    return configuration


def _run(
    options: SimulateOptions,
    configuration: Configuration,
    registry: PluginRegistry,
    scheduler_name: str,
) -> WorkloadRun:
    from asched.simulator.loop import Latencies, Simulation, scheduler_from_config

    decision_ns = _duration_ns("--decision-time", options.decision_time)
    latencies = Latencies(decision_ns, _duration_ns("--bind-time", options.bind_time))
    trace = _trace(options, scheduler_name)
    simulation = Simulation(trace, scheduler_from_config(configuration, latencies), registry.load)
    return anyio.run(_simulate, simulation, trace, options.journal)


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


def _trace(options: SimulateOptions, scheduler_name: str) -> WorkloadTrace:
    """The workload in the given files, up to ``--until``."""
    from asched.audit.whatif.scenarios import scenario_trace
    from asched.cli.simulation import openb_trace
    from asched.config.file import read_text

    scenario, nodes, pods = options.scenario, options.openb_nodes, options.openb_pods
    if scenario is not None and nodes is None and pods is None:
        trace = scenario_trace(read_text(scenario), str(scenario), scheduler_name)
    elif scenario is None and nodes is not None and pods is not None:
        trace = openb_trace(nodes, pods, scheduler_name)
    else:
        expected = "a SCENARIO, or --openb-nodes and --openb-pods together"
        raise BadInput(f"expected {expected}; see asched simulate --help")
    if options.until is None:
        return trace
    end_ns = trace.begin_ns + _duration_ns("--until", options.until)
    if trace.end_ns is not None:
        end_ns = min(end_ns, trace.end_ns)
    return msgspec.structs.replace(trace, end_ns=end_ns)


def _duration_ns(option: str, text: str) -> int:
    from asched.model.quantity import parse_duration

    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None
    if duration < timedelta():
        raise BadInput(f"{option}: expected at least 0s, got {text}")
    return duration // _US * 1000
