"""reclaim: evicts tasks of queues that use more than they deserve."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from asched.batch.actions.victims import VictimCriteria, VictimSelector
from asched.batch.corrections import Correction
from asched.batch.open_session import OpenSession
from asched.batch.priority_queue import SessionQueue
from asched.batch.statement import BatchStatement, PlacementError
from asched.batch.trace import TracedPreemption, TracedVictimSearch
from asched.framework.session_objects import Job, Queue, Task, TaskStatus
from asched.framework.session_plugins import Action, Session
from asched.framework.sessions import EvictionReason


class Reclaim(Action):
    """Evicts tasks of other queues for queues that are not overused. The reclaimer is pipelined."""

    name: ClassVar[str] = "reclaim"

    def execute(self, session: Session) -> None:
        assert isinstance(session, OpenSession)
        ReclaimRound(session).run()


class ReclaimRound:
    """One run of the action."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._trace = session.trace
        self._selector = VictimSelector(session)
        self._for_gangs = session.corrects(Correction.RECLAIM_FOR_GANGS)
        self._uses_room = session.corrects(Correction.ROOM_BEFORE_VICTIMS)
        names = dict.fromkeys(job.queue for job in session.jobs.values())
        queues = [session.queues[name] for name in names]
        self._queues = session.priority_queue(session.queue_order, queues)
        by_queue: dict[str, list[Job]] = {}
        for job in session.jobs.values():
            if job.count(TaskStatus.PENDING):
                by_queue.setdefault(job.queue, []).append(job)
        self._jobs = {
            queue: session.priority_queue(session.job_order, jobs)
            for queue, jobs in by_queue.items()
        }
        self._tasks: dict[str, SessionQueue[Task]] = {
            job.id: session.priority_queue(session.task_order, job.with_status(TaskStatus.PENDING))
            for jobs in by_queue.values()
            for job in jobs
        }

    def run(self) -> None:
        while self._queues:
            queue = self._queues.pop()
            self._trace.line("queue", queue.name)
            if self._session.overused(queue):
                self._trace.line("overused", queue.name)
                continue
            jobs = self._jobs.get(queue.name)
            if not jobs:
                continue
            job = jobs.pop()
            self._trace.line("job", job.id)
            if self._for_gangs:
                self._reclaim_for_gang(queue, job)
                # Other jobs of the queue may need less.
                self._queues.push(queue)
            elif self._reclaim_for_one_task(job):
                self._queues.push(queue)

    def _criteria(self, job: Job) -> VictimCriteria:
        tiers = self._session.tiers
        return VictimCriteria(
            lambda other: other.queue != job.queue,
            lambda _: True,
            tiers.may_lose_to_reclaimer,
            tiers.reclaimable,
        )

    def _reclaim_for_one_task(self, job: Job) -> bool:
        """kube-batch's behavior: one task per job. Returns whether it evicted."""
        session, names = self._session, self._session.session_nodes.names
        tasks = self._tasks[job.id]
        if not tasks:
            return False
        task = tasks.pop()
        session.begin_task(task)
        criteria = self._criteria(job)
        searches: dict[str, TracedVictimSearch] = {}
        evicted = False
        rows = np.flatnonzero(session.feasible(task))
        for row in session.shuffled(rows, f"reclaim/{task.uid}").tolist():
            victims, searches[names[row]] = self._selector.search(
                task, row, criteria, with_room=False
            )
            if victims:
                for victim in victims:
                    session.evict_at_once(victim, EvictionReason.RECLAIM, task)
                self._pipeline_at_once(task, row)
                evicted = True
                break
        self._trace.decide(task, TracedPreemption({}, (), searches))
        return evicted

    def _pipeline_at_once(self, task: Task, row: int) -> None:
        try:
            self._session.pipeline_at_once(task, row)
        except PlacementError as problem:
            name = self._session.session_nodes.names[row]
            self._trace.line("pipeline-error", task.key, f"{name}: {problem}")

    def _reclaim_for_gang(self, queue: Queue, job: Job) -> None:
        """Reclaims for the job's tasks while the queue deserves more. Commits evictions only if the
        gang can then start; allocate places tasks that fit without them."""
        session, tasks = self._session, self._tasks[job.id]
        if self._selector.has_room_for_all(job):
            return
        statement = session.statement()
        while tasks and not session.overused(queue):
            task = tasks.pop()
            session.begin_task(task)
            allowed = session.allocatable(queue, task, reclaiming=True)
            if not allowed or not self._reclaim(job, task, statement):
                break
            if statement.evicts and session.job_pipelined(job):
                statement.commit()
        statement.discard()

    def _reclaim(self, job: Job, task: Task, statement: BatchStatement) -> bool:
        """Returns whether the task was placed."""
        session = self._session
        rows = np.flatnonzero(session.feasible(task))
        if not len(rows):
            return False
        scores = session.scores(task, rows)
        if self._uses_room and self._selector.use_room(task, rows, scores, statement):
            return True
        evict = partial(self._evict, task, statement)
        return self._selector.evict_on_best(
            task, rows, scores, self._criteria(job), evict, with_room=self._uses_room
        )

    def _evict(self, task: Task, statement: BatchStatement, row: int, victims: list[Task]) -> None:
        for victim in victims:
            statement.evict(victim, EvictionReason.RECLAIM, task)
        statement.pipeline(task, row)
