"""Inter-pod affinity as Kubernetes 1.16 has it where kube-batch calls it: pod by pod, no metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from asched.batch.nodes import SessionNodes
from asched.framework.nodes import BoolColumn, Int64Column, Nodes, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import AffinityTerm, TermKind, WeightedTerm, terms_of
from asched.framework.session_objects import ALLOCATED_STATUSES, Job, Task

_NO_LABELS: dict[str, str] = {}
MAX_PRIORITY = 10
HARD_AFFINITY_WEIGHT = 1


def has_terms(info: PodInfo) -> bool:
    affinity = info.shape.affinity
    return affinity is not None and bool(affinity.pod_affinity or affinity.pod_anti_affinity)


def _terms(info: PodInfo, kind: TermKind) -> Sequence[WeightedTerm]:
    return terms_of(info.shape, info.namespace)[kind] if has_terms(info) else ()


def _means(term: AffinityTerm, info: PodInfo) -> bool:
    return term.matches(info.label_set, _NO_LABELS)


def _means_in_all(terms: Iterable[WeightedTerm], info: PodInfo) -> bool:
    return all(_means(weighted.term, info) for weighted in terms)


def same_domain(nodes: Nodes, key: str, row: int) -> BoolColumn:
    """Where nodes have the same value of the label as the node of ``row``, which must have it."""
    ids = nodes.label(key).ids
    number = ids[row]
    if not key or number < 0:
        return np.zeros(nodes.size, np.bool_)
    same: BoolColumn = ids == number
    return same


class LegacyAffinityPredicate:
    """The predicate ``MatchInterPodAffinity``."""

    def __init__(self, nodes: Nodes, books: SessionNodes, jobs: Iterable[Job]) -> None:
        self._nodes = nodes
        self._jobs = [*jobs]
        every = [task for job in self._jobs for task in job.tasks.values()]
        self._demanding = [
            task for task in every if _terms(task.info, TermKind.REQUIRED_ANTI_AFFINITY)
        ]
        # No session moves who is outside of it.
        self._fails = any(
            task.status in ALLOCATED_STATUSES and (task.row < 0 or not books.present[task.row])
            for task in every
        )

    def _placed(self) -> Iterator[Task]:
        """The tasks of the session's jobs that hold resources."""
        for job in self._jobs:
            for status in ALLOCATED_STATUSES:
                yield from job.by_status.get(status, {}).values()

    def feasible(self, pod: PodInfo) -> BoolColumn:
        """Where the terms of the pod and of those placed let it go. Nowhere, as long as any task
        sits on a node that is not in the session: the check fails then."""
        if self._fails:
            return np.zeros(self._nodes.size, np.bool_)
        passed = np.ones(self._nodes.size, np.bool_)
        for task in self._demanding:
            if task.status not in ALLOCATED_STATUSES:
                continue
            for term, _ in _terms(task.info, TermKind.REQUIRED_ANTI_AFFINITY):
                if _means(term, pod):
                    passed &= ~same_domain(self._nodes, term.topology_key, task.row)
        if not has_terms(pod):
            return passed
        placed = [*self._placed()]
        apart = _terms(pod, TermKind.REQUIRED_ANTI_AFFINITY)
        if apart:
            passed &= ~self._near_one(apart, placed)[0]
        together = _terms(pod, TermKind.REQUIRED_AFFINITY)
        if together:
            near, anybody = self._near_one(together, placed)
            # The first of a series may start anywhere.
            if anybody or not _means_in_all(together, pod):
                passed &= near
        return passed

    def _near_one(
        self, terms: Sequence[WeightedTerm], placed: Iterable[Task]
    ) -> tuple[BoolColumn, bool]:
        """(Where one and the same task is meant by all terms and near by all of them, whether any
        task is meant by all)."""
        near = np.zeros(self._nodes.size, np.bool_)
        anybody = False
        for task in placed:
            if not _means_in_all(terms, task.info):
                continue
            anybody = True
            where = np.ones(self._nodes.size, np.bool_)
            for term, _ in terms:
                where &= same_domain(self._nodes, term.topology_key, task.row)
            near |= where
        return near, anybody


class LegacyAffinityPriority:
    """The priority ``InterPodAffinityPriority``."""

    def __init__(self, nodes: Nodes, books: SessionNodes, jobs: Iterable[Job]) -> None:
        self._nodes = nodes
        self._books = books
        tasks = (task for job in jobs for task in job.tasks.values())
        standing = (task for tasks_here in books.tasks for task in tasks_here.values())
        self._somebody_has_terms = any(has_terms(task.info) for task in (*tasks, *standing))

    def scores(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        """0 to 10 for each of ``rows``, which are the nodes in question."""
        anyone = has_terms(pod)
        if not anyone and not self._somebody_has_terms:
            return np.zeros(len(rows), np.int64)
        counts = np.zeros(self._nodes.size, np.int64)
        elsewhere = self._row_of_unbound()
        for row in rows.tolist():
            for task in self._books.tasks[row].values():
                if anyone or has_terms(task.info):
                    fixed = row if task.info.pod.node_name else elsewhere
                    if fixed >= 0:
                        self._count(counts, pod, task.info, fixed)
        chosen = counts[rows]
        lowest = min(0, int(chosen.min(initial=0)))
        span = max(0, int(chosen.max(initial=0))) - lowest
        if not span:
            return np.zeros(len(rows), np.int64)
        scaled: Int64Column = (MAX_PRIORITY * ((chosen - lowest) / span)).astype(np.int64)
        return scaled

    def _row_of_unbound(self) -> int:
        """kube-batch looks for the node of a pod without ``spec.nodeName``, and finds some node that
        has a pod without it."""
        for row in np.flatnonzero(self._books.present).tolist():
            if any(not task.info.pod.node_name for task in self._books.tasks[row].values()):
                return int(row)
        return -1

    def _count(self, counts: Int64Column, pod: PodInfo, other: PodInfo, row: int) -> None:
        """What the pod and one that is placed think of each other, in the domains of its node."""
        for kind, sign in (
            (TermKind.PREFERRED_AFFINITY, 1),
            (TermKind.PREFERRED_ANTI_AFFINITY, -1),
        ):
            for term, weight in _terms(pod, kind):
                if _means(term, other):
                    self._add(counts, term, row, sign * weight)
            for term, weight in _terms(other, kind):
                if _means(term, pod):
                    self._add(counts, term, row, sign * weight)
        for term, _ in _terms(other, TermKind.REQUIRED_AFFINITY):
            if _means(term, pod):
                self._add(counts, term, row, HARD_AFFINITY_WEIGHT)

    def _add(self, counts: Int64Column, term: AffinityTerm, row: int, weight: int) -> None:
        counts += same_domain(self._nodes, term.topology_key, row) * np.int64(weight)
