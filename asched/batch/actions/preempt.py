"""preempt: tasks evict less important ones of their queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import numpy as np

from asched.batch.actions.victims import VictimSearch, VictimSelector, anyone
from asched.batch.corrections import Correction
from asched.batch.open_session import OpenSession
from asched.batch.priority_queue import SessionQueue
from asched.batch.statement import BatchStatement, Misplaced
from asched.framework.pod_info import PodShape
from asched.framework.session_objects import Job, Task, TaskStatus
from asched.framework.session_plugins import Action, Session
from asched.framework.sessions import EvictionReason


class Preempt(Action):
    """First jobs against other jobs of their queue, a gang at a time; then tasks against others of
    their own job. Who evicts does not get the room at once: it waits for it, pipelined."""

    name: ClassVar[str] = "preempt"

    def execute(self, session: Session) -> None:
        assert isinstance(session, OpenSession)
        PreemptionRound(session).run()


class PreemptionRound:
    """One run of the action."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._trace = session.trace
        self._searcher = VictimSelector(session)
        self._uses_room = session.corrects(Correction.ROOM_BEFORE_VICTIMS)
        self._upwards = session.corrects(Correction.PREEMPT_UPWARDS)
        self._queues = dict.fromkeys(job.queue for job in session.jobs.values())
        starved = [job for job in session.jobs.values() if job.count(TaskStatus.PENDING)]
        self._starved = starved
        by_queue: dict[str, list[Job]] = {}
        for job in starved:
            by_queue.setdefault(job.queue, []).append(job)
        self._jobs = {
            queue: session.line(session.job_order, jobs) for queue, jobs in by_queue.items()
        }
        self._tasks = self._lines()

    def run(self) -> None:
        for queue in self._queues:
            self._serve(queue)
            if not self._upwards:
                # kube-batch does so after each queue, with whatever tasks nobody has tried yet.
                self._serve_within()
        if self._upwards:
            self._tasks = self._lines()
            self._serve_within()

    def _lines(self) -> dict[str, SessionQueue[Task]]:
        """The pending tasks of each job, in order."""
        session = self._session
        return {
            job.id: session.line(session.task_order, job.with_status(TaskStatus.PENDING))
            for job in self._starved
        }

    def _serve(self, queue: str) -> None:
        jobs = self._jobs.get(queue)
        while jobs:
            job = jobs.pop()
            self._trace.line("job", job.id)
            if self._against_other_jobs(job):
                jobs.push(job)

    def _serve_within(self) -> None:
        for job in self._starved:
            self._within(job)

    def _against_other_jobs(self, job: Job) -> bool:
        """Whether tasks were placed and the job is pipelined, to be tried again."""
        session, tasks = self._session, self._tasks[job.id]
        statement = session.statement()
        assigned = False

        hunt = self._hunt(lambda other: other is not job and other.queue == job.queue, anyone)
        hopeless: set[PodShape] = set()
        while tasks:
            task = tasks.pop()
            self._session.try_task(task)
            if self._uses_room and task.info.shape in hopeless:
                continue
            if self._preempt(task, statement, hunt):
                assigned = True
            else:
                hopeless.add(task.info.shape)
            if session.job_pipelined(job):
                statement.commit()
                break
        if not session.job_pipelined(job):
            statement.discard()
            return False
        return assigned

    def _within(self, job: Job) -> None:
        """The job's remaining tasks against its running ones, until one finds nobody."""
        tasks = self._tasks[job.id]
        if self._upwards and not self._session.job_pipelined(job):
            return
        while tasks:
            task = tasks.pop()
            self._session.try_task(task, "within-job-task")
            statement = self._session.statement()
            hunt = self._hunt(lambda other: other is job, partial(self._may_replace, task))
            assigned = self._preempt(task, statement, hunt)
            statement.commit()
            if not assigned:
                break

    def _may_replace(self, task: Task, other: Task) -> bool:
        return not self._upwards or task.priority > other.priority

    def _hunt(self, of_job: Callable[[Job], bool], of_task: Callable[[Task], bool]) -> VictimSearch:
        tiers = self._session.tiers
        return VictimSearch(of_job, of_task, tiers.may_lose_to_preemptor, tiers.preemptable)

    # -- one task -----------------------------------------------------------------------------

    def _preempt(self, task: Task, statement: BatchStatement, hunt: VictimSearch) -> bool:
        """Whether the task got a place, by evicting or because there was room after all."""
        session = self._session
        rows = np.flatnonzero(session.feasible(task))
        scores = session.scores(task, rows)
        with_room = self._uses_room and self._may_grow(task)
        if with_room and self._searcher.use_room(task, rows, scores, statement):
            return True
        evict = partial(self._evict, task, statement)
        return self._searcher.evict_on_best(task, rows, scores, hunt, evict, with_room=with_room)

    def _may_grow(self, task: Task) -> bool:
        """Whether the task's queue may have more than it has. Else the task can only take the place
        of others of its queue."""
        queue = self._session.queues[self._session.jobs[task.job].queue]
        return not self._session.overused(queue) and self._session.allocatable(queue, task)

    def _evict(self, task: Task, statement: BatchStatement, row: int, victims: list[Task]) -> None:
        for victim in victims:
            statement.evict(victim, EvictionReason.PREEMPT, task)
        try:
            statement.pipeline(task, row)
        except Misplaced as problem:
            name = self._session.node_books.names[row]
            self._trace.line("pipeline-error", task.key, f"{name}: {problem}")
