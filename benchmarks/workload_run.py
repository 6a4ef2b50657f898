"""One workload from beginning to end: server, scheduler, steps, report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec
from anyio.abc import TaskGroup

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
    tls: bool = False
    """Have the embedded cluster speak HTTPS."""
    backlog: bool = False
    """Make all measured pods before the scheduler may go on, and measure how they drain."""
    scheduler: SchedulerOptions = SchedulerOptions()


class Stage(NamedTuple):
    """A cluster without a scheduler, followed by a watch."""

    folder: Path
    kubeconfig: Path
    api: Api
    pods: Pods
    tasks: TaskGroup
    """For what goes on beside; cancelled at the end."""

    @property
    def journal(self) -> Path:
        return self.folder / "journal.db"

    @asynccontextmanager
    async def scheduler(
        self, setting: Setting, progress: Progress
    ) -> AsyncIterator[MeasuredProcess]:
        """A scheduler at work. It ends with the block."""
        options = setting.scheduler
        async with processes.scheduler(
            self.folder, self.kubeconfig, self.journal, options
        ) as process:
            attending = anyio.CancelScope()
            self.tasks.start_soon(_attend, process, self.pods, progress, attending)
            yield process
            attending.cancel()


@asynccontextmanager
async def stage(setting: Setting) -> AsyncIterator[Stage]:
    """A cluster in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="asched-benchmark-") as folder_name:
        folder = Path(folder_name)
        async with (
            _server(folder, setting) as config,
            connect(config, None) as client,
            anyio.create_task_group() as tasks,
        ):
            pods = Pods(time.monotonic)
            tasks.start_soon(pods.watch, client)
            await pods.synced.wait()
            yield Stage(folder, config, Api(client), pods, tasks)
            tasks.cancel_scope.cancel()


async def run(workload: Workload, setting: Setting, progress: Progress) -> Report:
    """Run it from beginning to end.

    Raises WorkloadError, ApiError, NoAnswerError, ProcessEndedError, and TimeoutError for one that
    does not end.
    """
    async with stage(setting) as at:
        async with at.scheduler(setting, progress) as scheduler, anyio.create_task_group() as tasks:
            measurements = Measurements(at.pods, scheduler, time.monotonic)
            executor = Executor(
                workload, at.api, at.pods, tasks, measurements.measuring, progress,
                scheduler if setting.backlog else None,
            )  # fmt: skip
            with anyio.fail_after(PATIENCE_S):
                await executor.run()
            report = report_of(workload.name, measurements, scheduler, at.pods)
            report.params = workload.size.params
            report.threshold_pods_per_s = workload.size.threshold
            # Whatever goes on beside the steps must not meet a scheduler that is stopping.
            tasks.cancel_scope.cancel()
        await journal_times.complete(report, at.journal)
        return report


@asynccontextmanager
async def _server(folder: Path, setting: Setting) -> AsyncIterator[Path]:
    if setting.kubeconfig is not None:
        yield setting.kubeconfig
        return
    async with processes.api_server(folder, setting.faults, tls=setting.tls) as embedded:
        yield embedded


async def _attend(
    scheduler: MeasuredProcess, pods: Pods, progress: Progress, until: anyio.CancelScope
) -> None:
    """Say how far it has come; raise where the scheduler ended."""
    before = pods.bound
    with until:
        while True:
            await anyio.sleep(_PROGRESS_S)
            scheduler.check()
            if pods.bound != before:
                progress(f"{pods.bound} pods bound, {(pods.bound - before) / _PROGRESS_S:.0f}/s")
                before = pods.bound


def report_of(
    name: str, measurements: Measurements, scheduler: MeasuredProcess, pods: Pods
) -> Report:
    """What is known while the scheduler still runs; its journal says the rest."""
    cpu_ms = scheduler.cpu_s() * 1000
    return Report(
        workload=name,
        phases=measurements.phases,
        pods_bound=pods.bound,
        scheduler_cpu_ms_per_pod_with_start=round(cpu_ms / max(1, pods.bound), 3),
        scheduler_peak_rss_mib=round(scheduler.peak_rss_mib(), 1),
    )
