"""kube-batch's predicates and scores, which are those of Kubernetes 1.16.

kube-batch evaluates inter-pod affinity per pod and without metadata. Node selectors, required node
affinity and taints have today's semantics and use asched's built-in plugins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from asched.batch.built_in_plugins import MEMORY_PRESSURE, NodeOrderWeights, refused_pressures
from asched.batch.nodes import FloatColumn, condition, is_usable, where
from asched.batch.open_session import OpenSession
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin
from asched.framework.node_matching import term_matches
from asched.framework.nodes import BoolColumn, Int64Column, Nodes, RowArray
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.pod_queries import AffinityTerm, TermKind, WeightedTerm, terms_of
from asched.framework.resource_vector import CPU, MEMORY
from asched.framework.session_objects import ALLOCATED_STATUSES, Task
from asched.model.pod import Pod
from asched.model.quantity import milli_value, value
from asched.model.requests import DEFAULT_MEMORY_BYTES, DEFAULT_MILLI_CPU
from asched.model.selectors import NodeSelectorTerm
from asched.plugins.node_affinity import NodeAffinityArgs, NodeAffinityPlugin
from asched.plugins.taint_toleration import TaintToleration
from asched.state.node_columns import ports_collide

_NO_LABELS: dict[str, str] = {}
MAX_PRIORITY = 10
HARD_AFFINITY_WEIGHT = 1


def _terms(info: PodInfo, kind: TermKind) -> Sequence[WeightedTerm]:
    return terms_of(info.shape, info.namespace)[kind] if info.shape.names_pods else ()


def _matches(term: AffinityTerm, info: PodInfo) -> bool:
    return term.matches(info.label_set, _NO_LABELS)


def _matches_all(terms: Iterable[WeightedTerm], info: PodInfo) -> bool:
    return all(_matches(weighted.term, info) for weighted in terms)


def same_domain(nodes: Nodes, key: str, row: int) -> BoolColumn:
    """The rows with the same label value as ``row``; none if ``row`` has no such label."""
    ids = nodes.label(key).ids
    number = ids[row]
    if not key or number < 0:
        return np.zeros(nodes.size, np.bool_)
    same: BoolColumn = ids == number
    return same


class LegacyAffinityPredicate:
    """The predicate ``MatchInterPodAffinity``."""

    def __init__(self, session: OpenSession) -> None:
        self._nodes = session.nodes
        self._jobs = [*session.jobs.values()]
        every = [task for job in self._jobs for task in job.tasks.values()]
        self._with_anti_affinity = [
            task for task in every if _terms(task.info, TermKind.REQUIRED_ANTI_AFFINITY)
        ]
        present = session.session_nodes.present
        # Constant: a session never changes tasks on other nodes.
        self._fails = any(
            task.status in ALLOCATED_STATUSES and (task.row < 0 or not present[task.row])
            for task in every
        )

    def _placed(self) -> Iterator[Task]:
        """The tasks of the session's jobs that hold resources."""
        for job in self._jobs:
            for status in ALLOCATED_STATUSES:
                yield from job.by_status.get(status, {}).values()

    def feasible(self, pod: PodInfo) -> BoolColumn:
        """The rows that the terms of the pod and of placed pods permit. None if any task is on a
        node outside the session: the check fails then."""
        if self._fails:
            return np.zeros(self._nodes.size, np.bool_)
        passed = np.ones(self._nodes.size, np.bool_)
        for task in self._with_anti_affinity:
            if task.status not in ALLOCATED_STATUSES:
                continue
            for term, _ in _terms(task.info, TermKind.REQUIRED_ANTI_AFFINITY):
                if _matches(term, pod):
                    passed &= ~same_domain(self._nodes, term.topology_key, task.row)
        if not pod.shape.names_pods:
            return passed
        placed = [*self._placed()]
        anti_affinity = _terms(pod, TermKind.REQUIRED_ANTI_AFFINITY)
        if anti_affinity:
            passed &= ~self._near_match(anti_affinity, placed)[0]
        required = _terms(pod, TermKind.REQUIRED_AFFINITY)
        if required:
            near, any_match = self._near_match(required, placed)
            # The first pod of a self-affine group may go anywhere.
            if any_match or not _matches_all(required, pod):
                passed &= near
        return passed

    def _near_match(
        self, terms: Sequence[WeightedTerm], placed: Iterable[Task]
    ) -> tuple[BoolColumn, bool]:
        """(Rows in all topology domains of one task that matches all terms, whether any task
        matches all terms)."""
        near = np.zeros(self._nodes.size, np.bool_)
        any_match = False
        for task in placed:
            if not _matches_all(terms, task.info):
                continue
            any_match = True
            domain = np.ones(self._nodes.size, np.bool_)
            for term, _ in terms:
                domain &= same_domain(self._nodes, term.topology_key, task.row)
            near |= domain
        return near, any_match


class LegacyAffinityPriority:
    """The priority ``InterPodAffinityPriority``."""

    def __init__(self, session: OpenSession) -> None:
        self._nodes = session.nodes
        self._session_nodes = session.session_nodes
        tasks = (task for job in session.jobs.values() for task in job.tasks.values())
        placed = (task for on_node in self._session_nodes.tasks for task in on_node.values())
        self._any_has_terms = any(task.info.shape.names_pods for task in (*tasks, *placed))

    def scores(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        """0 to 10 for each of ``rows``, which are the feasible nodes."""
        own_terms = pod.shape.names_pods
        if not own_terms and not self._any_has_terms:
            return np.zeros(len(rows), np.int64)
        counts = np.zeros(self._nodes.size, np.int64)
        unbound_row = self._row_of_unbound()
        for row in rows.tolist():
            for task in self._session_nodes.tasks[row].values():
                if own_terms or task.info.shape.names_pods:
                    seen_at = row if task.info.pod.node_name else unbound_row
                    if seen_at >= 0:
                        self._count(counts, pod, task.info, seen_at)
        chosen = counts[rows]
        lowest = min(0, int(chosen.min(initial=0)))
        span = max(0, int(chosen.max(initial=0))) - lowest
        if not span:
            return np.zeros(len(rows), np.int64)
        scaled: Int64Column = (MAX_PRIORITY * ((chosen - lowest) / span)).astype(np.int64)
        return scaled

    def _row_of_unbound(self) -> int:
        """The row where kube-batch assumes every pod without ``spec.nodeName``: the first node that
        has such a pod; -1 for none."""
        nodes = self._session_nodes
        for row in np.flatnonzero(nodes.present).tolist():
            if any(not task.info.pod.node_name for task in nodes.tasks[row].values()):
                return int(row)
        return -1

    def _count(self, counts: Int64Column, pod: PodInfo, other: PodInfo, row: int) -> None:
        """Adds the weights between the pod and a placed one to the domains of its node."""
        for kind, sign in (
            (TermKind.PREFERRED_AFFINITY, 1),
            (TermKind.PREFERRED_ANTI_AFFINITY, -1),
        ):
            for term, weight in _terms(pod, kind):
                if _matches(term, other):
                    self._add(counts, term, row, sign * weight)
            for term, weight in _terms(other, kind):
                if _matches(term, pod):
                    self._add(counts, term, row, sign * weight)
        for term, _ in _terms(other, TermKind.REQUIRED_AFFINITY):
            if _matches(term, pod):
                self._add(counts, term, row, HARD_AFFINITY_WEIGHT)

    def _add(self, counts: Int64Column, term: AffinityTerm, row: int, weight: int) -> None:
        counts += same_domain(self._nodes, term.topology_key, row) * np.int64(weight)


class LegacyPredicates:
    """The predicates of one session."""

    def __init__(self, session: OpenSession, arguments: Mapping[str, str]) -> None:
        nodes = self._nodes = session.nodes
        self._session_nodes = session.session_nodes
        self._affinity = LegacyAffinityPredicate(session)
        self._node_plugins: tuple[FilterAllPlugin, ...] = (
            NodeAffinityPlugin(NodeAffinityArgs(), session.handle),
            TaintToleration(None, session.handle),
        )
        self._of_shape: dict[PodShape, list[tuple[str, BoolColumn]]] = {}
        refused = refused_pressures(arguments)
        # Memory pressure concerns only BestEffort pods.
        checks_memory = MEMORY_PRESSURE in refused
        refused.discard(MEMORY_PRESSURE)
        self._usable = where(
            nodes, lambda node: is_usable(node, refused) and not node.spec.unschedulable
        )
        self._short_of_memory = where(
            nodes, lambda node: checks_memory and condition(node, MEMORY_PRESSURE) == "True"
        )

    def feasible(self, task: Task) -> BoolColumn:
        passed = self._usable.copy()
        for _, where_it_passes in self._checks(task):
            passed &= where_it_passes
        return passed

    def rejections(self, task: Task) -> dict[str, int]:
        """The number of rejected nodes by reason; a node counts for the first one."""
        counts: dict[str, int] = {}
        left = self._nodes.alive & self._session_nodes.present
        for reason, passed in (("node is not ready", self._usable), *self._checks(task)):
            refused = int(np.count_nonzero(left & ~passed))
            if refused:
                counts[reason] = refused
            left = left & passed
        return counts

    def _checks(self, task: Task) -> Iterator[tuple[str, BoolColumn]]:
        pod = task.info
        yield "too many pods", self._session_nodes.counts < self._nodes.allowed_pods
        if _is_best_effort(pod):
            yield "node is short of memory", ~self._short_of_memory
        yield from self._node_checks(pod)
        if pod.shape.ports:
            yield "host port taken", ~self._port_conflicts(pod)
        yield "pod affinity", self._affinity.feasible(pod)

    def _node_checks(self, pod: PodInfo) -> Sequence[tuple[str, BoolColumn]]:
        """The checks that depend on node objects only, cached by shape."""
        known = self._of_shape.get(pod.shape)
        if known is None:
            known = self._of_shape[pod.shape] = []
            for plugin in self._node_plugins:
                result = plugin.filter_all(CycleState(), pod, self._nodes)
                reason = result.statuses[0].message if result.statuses else plugin.name
                known.append((reason, result.codes == 0))
        return known

    def _port_conflicts(self, pod: PodInfo) -> BoolColumn:
        conflicts = np.zeros(self._nodes.size, np.bool_)
        for row, tasks in enumerate(self._session_nodes.tasks):
            conflicts[row] = any(
                ports_collide(wanted, taken)
                for task in tasks.values()
                for taken in task.info.shape.ports
                for wanted in pod.shape.ports
            )
        return conflicts


def _is_best_effort(pod: PodInfo) -> bool:
    """QoS class BestEffort: no container has a request or limit of cpu or memory."""
    spec = pod.pod.spec
    return not any(
        name in ("cpu", "memory")
        for container in (*spec.containers, *spec.init_containers)
        for name in (*container.resources.requests, *container.resources.limits)
    )


def nonzero_request(pod: Pod) -> tuple[float, float]:
    """(cpu, memory) without init containers. Containers without a request get a default; an
    explicit zero stays zero (``GetNonzeroRequests``)."""
    cpu = memory = 0.0
    for container in pod.spec.containers:
        requests = container.resources.requests
        cpu += milli_value(requests[CPU]) if CPU in requests else DEFAULT_MILLI_CPU
        memory += value(requests[MEMORY]) if MEMORY in requests else DEFAULT_MEMORY_BYTES
    return cpu, memory


class LegacyScores:
    """The prioritizers of one session, with scores from 0 to 10."""

    def __init__(self, session: OpenSession, weights: NodeOrderWeights) -> None:
        self._nodes = session.nodes
        self._session_nodes = session.session_nodes
        self._weights = weights
        self._affinity = LegacyAffinityPriority(session)
        self._requests: dict[PodShape, tuple[float, float]] = {}
        self._of_shape: dict[PodShape, tuple[Int64Column, int]] = {}
        """The node-local scores, and the length of the change log up to which they are valid."""
        self._cpu: FloatColumn = np.zeros(self._nodes.size)
        self._memory: FloatColumn = np.zeros(self._nodes.size)
        for row in range(self._nodes.size):
            self._sum_requests(row)
        self._seen = len(self._session_nodes.changes)

    def scores(self, task: Task, rows: RowArray) -> Int64Column:
        """The weighted sum for each of the rows, which are the feasible nodes."""
        pod = task.info
        total = self._row_scores(pod).take(rows)
        if self._weights.node_affinity:
            total += self._node_affinity(pod, rows) * np.int64(self._weights.node_affinity)
        if self._weights.pod_affinity:
            scores = self._affinity.scores(pod, rows)
            total += scores * np.int64(self._weights.pod_affinity)
        return total

    def _row_scores(self, pod: PodInfo) -> Int64Column:
        """By row, refreshed for changed rows. Read-only."""
        changes = self._session_nodes.changes
        for row in dict.fromkeys(changes[self._seen :]):
            self._sum_requests(row)
        self._seen = len(changes)
        column, seen = self._of_shape.get(pod.shape, (None, 0))
        if column is None:
            column = self._sum(pod, np.arange(self._nodes.size, dtype=np.intp))
        elif seen < len(changes):
            rows = np.array([*dict.fromkeys(changes[seen:])], np.intp)
            column[rows] = self._sum(pod, rows)
        self._of_shape[pod.shape] = column, len(changes)
        return column

    def _sum(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        total = np.zeros(len(rows), np.int64)
        for prioritize, weight in (
            (self._least_requested, self._weights.least_requested),
            (self._most_requested, self._weights.most_requested),
            (self._balanced, self._weights.balanced_resource),
        ):
            if weight:
                total += prioritize(pod, rows) * np.int64(weight)
        return total

    def _sum_requests(self, row: int) -> None:
        cpu = memory = 0.0
        for task in self._session_nodes.tasks[row].values():
            more_cpu, more_memory = self._request(task.info)
            cpu += more_cpu
            memory += more_memory
        self._cpu[row], self._memory[row] = cpu, memory

    def _request(self, info: PodInfo) -> tuple[float, float]:
        known = self._requests.get(info.shape)
        if known is None:
            known = self._requests[info.shape] = nonzero_request(info.pod)
        return known

    def _usage(self, pod: PodInfo, rows: RowArray) -> Iterator[tuple[FloatColumn, FloatColumn]]:
        """(requested with the pod, capacity) on the rows: of cpu, then of memory."""
        cpu, memory = self._request(pod)
        allocatable = self._session_nodes.allocatable
        yield self._cpu[rows] + cpu, allocatable[CPU][rows]
        yield self._memory[rows] + memory, allocatable[MEMORY][rows]

    def _least_requested(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        usage = self._usage(pod, rows)
        cpu, memory = (_part(capacity - used, used, capacity) for used, capacity in usage)
        return (cpu + memory) // 2

    def _most_requested(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        cpu, memory = (_part(used, used, capacity) for used, capacity in self._usage(pod, rows))
        return (cpu + memory) // 2

    def _balanced(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        cpu, memory = (
            np.where(capacity == 0, 1.0, used / np.where(capacity == 0, 1.0, capacity))
            for used, capacity in self._usage(pod, rows)
        )
        score = ((1 - np.abs(cpu - memory)) * MAX_PRIORITY).astype(np.int64)
        balanced: Int64Column = np.where((cpu >= 1) | (memory >= 1), 0, score)
        return balanced

    def _node_affinity(self, pod: PodInfo, rows: RowArray) -> Int64Column:
        affinity = pod.shape.affinity
        preferred = affinity.node_affinity.preferred if affinity and affinity.node_affinity else ()
        weights = np.zeros(self._nodes.size, np.int64)
        for weighted in preferred:
            # 1.16 ignores matchFields here; an empty preference matches nothing.
            term = NodeSelectorTerm(match_expressions=weighted.preference.match_expressions)
            weights += term_matches(term, self._nodes) * np.int64(weighted.weight)
        chosen = weights[rows]
        highest = int(chosen.max(initial=0))
        return chosen * MAX_PRIORITY // highest if highest else chosen


def _part(amount: FloatColumn, used: FloatColumn, capacity: FloatColumn) -> Int64Column:
    """``amount`` in tenths of the capacity, truncated; 0 if ``used`` exceeds it."""
    # Exact for capacities below about 10**14.
    tenths = np.floor(amount * MAX_PRIORITY / np.where(capacity == 0, 1.0, capacity))
    part: Int64Column = np.where((capacity == 0) | (used > capacity), 0, tenths).astype(np.int64)
    return part
