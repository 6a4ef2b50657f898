"""What is measured of a workload, and the report of it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from benchmarks.pods import PodFate, Pods


class Percentiles(msgspec.Struct, frozen=True):
    """Average and percentiles, those that scheduler_perf reports."""

    average: float
    perc50: float
    perc90: float
    perc95: float
    perc99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles | None:
        """None where there are no values."""
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
    """Pods that were bound in it."""
    duration_s: float
    """From its beginning to its last binding."""
    pods_per_s: float
    throughput: Percentiles | None
    """Pods a second in each second of it; None where it took less than one."""
    scheduler_cpu_ms_per_pod: float
    """User and kernel time of the scheduler, until all it had begun was done."""
    created_to_bound_ms: Percentiles | None
    """From the API server's confirmation of the pod to the watch's news of its node."""
    seen_to_decided_ms: Percentiles | None = None
    """By the scheduler's journal: from the turn that saw the pod to the turn after its decision."""
    seen_to_bound_ms: Percentiles | None = None
    """By the scheduler's journal: to the turn that heard of the binding."""
    namespaces: tuple[str, ...] = ()


class Report(msgspec.Struct):
    """A workload that was run."""

    workload: str
    phases: list[Phase]
    pods_bound: int
    """With those that were bound before the measured part."""
    scheduler_cpu_ms_per_pod_with_start: float
    """All CPU time of the scheduler's process, its start included, by all pods that it bound."""
    scheduler_peak_rss_mib: float
    journal_bytes_per_pod: int = 0
    """The file, checkpoints and indexes included, by all pods that it bound."""
    journal_record_bytes_per_pod: int = 0
    """All records alone: nodes and other objects included."""
    params: Mapping[str, Any] = {}
    threshold_pods_per_s: float | Mapping[str, float] | None = None
    """What Kubernetes' CI expects of kube-scheduler on its machines."""


class CpuTime(Protocol):
    """A process whose CPU time can be read."""

    def cpu_s(self) -> float: ...

    async def settled_cpu_s(self) -> float: ...


def throughput(bound_s: Sequence[float], begin_s: float) -> list[float]:
    """Pods a second, for each whole second from ``begin_s``, as scheduler_perf samples it: seconds
    before the first pod do not count, and one in which none was bound shares the next one's."""
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
    """Measures while parts of a workload run."""

    def __init__(self, pods: Pods, scheduler: CpuTime, clock: Callable[[], float]) -> None:
        self._pods = pods
        self._scheduler = scheduler
        self._clock = clock
        self.phases: list[Phase] = []

    @asynccontextmanager
    async def measuring(
        self, name: str, namespaces: Collection[str], selector: Mapping[str, str]
    ) -> AsyncIterator[None]:
        """Measure the pods of these namespaces and labels that are bound in the block."""
        begin_s, cpu_s = self._clock(), self._scheduler.cpu_s()
        yield
        spent_s = await self._scheduler.settled_cpu_s() - cpu_s
        bound = [
            fate
            for fate in self._pods
            if fate.is_of(namespaces, selector)
            and fate.bound_s is not None
            and fate.bound_s >= begin_s
        ]
        self.phases.append(_phase(name, bound, begin_s, spent_s, tuple(namespaces)))


def _phase(
    name: str, bound: list[PodFate], begin_s: float, spent_s: float, namespaces: tuple[str, ...]
) -> Phase:
    times_s = [fate.bound_s for fate in bound if fate.bound_s is not None]
    duration_s = max(times_s, default=begin_s) - begin_s
    waits_ms = [
        max(0.0, fate.bound_s - fate.created_s) * 1000 for fate in bound if fate.bound_s is not None
    ]
    return Phase(
        name=name,
        pods=len(bound),
        duration_s=round(duration_s, 2),
        pods_per_s=round(len(bound) / duration_s, 1) if duration_s else 0.0,
        throughput=Percentiles.of(throughput(times_s, begin_s)),
        scheduler_cpu_ms_per_pod=round(spent_s * 1000 / max(1, len(bound)), 3),
        created_to_bound_ms=Percentiles.of(waits_ms),
        namespaces=namespaces,
    )
