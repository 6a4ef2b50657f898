"""Measures the ways to schedule gangs on several draws of a workload and prints a table.

python -m benchmarks.groups.measure --openb FOLDER [--workload philly] [--seeds 5]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Final, NamedTuple

import typer

from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.model.quantity import NS_PER_S
from asched.simulator.loop import Latencies, scheduler_from_config, simulate
from asched.simulator.trace import EndReason, PodRun, WorkloadRun
from benchmarks.groups.jobs import Job, JobTrace, Size, gpus_of, openb, philly
from benchmarks.groups.ways import WAYS, Way, rack_of

_HOUR_NS: Final = 3600 * NS_PER_S


class WorkloadName(StrEnum):
    OPENB = "openb"
    PHILLY = "philly"


_DRAW: Final[dict[WorkloadName, Callable[[Path, int, Size], JobTrace]]] = {
    WorkloadName.OPENB: openb,
    WorkloadName.PHILLY: philly,
}


class GangFigures(NamedTuple):
    """The result of one way with one seed."""

    makespan_h: float
    utilization: float
    """Share of the GPU time that pods used, until the last job arrived."""
    wait_h: float
    """Mean time from the creation of a job until all its workers ran."""
    gang_wait_h: float
    """The same of jobs with several workers."""
    racks: float
    """Mean number of racks of a job with several workers."""
    one_rack: float
    """Share of these jobs in one rack."""
    evictions: int
    incomplete_h: float
    """GPU hours that workers ran while others of their job did not: it makes no progress."""
    cpu_s: float
    """CPU time of the whole simulation."""
    unfinished: int
    """Jobs with a worker that never ended."""


_COLUMNS: Final = {
    "makespan": "{:.1f} h",
    "GPU utilization": "{:.1%}",
    "mean wait": "{:.2f} h",
    "gangs' mean wait": "{:.2f} h",
    "racks of a gang": "{:.2f}",
    "in one rack": "{:.0%}",
    "evictions": "{:.0f}",
    "GPU h incomplete": "{:.0f}",
    "CPU": "{:.0f} s",
}
"""Heads of the columns and formats of the figures, in the order of :class:`GangFigures`."""


def table(rows: Iterable[tuple[str, Sequence[GangFigures]]]) -> Iterator[str]:
    """Lines of markdown: the median of all seeds, the lowest and the highest figure."""
    yield f"| way | {' | '.join(_COLUMNS)} |"
    yield "|---" * (len(_COLUMNS) + 1) + "|"
    for way, figures in rows:
        cells = map(_cell, _COLUMNS.values(), zip(*figures, strict=True))
        yield f"| {way} | {' | '.join(cells)} |"


def _cell(form: str, values: Sequence[float]) -> str:
    lowest, middle, highest = map(form.format, (min(values), median(values), max(values)))
    unit = form.partition("}")[2]
    return middle if lowest == highest else f"{middle} ({lowest.removesuffix(unit)}-{highest})"


def measure(way: Way, workload: JobTrace, registry: PluginRegistry) -> GangFigures:
    """Simulate one way to the end."""
    configuration = parse(way.configuration, way.name, registry)
    scheduler = scheduler_from_config(configuration, Latencies())
    begin_s = time.process_time()
    run = simulate(way.trace(workload), scheduler, registry.load)
    cpu_s = time.process_time() - begin_s
    by_job: dict[str, list[PodRun]] = {job.name: [] for job in workload.jobs}
    for pod in run.pods:
        by_job[pod.pod.metadata.name.rpartition("-")[0]].append(pod)
    return _figures(workload, run, by_job, cpu_s)


def _figures(
    workload: JobTrace,
    run: WorkloadRun,
    by_job: dict[str, list[PodRun]],
    cpu_s: float,
) -> GangFigures:
    ended = [pod.ended_ns for pod in run.pods if pod.ended_ns is not None]
    last_ns = max(job.at_ns for job in workload.jobs)
    capacity = sum(map(gpus_of, workload.nodes))
    rack = {node.name: rack_of(number) for number, node in enumerate(workload.nodes)}
    used = incomplete = 0.0
    evictions = 0
    for job in workload.jobs:
        per_pod = job.gpus / job.workers
        for pod in by_job[job.name]:
            for place in pod.placements:
                until_ns = run.end_ns if place.ended_ns is None else place.ended_ns
                used += per_pod * max(0, min(until_ns, last_ns) - place.assigned_ns)
                evictions += place.end is EndReason.PREEMPTED
        incomplete += per_pod * _incomplete_ns(job, by_job[job.name])
    waits = {job.name: _wait_ns(job, by_job[job.name]) for job in workload.jobs}
    gangs = [job for job in workload.jobs if job.workers > 1]
    racks = [len({rack[pod.node] for pod in by_job[job.name] if pod.node}) for job in gangs]
    return GangFigures(
        makespan_h=(max(ended) - run.begin_ns) / _HOUR_NS,
        utilization=used / (capacity * (last_ns - run.begin_ns)),
        wait_h=_mean_h(waits.values()),
        gang_wait_h=_mean_h(waits[job.name] for job in gangs),
        racks=mean(racks),
        one_rack=mean(number == 1 for number in racks),
        evictions=evictions,
        incomplete_h=incomplete / _HOUR_NS,
        cpu_s=cpu_s,
        unfinished=sum(any(pod.ended_ns is None for pod in pods) for pods in by_job.values()),
    )


def _mean_h(waits_ns: Iterable[int | None]) -> float:
    known = [wait for wait in waits_ns if wait is not None]
    return mean(known) / _HOUR_NS if known else 0.0


def _wait_ns(job: Job, pods: Sequence[PodRun]) -> int | None:
    """Until all workers were bound; None if some never was."""
    bound = [pod.bound_ns for pod in pods]
    known = [at_ns for at_ns in bound if at_ns is not None]
    return max(known) - job.at_ns if len(known) == len(bound) else None


def _incomplete_ns(job: Job, pods: Sequence[PodRun]) -> int:
    """Pod time of workers that ran while others of the job did not."""
    changes = sorted(
        (at_ns, step)
        for pod in pods
        for place in pod.placements
        if place.bound_ns is not None and place.ended_ns is not None
        for at_ns, step in ((place.bound_ns, 1), (place.ended_ns, -1))
    )
    total = running = since_ns = 0
    for at_ns, step in changes:
        if running < job.workers:
            total += running * (at_ns - since_ns)
        running, since_ns = running + step, at_ns
    return total


def main(
    openb: Annotated[Path, typer.Option(help="Folder with the tables of the openb trace.")],
    workload: WorkloadName = WorkloadName.OPENB,
    first_seed: int = 1,
    seeds: Annotated[int, typer.Option(help="How many workloads to draw.")] = 5,
    nodes: int = 96,
    jobs: int = 1_500,
    load: Annotated[float, typer.Option(help="GPU time that arrives / capacity.")] = 1.0,
) -> None:
    """Compare whole groups, pod by pod and kube-batch sessions on the same jobs."""
    found: dict[str, list[GangFigures]] = {way.name: [] for way in WAYS}
    registry = PluginRegistry.discover()
    for seed in range(first_seed, first_seed + seeds):
        drawn = _DRAW[workload](openb, seed, Size(nodes, jobs, load))
        for way in WAYS:
            figures = measure(way, drawn, registry)
            found[way.name].append(figures)
            typer.echo(f"seed {seed}, {way.name}: {figures}", err=True)
    for line in table(found.items()):
        typer.echo(line)


if __name__ == "__main__":
    typer.run(main)
