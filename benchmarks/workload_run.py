"""Runs one workload: API server, scheduler, steps, report."""

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
from benchmarks.pods import PodTracker
from benchmarks.processes import MeasuredProcess, SchedulerOptions
from benchmarks.workload_files import Workload

_TIMEOUT_S = 1800.0
_PROGRESS_S = 2.0


class RunOptions(msgspec.Struct, frozen=True):
    """Cluster and scheduler of a workload."""

    kubeconfig: Path | None = None
    """None: an embedded cluster. Objects created in an existing one are deleted at the end."""
    faults: str = ""
    """Faults of the embedded cluster, as in ``asched apiserver --faults``."""
    tls: bool = False
    """Use HTTPS in the embedded cluster."""
    token_volumes: bool = False
    """Mount a service account token into each pod, as the API server of a real cluster does."""
    backlog: bool = False
    """Create all measured pods before scheduling begins."""
    scheduler: SchedulerOptions = SchedulerOptions()


class BenchmarkCluster(NamedTuple):
    """A cluster without a scheduler, and a watch of its pods."""

    folder: Path
    kubeconfig: Path
    api: Api
    pods: PodTracker
    tasks: TaskGroup
    """For background tasks; cancelled at the end."""

    @property
    def journal(self) -> Path:
        return self.folder / "journal.db"

    @asynccontextmanager
    async def scheduler(
        self, options: RunOptions, progress: Progress
    ) -> AsyncIterator[MeasuredProcess]:
        """Run a scheduler in this block."""
        async with processes.scheduler(
            self.folder, self.kubeconfig, self.journal, options.scheduler
        ) as process:
            monitoring = anyio.CancelScope()
            self.tasks.start_soon(_monitor, process, self.pods, progress, monitoring)
            yield process
            monitoring.cancel()


@asynccontextmanager
async def benchmark_cluster(options: RunOptions) -> AsyncIterator[BenchmarkCluster]:
    """Create a cluster with a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="asched-benchmark-") as folder_name:
        folder = Path(folder_name)
        async with (
            _server(folder, options) as config,
            connect(config, None) as client,
            anyio.create_task_group() as tasks,
        ):
            pods = PodTracker(time.monotonic)
            tasks.start_soon(pods.watch, client)
            await pods.synced.wait()
            api = Api(client, token_volumes=options.token_volumes)
            yield BenchmarkCluster(folder, config, api, pods, tasks)
            if options.kubeconfig is not None:
                await api.delete_created()
            tasks.cancel_scope.cancel()


async def run(workload: Workload, options: RunOptions, progress: Progress) -> Report:
    """Run a workload; returns its report.

    Raises WorkloadError, ApiError, NoResponseError, ProcessEndedError, TimeoutError.
    """
    profiles = tuple(workload.scheduler_profiles())
    scheduler_options = msgspec.structs.replace(options.scheduler, profiles=profiles)
    options = msgspec.structs.replace(options, scheduler=scheduler_options)
    async with benchmark_cluster(options) as at:
        async with at.scheduler(options, progress) as scheduler, anyio.create_task_group() as tasks:
            measurements = Measurements(at.pods, scheduler, time.monotonic)
            executor = Executor(
                workload=workload,
                api=at.api,
                pods=at.pods,
                tasks=tasks,
                measuring=measurements.measuring,
                report=progress,
                backlog=scheduler if options.backlog else None,
            )
            with anyio.fail_after(_TIMEOUT_S):
                # The CPU time of the start belongs to no measured part.
                await scheduler.settled_cpu_s()
                await executor.run()
            report = build_report(workload.name, measurements, scheduler, at.pods)
            report.params = workload.size.params
            report.threshold_pods_per_s = workload.size.threshold
            # Background steps end before the scheduler.
            tasks.cancel_scope.cancel()
        if options.scheduler.kube_scheduler is None:
            await journal_times.add_journal_figures(report, at.journal)
        return report


@asynccontextmanager
async def _server(folder: Path, options: RunOptions) -> AsyncIterator[Path]:
    if options.kubeconfig is not None:
        yield options.kubeconfig
        return
    async with processes.api_server(folder, options.faults, tls=options.tls) as embedded:
        yield embedded


async def _monitor(
    scheduler: MeasuredProcess, pods: PodTracker, progress: Progress, until: anyio.CancelScope
) -> None:
    """Report progress. Raises ProcessEndedError if the scheduler ends."""
    before = pods.bound
    with until:
        while True:
            await anyio.sleep(_PROGRESS_S)
            scheduler.check()
            if pods.bound != before:
                progress(f"{pods.bound} pods bound, {(pods.bound - before) / _PROGRESS_S:.0f}/s")
                before = pods.bound


def build_report(
    name: str, measurements: Measurements, scheduler: MeasuredProcess, pods: PodTracker
) -> Report:
    """The report without the figures from the journal."""
    cpu_ms = scheduler.cpu_s() * 1000
    return Report(
        workload=name,
        phases=measurements.phases,
        pods_bound=pods.bound,
        scheduler_cpu_ms_per_pod_with_start=round(cpu_ms / max(1, pods.bound), 3),
        scheduler_peak_rss_mib=round(scheduler.peak_rss_mib(), 1),
    )
