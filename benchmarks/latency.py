"""Time from creation to binding of pods that arrive at a steady rate, and that of kube-scheduler.

    python -m benchmarks.latency --tls --rate 20 --rate 200 --kube-scheduler PATH
    python -m benchmarks.latency --kubeconfig CLUSTER --rate 20 --kube-scheduler PATH

Every pod mounts a service account token, as pods of a real cluster do. Both schedulers run in
turns.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import anyio
import msgspec
import typer

from benchmarks.api import in_parallel
from benchmarks.kinds import pod_spec, ready_node
from benchmarks.measurement import Measurements
from benchmarks.operations import Report as Progress
from benchmarks.processes import SchedulerOptions
from benchmarks.workload_run import BenchmarkCluster, RunOptions, benchmark_cluster, build_report

NODES, SECONDS = 2_000, 30
RATES = (20, 200)
_NAMESPACE = "latency"
_WARM_UP_PODS = 3


class LatencyRun(msgspec.Struct, frozen=True):
    """One run of one scheduler."""

    pods: int
    p50_ms: float
    p99_ms: float
    cpu_ms_per_pod: float


class LatencyResult(msgspec.Struct):
    """Runs at one rate; both schedulers run in turns."""

    pods_per_s: int
    asched: list[LatencyRun] = []
    kube_scheduler: list[LatencyRun] = []


class Load(NamedTuple):
    """What a run measures."""

    nodes: int
    pods_per_s: int
    seconds: int


async def measure(load: Load, options: RunOptions, progress: Progress) -> LatencyRun:
    """Create pods evenly spaced while the scheduler runs.

    Raises ApiError, NoResponseError, ProcessEndedError, KubeConfigError.
    """
    async with benchmark_cluster(options) as at:
        await _prepare(at, load.nodes, progress)
        async with at.scheduler(options, progress) as scheduler:
            measurements = Measurements(at.pods, scheduler, time.monotonic)
            # The CPU time of the start belongs to no pod, and the first pods open connections.
            await scheduler.settled_cpu_s()
            await _arrive(at, load.pods_per_s, _WARM_UP_PODS, "before")
            async with measurements.measuring(_NAMESPACE, (_NAMESPACE,), {"run": "measured"}):
                await _arrive(at, load.pods_per_s, load.pods_per_s * load.seconds, "measured")
            phase = build_report(_NAMESPACE, measurements, scheduler, at.pods).phases[0]
        assert phase.created_to_bound_ms is not None, "pods were bound"
        waits = phase.created_to_bound_ms
        return LatencyRun(phase.pods, waits.perc50, waits.perc99, phase.scheduler_cpu_ms_per_pod)


async def _prepare(at: BenchmarkCluster, nodes: int, progress: Progress) -> None:
    progress(f"creating {nodes} nodes")
    await at.api.create_namespace(_NAMESPACE)

    async def create(number: int) -> None:
        await at.api.create(ready_node(number))

    await in_parallel(nodes, create)


async def _arrive(at: BenchmarkCluster, per_s: int, count: int, run: str) -> None:
    begin_s = anyio.current_time()

    async def create(number: int) -> None:
        await anyio.sleep_until(begin_s + number / per_s)
        name, labels = f"{run}-{number}", {"run": run}
        meta = {"name": name, "labels": labels}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec()}
        await at.api.create(pod, _NAMESPACE)
        at.pods.created(_NAMESPACE, name, labels)

    await in_parallel(count, create)
    await at.pods.wait_until(lambda: all(pod.bound_s is not None for pod in at.pods))


def measure_in_turns(
    load: Load, runs: int, options: RunOptions, kube_scheduler: Path | None, progress: Progress
) -> LatencyResult:
    """The runs of asched, and of kube-scheduler if its binary is given, in turns."""
    result = LatencyResult(load.pods_per_s)
    for _ in range(runs):
        for binary in (None, kube_scheduler) if kube_scheduler else (None,):
            scheduler = SchedulerOptions(kube_scheduler=binary, profile=options.scheduler.profile)
            these = msgspec.structs.replace(options, scheduler=scheduler)
            run = anyio.run(measure, load, these, progress, backend_options={"use_uvloop": True})
            progress(f"{'asched' if binary is None else 'kube-scheduler'}: {run}")
            (result.asched if binary is None else result.kube_scheduler).append(run)
    return result


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _shown(runs: list[LatencyRun]) -> str:
    p50, p99 = median(r.p50_ms for r in runs), median(r.p99_ms for r in runs)
    return f"{p50:.1f} / {p99:.1f} ms, CPU {median(r.cpu_ms_per_pod for r in runs):.2f} ms"


def main(
    rate: Annotated[list[int] | None, typer.Option(help="Pods per second (repeatable).")] = None,
    nodes: Annotated[int, typer.Option(min=1)] = NODES,
    seconds: Annotated[int, typer.Option(min=1)] = SECONDS,
    runs: Annotated[int, typer.Option(min=1)] = 3,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="An existing cluster without another scheduler; default: embedded."),
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Use HTTPS in the embedded cluster; requires openssl.")
    ] = False,
    kube_scheduler: Annotated[
        Path | None, typer.Option(help="Run this kube-scheduler in turns with asched.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option("--scheduler-profile", help="Profile the scheduler with cProfile."),
    ] = None,
) -> None:
    """Measure the time from creation to binding, p50 / p99, and CPU per pod; print the medians."""
    options = RunOptions(
        kubeconfig, tls=tls, token_volumes=True, scheduler=SchedulerOptions(profile=profile)
    )
    for per_s in rate or RATES:
        load = Load(nodes, per_s, seconds)
        result = measure_in_turns(load, runs, options, kube_scheduler, _log)
        print(f"{per_s} pods/s: asched {_shown(result.asched)}")
        if result.kube_scheduler:
            print(f"{per_s} pods/s: kube-scheduler {_shown(result.kube_scheduler)}")


if __name__ == "__main__":
    typer.run(main)
