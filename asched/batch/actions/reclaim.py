"""reclaim: queues take back what others have beyond what they deserve."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from asched.batch.actions.victims import VictimSearch, VictimSelector, anyone
from asched.batch.corrections import Correction
from asched.batch.open_session import OpenSession
from asched.batch.priority_queue import SessionQueue
from asched.batch.statement import BatchStatement, Misplaced
from asched.batch.trace import TracedPreemption, TracedVictimSearch
from asched.framework.session_objects import Job, Queue, Task, TaskStatus
from asched.framework.session_plugins import Action, Session
from asched.framework.sessions import EvictionReason


class Reclaim(Action):
    """Queues that are not overused evict tasks of jobs of other queues, and wait for their room."""

    name: ClassVar[str] = "reclaim"

    def execute(self, session: Session) -> None:
        assert isinstance(session, OpenSession)
        ReclaimRound(session).run()


class ReclaimRound:
    """One run of the action."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._trace = session.trace
        self._searcher = VictimSelector(session)
        self._for_gangs = session.corrects(Correction.RECLAIM_FOR_GANGS)
        self._uses_room = session.corrects(Correction.ROOM_BEFORE_VICTIMS)
        queues = dict.fromkeys(job.queue for job in session.jobs.values())
        self._queues = session.line(
            session.queue_order, [session.queues[queue] for queue in queues]
        )
        by_queue: dict[str, list[Job]] = {}
        for job in session.jobs.values():
            if job.count(TaskStatus.PENDING):
                by_queue.setdefault(job.queue, []).append(job)
        self._jobs = {
            queue: session.line(session.job_order, jobs) for queue, jobs in by_queue.items()
        }
        self._tasks: dict[str, SessionQueue[Task]] = {
            job.id: session.line(session.task_order, job.with_status(TaskStatus.PENDING))
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
            again = self._for_gang(queue, job) if self._for_gangs else self._for_one_task(job)
            if again:
                self._queues.push(queue)

    def _hunt(self, job: Job) -> VictimSearch:
        tiers = self._session.tiers
        return VictimSearch(
            lambda other: other.queue != job.queue,
            anyone,
            tiers.may_lose_to_reclaimer,
            tiers.reclaimable,
        )

    # -- as kube-batch ------------------------------------------------------------------------

    def _for_one_task(self, job: Job) -> bool:
        """Whether a task of the job got somebody's room. The job is done with either way."""
        session, names = self._session, self._session.node_books.names
        tasks = self._tasks[job.id]
        if not tasks:
            return False
        task = tasks.pop()
        self._session.try_task(task)
        hunt = self._hunt(job)
        searches: dict[str, TracedVictimSearch] = {}
        assigned = False
        rows = np.flatnonzero(session.feasible(task))
        for row in session.shuffled(rows, f"reclaim/{task.uid}").tolist():
            victims, said = self._searcher.search(task, row, hunt, with_room=False)
            searches[names[row]] = said
            if victims:
                for victim in victims:
                    session.evict_at_once(victim, EvictionReason.RECLAIM, task)
                self._pipeline_at_once(task, row)
                assigned = True
                break
        self._trace.decide(task, TracedPreemption({}, (), searches))
        return assigned

    def _pipeline_at_once(self, task: Task, row: int) -> None:
        try:
            self._session.pipeline_at_once(task, row)
        except Misplaced as problem:
            name = self._session.node_books.names[row]
            self._trace.line("pipeline-error", task.key, f"{name}: {problem}")

    # -- corrected ----------------------------------------------------------------------------

    def _for_gang(self, queue: Queue, job: Job) -> bool:
        """Reclaim for task after task, as far as the queue may. Nobody goes unless the gang can then
        start, and what fits without is left to allocate. Always true: other jobs of the queue may
        have less far to go."""
        session, tasks = self._session, self._tasks[job.id]
        if self._searcher.has_room_for_all(job):
            return True
        statement = session.statement()
        while tasks and not session.overused(queue):
            task = tasks.pop()
            self._session.try_task(task)
            may = session.allocatable(queue, task, reclaiming=True)
            if not may or not self._reclaim(job, task, statement):
                break
            if statement.evicts and session.job_pipelined(job):
                statement.commit()
        statement.discard()
        return True

    def _reclaim(self, job: Job, task: Task, statement: BatchStatement) -> bool:
        """Whether the task got a place."""
        session = self._session
        rows = np.flatnonzero(session.feasible(task))
        if not len(rows):
            return False
        scores = session.scores(task, rows)
        if self._uses_room and self._searcher.use_room(task, rows, scores, statement):
            return True
        return self._searcher.evict_on_best(
            task, rows, scores, self._hunt(job), partial(self._evict, task, statement),
            with_room=self._uses_room,
        )  # fmt: skip

    def _evict(self, task: Task, statement: BatchStatement, row: int, victims: list[Task]) -> None:
        for victim in victims:
            statement.evict(victim, EvictionReason.RECLAIM, task)
        statement.pipeline(task, row)
