"""backfill: places tasks without requests on any feasible node."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from asched.batch.corrections import Correction
from asched.batch.open_session import OpenSession
from asched.batch.statement import PlacementError
from asched.batch.trace import TracedBackfill
from asched.framework.session_objects import Job, Task, TaskStatus
from asched.framework.session_plugins import Action, Session

Allocate = Callable[[Task, int], None]


class Backfill(Action):
    """Ignores queues, orders and scores, because such tasks take no resources from others."""

    name: ClassVar[str] = "backfill"

    def execute(self, session: Session) -> None:
        assert isinstance(session, OpenSession)
        for job in session.jobs.values():
            tasks = [task for task in job.with_status(TaskStatus.PENDING) if task.best_effort]
            if not tasks:
                continue
            if session.corrects(Correction.ROLL_BACK_GANGS):
                self._place_together(session, job, tasks)
            else:
                for task in tasks:
                    self._place(session, task, session.allocate_at_once)

    def _place_together(self, session: OpenSession, job: Job, tasks: list[Task]) -> None:
        """Keeps the placements only if the gang is complete: it may lack other tasks, too."""
        statement = session.statement()
        for task in tasks:
            self._place(session, task, statement.allocate)
        if session.job_ready(job) or session.job_pipelined(job):
            statement.commit()
        else:
            statement.discard()

    def _place(self, session: OpenSession, task: Task, allocate: Allocate) -> None:
        trace, names = session.trace, session.session_nodes.names
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
