"""backfill: tasks that ask for nothing go wherever they may."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from asched.batch.books import Misplaced
from asched.batch.open_session import OpenSession
from asched.batch.trace import Backfilling
from asched.framework.session_objects import Task, TaskStatus
from asched.framework.session_plugins import Action, Session


class Backfill(Action):
    """No queue, order or score is looked at: nobody loses anything."""

    name: ClassVar[str] = "backfill"

    def execute(self, session: Session) -> None:
        assert isinstance(session, OpenSession)
        for job in session.jobs.values():
            for task in job.with_status(TaskStatus.PENDING):
                if task.best_effort:
                    self._place(session, task)

    def _place(self, session: OpenSession, task: Task) -> None:
        trace, names = session.trace, session.node_books.names
        trace.line("task", task.key)
        rows = np.flatnonzero(session.feasible(task))
        if trace.wanted:
            trace.decide(task, Backfilling(tuple(sorted(names[row] for row in rows.tolist()))))
        for row in session.shuffled(rows, f"backfill/{task.uid}").tolist():
            try:
                session.allocate_at_once(task, row)
            except Misplaced as problem:
                trace.line("allocate-error", task.key, f"{names[row]}: {problem}")
            else:
                return
