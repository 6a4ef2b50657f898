"""kube-batch's scores: those of Kubernetes 1.16, integers of 0 to 10."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from asched.batch.kubernetes_1_16.neighbours import MAX_PRIORITY, NeighbourScores
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


class Priorities:
    """The prioritisers of one session."""

    def __init__(self, nodes: Nodes, books: SessionNodes, jobs: Iterable[Job]) -> None:
        self._nodes = nodes
        self._books = books
        self._neighbours = NeighbourScores(nodes, books, jobs)
        self._requests: dict[PodShape, tuple[float, float]] = {}
        self._cpu: FloatColumn = np.zeros(nodes.size)
        self._memory: FloatColumn = np.zeros(nodes.size)
        for row in range(nodes.size):
            self._sum_up(row)
        self._seen = len(books.changes)

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
        for row in dict.fromkeys(self._books.changes[self._seen :]):
            self._sum_up(row)
        self._seen = len(self._books.changes)
        cpu, memory = self._request(pod)
        return self._cpu[rows] + cpu, self._memory[rows] + memory

    def _capacity(self, rows: RowArray) -> tuple[FloatColumn, FloatColumn]:
        offered = self._books.allocatable
        return offered[CPU][rows], offered[MEMORY][rows]

    def least_requested(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        pairs = zip(self._with(pod, rows), self._capacity(rows), strict=True)
        cpu, memory = (_part(capacity - used, used, capacity) for used, capacity in pairs)
        return (cpu + memory) // 2

    def most_requested(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        pairs = zip(self._with(pod, rows), self._capacity(rows), strict=True)
        cpu, memory = (_part(used, used, capacity) for used, capacity in pairs)
        return (cpu + memory) // 2

    def balanced(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        pairs = zip(self._with(pod, rows), self._capacity(rows), strict=True)
        cpu, memory = (
            np.where(capacity == 0, 1.0, used / np.where(capacity == 0, 1.0, capacity))
            for used, capacity in pairs
        )
        score = ((1 - np.abs(cpu - memory)) * MAX_PRIORITY).astype(np.int64)
        balanced: Int64Column = np.where((cpu >= 1) | (memory >= 1), 0, score)
        return balanced

    def node_affinity(self, pod: PodInfo, rows: RowArray) -> Int64Column:
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

    def pod_affinity(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        return self._neighbours.scores(pod, rows)


def _part(amount: FloatColumn, used: FloatColumn, capacity: FloatColumn) -> Int64Column:
    """``amount`` in tenths of the capacity, cut off; 0 beyond it."""
    tenths = amount * MAX_PRIORITY // np.where(capacity == 0, 1.0, capacity)
    part: Int64Column = np.where((capacity == 0) | (used > capacity), 0, tenths).astype(np.int64)
    return part
