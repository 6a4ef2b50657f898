"""Looking for victims on nodes: what preempt and reclaim have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from asched.batch.corrections import Correction
from asched.batch.open_session import OpenSession
from asched.batch.statement import BatchStatement, Misplaced
from asched.batch.trace import TracedPreemption, TracedVictimSearch, keys
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.resource_vector import ResourceVector
from asched.framework.session_objects import Job, Task, TaskStatus


class VictimSearch(NamedTuple):
    """Whose tasks an action may look at, and who decides about them."""

    of_job: Callable[[Job], bool]
    of_task: Callable[[Task], bool]
    may_lose: Callable[[Job, Task], bool]
    """Whether it is worth looking at the job's tasks for the task."""
    judge: Callable[[Task, Sequence[Task]], list[Task]]
    """Of the candidates, who may go for the task."""


def anyone(task: Task) -> bool:
    return True


class VictimSelector:
    """Finds who has to go from a node so that a task can come."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._spares = session.corrects(Correction.ROOM_BEFORE_VICTIMS)
        self._all_consent = session.corrects(Correction.CONSENT_OF_ALL_TIERS)
        names = session.node_books.names
        self._name_ranks = np.empty(len(names), np.int64)
        self._name_ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        self._rows_of: dict[str, RowArray] = {}
        """By job: where it has tasks running, when the action began."""
        for job in session.jobs.values():
            rows = {task.row for task in job.by_status.get(TaskStatus.RUNNING, {}).values()}
            if rows:
                self._rows_of[job.id] = np.array(sorted(rows), np.intp)

    def best_first(
        self, task: Task, rows: RowArray, scores: Int64Column, hunt: VictimSearch
    ) -> Iterator[int]:
        """Where to look, by score, and of equal ones the name that sorts last first."""
        worth = self._promising(task, rows, hunt)
        if not len(worth):
            return
        ranks = self._name_ranks.take(worth)
        order = scores[np.searchsorted(rows, worth)] * np.int64(len(self._name_ranks)) + ranks
        # The first will mostly do: the others are not sorted before somebody asks for them.
        yield int(worth[order.argmax()])
        yield from worth[np.argsort(-order)[1:]].tolist()

    def _promising(self, task: Task, rows: RowArray, hunt: VictimSearch) -> RowArray:
        """Those of the rows where a victim may be found at all. Of kube-batch all: it looks at each."""
        if not self._all_consent:
            return rows
        promising = np.zeros(self._session.nodes.size, np.bool_)
        for job_id, of_job in self._rows_of.items():
            job = self._session.jobs[job_id]
            if hunt.of_job(job) and hunt.may_lose(job, task):
                promising[of_job] = True
        return rows[promising[rows]]

    def search(
        self, task: Task, row: int, hunt: VictimSearch, *, with_room: bool
    ) -> tuple[list[Task], TracedVictimSearch]:
        """(The victims in the order in which they go, enough of them for the task; none where all
        of them would not be enough) and what to say of it. ``with_room``: what is there, or will be,
        counts as well."""
        candidates = self._candidates(row, hunt)
        allowed = hunt.judge(task, candidates)
        found = TracedVictimSearch(keys(candidates), keys(allowed))
        room = self._room(row) if with_room else ResourceVector()
        return self._enough(task, room, allowed), found

    def evict_on_best(
        self,
        task: Task,
        rows: RowArray,
        scores: Int64Column,
        hunt: VictimSearch,
        evict: Callable[[int, list[Task]], None],
        *,
        with_room: bool,
    ) -> bool:
        """Have ``evict`` make room for the task where victims are found first, best node first, and
        trace where it was looked. Returns whether there were any."""
        session, names = self._session, self._session.node_books.names
        searches: dict[str, TracedVictimSearch] = {}
        found = False
        order: Iterable[int] = self.best_first(task, rows, scores, hunt)
        if session.trace.wanted:
            order = [*order]
        for row in order:
            victims, said = self.search(task, row, hunt, with_room=with_room)
            searches[names[row]] = said
            if victims:
                evict(row, victims)
                found = True
                break
        if session.trace.wanted:
            by_node = session.by_node(rows, scores)
            session.trace.decide(
                task, TracedPreemption(by_node, tuple(names[row] for row in order), searches)
            )
        return found

    def _enough(self, task: Task, gained: ResourceVector, victims: Iterable[Task]) -> list[Task]:
        chosen: list[Task] = []
        for victim in victims:
            if chosen and self._covers(task, gained):
                break
            chosen.append(victim)
            gained.add(victim.request)
        return chosen if self._covers(task, gained) else []

    def _room(self, row: int) -> ResourceVector:
        """What the task would find there anyway."""
        return self._session.idle(row).add(self._session.releasing(row))

    def _covers(self, task: Task, room: ResourceVector) -> bool:
        return task.init_request.less_equal(room, self._session.node_books.tolerance)

    def _candidates(self, row: int, hunt: VictimSearch) -> list[Task]:
        """The running tasks on the node that may be looked at; who is least important first."""
        jobs = self._session.jobs
        running = [
            task
            for task in self._session.node_books.tasks[row].values()
            if task.status is TaskStatus.RUNNING
            and (job := jobs.get(task.job)) is not None
            and hunt.of_job(job)
            and hunt.of_task(task)
        ]
        if len(running) > 1:
            running.sort(key=self._session.task_order, reverse=True)
        return running

    def use_room(
        self, task: Task, rows: RowArray, scores: Int64Column, statement: BatchStatement
    ) -> bool:
        """Take room that is there, or will be, before anybody has to go."""
        session = self._session
        now, later = session.node_books.fit_now_or_later(task.init_request, exact=True)
        for place, fits in ((statement.allocate, now), (statement.pipeline, later)):
            chosen = np.flatnonzero(fits[rows])
            if not len(chosen):
                continue
            try:
                place(task, session.best(rows[chosen], scores[chosen]))
            except Misplaced as problem:
                session.trace.line("allocate-error", task.key, str(problem))
                return False
            return True
        return False

    def has_room_for_all(self, job: Job) -> bool:
        """Whether all pending tasks of the job would find room without anybody going. Told only where
        that is plain: like tasks, which do not mind who else is on a node."""
        pending = job.with_status(TaskStatus.PENDING)
        first = pending[0].info if pending else None
        if first is None or not _minds_nobody(first) or not self._spares:
            return False
        if any(task.info.shape is not first.shape for task in pending):
            return False
        rows = np.flatnonzero(self._session.feasible(pending[0]))
        return self._session.node_books.capacity(pending[0].init_request, rows) >= len(pending)


def _minds_nobody(pod: PodInfo) -> bool:
    affinity = pod.shape.affinity
    near = affinity is not None and (affinity.pod_affinity or affinity.pod_anti_affinity)
    return not (near or pod.shape.ports or pod.pod.spec.topology_spread_constraints)
