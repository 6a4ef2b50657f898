"""Step functions over time, and the utilization and fragmentation of nodes in a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asched.framework.pod_info import shape_of
from asched.model.node import Node
from asched.model.requests import CPU, MEMORY, PODS, Amounts, amounts
from asched.simulator.trace import PodRun, WorkloadRun

Int64s: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


class Steps:
    """A step function over a time window. Of several values at one time the last one counts."""

    __slots__ = ("at_ns", "end_ns", "values")

    def __init__(
        self, at_ns: Sequence[int] | Int64s, values: Sequence[float] | Floats, end_ns: int
    ) -> None:
        """``values[i]`` applies from ``at_ns[i]`` on, the last one until ``end_ns``.

        Raises ValueError without values, and for times that are not ascending or exceed the end.
        """
        times = np.asarray(at_ns, np.int64)
        if not len(times) or len(times) != len(values):
            raise ValueError(f"{len(times)} times and {len(values)} values")
        if (np.diff(times) < 0).any() or times[-1] > end_ns:
            raise ValueError("times are not ascending or exceed the end")
        lasts = np.append(np.flatnonzero(np.diff(times)), len(times) - 1)
        self.at_ns: Int64s = times[lasts]
        self.values: Floats = np.asarray(values, np.float64)[lasts]
        self.end_ns = end_ns

    @property
    def start_ns(self) -> int:
        return int(self.at_ns[0])

    @property
    def durations_ns(self) -> Int64s:
        """The duration of each value."""
        return np.diff(np.append(self.at_ns, self.end_ns))

    @property
    def mean(self) -> float:
        """Time-weighted; the last value if the window is empty."""
        durations = self.durations_ns
        total = int(durations.sum())
        if not total:
            return float(self.values[-1])
        return float((self.values * durations).sum() / total)

    @property
    def peak(self) -> float:
        """The maximum of values with a duration and the last value."""
        counts = self.durations_ns > 0
        counts[-1] = True
        return float(self.values[counts].max())

    def integral(self, until_ns: Int64s) -> Floats:
        """The integral over nanoseconds from the start until each of these times."""
        sums = np.concatenate([[0.0], np.cumsum(self.values[:-1] * np.diff(self.at_ns))])
        index = np.searchsorted(self.at_ns, until_ns, side="right") - 1
        held: Floats = sums[index] + self.values[index] * (until_ns - self.at_ns[index])
        return held

    def thinned(self, most: int) -> Steps:
        """At most ``most`` steps; if there are more, averages of equal intervals."""
        span_ns = self.end_ns - self.start_ns
        if len(self.values) <= most or span_ns < most:
            return self
        edges = self.start_ns + (span_ns * np.arange(most + 1, dtype=np.float64) / most).astype(
            np.int64
        )
        edges[-1] = self.end_ns
        means = np.diff(self.integral(edges)) / np.diff(edges)
        return Steps(edges[:-1], means, self.end_ns)


def percentile(ordered: Sequence[int], percent: float) -> int | None:
    """The nearest-rank percentile of ascending values. None without values.

    >>> percentile([10, 20, 30, 40], 50)
    20
    """
    if not ordered:
        return None
    rank = -int(-len(ordered) * percent // 100)
    return ordered[max(1, rank) - 1]


MAX_KINDS: Final = 100
"""Number of pod kinds in a workload: the most frequent ones."""

Rows: TypeAlias = NDArray[np.intp]


class RecordedWorkload(NamedTuple):
    """The requests of a history's pods by kind, with frequencies. Pods of one kind have equal
    requests."""

    resources: tuple[str, ...]
    """The columns of ``requests``; the last one is ``pods``."""
    requests: Int64s
    """By kind and resource."""
    weights: Floats
    """By kind and resource: the kind's share among the pods that request the resource."""


def workload_of(pods: Iterable[PodRun]) -> RecordedWorkload:
    """The workload of pods created without a node, or of all pods if there are none."""
    every = [(_key(shape_of(run.pod).requests), run.pod.spec.node_name) for run in pods]
    requested = {name for kind, _ in every for name, _ in kind}
    first = [name for name in (CPU, MEMORY) if name in requested]
    resources = (*first, *sorted(requested - {CPU, MEMORY, PODS}), PODS)
    to_place = [kind for kind, node in every if not node] or [kind for kind, _ in every]
    kinds = Counter(to_place)
    frequent = sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))[:MAX_KINDS]
    requests = np.array(
        [[*(dict(kind).get(name, 0) for name in resources[:-1]), 1] for kind, _ in frequent],
        np.int64,
    ).reshape(len(frequent), len(resources))
    counts = np.array([count for _, count in frequent], np.float64)[:, None] * (requests > 0)
    totals = counts.sum(axis=0)
    weights = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    return RecordedWorkload(resources, requests, weights)


def _key(requests: Amounts) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, asked) for name, asked in requests.items() if asked))


class Occupancy(NamedTuple):
    """Fractions over time by resource, without resources that no node has."""

    utilisation: dict[str, Steps]
    """Requested by pods on nodes / allocatable."""
    fragmentation: dict[str, Steps]
    """The fraction of free resources that a random pod of the workload, among those that request
    the resource, cannot use because it does not fit on the node: F_n(M) of FGD (Weng et al., USENIX
    ATC 2023, there for GPUs), by node. Excludes cordoned nodes; ignores taints, affinity etc."""


class _Change(NamedTuple):
    at_ns: int
    order: int
    """At the same time: removed nodes, added nodes, removed pods, added pods."""
    row: int
    node: Node | None
    requested: Int64s | None


def occupancy(run: WorkloadRun, workload: RecordedWorkload) -> Occupancy:
    """The utilization and fragmentation of the cluster during the run."""
    names = sorted({span.node.name for span in run.nodes})
    usage = _NodeUsage(len(names), workload)
    usage.sample(run.begin_ns)
    changes = sorted(_changes(run, workload, names), key=itemgetter(0, 1, 2))
    for at_ns, at_once in groupby(changes, key=itemgetter(0)):
        if at_ns > run.end_ns:
            break
        usage.apply([*at_once])
        usage.sample(max(at_ns, run.begin_ns))
    return usage.occupancy(run.end_ns)


def _changes(
    run: WorkloadRun, workload: RecordedWorkload, names: Sequence[str]
) -> Iterator[_Change]:
    rows = {name: row for row, name in enumerate(names)}
    for span in run.nodes:
        yield _Change(span.from_ns, 1, rows[span.node.name], span.node, None)
        if span.to_ns is not None:
            yield _Change(span.to_ns, 0, rows[span.node.name], None, None)
    for pod in run.pods:
        requests = shape_of(pod.pod).requests
        requested = _amounts(requests | {PODS: 1}, workload.resources)
        for placement in pod.placements:
            row = rows.get(placement.node)
            if row is not None:
                yield _Change(placement.assigned_ns, 3, row, None, requested)
                if placement.ended_ns is not None:
                    yield _Change(placement.ended_ns, 2, row, None, -requested)


def _amounts(found: Amounts, resources: Sequence[str]) -> Int64s:
    return np.array([found.get(name, 0) for name in resources], np.int64)


class _NodeUsage:
    """The amounts of each node, updated by changes, and samples of their sums."""

    def __init__(self, nodes: int, workload: RecordedWorkload) -> None:
        self._workload = workload
        shape = (nodes, len(workload.resources))
        self._allocatable = np.zeros(shape, np.int64)
        self._requested = np.zeros(shape, np.int64)
        self._alive = np.zeros(nodes, np.bool_)
        self._cordoned = np.zeros(nodes, np.bool_)
        # The terms of each row: allocatable, requested, free, and free but unusable.
        self._parts = np.zeros((nodes, 4, len(workload.resources)))
        self._sums = np.zeros((4, len(workload.resources)))
        self._at_ns: list[int] = []
        self._samples: list[Floats] = []

    def apply(self, changes: Sequence[_Change]) -> None:
        for change in changes:
            row = change.row
            if change.requested is not None:
                self._requested[row] += change.requested
            elif change.node is None:
                self._alive[row] = False
            else:
                allocatable = amounts(change.node.status.allocatable)
                self._allocatable[row] = _amounts(allocatable, self._workload.resources)
                self._alive[row] = True
                self._cordoned[row] = change.node.spec.unschedulable
        self._update_sums(np.unique(np.array([change.row for change in changes], np.intp)))

    def _update_sums(self, rows: Rows) -> None:
        alive = self._alive[rows, None]
        allocatable = self._allocatable[rows] * alive
        requested = self._requested[rows] * alive
        usable = alive & ~self._cordoned[rows, None]
        free = np.maximum(allocatable - requested, 0) * usable
        fits = (self._workload.requests[None, :, :] <= free[:, None, :]).all(axis=2)
        unusable = free * ((~fits).astype(np.float64) @ self._workload.weights)
        parts = np.stack([allocatable, requested, free, unusable], axis=1, dtype=np.float64)
        self._sums += (parts - self._parts[rows]).sum(axis=0)
        self._parts[rows] = parts

    def sample(self, at_ns: int) -> None:
        self._at_ns.append(at_ns)
        self._samples.append(self._sums.copy())

    def occupancy(self, end_ns: int) -> Occupancy:
        samples = np.array(self._samples)
        utilisation, fragmentation = {}, {}
        for column, name in enumerate(self._workload.resources[:-1]):  # all except pods
            allocatable, requested, free, unusable = samples[:, :, column].T
            if allocatable.any():
                utilisation[name] = Steps(self._at_ns, _share(requested, allocatable), end_ns)
                if self._workload.weights[:, column].any():
                    fragmentation[name] = Steps(self._at_ns, _share(unusable, free), end_ns)
        return Occupancy(utilisation, fragmentation)


def _share(part: Floats, whole: Floats) -> Floats:
    """``part / whole``, or 0 if ``whole`` is 0. Incremental sums may have rounding errors."""
    return np.divide(np.maximum(part, 0.0), whole, out=np.zeros_like(part), where=whole > 0.5)
