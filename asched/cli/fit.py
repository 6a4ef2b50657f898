"""``asched fit``: whether a manifest would run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from asched.cli.errors import EXIT_FAILURE, BadInput, InvalidFile
from asched.cli.options import (
    DEFAULT_JOURNAL,
    JournalOption,
    PricesOption,
    installed_plugins,
    prices_of,
    query_journal,
    takes_options,
    time_ns,
)
from asched.cli.output import (
    OutputOption,
    TableOrData,
    print_as,
    print_json,
    print_table,
    print_text,
    progress_bar,
)
from asched.cli.run import ClusterOptions

if TYPE_CHECKING:
    from asched.fit.answer import FitQuery
    from asched.fit.calibration import Calibration
    from asched.fit.forecast import ForecastSettings, SampleListener
    from asched.fit.forms import FitAnswer, FitCosts, StartEstimate, WorkloadFit
    from asched.fit.manifest import ManifestObject
    from asched.journal.store import JournalStore

_MOST: Final = "max"
_NODES: Final = 5
_THEN: Final = {
    "all": "all pods run",
    "group": "the group is admitted",
    "next": "the next pod passes all filters",
}
_VICTIMS: Final = 20


@dataclass(frozen=True, kw_only=True)
class FitOptions(ClusterOptions):
    manifest: str | None = typer.Argument(
        None, metavar="FILE", help="Pods and workloads (YAML, JSON); - reads standard input."
    )
    journal: JournalOption = DEFAULT_JOURNAL
    cluster: bool = typer.Option(
        False, "--cluster", help="On the cluster of the kubeconfig, as it is now."
    )
    at: str | None = typer.Option(
        None, metavar="TIME", help="State at this time: 2026-01-31T12:00:00Z, or 2h30m ago."
    )
    seq: int | None = typer.Option(None, min=1, metavar="N", help="State after record N.")
    copies: str | None = typer.Option(
        None, metavar="N|max", help="Copies of the only workload's pod; max counts how many fit."
    )
    estimate: bool = typer.Option(
        False, "--estimate", help="If a pod does not fit, estimate when all of them would run."
    )
    samples: int = typer.Option(100, min=1, max=100_000, help="Simulations of an estimate.")
    seed: int = typer.Option(0, help="Seed of an estimate.")
    horizon: str = typer.Option("4h", metavar="DURATION", help="Time that an estimate covers.")
    arrivals: bool = typer.Option(
        True, help="Whether new pods arrive as recorded while an estimate waits."
    )
    calibrate: bool = typer.Option(
        False, help="Instead: compare estimates at past moments with what happened."
    )
    moments: int = typer.Option(30, min=1, max=10_000, help="Past moments of --calibrate.")
    prices: PricesOption = None
    every: bool = typer.Option(
        False, "--all", help="Show all nodes, not the first few of each kind."
    )
    output: OutputOption = TableOrData.TABLE


@takes_options
def fit(options: FitOptions) -> None:
    """Decide whether and where a manifest would run.

    Decides its pods on the state in the journal, now or at a past time: nodes, evictions, and what
    blocks those that do not run. Nothing is recorded. Exits with 1 if a pod does not fit.
    """
    from asched.fit.answer import fit as fit_manifest
    from asched.fit.manifest import ManifestError

    if options.calibrate:
        _calibrate(options)
        return
    if options.at is not None and options.seq is not None:
        raise BadInput("give one of --at and --seq")
    query = _query(options)
    if options.cluster:
        _check_cluster(options)
        from asched.cli.fit_cluster import fit_on_cluster

        _show(fit_on_cluster(options, query), options)
        return
    if options.kubeconfig or options.context or options.config or options.feature_gates:
        raise BadInput("--kubeconfig, --context, --config and --feature-gates are for --cluster")
    at_ns = None if options.at is None else time_ns(options.at)

    async def ask(store: JournalStore) -> FitAnswer:
        load = installed_plugins().load
        samples = options.samples if options.estimate else 0
        with _progress(samples) as show:
            return await fit_manifest(
                store, query, load, at_ns=at_ns, last_seq=options.seq, on_sample=show
            )

    try:
        found = query_journal(options.journal, ask)
    except ManifestError as error:
        raise InvalidFile([str(error)]) from None
    _show(found, options)


def _check_cluster(options: FitOptions) -> None:
    if options.at is not None or options.seq is not None:
        raise BadInput("--at and --seq are of a journal; --cluster is the cluster as it is now")
    if options.estimate:
        raise BadInput("--estimate needs the history in a journal; omit --cluster")


def _show(found: FitAnswer, options: FitOptions) -> None:
    """Print an answer, and exit with 1 if a pod does not fit."""
    if options.output is TableOrData.JSON:
        print_json(found)
    else:
        _print(found, options.every)
    if not found.fits:
        raise typer.Exit(EXIT_FAILURE)


def _calibrate(options: FitOptions) -> None:
    from asched.fit.calibration import calibrate

    if options.manifest is not None or options.at is not None or options.seq is not None:
        raise BadInput("--calibrate takes no manifest and no time")
    if options.prices is not None:
        raise BadInput("--calibrate has no costs; omit --prices")
    settings = _forecast(options)

    async def ask(store: JournalStore) -> Calibration:
        load = installed_plugins().load
        with _progress(options.samples * options.moments) as show:
            return await calibrate(store, load, settings, options.moments, show)

    print_as(options.output, query_journal(options.journal, ask), _print_calibration)


@contextmanager
def _progress(samples: int) -> Iterator[SampleListener]:
    """Shows how many samples are done, on a terminal's stderr only."""
    if not samples:
        yield lambda: None
        return
    done = count(1)
    with progress_bar("samples", samples) as show:
        yield lambda: show(next(done))


def _print_calibration(found: Calibration) -> None:
    pods = "as recorded" if found.arrivals else "of no new pods"
    print_text(
        f"{found.pods} waiting pods at {found.moments} moments, {found.samples} samples each,"
        f" horizon {_duration(found.horizon_s)}, arrivals {pods}"
    )
    rows = [
        (
            f"{row.low:.0%} to {row.high:.0%}",
            row.statements,
            _share(row.stated),
            _share(row.observed),
        )
        for row in found.rows
    ]
    print_table(("PROBABILITY", "STATEMENTS", "STATED (MEAN)", "OBSERVED"), rows)
    print_text(
        f"Brier score {_number(found.brier)}, with the overall shares {_number(found.base_brier)};"
        f" {_covered(found)}"
    )


def _covered(found: Calibration) -> str:
    if not found.intervals:
        return "the journal ends before a horizon is over, so no interval is compared"
    return f"{_share(found.covered)} of {found.intervals} start times are in the 80 % interval"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _query(options: FitOptions) -> FitQuery:
    from asched.fit.answer import FitQuery

    if options.manifest is None:
        raise BadInput(
            "name a file with a manifest, or - for standard input; see asched fit --help"
        )
    copies = options.copies
    number = int(copies) if copies is not None and copies.isdecimal() else 0
    if copies not in (None, _MOST) and not number:
        raise BadInput(f"--copies {copies}: expected a number of at least 1, or {_MOST}")
    objects = read_manifest(options.manifest)
    return FitQuery(
        objects,
        copies=number or None,
        most_copies=copies == _MOST,
        forecast=_forecast(options) if options.estimate else None,
        prices=prices_of(options.prices),
    )


def _forecast(options: FitOptions) -> ForecastSettings:
    from asched.fit.forecast import ForecastSettings
    from asched.model.quantity import parse_duration

    try:
        horizon_s = parse_duration(options.horizon).total_seconds()
    except ValueError as error:
        raise BadInput(f"--horizon: {error}") from None
    if horizon_s <= 0:
        raise BadInput(f"--horizon: expected more than 0s, got {options.horizon}")
    return ForecastSettings(options.samples, options.seed, horizon_s, options.arrivals)


def read_manifest(name: str) -> tuple[ManifestObject, ...]:
    """The objects in a file, or in the standard input for ``-``. Raises InvalidFile,
    ConfigFileError."""
    from asched.config.file import parse_yaml, read_text
    from asched.fit.manifest import ManifestError, objects_of

    if name == "-":
        name, text = "(standard input)", sys.stdin.read()
    else:
        text = read_text(Path(name))
    try:
        return objects_of(parse_yaml(text, name), name)
    except ManifestError as error:
        raise InvalidFile([str(error)]) from None


def _print(found: FitAnswer, every: bool) -> None:
    from asched.cli.explain import print_costs, print_unblocking
    from asched.cli.explained_nodes import print_nodes

    explanation = found.explanation
    print_text(found.sentence)
    after = f", after record {found.seq}" if found.seq else " in the cluster"
    print_text(f"  at {found.at:%Y-%m-%d %H:%M:%S} UTC{after}")
    if found.estimate is not None:
        _print_estimate(found.estimate)
    for note in (*found.notes, *explanation.notes):
        print_text(f"  note: {note}")
    _print_workloads(found, every)
    _print_victims(found, every)
    if explanation.reasons and not found.fits:
        rows = [(reason.nodes, reason.plugin, reason.reason) for reason in explanation.reasons]
        heads = ("NODES", "PLUGIN", "REJECTED BECAUSE")
        print_table(heads, rows, title=f"pod {explanation.namespace}/{explanation.name}")
    if _single(found) or not found.fits:
        print_nodes(explanation, every=every)
    _print_groups(found)
    if found.change is not None:
        then = _THEN[found.change.runs]
        print_text(f"smallest verified change: {found.change.summary}; then {then}")
    print_unblocking(explanation)
    if found.costs is not None:
        _print_costs(found.costs)
    if explanation.costs is not None:
        print_costs(explanation.costs)


def _print_costs(costs: FitCosts) -> None:
    unit = f"{costs.currency} an hour".strip()
    print_text(f"pods with a node cost {costs.pods_per_hour:,.4f} {unit}")
    if costs.waits_per_hour:
        until = costs.waits_at_most
        total = "" if until is None else f", at most {until:,.4f} until the median start"
        print_text(f"the others' waits cost {costs.waits_per_hour:,.4f} {unit}{total}")
    if costs.change_per_hour is not None:
        print_text(f"the smallest change costs {costs.change_per_hour:,.4f} {unit}")


def _print_estimate(found: StartEstimate) -> None:
    horizon = _duration(found.horizon_s)
    print_text(
        f"  would run after {_duration(found.median_s)} (median), 80 % interval"
        f" {_duration(found.low_s)} to {_duration(found.high_s)}; {found.started} of"
        f" {found.samples} samples within {horizon}"
    )
    pods = "as recorded" if found.arrivals else "of no new pods"
    print_text(f"  estimated with arrivals {pods} and {', '.join(found.notes)}")


def _duration(seconds: float | None) -> str:
    """In whole seconds; more than the horizon for None."""
    from datetime import timedelta

    from asched.model.quantity import format_duration

    if seconds is None:
        return "more than the horizon"
    return format_duration(timedelta(seconds=round(seconds)))


def _single(found: FitAnswer) -> bool:
    return sum(workload.pods for workload in found.workloads) == 1


def _print_workloads(found: FitAnswer, every: bool) -> None:
    if _single(found):
        return
    rows = [
        (one.object, one.pods, one.placed, one.evicting or "", _nodes(one, every), one.message)
        for one in found.workloads
    ]
    heads = ("OBJECT", "PODS", "GET A NODE", "BY EVICTION", "NODES", "OTHERS REJECTED BECAUSE")
    print_table(heads, rows)


def _nodes(workload: WorkloadFit, every: bool) -> str:
    shown = workload.nodes if every else workload.nodes[:_NODES]
    named = [one.node if one.pods == 1 else f"{one.node} x{one.pods}" for one in shown]
    more = len(workload.nodes) - len(shown)
    return ", ".join([*named, *([f"{more} more"] if more else [])])


def _print_victims(found: FitAnswer, every: bool) -> None:
    if not found.victims:
        return
    shown = found.victims if every else found.victims[:_VICTIMS]
    rows = [
        (f"{victim.namespace}/{victim.name}", victim.priority, victim.node, victim.preemptor)
        for victim in shown
    ]
    print_table(("EVICTED POD", "PRIORITY", "NODE", "FOR"), rows)
    if len(found.victims) > len(shown):
        print_text(f"... of {len(found.victims)}; --all shows all")


def _print_groups(found: FitAnswer) -> None:
    from asched.cli.explain_group import print_group

    for group in found.groups:
        print_group(group)
