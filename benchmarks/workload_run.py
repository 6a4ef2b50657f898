"""One workload from beginning to end: server, scheduler, steps, report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from asched.kube.connection import connect
from benchmarks import journal_times, processes
from benchmarks.api import Api
from benchmarks.measurement import Measurements, Report
from benchmarks.operations import Executor
from benchmarks.operations import Report as Progress
from benchmarks.pods import Pods
from benchmarks.processes import MeasuredProcess, SchedulerOptions
from benchmarks.workload_files import Workload

PATIENCE_S = 1800.0
"""A workload that takes longer than this will not end."""
_PROGRESS_S = 2.0


class Setting(msgspec.Struct, frozen=True):
    """Where and how a workload is run."""

    kubeconfig: Path | None = None
    """None for an embedded cluster."""
    faults: str = ""
    """What goes wrong in the embedded cluster, as ``asched apiserver`` takes it."""
    backlog: bool = False
    """Make all measured pods before the scheduler may go on, and measure how they drain."""
    scheduler: SchedulerOptions = SchedulerOptions()


async def run(workload: Workload, setting: Setting, progress: Progress) -> Report:
    """Run it from beginning to end.

    Raises WorkloadError, ApiError, NoAnswerError, ProcessEndedError, and TimeoutError for one that
    does not end.
    """
    clock = time.monotonic
    with tempfile.TemporaryDirectory(prefix="asched-benchmark-") as folder_name:
        folder = Path(folder_name)
        journal = folder / "journal.db"
        async with (
            _server(folder, setting) as config,
            connect(config, None) as client,
            anyio.create_task_group() as tasks,
        ):
            pods = Pods(clock)
            tasks.start_soon(pods.watch, client)
            await pods.synced.wait()
            async with processes.scheduler(folder, config, journal, setting.scheduler) as scheduler:
                tasks.start_soon(_attend, scheduler, pods, progress)
                measurements = Measurements(pods, scheduler, clock)
                executor = Executor(
                    workload, Api(client), pods, tasks, measurements.measuring, progress,
                    scheduler if setting.backlog else None,
                )  # fmt: skip
                with anyio.fail_after(PATIENCE_S):
                    await executor.run()
                report = _report(workload, measurements, scheduler, pods)
                # Whatever goes on beside the steps must not meet a scheduler that is stopping.
                tasks.cancel_scope.cancel()
        await journal_times.complete(report, journal)
    return report


@asynccontextmanager
async def _server(folder: Path, setting: Setting) -> AsyncIterator[Path]:
    if setting.kubeconfig is not None:
        yield setting.kubeconfig
        return
    async with processes.api_server(folder, setting.faults) as embedded:
        yield embedded


async def _attend(scheduler: MeasuredProcess, pods: Pods, progress: Progress) -> None:
    """Say how far it has come; raise where the scheduler ended."""
    before = 0
    while True:
        await anyio.sleep(_PROGRESS_S)
        scheduler.check()
        if pods.bound != before:
            progress(f"{pods.bound} pods bound, {(pods.bound - before) / _PROGRESS_S:.0f}/s")
            before = pods.bound


def _report(
    workload: Workload, measurements: Measurements, scheduler: MeasuredProcess, pods: Pods
) -> Report:
    return Report(
        workload=workload.name,
        params=workload.size.params,
        threshold_pods_per_s=workload.size.threshold,
        phases=measurements.phases,
        pods_bound=pods.bound,
        scheduler_cpu_ms_per_pod_with_start=round(scheduler.cpu_s() * 1000 / max(1, pods.bound), 3),
        scheduler_peak_rss_mib=round(scheduler.peak_rss_mib(), 1),
        journal_bytes_per_pod=0,
        journal_record_bytes_per_pod=0,
    )
