"""preempt: evicts less important tasks of the same queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import numpy as np

from asched.batch.actions.victims import VictimCriteria, VictimSelector
from asched.batch.corrections import Correction
from asched.batch.open_session import OpenSession
from asched.batch.priority_queue import SessionQueue
from asched.batch.statement import BatchStatement, PlacementError
from asched.framework.pod_info import PodShape
from asched.framework.session_objects import Job, Task, TaskStatus
from asched.framework.session_plugins import Action, Session
from asched.framework.sessions import EvictionReason


class Preempt(Action):
    """First preempts for gangs, from other jobs of their queue; then for tasks, from their own job.
    The preemptor is pipelined until its victims are gone."""

    name: ClassVar[str] = "preempt"

    def execute(self, session: Session) -> None:
        assert isinstance(session, OpenSession)
        PreemptionRound(session).run()


class PreemptionRound:
    """One run of the action."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._trace = session.trace
        self._selector = VictimSelector(session)
        self._uses_room = session.corrects(Correction.ROOM_BEFORE_VICTIMS)
        self._upwards = session.corrects(Correction.PREEMPT_UPWARDS)
        self._queues = dict.fromkeys(job.queue for job in session.jobs.values())
        self._pending = [job for job in session.jobs.values() if job.count(TaskStatus.PENDING)]
        by_queue: dict[str, list[Job]] = {}
        for job in self._pending:
            by_queue.setdefault(job.queue, []).append(job)
        self._jobs = {
            queue: session.priority_queue(session.job_order, jobs)
            for queue, jobs in by_queue.items()
        }
        self._tasks = self._pending_tasks()

    def run(self) -> None:
        for queue in self._queues:
            self._preempt_between_jobs(queue)
            if not self._upwards:
                # kube-batch does this after each queue, for all tasks that it has not tried yet.
                self._preempt_within_jobs()
        if self._upwards:
            self._tasks = self._pending_tasks()
            self._preempt_within_jobs()

    def _pending_tasks(self) -> dict[str, SessionQueue[Task]]:
        """By job."""
        session = self._session
        return {
            job.id: session.priority_queue(session.task_order, job.with_status(TaskStatus.PENDING))
            for job in self._pending
        }

    def _preempt_between_jobs(self, queue: str) -> None:
        jobs = self._jobs.get(queue)
        while jobs:
            job = jobs.pop()
            self._trace.line("job", job.id)
            if self._preempt_other_jobs(job):
                jobs.push(job)

    def _preempt_within_jobs(self) -> None:
        for job in self._pending:
            self._preempt_own_tasks(job)

    def _preempt_other_jobs(self, job: Job) -> bool:
        """Returns whether tasks were placed and the job is pipelined, so that it is tried again."""
        session, tasks = self._session, self._tasks[job.id]
        statement = session.statement()
        placed = False

        criteria = self._criteria(
            lambda other: other is not job and other.queue == job.queue, lambda _: True
        )
        hopeless: set[PodShape] = set()
        while tasks:
            task = tasks.pop()
            session.begin_task(task)
            if self._uses_room and task.info.shape in hopeless:
                continue
            if self._preempt(task, statement, criteria):
                placed = True
            else:
                hopeless.add(task.info.shape)
            if session.job_pipelined(job):
                statement.commit()
                break
        if not session.job_pipelined(job):
            statement.discard()
            return False
        return placed

    def _preempt_own_tasks(self, job: Job) -> None:
        """Preempts running tasks of the job for its pending ones, until one finds no victims."""
        tasks = self._tasks[job.id]
        if self._upwards and not self._session.job_pipelined(job):
            return
        while tasks:
            task = tasks.pop()
            self._session.begin_task(task, "within-job-task")
            statement = self._session.statement()
            criteria = self._criteria(lambda other: other is job, partial(self._may_replace, task))
            placed = self._preempt(task, statement, criteria)
            statement.commit()
            if not placed:
                break

    def _may_replace(self, task: Task, other: Task) -> bool:
        return not self._upwards or task.priority > other.priority

    def _criteria(
        self, of_job: Callable[[Job], bool], of_task: Callable[[Task], bool]
    ) -> VictimCriteria:
        tiers = self._session.tiers
        return VictimCriteria(of_job, of_task, tiers.may_lose_to_preemptor, tiers.preemptable)

    def _preempt(self, task: Task, statement: BatchStatement, criteria: VictimCriteria) -> bool:
        """Returns whether the task was placed, with or without evictions."""
        session = self._session
        rows = np.flatnonzero(session.feasible(task))
        scores = session.scores(task, rows)
        with_room = self._uses_room and self._queue_may_grow(task)
        if with_room and self._selector.use_room(task, rows, scores, statement):
            return True
        evict = partial(self._evict, task, statement)
        return self._selector.evict_on_best(
            task, rows, scores, criteria, evict, with_room=with_room
        )

    def _queue_may_grow(self, task: Task) -> bool:
        """If False, the task can only replace others of its queue."""
        queue = self._session.queues[self._session.jobs[task.job].queue]
        return not self._session.overused(queue) and self._session.allocatable(queue, task)

    def _evict(self, task: Task, statement: BatchStatement, row: int, victims: list[Task]) -> None:
        for victim in victims:
            statement.evict(victim, EvictionReason.PREEMPT, task)
        try:
            statement.pipeline(task, row)
        except PlacementError as problem:
            name = self._session.session_nodes.names[row]
            self._trace.line("pipeline-error", task.key, f"{name}: {problem}")
