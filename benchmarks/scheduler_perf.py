"""Kubernetes' own scheduler benchmark, run on asched.

    python -m benchmarks.scheduler_perf --config performance-config.yaml --list
    python -m benchmarks.scheduler_perf --config performance-config.yaml \\
        --workload SchedulingBasic/5000Nodes_10000Pods

The files are those of ``test/integration/scheduler_perf`` in the Kubernetes repository. API server
and scheduler run in processes of their own; the journal is on SQLite, Events are posted.
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
from benchmarks.workload_run import Setting

_EXPECTED = (
    WorkloadError, ApiError, NoResponseError, KubeConfigError, ProcessEndedError, TimeoutError,
)  # fmt: skip


def _listing(workloads: list[Workload]) -> str:
    lines = []
    for workload in workloads:
        size = workload.size
        floor = "" if size.threshold is None else f"  threshold {size.threshold} pods/s"
        lines.append(f"{workload.name}  [{', '.join(size.labels)}]{floor}")
    return "\n".join(lines)


def run_workload(workload: Workload, setting: Setting, *, quiet: bool = False) -> Report:
    """Run it in an event loop of its own. Raises as :func:`workload_run.run`."""

    def progress(text: str) -> None:
        if not quiet:
            print(f"{workload.name}: {text}", file=sys.stderr, flush=True)

    try:
        return anyio.run(
            workload_run.run, workload, setting, progress, backend_options={"use_uvloop": True}
        )
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that tells most: a process that ended explains the requests that failed."""
    leaves = list(_leaves(group))
    ended = [error for error in leaves if isinstance(error, ProcessEndedError)]
    return (ended or leaves)[0]


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def main(
    config: Annotated[Path, typer.Option(help="A performance-config.yaml of Kubernetes; templates are found relative to it.")],
    workload: Annotated[str, typer.Option(help="Case/Size, or a case: then its first size labelled performance.")] = "",
    kubeconfig: Annotated[Path | None, typer.Option(help="A cluster of your own instead of the embedded one; nothing else may schedule there.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report here too.")] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Have the embedded cluster speak HTTPS, as a real one does; takes openssl.")] = False,
    backlog: Annotated[bool, typer.Option("--backlog", help="Make all measured pods first, then let the scheduler drain them.")] = False,
    profile: Annotated[Path | None, typer.Option("--scheduler-profile", help="Where to leave cProfile's statistics of the scheduler.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the workloads with their labels.")] = False,
) -> None:  # fmt: skip
    """Run one of Kubernetes' scheduler workloads on asched and print the report as JSON."""
    try:
        workloads = workload_files.load(config)
        if listing:
            print(_listing(workloads))
            return
        scheduler = SchedulerOptions(profile=profile)
        setting = Setting(kubeconfig, tls=tls, backlog=backlog, scheduler=scheduler)
        report = run_workload(workload_files.find(workloads, workload), setting)
    except _EXPECTED as error:
        print(f"scheduler_perf: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    print(text)
    if json_file is not None:
        json_file.write_text(text + "\n")


if __name__ == "__main__":
    typer.run(main)
