"""Utilisation and fragmentation over time, derived from who was where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asched.audit.whatif.steps import Floats, Int64s, Steps
from asched.framework.pod_info import shape_of
from asched.model.node import Node
from asched.model.requests import CPU, MEMORY, PODS, Amounts, amounts
from asched.sim.virtual.outcome import PodRun, Run

MOST_KINDS: Final = 100
"""Kinds of pods that the fragmentation is judged by: the most frequent ones."""

Rows: TypeAlias = NDArray[np.intp]


class Workload(NamedTuple):
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


def workload_of(pods: Iterable[PodRun]) -> Workload:
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
    return Workload(resources, asks, weights)


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


def occupancy(run: Run, workload: Workload) -> Occupancy:
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


def _changes(run: Run, workload: Workload, names: Sequence[str]) -> Iterator[_Change]:
    rows = {name: row for row, name in enumerate(names)}
    for span in run.nodes:
        yield _Change(span.from_ns, 1, rows[span.node.name], span.node, None)
        if span.to_ns is not None:
            yield _Change(span.to_ns, 0, rows[span.node.name], None, None)
    for pod in run.pods:
        requests = shape_of(pod.pod).requests
        asked = _amounts(requests | {PODS: 1}, workload.resources)
        for stint in pod.stints:
            row = rows.get(stint.node)
            if row is not None:
                yield _Change(stint.assigned_ns, 3, row, None, asked)
                if stint.ended_ns is not None:
                    yield _Change(stint.ended_ns, 2, row, None, -asked)


def _amounts(found: Amounts, resources: Sequence[str]) -> Int64s:
    return np.array([found.get(name, 0) for name in resources], np.int64)


class _Books:
    """Who has how much, moved on change by change; and the sums at each time."""

    def __init__(self, nodes: int, workload: Workload) -> None:
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
