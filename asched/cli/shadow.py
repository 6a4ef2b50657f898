"""``asched shadow``: compare with the scheduler that owns a cluster, or that made a recording."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import structlog
import typer

from asched.cli.errors import BadInput
from asched.cli.main import command_app
from asched.cli.output import OutputOption, TableOrData, print_json, print_table
from asched.cli.service import (
    ConfigOption,
    ContextOption,
    KubeconfigOption,
    RunOptions,
    configured,
    connected,
    run_until_signal,
)
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.config.settings import JournalSettings
from asched.daemon.engine.commits import journal_when_reachable
from asched.daemon.reload.reloads import ReloadRequests
from asched.daemon.shadow.daemon import compare_recording, running_shadow
from asched.daemon.shadow.report import AgreementCounts, Difference, NodeOpinion, Report
from asched.daemon.telemetry.health import Health
from asched.daemon.telemetry.metrics import Metrics
from asched.daemon.telemetry.systemd import ServiceManager
from asched.journal.opening import shown
from asched.kube.tape import Tape, TapeError

DEFAULT_JOURNAL = "asched-shadow.db"
"""Not that of ``asched run``, which a shadow must not take away from it."""

app = command_app("Compare with the scheduler that owns a cluster, without ever writing to it.")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@app.command()
def shadow(
    tape: Annotated[
        Path | None, typer.Option(help="Compare with a recording instead of a live cluster.")
    ] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    config: ConfigOption = None,
    journal: Annotated[
        str | None,
        typer.Option(
            help=f"Journal: a file, or sqlite+aiosqlite:///PATH. Default: {DEFAULT_JOURNAL}."
        ),
    ] = None,
    output: OutputOption = TableOrData.TABLE,
) -> None:
    """Compare with the scheduler that owns a cluster, without ever writing to it.

    Runs until stopped (SIGTERM or Ctrl-C), or to the end of the tape; then prints how often both
    agree, and every difference with its cause. The profiles must have the schedulerName of the pods
    in question; by default that is default-scheduler.
    """
    registry = PluginRegistry.discover()
    configuration = configured(config, registry)
    if tape is None:
        options = RunOptions(kubeconfig, context, journal)
        compare_to_end(configuration, registry, options, output)
        return
    if kubeconfig or context or journal:
        raise BadInput("asched: --tape needs neither a cluster nor a journal; leave them out")
    try:
        print_report(compare_recording(Tape(tape), configuration, registry), output)
    except TapeError as error:
        raise BadInput(f"asched: {error}") from None


def compare_to_end(
    configuration: Configuration,
    registry: PluginRegistry,
    options: RunOptions,
    output: TableOrData = TableOrData.TABLE,
) -> None:
    """Compare live in this process until a signal, and print the report.

    Raises CommandError for what ends it before its time.
    """
    reports: list[Report] = []
    run_until_signal(partial(_serve, configuration, registry, options, reports))
    for report in reports:
        print_report(report, output)


async def _serve(
    configuration: Configuration,
    registry: PluginRegistry,
    options: RunOptions,
    reports: list[Report],
    started: anyio.Event,
    stop: anyio.Event,
    manager: ServiceManager,
    requests: ReloadRequests,
) -> None:
    metrics, url = Metrics(), options.journal or _journal_url(configuration)
    health = Health(metrics.registry)
    async with (
        health.serving(configuration.settings.health),
        connected(configuration, options, metrics) as client,
        journal_when_reachable(url, client.clock, client.random) as store,
    ):
        async with (
            running_shadow(configuration, registry, client, store, metrics) as running,
            anyio.create_task_group() as tasks,
        ):
            health.attach(running.engine.checks())
            started.set()
            log.info("comparing", server=client.server, journal=shown(url), health=health.address)
            tasks.start_soon(_once_synced, running.engine.synced, manager)
            tasks.start_soon(requests.refuse, "a comparison keeps to one configuration")
            await stop.wait()
            tasks.cancel_scope.cancel()
        reports.append(running.report())


async def _once_synced(synced: anyio.Event, manager: ServiceManager) -> None:
    await synced.wait()
    manager.ready("comparing")


def _journal_url(configuration: Configuration) -> str:
    url = configuration.settings.journal.url
    return DEFAULT_JOURNAL if url == JournalSettings().url else url


# -- printing ---------------------------------------------------------------------------------


def print_report(report: Report, output: TableOrData) -> None:
    """The whole report, as a table for people or as JSON (see ``docs/shadow.md``)."""
    if output is TableOrData.JSON:
        print_json(report)
        return
    print_table(
        ("", "COMPARED", "AGREED", "SHARE", "DISAGREEMENTS BY CAUSE"),
        [_tally("bindings", report.bindings), _tally("unschedulable", report.messages)],
        title="Agreement with the other scheduler",
    )
    print(
        "bindings agree where the other's node has our highest total score (for "
        f"{report.sole_best} no other node has it), unschedulable pods where the\n"
        "messages are the same to the letter; both on the state just before the answer was seen. "
        "Disagreements that have\na cause are not counted as agreement."
    )
    for why, number in report.not_compared.items():
        print(f"not compared, {why}: {number}")
    for note in report.notes:
        print(f"note: {note}")
    for difference in report.differences:
        _print_difference(difference)
    if report.differences_left_out:
        print(f"and {report.differences_left_out} more differences")


def _tally(what: str, tally: AgreementCounts) -> tuple[str, ...]:
    causes = ", ".join(f"{number} {cause}" for cause, number in sorted(tally.causes.items()))
    share = "-" if tally.share is None else f"{100 * tally.share:.2f} %"
    return what, str(tally.compared), str(tally.agreed), share, causes or "none"


def _print_difference(difference: Difference) -> None:
    theirs = f"bound to {difference.node}" if difference.node else difference.message
    ours = ", ".join(difference.best) or difference.own_message
    print()
    print(f"{difference.at:%H:%M:%S.%f} pod {difference.pod} (comparison {difference.number})")
    print(f"  theirs: {theirs}")
    print(f"  ours:   {ours}")
    for node in difference.nodes:
        print(f"  {_opinion(node)}")
    cause = difference.cause.value if difference.looked_into else "not looked into yet"
    print(f"  cause:  {cause}" + (f": {difference.detail}" if difference.detail else ""))


def _opinion(node: NodeOpinion) -> str:
    if node.total is None:
        return f"{node.name}: {node.refused}"
    scores = ", ".join(f"{plugin} {score}" for plugin, score in node.scores.items() if score)
    return f"{node.name}: total {node.total} ({scores})"
