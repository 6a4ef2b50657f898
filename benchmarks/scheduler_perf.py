"""Runs Kubernetes' scheduler benchmark on asched.

    python -m benchmarks.scheduler_perf --config performance-config.yaml --list
    python -m benchmarks.scheduler_perf --config performance-config.yaml \\
        --workload SchedulingBasic/5000Nodes_10000Pods

The files are in ``test/integration/scheduler_perf`` of the Kubernetes repository. API server and
scheduler are separate processes; the journal is on SQLite, and Events are posted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import typer

from asched.kube.errors import ApiError, KubeConfigError, NoResponseError
from benchmarks import workload_files, workload_run
from benchmarks.measurement import Report
from benchmarks.processes import ProcessEndedError, SchedulerOptions
from benchmarks.workload_files import Workload, WorkloadError
from benchmarks.workload_run import RunOptions

_EXPECTED = (
    *(WorkloadError, ApiError, NoResponseError),
    *(KubeConfigError, ProcessEndedError, TimeoutError),
)


def _listing(workloads: list[Workload]) -> str:
    lines = []
    for workload in workloads:
        size = workload.size
        floor = "" if size.threshold is None else f"  threshold {size.threshold} pods/s"
        lines.append(f"{workload.name}  [{', '.join(size.labels)}]{floor}")
    return "\n".join(lines)


def run_workload(workload: Workload, options: RunOptions, *, quiet: bool = False) -> Report:
    """Run a workload in a new event loop. Raises the errors of :func:`workload_run.run`."""

    def progress(text: str) -> None:
        if not quiet:
            print(f"{workload.name}: {text}", file=sys.stderr, flush=True)

    try:
        return anyio.run(
            workload_run.run, workload, options, progress, backend_options={"use_uvloop": True}
        )
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The most useful error: the end of a process explains failed requests."""
    leaves = list(_leaves(group))
    ended = [error for error in leaves if isinstance(error, ProcessEndedError)]
    return (ended or leaves)[0]


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def main(
    config: Annotated[
        Path,
        typer.Option(
            help="performance-config.yaml of Kubernetes; template paths are relative to it."
        ),
    ],
    workload: Annotated[
        str, typer.Option(help="Case/Size, or a case: its first size with the label performance.")
    ] = "",
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="An existing cluster without another scheduler; default: embedded."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the report to this file.")
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Use HTTPS in the embedded cluster; requires openssl.")
    ] = False,
    token_volumes: Annotated[
        bool, typer.Option("--token-volumes", help="Mount a service account token into each pod.")
    ] = False,
    backlog: Annotated[
        bool, typer.Option("--backlog", help="Create all measured pods before scheduling begins.")
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option("--scheduler-profile", help="Profile the scheduler with cProfile."),
    ] = None,
    kube_scheduler: Annotated[
        Path | None,
        typer.Option(help="Measure this kube-scheduler binary instead of asched."),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the workloads and labels.")] = False,
) -> None:
    """Run one of Kubernetes' scheduler workloads on asched, and print the report as JSON."""
    try:
        workloads = workload_files.load(config)
        if listing:
            print(_listing(workloads))
            return
        scheduler = SchedulerOptions(profile=profile, kube_scheduler=kube_scheduler)
        options = RunOptions(
            kubeconfig,
            tls=tls,
            token_volumes=token_volumes,
            backlog=backlog,
            scheduler=scheduler,
        )
        report = run_workload(workload_files.find(workloads, workload), options)
    except _EXPECTED as error:
        print(f"scheduler_perf: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    print(text)
    if json_file is not None:
        json_file.write_text(text + "\n")


if __name__ == "__main__":
    typer.run(main)
