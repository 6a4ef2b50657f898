"""Looking for victims on nodes: what preempt and reclaim have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from asched.batch.corrections import Correction
from asched.batch.open_session import OpenSession
from asched.batch.statement import BatchStatement
from asched.batch.trace import VictimSearch, keys
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.resource_vector import ResourceVector
from asched.framework.session_objects import Task, TaskStatus

Selector = Callable[[Task], bool]
"""Whether a running task is a candidate at all."""
Judge = Callable[[Task, Sequence[Task]], list[Task]]
"""Of the candidates, who may go for the task."""


class VictimSearcher:
    """Finds who has to go from a node so that a task can come."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._spares = session.corrects(Correction.ROOM_BEFORE_VICTIMS)

    def search(
        self, task: Task, row: int, candidates: Sequence[Task], judge: Judge
    ) -> tuple[list[Task], VictimSearch]:
        """(The victims in the order in which they go, enough of them for the task; none where all
        of them would not be enough) and what to say of it."""
        allowed = judge(task, candidates)
        found = VictimSearch(keys(candidates), keys(allowed))
        return self._enough(task, row, allowed), found

    def _enough(self, task: Task, row: int, victims: Iterable[Task]) -> list[Task]:
        gained = self._room(row)
        chosen: list[Task] = []
        for victim in victims:
            if chosen and self._covers(task, gained):
                break
            chosen.append(victim)
            gained.add(victim.request)
        return chosen if self._covers(task, gained) else []

    def _room(self, row: int) -> ResourceVector:
        """What the task would find there anyway; kube-batch does not count on it."""
        if not self._spares:
            return ResourceVector()
        return self._session.idle(row).add(self._session.releasing(row))

    def _covers(self, task: Task, room: ResourceVector) -> bool:
        return task.init_request.less_equal(room, self._session.node_books.tolerance)

    def candidates(self, row: int, selects: Selector) -> list[Task]:
        """The running tasks on the node that are selected; who is least important first."""
        running = [
            task
            for task in self._session.node_books.tasks[row].values()
            if task.status is TaskStatus.RUNNING and task.job in self._session.jobs
        ]
        return self.least_first([task for task in running if selects(task)])

    def least_first(self, tasks: Sequence[Task]) -> list[Task]:
        return sorted(tasks, key=self._session.task_order, reverse=True)

    def use_room(
        self, task: Task, rows: RowArray, scores: Int64Column, statement: BatchStatement
    ) -> bool:
        """Take room that is there, or will be, before anybody has to go."""
        session = self._session
        now, later = session.node_books.fit_now_or_later(task.init_request, exact=True)
        for place, fits in ((statement.allocate, now), (statement.pipeline, later)):
            chosen = np.flatnonzero(fits[rows])
            if len(chosen):
                place(task, int(session.best(task, rows[chosen], scores[chosen])[0]))
                return True
        return False
