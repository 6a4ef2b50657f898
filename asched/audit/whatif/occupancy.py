"""Utilisation and fragmentation over time, derived from who was where.

Quantities that change at points in time, keep their value in between, and are weighed by time.
"""

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
from asched.simulator.trace import PodRun, Run

Int64s: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


class Steps:
    """A step function over a window of time.

    What is said of a moment last is what holds from it on: values that were overtaken within the
    same nanosecond never held.
    """

    __slots__ = ("at_ns", "end_ns", "values")

    def __init__(
        self, at_ns: Sequence[int] | Int64s, values: Sequence[float] | Floats, end_ns: int
    ) -> None:
        """``values[i]`` holds from ``at_ns[i]`` on, the last one until ``end_ns``.

        Raises ValueError for no value, and for times that run backwards or past the end.
        """
        times = np.asarray(at_ns, np.int64)
        if not len(times) or len(times) != len(values):
            raise ValueError(f"{len(times)} times and {len(values)} values")
        if (np.diff(times) < 0).any() or times[-1] > end_ns:
            raise ValueError("times run backwards or past the end")
        lasts = np.append(np.flatnonzero(np.diff(times)), len(times) - 1)
        self.at_ns: Int64s = times[lasts]
        self.values: Floats = np.asarray(values, np.float64)[lasts]
        self.end_ns = end_ns

    @property
    def start_ns(self) -> int:
        return int(self.at_ns[0])

    @property
    def durations_ns(self) -> Int64s:
        """How long each value held."""
        return np.diff(np.append(self.at_ns, self.end_ns))

    @property
    def mean(self) -> float:
        """Weighed by time; the last value where no time passed at all."""
        durations = self.durations_ns
        total = int(durations.sum())
        if not total:
            return float(self.values[-1])
        return float((self.values * durations).sum() / total)

    @property
    def peak(self) -> float:
        """The highest value that held for any time, or holds at the end."""
        return float(self.values[(self.durations_ns > 0) | self._is_last].max())

    @property
    def _is_last(self) -> NDArray[np.bool_]:
        last = np.zeros(len(self.values), np.bool_)
        last[-1] = True
        return last

    def integral(self, until_ns: Int64s) -> Floats:
        """Value times nanoseconds, from the start until each of these times within the window."""
        sums = np.concatenate([[0.0], np.cumsum(self.values[:-1] * np.diff(self.at_ns))])
        index = np.searchsorted(self.at_ns, until_ns, side="right") - 1
        held: Floats = sums[index] + self.values[index] * (until_ns - self.at_ns[index])
        return held

    def thinned(self, most: int) -> Steps:
        """At most ``most`` steps: where there are more, means of equal parts of the window."""
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
    """The nearest-rank percentile of values in ascending order: the smallest of them that so many
    per cent do not exceed. None where there are no values.

    >>> percentile([10, 20, 30, 40], 50)
    20
    """
    if not ordered:
        return None
    rank = -int(-len(ordered) * percent // 100)
    return ordered[max(1, rank) - 1]


def mean(values: Iterable[int]) -> float | None:
    """The arithmetic mean, or None of nothing."""
    known = [*values]
    return sum(known) / len(known) if known else None


MOST_KINDS: Final = 100
"""Kinds of pods that the fragmentation is judged by: the most frequent ones."""

Rows: TypeAlias = NDArray[np.intp]


class RecordedWorkload(NamedTuple):
    """What a typical pod asks for: kinds of pods, told apart by their requests, and how frequent
    each is."""

    resources: tuple[str, ...]
    """The columns of ``asks``; the last is a place for a pod."""
    asks: Int64s
    """By kind and resource."""
    weights: Floats
    """By kind and resource: the kind's share among the pods that ask for the resource."""

    @property
    def reported(self) -> tuple[str, ...]:
        """The resources that figures are about: all but the place for a pod."""
        return self.resources[:-1]


def workload_of(pods: Iterable[PodRun]) -> RecordedWorkload:
    """The workload that a history puts to a scheduler: its pods but for those that came placed, if
    there are others."""
    every = [(_key(shape_of(run.pod).requests), run.pod.spec.node_name) for run in pods]
    resources = _resources({kind for kind, _ in every})
    to_place = [kind for kind, node in every if not node] or [kind for kind, _ in every]
    kinds = Counter(to_place)
    frequent = sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))[:MOST_KINDS]
    asks = np.array(
        [[*(dict(kind).get(name, 0) for name in resources[:-1]), 1] for kind, _ in frequent],
        np.int64,
    ).reshape(len(frequent), len(resources))
    counts = np.array([count for _, count in frequent], np.float64)[:, None] * (asks > 0)
    totals = counts.sum(axis=0)
    weights = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    return RecordedWorkload(resources, asks, weights)


def _key(requests: Amounts) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, asked) for name, asked in requests.items() if asked))


def _resources(kinds: Iterable[tuple[tuple[str, int], ...]]) -> tuple[str, ...]:
    """What any of them asks for: cpu and memory, then the others by name; and a place."""
    asked = {name for kind in kinds for name, _ in kind}
    first = [name for name in (CPU, MEMORY) if name in asked]
    return (*first, *sorted(asked - {CPU, MEMORY, PODS}), PODS)


class Occupancy(NamedTuple):
    """Shares of one over time, by resource. A resource that no node offers is left out."""

    utilisation: dict[str, Steps]
    """What is requested by the pods on nodes, of what nodes can give (allocatable)."""
    fragmentation: dict[str, Steps]
    """The share of what is free that a pod drawn from the workload, among those that ask for the
    resource, cannot use, as it lies on nodes that have no room for the pod. It is F_n(M) of FGD
    (Weng et al., USENIX ATC 2023), which defines it for GPUs, for any resource and by node.
    Cordoned nodes count for nothing; taints, affinity and the like are left out."""


class _Change(NamedTuple):
    at_ns: int
    order: int
    """Within one time: nodes go, nodes come, pods go, pods come."""
    row: int
    node: Node | None
    asked: Int64s | None


def occupancy(run: Run, workload: RecordedWorkload) -> Occupancy:
    """How full and how fragmented the cluster was, for as long as the run lasts."""
    names = sorted({span.node.name for span in run.nodes})
    books = _Books(len(names), workload)
    books.sample(run.begin_ns)
    changes = sorted(_changes(run, workload, names), key=itemgetter(0, 1, 2))
    for at_ns, together in groupby(changes, key=itemgetter(0)):
        if at_ns > run.end_ns:
            break
        books.change([*together])
        books.sample(max(at_ns, run.begin_ns))
    return books.occupancy(run.end_ns)


def _changes(run: Run, workload: RecordedWorkload, names: Sequence[str]) -> Iterator[_Change]:
    rows = {name: row for row, name in enumerate(names)}
    for span in run.nodes:
        yield _Change(span.from_ns, 1, rows[span.node.name], span.node, None)
        if span.to_ns is not None:
            yield _Change(span.to_ns, 0, rows[span.node.name], None, None)
    for pod in run.pods:
        requests = shape_of(pod.pod).requests
        asked = _amounts(requests | {PODS: 1}, workload.resources)
        for placement in pod.placements:
            row = rows.get(placement.node)
            if row is not None:
                yield _Change(placement.assigned_ns, 3, row, None, asked)
                if placement.ended_ns is not None:
                    yield _Change(placement.ended_ns, 2, row, None, -asked)


def _amounts(found: Amounts, resources: Sequence[str]) -> Int64s:
    return np.array([found.get(name, 0) for name in resources], np.int64)


class _Books:
    """Who has how much, moved on change by change; and the sums at each time."""

    def __init__(self, nodes: int, workload: RecordedWorkload) -> None:
        self._workload = workload
        shape = (nodes, len(workload.resources))
        self._allocatable = np.zeros(shape, np.int64)
        self._requested = np.zeros(shape, np.int64)
        self._alive = np.zeros(nodes, np.bool_)
        self._cordoned = np.zeros(nodes, np.bool_)
        # What each row adds to the sums: allocatable, requested, free, and free in vain.
        self._parts = np.zeros((nodes, 4, len(workload.resources)))
        self._sums = np.zeros((4, len(workload.resources)))
        self._at_ns: list[int] = []
        self._samples: list[Floats] = []

    def change(self, changes: Sequence[_Change]) -> None:
        for change in changes:
            row = change.row
            if change.asked is not None:
                self._requested[row] += change.asked
            elif change.node is None:
                self._alive[row] = False
            else:
                offered = amounts(change.node.status.allocatable)
                self._allocatable[row] = _amounts(offered, self._workload.resources)
                self._alive[row] = True
                self._cordoned[row] = change.node.spec.unschedulable
        self._settle(np.unique(np.array([change.row for change in changes], np.intp)))

    def _settle(self, rows: Rows) -> None:
        """Bring the sums up to what changed in these rows."""
        alive = self._alive[rows, None]
        allocatable = self._allocatable[rows] * alive
        requested = self._requested[rows] * alive
        usable = alive & ~self._cordoned[rows, None]
        free = np.maximum(allocatable - requested, 0) * usable
        fits = (self._workload.asks[None, :, :] <= free[:, None, :]).all(axis=2)
        in_vain = free * ((~fits).astype(np.float64) @ self._workload.weights)
        parts = np.stack([allocatable, requested, free, in_vain], axis=1, dtype=np.float64)
        self._sums += (parts - self._parts[rows]).sum(axis=0)
        self._parts[rows] = parts

    def sample(self, at_ns: int) -> None:
        self._at_ns.append(at_ns)
        self._samples.append(self._sums.copy())

    def occupancy(self, end_ns: int) -> Occupancy:
        samples = np.array(self._samples)
        utilisation, fragmentation = {}, {}
        for column, name in enumerate(self._workload.reported):
            allocatable, requested, free, in_vain = samples[:, :, column].T
            if allocatable.any():
                utilisation[name] = Steps(self._at_ns, _share(requested, allocatable), end_ns)
                if self._workload.weights[:, column].any():
                    fragmentation[name] = Steps(self._at_ns, _share(in_vain, free), end_ns)
        return Occupancy(utilisation, fragmentation)


def _share(part: Floats, whole: Floats) -> Floats:
    """Of nothing, nothing. (Sums that are moved on may be off by a rounding error.)"""
    return np.divide(np.maximum(part, 0.0), whole, out=np.zeros_like(part), where=whole > 0.5)
