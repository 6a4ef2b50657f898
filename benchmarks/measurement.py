"""Measurement of a workload, and the report."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from benchmarks.pods import ObservedPod, PodTracker


class Percentiles(msgspec.Struct, frozen=True):
    """The average and percentiles that scheduler_perf reports."""

    average: float
    perc50: float
    perc90: float
    perc95: float
    perc99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles | None:
        """None if there are no values."""
        if not values:
            return None
        ordered = sorted(values)

        def at(percent: int) -> float:
            return round(ordered[math.ceil(len(ordered) * percent / 100) - 1], 2)

        average = round(sum(ordered) / len(ordered), 2)
        return cls(average, at(50), at(90), at(95), at(99))


class Phase(msgspec.Struct):
    """One measured part of a workload."""

    name: str
    pods: int
    """PodTracker bound during the phase."""
    duration_s: float
    """From the beginning of the phase to its last binding."""
    pods_per_s: float
    throughput: Percentiles | None
    """Of pods per second, sampled every second; None for a phase of less than a second."""
    scheduler_cpu_ms_per_pod: float
    """User and kernel time of the scheduler until it is idle."""
    created_to_bound_ms: Percentiles | None
    """From the API server's answer to the creation until the watch shows the node."""
    observed_to_decided_ms: Percentiles | None = None
    """By the journal: from the turn that observed the pod to the turn after its decision."""
    observed_to_bound_ms: Percentiles | None = None
    """By the journal: to the turn that observed the binding."""
    namespaces: tuple[str, ...] = ()
    first_bound_s: float = 0.0
    """From the beginning of the phase to its first binding."""


class Report(msgspec.Struct):
    """The result of one workload."""

    workload: str
    phases: list[Phase]
    pods_bound: int
    """Including those bound before the measured part."""
    scheduler_cpu_ms_per_pod_with_start: float
    """CPU time of the scheduler's process including its start, by all bound pods."""
    scheduler_peak_rss_mib: float
    journal_bytes_per_pod: int = 0
    """Size of the file with checkpoints and indexes, by all bound pods."""
    journal_record_bytes_per_pod: int = 0
    """Size of all records, including those of nodes and other objects."""
    params: Mapping[str, Any] = {}
    threshold_pods_per_s: float | Mapping[str, float] | None = None
    """Throughput that Kubernetes' CI requires of kube-scheduler on its machines."""


class CpuTime(Protocol):
    """Reads the CPU time of a process."""

    def cpu_s(self) -> float: ...

    async def settled_cpu_s(self) -> float: ...


def throughput(bound_s: Sequence[float], begin_s: float) -> list[float]:
    """PodTracker per second for each whole second from ``begin_s``, as scheduler_perf samples it.

    Seconds before the first pod do not count. A second without pods shares the count of the next.
    """
    if not bound_s:
        return []
    counts = [0] * (int(max(bound_s) - begin_s) + 1)
    for at_s in bound_s:
        counts[int(at_s - begin_s)] += 1
    samples: list[float] = []
    empty = 0
    for count in counts[:-1]:
        if count:
            samples += [count / (empty + 1)] * (empty + 1)
            empty = 0
        elif samples:
            empty += 1
    return samples


class Measurements:
    """Measures parts of a workload while they run."""

    def __init__(self, pods: PodTracker, scheduler: CpuTime, clock: Callable[[], float]) -> None:
        self._pods = pods
        self._scheduler = scheduler
        self._clock = clock
        self.phases: list[Phase] = []

    @asynccontextmanager
    async def measuring(
        self, name: str, namespaces: Collection[str], selector: Mapping[str, str]
    ) -> AsyncIterator[None]:
        """Measure the pods with these namespaces and labels that are bound in the block."""
        begin_s, cpu_s = self._clock(), self._scheduler.cpu_s()
        yield
        spent_s = await self._scheduler.settled_cpu_s() - cpu_s
        bound = [
            pod
            for pod in self._pods
            if pod.matches(namespaces, selector)
            and pod.bound_s is not None
            and pod.bound_s >= begin_s
        ]
        self.phases.append(_phase(name, bound, begin_s, spent_s, tuple(namespaces)))


def _phase(
    name: str, bound: list[ObservedPod], begin_s: float, spent_s: float, namespaces: tuple[str, ...]
) -> Phase:
    times_s = [pod.bound_s for pod in bound if pod.bound_s is not None]
    duration_s = max(times_s, default=begin_s) - begin_s
    waits_ms = [
        max(0.0, pod.bound_s - pod.created_s) * 1000 for pod in bound if pod.bound_s is not None
    ]
    return Phase(
        name=name,
        pods=len(bound),
        duration_s=round(duration_s, 2),
        first_bound_s=round(min(times_s, default=begin_s) - begin_s, 2),
        pods_per_s=round(len(bound) / duration_s, 1) if duration_s else 0.0,
        throughput=Percentiles.of(throughput(times_s, begin_s)),
        scheduler_cpu_ms_per_pod=round(spent_s * 1000 / max(1, len(bound)), 3),
        created_to_bound_ms=Percentiles.of(waits_ms),
        namespaces=namespaces,
    )
