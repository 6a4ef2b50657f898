"""reclaim: evicts tasks of queues that use more than they deserve."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from asched.batch.actions.victims import VictimCriteria, VictimSelector
from asched.batch.corrections import Correction
from asched.batch.open_session import OpenSession
from asched.batch.statement import PlacementError
from asched.batch.trace import TracedPreemption, TracedVictimSearch
from asched.framework.session_objects import Job, Queue, TaskStatus
from asched.framework.session_plugins import Action, Session
from asched.framework.sessions import EvictionReason


class Reclaim(Action):
    """Evicts tasks of other queues for queues that are not overused. The reclaimer is pipelined."""

    name: ClassVar[str] = "reclaim"

    def execute(self, session: Session) -> None:
        assert isinstance(session, OpenSession)
        self._session = session
        self._trace = session.trace
        self._selector = VictimSelector(session)
        self._uses_room = session.corrects(Correction.ROOM_BEFORE_VICTIMS)
        names = dict.fromkeys(job.queue for job in session.jobs.values())
        queues = session.priority_queue(
            session.queue_order, [session.queues[name] for name in names]
        )
        pending = [job for job in session.jobs.values() if job.count(TaskStatus.PENDING)]
        by_queue = session.jobs_by_queue(pending)
        self._tasks = session.pending_tasks(pending)
        while queues:
            queue = queues.pop()
            self._trace.line("queue", queue.name)
            if session.overused(queue):
                self._trace.line("overused", queue.name)
                continue
            jobs = by_queue.get(queue.name)
            if not jobs:
                continue
            job = jobs.pop()
            self._trace.line("job", job.id)
            if session.corrects(Correction.RECLAIM_FOR_GANGS):
                self._reclaim_for_gang(queue, job)
                # Other jobs of the queue may need less.
                queues.push(queue)
            elif self._reclaim_for_one_task(job):
                queues.push(queue)

    def _criteria(self, job: Job) -> VictimCriteria:
        tiers = self._session.tiers
        return VictimCriteria(
            EvictionReason.RECLAIM,
            lambda other: other.queue != job.queue,
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
                try:
                    session.pipeline_at_once(task, row)
                except PlacementError as problem:
                    self._trace.line("pipeline-error", task.key, f"{names[row]}: {problem}")
                evicted = True
                break
        self._trace.decide(task, TracedPreemption({}, (), searches))
        return evicted

    def _reclaim_for_gang(self, queue: Queue, job: Job) -> None:
        """Reclaims for the job's tasks while the queue deserves more. Commits evictions only if the
        gang can then start; allocate places tasks that fit without them."""
        session, tasks = self._session, self._tasks[job.id]
        if self._selector.has_room_for_all(job):
            return
        statement, criteria = session.statement(), self._criteria(job)
        while tasks and not session.overused(queue):
            task = tasks.pop()
            session.begin_task(task)
            if not session.allocatable(queue, task, reclaiming=True) or not self._selector.place(
                task, criteria, statement, with_room=self._uses_room
            ):
                break
            if statement.evicts and session.job_pipelined(job):
                statement.commit()
        statement.discard()
