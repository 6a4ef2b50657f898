"""``asched run`` and ``asched shadow``: commands for a live cluster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import typer

from asched.cli.errors import BadInput
from asched.cli.options import (
    JOURNAL_ENV,
    FeatureGatesOption,
    PricesOption,
    prices_of,
    takes_options,
)
from asched.cli.output import OutputOption, TableOrData
from asched.daemon.process import import_hidden

DEFAULT_SHADOW_JOURNAL: Final = "asched-shadow.db"
"""Differs from that of ``asched run``, which has one writer."""


class RunMode(StrEnum):
    SCHEDULE = "schedule"
    SHADOW = "shadow"


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """A cluster and a configuration."""

    kubeconfig: Path | None = typer.Option(
        None, help="Kubeconfig file. Default: as for kubectl, or in-cluster."
    )
    context: str | None = typer.Option(None, help="Context of the kubeconfig.")
    config: Path | None = typer.Option(
        None, help="File with KubeSchedulerConfiguration and AschedConfiguration."
    )
    feature_gates: FeatureGatesOption = None
    debug: bool = typer.Option(
        False, "--debug", help="Log at level debug, with the tracebacks of plugins that raise."
    )
    journal: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunOptions(ClusterOptions):
    journal: str | None = typer.Option(
        None,
        envvar=JOURNAL_ENV,
        help="Journal: a file, or sqlite+aiosqlite:///PATH. Default: asched.db.",
    )
    mode: RunMode = typer.Option(
        RunMode.SCHEDULE, help="Schedule, or compare as asched shadow does."
    )
    take_over_names: bool = typer.Option(
        False,
        "--take-over-names",
        help="Serve default-scheduler even while kube-scheduler's Lease is live.",
    )


@dataclass(frozen=True, kw_only=True)
class ShadowOptions(ClusterOptions):
    journal: str | None = typer.Option(
        None,
        help=f"Journal: a file, or sqlite+aiosqlite:///PATH. Default: {DEFAULT_SHADOW_JOURNAL}.",
    )
    tape: Path | None = typer.Option(
        None, help="Compare with a recording instead of a live cluster."
    )
    prices: PricesOption = None
    output: OutputOption = TableOrData.TABLE


@takes_options
def run(options: RunOptions) -> None:
    """Schedule a cluster.

    Runs until SIGTERM or Ctrl-C, and finishes bindings in progress. SIGHUP or a change of the file
    reloads the configuration. --mode shadow only compares with the scheduler that owns the cluster,
    and never writes to the cluster.
    """
    if options.mode is RunMode.SHADOW:
        from asched.cli.shadow import compare_live

        compare_live(options, TableOrData.TABLE)
    else:
        # structlog would load rich for tracebacks with colors, which no command prints.
        with import_hidden("rich"):
            from asched.cli.serve import run_daemon

        run_daemon(options)


@takes_options
def shadow(options: ShadowOptions) -> None:
    """Compare decisions with another scheduler, without writing.

    Runs until SIGTERM or Ctrl-C, or to the end of the tape. Then prints the rate of agreement, and
    every difference with its cause. The profiles need the schedulerName of the pods to compare,
    which is default-scheduler by default.
    """
    from asched.cli.shadow import compare_live, compare_tape

    prices = prices_of(options.prices)
    if options.tape is None:
        compare_live(options, options.output, prices)
    elif options.kubeconfig or options.context or options.journal:
        raise BadInput("--tape uses neither a cluster nor a journal; omit those options")
    else:
        compare_tape(options.tape, options, options.output, prices)
