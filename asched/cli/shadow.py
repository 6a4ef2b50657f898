"""Comparison with another scheduler: live or from a recording, and the report."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import structlog

from asched.cli.errors import BadInput
from asched.cli.output import TableOrData, print_as, print_table, print_text
from asched.cli.run import DEFAULT_SHADOW_JOURNAL, ClusterOptions
from asched.cli.serve import (
    ServiceControl,
    load_and_log_configuration,
    open_cluster_client,
    run_until_signal,
)
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.config.settings import JournalSettings
from asched.cycle.shadow_report import (
    AgreementCounts,
    ComparedNode,
    Difference,
    Report,
    ShadowCosts,
)
from asched.daemon.shadow.daemon import compare_recording, running_shadow
from asched.daemon.startup import journal_when_reachable
from asched.daemon.telemetry.health import Check, Health, ServiceManager
from asched.daemon.telemetry.metrics import Metrics
from asched.journal.opening import redacted
from asched.kube.tape import Tape, TapeError
from asched.pricing.prices import Prices

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def compare_tape(
    tape: Path, options: ClusterOptions, output: TableOrData, prices: Prices | None = None
) -> None:
    """Compare with a recording and print the report. Raises BadInput."""
    registry = PluginRegistry.discover()
    configuration = load_and_log_configuration(options, registry)
    try:
        report = compare_recording(Tape(tape), configuration, registry, prices)
    except TapeError as error:
        raise BadInput(str(error)) from None
    print_as(output, report, _print)


def compare_live(
    options: ClusterOptions, output: TableOrData, prices: Prices | None = None
) -> None:
    """Compare in this process until a signal, then print the report. Raises CommandError."""
    registry = PluginRegistry.discover()
    configuration = load_and_log_configuration(options, registry)
    reports: list[Report] = []
    run_until_signal(partial(_serve, configuration, registry, options, prices, reports))
    for report in reports:
        print_as(output, report, _print)


async def _serve(
    configuration: Configuration,
    registry: PluginRegistry,
    options: ClusterOptions,
    prices: Prices | None,
    reports: list[Report],
    control: ServiceControl,
) -> None:
    configured = configuration.settings.journal.url
    default = DEFAULT_SHADOW_JOURNAL if configured == JournalSettings().url else configured
    metrics, url = Metrics(), options.journal or default
    health = Health(metrics.registry)
    async with (
        health.serving(configuration.settings.health),
        open_cluster_client(configuration, options, metrics) as client,
        journal_when_reachable(url, client.clock, client.random) as store,
    ):
        async with (
            running_shadow(
                configuration, registry, client, store, metrics, prices=prices
            ) as running,
            anyio.create_task_group() as tasks,
        ):
            health.attach([*running.engine.checks(), Check("api-server", client.problem)])
            control.started.set()
            log.info(
                "comparing", server=client.server, journal=redacted(url), health=health.address
            )
            tasks.start_soon(
                control.reloads.refuse, "a comparison does not reload its configuration"
            )
            tasks.start_soon(_report_ready, running.engine.synced, control.manager)
            await control.stop.wait()
            tasks.cancel_scope.cancel()
        reports.append(running.report())


async def _report_ready(synced: anyio.Event, manager: ServiceManager) -> None:
    await synced.wait()
    manager.ready("comparing")


def _print(report: Report) -> None:
    print_table(
        ("", "COMPARED", "AGREED", "SHARE", "DISAGREEMENTS BY CAUSE"),
        [_counts("bindings", report.bindings), _counts("unschedulable", report.messages)],
        title="Agreement with the other scheduler",
    )
    print_text(
        "Bindings agree if the other scheduler's node has our highest total score (for "
        f"{report.sole_best} no other\nnode has it). Unschedulable pods agree if the messages are"
        " identical. Both are compared in the state just\nbefore the other decision was observed."
        " Disagreements with a known cause do not count as agreement."
    )
    if report.costs is not None:
        _print_costs(report.costs)
    for why, number in report.not_compared.items():
        print_text(f"not compared, {why}: {number}")
    for note in report.notes:
        print_text(f"note: {note}")
    currency = report.costs.currency if report.costs else ""
    for difference in report.differences:
        _print_difference(difference, currency)
    if report.differences_left_out:
        print_text(f"and {report.differences_left_out} more differences")


def _print_costs(costs: ShadowCosts) -> None:
    unit = f" {costs.currency}" if costs.currency else ""
    pods = f"{costs.disagreements} {'pod' if costs.disagreements == 1 else 'pods'}"
    print_text(
        f"costs by the hour of {pods} with another node: theirs {costs.theirs_per_hour:,.4f}{unit},"
        f" ours {costs.ours_per_hour:,.4f}{unit},"
        f" difference {costs.theirs_per_hour - costs.ours_per_hour:+,.4f}{unit}"
    )


def _counts(what: str, counts: AgreementCounts) -> tuple[object, ...]:
    causes = ", ".join(f"{number} {cause}" for cause, number in sorted(counts.causes.items()))
    share = "-" if counts.share is None else f"{100 * counts.share:.2f} %"
    return what, counts.compared, counts.agreed, share, causes or "none"


def _print_difference(difference: Difference, currency: str) -> None:
    theirs = f"bound to {difference.node}" if difference.node else difference.message
    ours = ", ".join(difference.best) or difference.own_message
    print()
    print_text(f"{difference.at:%H:%M:%S.%f} pod {difference.pod} (comparison {difference.number})")
    print_text(f"  theirs: {theirs}")
    print_text(f"  ours:   {ours}")
    for node in difference.nodes:
        print_text(f"  {_scores(node)}")
    if difference.pod_difference is not None:
        cost = f"{difference.pod_difference:+,.4f} {currency}".rstrip()
        print_text(f"  costs:  {cost} by the hour on the node of the other scheduler")
    cause = difference.cause.value if difference.explained else "not analyzed yet"
    print_text(f"  cause:  {cause}" + (f": {difference.detail}" if difference.detail else ""))


def _scores(node: ComparedNode) -> str:
    if node.total is None:
        return f"{node.name}: {node.rejection}"
    scores = ", ".join(f"{plugin} {score}" for plugin, score in node.scores.items() if score)
    return f"{node.name}: total {node.total} ({scores})"
