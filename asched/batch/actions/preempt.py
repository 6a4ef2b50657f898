"""preempt: evicts less important tasks of the same queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from asched.batch.actions.victims import VictimCriteria, VictimSelector
from asched.batch.corrections import Correction
from asched.batch.open_session import OpenSession
from asched.batch.statement import BatchStatement
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
        self._session = session
        self._selector = VictimSelector(session)
        self._uses_room = session.corrects(Correction.ROOM_BEFORE_VICTIMS)
        self._upwards = session.corrects(Correction.PREEMPT_UPWARDS)
        pending = [job for job in session.jobs.values() if job.count(TaskStatus.PENDING)]
        by_queue = session.jobs_by_queue(pending)
        self._tasks = session.pending_tasks(pending)
        for queue in dict.fromkeys(job.queue for job in session.jobs.values()):
            jobs = by_queue.get(queue)
            while jobs:
                job = jobs.pop()
                session.trace.line("job", job.id)
                if self._preempt_other_jobs(job):
                    jobs.push(job)
            if not self._upwards:
                # kube-batch does this after each queue, for all tasks that it has not tried yet.
                for job in pending:
                    self._preempt_own_tasks(job)
        if self._upwards:
            self._tasks = session.pending_tasks(pending)
            for job in pending:
                self._preempt_own_tasks(job)

    def _preempt_other_jobs(self, job: Job) -> bool:
        """Returns whether tasks were placed and the job is pipelined, so that it is tried again."""
        session, tasks = self._session, self._tasks[job.id]
        statement = session.statement()
        placed = False

        criteria = self._criteria(lambda other: other is not job and other.queue == job.queue)
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
        self, of_job: Callable[[Job], bool], of_task: Callable[[Task], bool] = lambda _: True
    ) -> VictimCriteria:
        tiers = self._session.tiers
        return VictimCriteria(
            EvictionReason.PREEMPT, of_job, tiers.may_lose_to_preemptor, tiers.preemptable, of_task
        )

    def _preempt(self, task: Task, statement: BatchStatement, criteria: VictimCriteria) -> bool:
        """Returns whether the task was placed, with or without evictions."""
        with_room = self._uses_room and self._queue_may_grow(task)
        return self._selector.place(task, criteria, statement, with_room=with_room)

    def _queue_may_grow(self, task: Task) -> bool:
        """If False, the task can only replace others of its queue."""
        queue = self._session.queues[self._session.jobs[task.job].queue]
        return not self._session.overused(queue) and self._session.allocatable(queue, task)
