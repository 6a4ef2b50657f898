"""The workloads: jobs of equal workers that run together, drawn by seed.

``openb``: requests and running times of GPU pods of Alibaba's cluster-trace-gpu-v2023 (Weng et al.,
ATC 2023), which has no gangs. Each drawn pod becomes a job of 1 to 32 such workers.

``philly``: the distribution that Gavel (Narayanan et al., OSDI 2020) derives from Microsoft's
Philly traces (Jeon et al., ATC 2019): 70 % of the jobs have 1 worker, 10 % have 2, 15 % have 4 and
5 % have 8. A job runs for 10^x minutes, x uniform in [1.5, 3] for 80 % of them, in [3, 4] for the
others. Each worker requests 4 GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from asched.model.node import Node
from asched.model.quantity import NS_PER_S
from asched.model.requests import amounts, pod_requests
from asched.simulator.openb import BEGIN_NS, GPU_MILLI, MILLI, Table, read_openb
from asched.simulator.trace import ObjectSet, PodCreated, WorkloadTrace

NODES_TABLE: Final = "openb_node_list_all_node.csv"
PODS_TABLE: Final = "openb_pod_list_default.csv"

_OPENB_SIZES: Final = ((1, 50), (2, 15), (4, 15), (8, 12), (16, 6), (32, 2))
"""Workers of a job, and how many percent of the jobs have as many."""
_OPENB_RUN_S: Final = (60, 12 * 3600)
"""Shorter and longer running times are cut: services of the trace run for months."""
_PHILLY_WORKER: Final = {"cpu": 16_000, "memory": 96 << 30, GPU_MILLI: 4 * MILLI}
_IMPORTANT_SHARE: Final = 0.1
_LARGEST: Final = 0.25
"""No job needs more than this share of the GPUs."""
IMPORTANT: Final = 100
"""Priority of every tenth job."""


class Job(NamedTuple):
    """Workers that run together."""

    name: str
    at_ns: int
    run_ns: int
    workers: int
    requests: dict[str, int]
    """Of each worker: cpu in thousandths, others in whole units."""
    priority: int

    @property
    def gpus(self) -> float:
        return self.workers * self.requests[GPU_MILLI] / MILLI


class JobTrace(NamedTuple):
    """A cluster and what arrives there."""

    nodes: list[Node]
    jobs: list[Job]


class Size(NamedTuple):
    """How large a workload is."""

    nodes: int
    jobs: int
    load: float
    """GPU time that arrives, relative to the capacity."""


def openb(folder: Path, seed: int, size: Size) -> JobTrace:
    """Jobs and nodes drawn from the tables in ``folder``. Raises TraceError and OSError."""
    random, trace = Random(seed), _read(folder)
    gpu_nodes = [
        event.object
        for event in trace.events
        if isinstance(event, ObjectSet)
        and isinstance(event.object, Node)
        and GPU_MILLI in event.object.status.allocatable
    ]
    nodes = random.sample(gpu_nodes, min(size.nodes, len(gpu_nodes)))
    pods = [
        (event.run_ns, pod_requests(event.pod))
        for event in trace.events
        if isinstance(event, PodCreated) and event.run_ns
    ]
    with_gpu = [(run_ns, {**asked}) for run_ns, asked in pods if asked.get(GPU_MILLI)]
    sizes, shares = zip(*_OPENB_SIZES, strict=True)
    shortest_ns, longest_ns = (seconds * NS_PER_S for seconds in _OPENB_RUN_S)
    drawn = []
    for number in range(size.jobs):
        run_ns, requests = random.choice(with_gpu)
        workers = random.choices(sizes, shares)[0]
        bounded_ns = min(max(run_ns or 0, shortest_ns), longest_ns)
        drawn.append(Job(f"job-{number}", 0, bounded_ns, workers, requests, _priority(random)))
    return JobTrace(nodes, _arriving(drawn, nodes, size.load, random))


def philly(folder: Path, seed: int, size: Size) -> JobTrace:
    """Jobs by the distribution above, on nodes with eight GPUs of the openb trace."""
    random, trace = Random(seed), _read(folder)
    large = [
        event.object
        for event in trace.events
        if isinstance(event, ObjectSet)
        and isinstance(event.object, Node)
        and str(event.object.status.allocatable.get(GPU_MILLI)) == str(8 * MILLI)
    ]
    nodes = random.sample(large, min(size.nodes, len(large)))
    drawn = []
    for number in range(size.jobs):
        exponent = random.uniform(1.5, 3) if random.random() < 0.8 else random.uniform(3, 4)
        workers = random.choices((1, 2, 4, 8), (70, 10, 15, 5))[0]
        run_ns = round(10**exponent * 60 * NS_PER_S)
        job = Job(f"job-{number}", 0, run_ns, workers, _PHILLY_WORKER, _priority(random))
        drawn.append(job)
    return JobTrace(nodes, _arriving(drawn, nodes, size.load, random))


def gpus_of(node: Node) -> float:
    return int(str(node.status.allocatable[GPU_MILLI])) / MILLI


def _read(folder: Path) -> WorkloadTrace:
    tables = [
        Table(name, (folder / name).read_text().splitlines()) for name in (NODES_TABLE, PODS_TABLE)
    ]
    return read_openb(tables[0], tables[1], "unused")


def _priority(random: Random) -> int:
    return IMPORTANT if random.random() < _IMPORTANT_SHARE else 0


def _arriving(jobs: Sequence[Job], nodes: Sequence[Node], load: float, random: Random) -> list[Job]:
    """The jobs with the arrival times of a Poisson process, without those that never fit."""
    capacity = sum(map(gpus_of, nodes))
    work_ns = sum(job.gpus * job.run_ns for job in jobs)
    mean_ns = work_ns / capacity / load / len(jobs)
    at_ns, arriving = float(BEGIN_NS), []
    for job in jobs:
        most = min(capacity * _LARGEST * job.workers / job.gpus, _room(nodes, job))
        workers = min(job.workers, int(most))
        if not workers:
            continue
        at_ns += random.expovariate(1 / mean_ns)
        arriving.append(job._replace(at_ns=round(at_ns), workers=workers))
    return arriving


def _room(nodes: Sequence[Node], job: Job) -> int:
    """How many of its workers fit in the empty cluster."""
    offers = [amounts(node.status.allocatable) for node in nodes]
    return sum(
        min(offered.get(name, 0) // asked for name, asked in job.requests.items() if asked)
        for offered in offers
    )
