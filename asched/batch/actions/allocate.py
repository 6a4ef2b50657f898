"""allocate and backfill: place pending tasks.

``allocate`` gives them idle resources, or pipelines them on resources that are being released.
``backfill`` places tasks without requests on any feasible node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np

from asched.batch.corrections import Correction
from asched.batch.open_session import OpenSession, over_capability
from asched.batch.priority_queue import SessionQueue
from asched.batch.statement import BatchStatement, PlacementError
from asched.batch.trace import TracedBackfill, TracedPlacement
from asched.framework.resource_vector import EXACT, TOLERANT, ResourceVector
from asched.framework.session_objects import Job, Queue, Task, TaskStatus
from asched.framework.session_plugins import Action, Session


class Allocate(Action):
    """Allocates by queue and job. A job that is ready returns to its queue after each task, so that
    other jobs get their turn."""

    name: ClassVar[str] = "allocate"

    def execute(self, session: Session) -> None:
        assert isinstance(session, OpenSession)
        self._session = session
        self._trace = session.trace
        self._idle_first = session.corrects(Correction.IDLE_BEFORE_WAITING)
        self._explains = session.corrects(Correction.NODES_IN_MESSAGES)
        self._rolls_back = session.corrects(Correction.ROLL_BACK_GANGS)
        self._tolerance = EXACT if session.corrects(Correction.EXACT_FIT) else TOLERANT
        self._tasks: dict[str, SessionQueue[Task]] = {}
        names: Iterable[str] = [job.queue for job in session.jobs.values()]
        if session.corrects(Correction.ORDERED_QUEUES):
            # kube-batch adds a queue once for each of its jobs.
            names = dict.fromkeys(names)
        queues = session.priority_queue(
            session.queue_order, [session.queues[name] for name in names]
        )
        by_queue = session.jobs_by_queue(session.jobs.values())
        while queues:
            queue = queues.pop()
            self._trace.line("queue", queue.name)
            jobs = by_queue[queue.name]
            if session.overused(queue):
                self._trace.line("overused", queue.name)
                if self._explains:
                    self._explain_overuse(queue, jobs)
                continue
            if not jobs:
                continue
            job = jobs.pop()
            self._trace.line("job", job.id)
            if self._allocate(queue, job):
                jobs.push(job)
            queues.push(queue)

    def _explain_overuse(self, queue: Queue, jobs: SessionQueue[Job]) -> None:
        """Sets the message of the jobs that remain in the queue."""
        message = self._session.tiers.why_overused(queue)
        while jobs:
            job = jobs.pop()
            if message and job.count(TaskStatus.PENDING):
                self._session.fit_errors.setdefault(job.id, message)

    def _tasks_of(self, job: Job) -> SessionQueue[Task]:
        tasks = self._tasks.get(job.id)
        if tasks is None:
            pending = job.with_status(TaskStatus.PENDING)
            # Backfill places tasks without requests, unless the gang needs them to start.
            if not self._rolls_back or job.ready:
                pending = [t for t in pending if not t.request.is_empty(self._tolerance)]
            tasks = self._session.priority_queue(self._session.task_order, pending)
            self._tasks[job.id] = tasks
        return tasks

    def _allocate(self, queue: Queue, job: Job) -> bool:
        """Places tasks until the job is ready. Returns whether the job is ready and has more."""
        session, tasks = self._session, self._tasks_of(job)
        statement = session.statement()
        again = False
        while tasks:
            task = tasks.pop()
            session.fit_deltas.pop(job.id, None)
            session.fit_errors.pop(job.id, None)
            session.begin_task(task)
            if not session.allocatable(queue, task):
                self._trace.line("over-capability", task.key)
                session.fit_errors[job.id] = over_capability(queue)
                break
            if not self._place(job, task, statement):
                self._trace.line("nofit", task.key)
                if self._explains:
                    session.fit_errors[job.id] = session.fit_error(task)
                break
            if session.job_ready(job) and tasks:
                again = True
                break
        if self._rolls_back and len(statement):
            # A pipelined gang keeps its allocations until the releases it waits for.
            keep = session.job_ready(job) or session.job_pipelined(job)
            statement.commit() if keep else statement.discard()
        return again

    def _place(self, job: Job, task: Task, statement: BatchStatement) -> bool:
        """Returns whether any node is feasible for the task."""
        session = self._session
        nodes = session.session_nodes
        fits_idle, fits_later = nodes.fit_now_or_later(task.init_request, exact=self._rolls_back)
        feasible = session.feasible(task)
        rows = np.flatnonzero(
            feasible & (fits_idle if self._idle_first else fits_idle | fits_later)
        )
        if not len(rows) and self._idle_first:
            rows = np.flatnonzero(feasible & fits_later)
        if not len(rows):
            return False
        scores = session.scores(task, rows)
        row = session.best(rows, scores)
        if self._trace.wanted:
            by_node = session.by_node(rows, scores)
            most = max(by_node.values())
            best = sorted(node for node, score in by_node.items() if score == most)
            self._trace.decide(task, TracedPlacement(by_node, tuple(best), nodes.names[row]))
        now = bool(fits_idle[row])
        if not now:
            self._set_fit_delta(job, task, row)
            if not fits_later[row]:
                return True
        try:
            self._assign(task, row, statement, now=now)
        except PlacementError as problem:
            self._trace.line("allocate-error", task.key, f"{nodes.names[row]}: {problem}")
        return True

    def _assign(self, task: Task, row: int, statement: BatchStatement, *, now: bool) -> None:
        session = self._session
        if self._rolls_back:
            statement.allocate(task, row) if now else statement.pipeline(task, row)
        elif now:
            session.allocate_at_once(task, row)
        else:
            session.pipeline_at_once(task, row)

    def _set_fit_delta(self, job: Job, task: Task, row: int) -> None:
        """Stores the node's missing resources for the message of a gang that does not get ready."""
        delta = self._session.idle(row)
        requested = {
            name: number + TOLERANT.of(name)
            for name, number in task.init_request.amounts().items()
            if number > 0
        }
        left = {
            name: delta.get(name) - requested.get(name, 0.0)
            for name in (*delta.names(), *requested)
        }
        names = self._session.session_nodes.names
        self._session.fit_deltas[job.id] = {names[row]: ResourceVector.of(left)}


class Backfill(Action):
    """Ignores queues, orders and scores, because such tasks take no resources from others."""

    name: ClassVar[str] = "backfill"

    def execute(self, session: Session) -> None:
        assert isinstance(session, OpenSession)
        self._session = session
        for job in session.jobs.values():
            tasks = [task for task in job.with_status(TaskStatus.PENDING) if task.best_effort]
            if not tasks:
                continue
            if session.corrects(Correction.ROLL_BACK_GANGS):
                self._place_together(job, tasks)
            else:
                for task in tasks:
                    self._place(task, session.allocate_at_once)

    def _place_together(self, job: Job, tasks: list[Task]) -> None:
        """Keeps the placements only if the gang is complete: it may lack other tasks, too."""
        session = self._session
        statement = session.statement()
        for task in tasks:
            self._place(task, statement.allocate)
        if session.job_ready(job) or session.job_pipelined(job):
            statement.commit()
        else:
            statement.discard()

    def _place(self, task: Task, allocate: Callable[[Task, int], None]) -> None:
        session, trace = self._session, self._session.trace
        names = session.session_nodes.names
        session.begin_task(task)
        rows = np.flatnonzero(session.feasible(task))
        if trace.wanted:
            trace.decide(task, TracedBackfill(tuple(sorted(names[row] for row in rows.tolist()))))
        for row in session.shuffled(rows, f"backfill/{task.uid}").tolist():
            try:
                allocate(task, row)
            except PlacementError as problem:
                trace.line("allocate-error", task.key, f"{names[row]}: {problem}")
            else:
                return
