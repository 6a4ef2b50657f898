"""allocate: pending tasks get room that is idle, or wait for room that is being released."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from asched.batch.corrections import Correction
from asched.batch.open_session import OpenSession
from asched.batch.priority_queue import SessionQueue
from asched.batch.refusals import capability_message, refusal_message
from asched.batch.statement import BatchStatement, Misplaced
from asched.batch.trace import TracedPlacement
from asched.framework.resource_vector import EXACT, TOLERANT, ResourceVector
from asched.framework.session_objects import Job, Queue, Task, TaskStatus
from asched.framework.session_plugins import Action, Session


class Allocate(Action):
    """Queue by queue, job by job. A job that is ready is put back after each task, so that others
    get their turn."""

    name: ClassVar[str] = "allocate"

    def execute(self, session: Session) -> None:
        assert isinstance(session, OpenSession)
        Allocation(session).run()


class Allocation:
    """One run of the action."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._trace = session.trace
        self._idle_first = session.corrects(Correction.IDLE_BEFORE_WAITING)
        self._explains = session.corrects(Correction.NODES_IN_MESSAGES)
        self._rolls_back = session.corrects(Correction.ROLL_BACK_GANGS)
        self._tolerance = EXACT if session.corrects(Correction.EXACT_FIT) else TOLERANT
        once = session.corrects(Correction.ORDERED_QUEUES)
        waiting: dict[str, list[Job]] = {}
        entries: list[Queue] = []
        for job in session.jobs.values():
            # kube-batch enters a queue once for each of its jobs.
            if not once or job.queue not in waiting:
                entries.append(session.queues[job.queue])
            waiting.setdefault(job.queue, []).append(job)
        self._queues = session.line(session.queue_order, entries)
        self._jobs = {name: session.line(session.job_order, jobs) for name, jobs in waiting.items()}
        self._tasks: dict[str, SessionQueue[Task]] = {}

    def run(self) -> None:
        session = self._session
        while self._queues:
            queue = self._queues.pop()
            self._trace.line("queue", queue.name)
            jobs = self._jobs[queue.name]
            if session.overused(queue):
                self._trace.line("overused", queue.name)
                if self._explains:
                    self._explain_overuse(queue, jobs)
                continue
            if not jobs:
                continue
            job = jobs.pop()
            self._trace.line("job", job.id)
            if self._serve(queue, job):
                jobs.push(job)
            self._queues.push(queue)

    def _explain_overuse(self, queue: Queue, jobs: SessionQueue[Job]) -> None:
        """To the jobs that will not be served any more."""
        why = self._session.tiers.why_overused(queue)
        while jobs:
            job = jobs.pop()
            if why and job.count(TaskStatus.PENDING):
                self._session.fit_messages.setdefault(job.id, why)

    def _tasks_of(self, job: Job) -> SessionQueue[Task]:
        tasks = self._tasks.get(job.id)
        if tasks is None:
            pending = job.with_status(TaskStatus.PENDING)
            # Tasks that ask for nothing are left to backfill, unless the gang needs them to start.
            if not self._rolls_back or job.ready:
                pending = [t for t in pending if not t.request.is_empty(self._tolerance)]
            tasks = self._tasks[job.id] = self._session.line(self._session.task_order, pending)
        return tasks

    def _serve(self, queue: Queue, job: Job) -> bool:
        """Place tasks until the job is ready. Whether it has more, to be served again."""
        session, tasks = self._session, self._tasks_of(job)
        statement = session.statement()
        again = False
        while tasks:
            task = tasks.pop()
            session.fit_deltas.pop(job.id, None)
            session.fit_messages.pop(job.id, None)
            self._session.try_task(task)
            if not session.allocatable(queue, task):
                self._trace.line("over-capability", task.key)
                session.fit_messages[job.id] = capability_message(queue)
                break
            if not self._place(job, task, statement):
                self._trace.line("nofit", task.key)
                if self._explains:
                    session.fit_messages[job.id] = refusal_message(session, task)
                break
            if session.job_ready(job) and tasks:
                again = True
                break
        if self._rolls_back and len(statement):
            # A gang that only waits for room to be released keeps what it has till then.
            keep = session.job_ready(job) or session.job_pipelined(job)
            statement.commit() if keep else statement.discard()
        return again

    def _place(self, job: Job, task: Task, statement: BatchStatement) -> bool:
        """Whether any node would have the task."""
        session = self._session
        books = session.node_books
        fits_idle, fits_later = books.fit_now_or_later(task.init_request, exact=self._rolls_back)
        allowed = session.feasible(task)
        rows = np.flatnonzero(allowed & (fits_idle if self._idle_first else fits_idle | fits_later))
        if not len(rows) and self._idle_first:
            rows = np.flatnonzero(allowed & fits_later)
        if not len(rows):
            return False
        scores = session.scores(task, rows)
        row = session.best(rows, scores)
        if self._trace.wanted:
            names = books.names
            by_node = session.by_node(rows, scores)
            most = max(by_node.values())
            best = sorted(node for node, score in by_node.items() if score == most)
            self._trace.decide(task, TracedPlacement(by_node, tuple(best), names[row]))
        now = bool(fits_idle[row])
        if not now:
            self._note_delta(job, task, row)
            if not fits_later[row]:
                return True
        try:
            self._settle(task, row, statement, now=now)
        except Misplaced as problem:
            self._trace.line("allocate-error", task.key, f"{books.names[row]}: {problem}")
        return True

    def _settle(self, task: Task, row: int, statement: BatchStatement, *, now: bool) -> None:
        session = self._session
        if self._rolls_back:
            statement.allocate(task, row) if now else statement.pipeline(task, row)
        elif now:
            session.allocate_at_once(task, row)
        else:
            session.pipeline_at_once(task, row)

    def _note_delta(self, job: Job, task: Task, row: int) -> None:
        """What the node lacks for the task, for the message of a gang that does not get ready."""
        delta = self._session.idle(row)
        asked = {
            name: number + TOLERANT.of(name)
            for name, number in task.init_request.amounts().items()
            if number > 0
        }
        left = {name: delta.get(name) - asked.get(name, 0.0) for name in (*delta.names(), *asked)}
        names = self._session.node_books.names
        self._session.fit_deltas[job.id] = {names[row]: ResourceVector.of(left)}
