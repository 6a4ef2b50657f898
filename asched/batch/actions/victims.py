"""Selects victims for the preempt and reclaim actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from asched.batch.corrections import Correction
from asched.batch.open_session import OpenSession
from asched.batch.statement import BatchStatement, PlacementError
from asched.batch.trace import TracedPreemption, TracedVictimSearch, keys
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.resource_vector import ResourceVector
from asched.framework.session_objects import Job, Task, TaskStatus
from asched.framework.sessions import EvictionReason


class VictimCriteria(NamedTuple):
    """The tasks that an action may evict for a task."""

    reason: EvictionReason
    of_job: Callable[[Job], bool]
    may_lose: Callable[[Job, Task], bool]
    """False if ``permitted`` excludes every task of the job."""
    permitted: Callable[[Task, Sequence[Task]], list[Task]]
    """The candidates that the plugins permit to evict for the task."""
    of_task: Callable[[Task], bool] = lambda _: True


class VictimSelector:
    """Finds the tasks to evict from a node for another task."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._uses_room = session.corrects(Correction.ROOM_BEFORE_VICTIMS)
        self._all_consent = session.corrects(Correction.CONSENT_OF_ALL_TIERS)
        names = session.session_nodes.names
        self._name_ranks = np.empty(len(names), np.int64)
        self._name_ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        self._rows_of: dict[str, RowArray] = {}
        """By job: the rows of its running tasks at the start of the action."""
        for job in session.jobs.values():
            rows = {task.row for task in job.by_status.get(TaskStatus.RUNNING, {}).values()}
            if rows:
                self._rows_of[job.id] = np.array(sorted(rows), np.intp)

    def place(
        self, task: Task, criteria: VictimCriteria, statement: BatchStatement, *, with_room: bool
    ) -> bool:
        """Returns whether the task was placed, with or without evictions. Without ``with_room`` it
        only replaces others."""
        rows = np.flatnonzero(self._session.feasible(task))
        scores = self._session.scores(task, rows)
        if with_room and self._use_room(task, rows, scores, statement):
            return True
        return self._evict_on_best(task, rows, scores, criteria, statement, with_room=with_room)

    def _best_first(
        self, task: Task, rows: RowArray, scores: Int64Column, criteria: VictimCriteria
    ) -> Iterator[int]:
        """The rows to search, by descending score and then by descending name."""
        promising = self._promising(task, rows, criteria)
        if not len(promising):
            return
        ranks = self._name_ranks.take(promising)
        order = scores[np.searchsorted(rows, promising)] * np.int64(len(self._name_ranks)) + ranks
        # The first row usually suffices, so the others are sorted on demand.
        yield int(promising[order.argmax()])
        yield from promising[np.argsort(-order)[1:]].tolist()

    def _promising(self, task: Task, rows: RowArray, criteria: VictimCriteria) -> RowArray:
        """The rows that may have a victim. kube-batch searches all rows."""
        if not self._all_consent:
            return rows
        promising = np.zeros(self._session.nodes.size, np.bool_)
        for job_id, of_job in self._rows_of.items():
            job = self._session.jobs[job_id]
            if criteria.of_job(job) and criteria.may_lose(job, task):
                promising[of_job] = True
        return rows[promising[rows]]

    def search(
        self, task: Task, row: int, criteria: VictimCriteria, *, with_room: bool
    ) -> tuple[list[Task], TracedVictimSearch]:
        """(The victims in order of eviction, or none if all of them do not suffice; the trace).
        ``with_room`` counts the node's idle and releasing amounts, too."""
        candidates = self._candidates(row, criteria)
        permitted = criteria.permitted(task, candidates)
        traced = TracedVictimSearch(keys(candidates), keys(permitted))
        session = self._session
        room = session.idle(row).add(session.releasing(row)) if with_room else ResourceVector()
        return self._enough(task, room, permitted), traced

    def _evict_on_best(
        self,
        task: Task,
        rows: RowArray,
        scores: Int64Column,
        criteria: VictimCriteria,
        statement: BatchStatement,
        *,
        with_room: bool,
    ) -> bool:
        """Evicts the victims on the best node that has any. Returns whether there was one."""
        session, names = self._session, self._session.session_nodes.names
        searches: dict[str, TracedVictimSearch] = {}
        found = False
        order: Iterable[int] = self._best_first(task, rows, scores, criteria)
        if session.trace.wanted:
            order = [*order]
        for row in order:
            victims, searches[names[row]] = self.search(task, row, criteria, with_room=with_room)
            if victims:
                for victim in victims:
                    statement.evict(victim, criteria.reason, task)
                try:
                    statement.pipeline(task, row)
                except PlacementError as problem:
                    session.trace.line("pipeline-error", task.key, f"{names[row]}: {problem}")
                found = True
                break
        if session.trace.wanted:
            by_node = session.by_node(rows, scores)
            session.trace.decide(
                task, TracedPreemption(by_node, tuple(names[row] for row in order), searches)
            )
        return found

    def _enough(self, task: Task, gained: ResourceVector, victims: Iterable[Task]) -> list[Task]:
        tolerance = self._session.session_nodes.tolerance
        chosen: list[Task] = []
        for victim in victims:
            if chosen and task.init_request.less_equal(gained, tolerance):
                break
            chosen.append(victim)
            gained.add(victim.request)
        return chosen if task.init_request.less_equal(gained, tolerance) else []

    def _candidates(self, row: int, criteria: VictimCriteria) -> list[Task]:
        """The node's running tasks that match, least important first."""
        jobs = self._session.jobs
        running = [
            task
            for task in self._session.session_nodes.tasks[row].values()
            if task.status is TaskStatus.RUNNING
            and (job := jobs.get(task.job)) is not None
            and criteria.of_job(job)
            and criteria.of_task(task)
        ]
        if len(running) > 1:
            running.sort(key=self._session.task_order, reverse=True)
        return running

    def _use_room(
        self, task: Task, rows: RowArray, scores: Int64Column, statement: BatchStatement
    ) -> bool:
        """Places the task without evictions, if possible."""
        session = self._session
        now, later = session.session_nodes.fit_now_or_later(task.init_request, exact=True)
        for place, fits in ((statement.allocate, now), (statement.pipeline, later)):
            chosen = np.flatnonzero(fits[rows])
            if not len(chosen):
                continue
            try:
                place(task, session.best(rows[chosen], scores[chosen]))
            except PlacementError as problem:
                session.trace.line("allocate-error", task.key, str(problem))
                return False
            return True
        return False

    def has_room_for_all(self, job: Job) -> bool:
        """Whether all pending tasks of the job certainly fit without evictions. Decided only for
        tasks of one shape that do not depend on other pods."""
        pending = job.with_status(TaskStatus.PENDING)
        first = pending[0].info if pending else None
        if first is None or _depends_on_pods(first) or not self._uses_room:
            return False
        if any(task.info.shape is not first.shape for task in pending):
            return False
        rows = np.flatnonzero(self._session.feasible(pending[0]))
        return self._session.session_nodes.capacity(pending[0].init_request, rows) >= len(pending)


def _depends_on_pods(pod: PodInfo) -> bool:
    constraints = pod.pod.spec.topology_spread_constraints
    return pod.shape.names_pods or bool(pod.shape.ports or constraints)
