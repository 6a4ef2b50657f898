"""kube-batch's scores: those of Kubernetes 1.16, integers of 0 to 10."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from asched.batch.kubernetes_1_16.neighbours import MAX_PRIORITY, LegacyAffinityPriority
from asched.batch.nodes import FloatColumn, SessionNodes
from asched.framework.node_matching import term_matches
from asched.framework.nodes import Int64Column, Nodes, RowArray
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.resource_vector import CPU, MEMORY
from asched.framework.session_objects import Job
from asched.model.pod import Pod
from asched.model.quantity import milli_value, value
from asched.model.requests import DEFAULT_MEMORY_BYTES, DEFAULT_MILLI_CPU
from asched.model.selectors import NodeSelectorTerm


def nonzero_request(pod: Pod) -> tuple[float, float]:
    """(cpu, memory) with defaults for containers that name none; explicit zeros count as such.
    Init containers are left out (``GetNonzeroRequests``)."""
    cpu = memory = 0.0
    for container in pod.spec.containers:
        requests = container.resources.requests
        cpu += milli_value(requests[CPU]) if CPU in requests else DEFAULT_MILLI_CPU
        memory += value(requests[MEMORY]) if MEMORY in requests else DEFAULT_MEMORY_BYTES
    return cpu, memory


class PriorityWeights(Protocol):
    """What each prioritiser counts."""

    @property
    def least_requested(self) -> int: ...

    @property
    def most_requested(self) -> int: ...

    @property
    def node_affinity(self) -> int: ...

    @property
    def pod_affinity(self) -> int: ...

    @property
    def balanced_resource(self) -> int: ...


class _Board:
    """The scores of one shape that hang on a node's own row, and up to which change they are right."""

    __slots__ = ("column", "seen")

    def __init__(self, column: Int64Column, seen: int) -> None:
        self.column = column
        self.seen = seen


class Priorities:
    """The prioritisers of one session."""

    def __init__(
        self, nodes: Nodes, books: SessionNodes, jobs: Iterable[Job], weights: PriorityWeights
    ) -> None:
        self._nodes = nodes
        self._books = books
        self._weights = weights
        self._neighbours = LegacyAffinityPriority(nodes, books, jobs)
        self._requests: dict[PodShape, tuple[float, float]] = {}
        self._boards: dict[PodShape, _Board] = {}
        self._cpu: FloatColumn = np.zeros(nodes.size)
        self._memory: FloatColumn = np.zeros(nodes.size)
        for row in range(nodes.size):
            self._sum_up(row)
        self._seen = len(books.changes)

    def scores(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        """The weighted sum for each of the rows, which are those in question."""
        total = self._row_scores(pod).take(rows)
        if self._weights.node_affinity:
            total += self._node_affinity(pod, rows) * np.int64(self._weights.node_affinity)
        if self._weights.pod_affinity:
            scores = self._neighbours.scores(pod, rows)
            total += scores * np.int64(self._weights.pod_affinity)
        return total

    def _row_scores(self, pod: PodInfo) -> Int64Column:
        """Of every row; worked out again where something changed. Not to be changed."""
        changes = self._books.changes
        for row in dict.fromkeys(changes[self._seen :]):
            self._sum_up(row)
        self._seen = len(changes)
        board = self._boards.get(pod.shape)
        if board is None:
            every = np.arange(self._nodes.size, dtype=np.intp)
            board = self._boards[pod.shape] = _Board(self._sum(pod, every), len(changes))
        elif board.seen < len(changes):
            rows = np.array([*dict.fromkeys(changes[board.seen :])], np.intp)
            board.column[rows] = self._sum(pod, rows)
            board.seen = len(changes)
        return board.column

    def _sum(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        total = np.zeros(len(rows), np.int64)
        for prioritise, weight in (
            (self._least_requested, self._weights.least_requested),
            (self._most_requested, self._weights.most_requested),
            (self._balanced, self._weights.balanced_resource),
        ):
            if weight:
                total += prioritise(pod, rows) * np.int64(weight)
        return total

    def _sum_up(self, row: int) -> None:
        cpu = memory = 0.0
        for task in self._books.tasks[row].values():
            more_cpu, more_memory = self._request(task.info)
            cpu += more_cpu
            memory += more_memory
        self._cpu[row], self._memory[row] = cpu, memory

    def _request(self, info: PodInfo) -> tuple[float, float]:
        known = self._requests.get(info.shape)
        if known is None:
            known = self._requests[info.shape] = nonzero_request(info.pod)
        return known

    def _with(self, pod: PodInfo, rows: RowArray) -> tuple[FloatColumn, FloatColumn]:
        """(cpu, memory) in use on the rows, were the pod there too."""
        cpu, memory = self._request(pod)
        return self._cpu[rows] + cpu, self._memory[rows] + memory

    def _capacity(self, rows: RowArray) -> tuple[FloatColumn, FloatColumn]:
        offered = self._books.allocatable
        return offered[CPU][rows], offered[MEMORY][rows]

    def _least_requested(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        pairs = zip(self._with(pod, rows), self._capacity(rows), strict=True)
        cpu, memory = (_part(capacity - used, used, capacity) for used, capacity in pairs)
        return (cpu + memory) // 2

    def _most_requested(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        pairs = zip(self._with(pod, rows), self._capacity(rows), strict=True)
        cpu, memory = (_part(used, used, capacity) for used, capacity in pairs)
        return (cpu + memory) // 2

    def _balanced(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        pairs = zip(self._with(pod, rows), self._capacity(rows), strict=True)
        cpu, memory = (
            np.where(capacity == 0, 1.0, used / np.where(capacity == 0, 1.0, capacity))
            for used, capacity in pairs
        )
        score = ((1 - np.abs(cpu - memory)) * MAX_PRIORITY).astype(np.int64)
        balanced: Int64Column = np.where((cpu >= 1) | (memory >= 1), 0, score)
        return balanced

    def _node_affinity(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        affinity = pod.shape.affinity
        preferred = affinity.node_affinity.preferred if affinity and affinity.node_affinity else ()
        weights = np.zeros(self._nodes.size, np.int64)
        for weighted in preferred:
            # Fields are not looked at; an empty preference matches nothing.
            term = NodeSelectorTerm(match_expressions=weighted.preference.match_expressions)
            weights += term_matches(term, self._nodes) * np.int64(weighted.weight)
        chosen = weights[rows]
        highest = int(chosen.max(initial=0))
        return chosen * MAX_PRIORITY // highest if highest else chosen


def _part(amount: FloatColumn, used: FloatColumn, capacity: FloatColumn) -> Int64Column:
    """``amount`` in tenths of the capacity, cut off; 0 beyond it."""
    # Exact as long as the capacity is below some 10**14.
    tenths = np.floor(amount * MAX_PRIORITY / np.where(capacity == 0, 1.0, capacity))
    part: Int64Column = np.where((capacity == 0) | (used > capacity), 0, tenths).astype(np.int64)
    return part
