"""The action ``optimal``: places each job by the solver, or greedily if that is as good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from asched.framework import EXACT, Action, BoolColumn, Job, Session, Statement, Task, TaskStatus
from asched.model import IncubatorPodGroup, Node, SigsPodGroup, VolcanoPodGroup
from asched_optimal.program import (
    MAX_CONFLICTS,
    MAX_VARIABLES,
    Cell,
    GangProgram,
    Objective,
    solve,
)

MAX_SESSION_VARIABLES: Final = 4_000
"""Kinds of tasks times nodes of all programs of a session. The jobs that come later are placed
greedily."""
_GROUPS: Final = (VolcanoPodGroup, SigsPodGroup, IncubatorPodGroup)
_encode = msgspec.json.Encoder(order="deterministic").encode

Places = list[tuple[Task, int]]
"""Tasks with the rows of their nodes."""


class Optimal(Action):
    """Allocates job by job, in the order of queues and jobs.

    A job that is not ready with the best placement that was found keeps nothing. Name ``allocate``
    after this action: it lets gangs wait for resources that are being released.
    """

    name: ClassVar[str] = "optimal"

    def execute(self, session: Session) -> None:
        pending = [job for job in session.jobs.values() if job.queue in session.queues]
        variables = MAX_SESSION_VARIABLES
        while pending:
            job = min(
                pending,
                key=lambda j: (session.queue_order(session.queues[j.queue]), session.job_order(j)),
            )
            pending.remove(job)
            variables -= place_job(session, job, variables)


def place_job(session: Session, job: Job, most_variables: int) -> int:
    """Allocate the pending tasks of a job, if that makes it ready.

    The solver is used if the program has at most ``most_variables``. Returns how many it had.
    """
    tasks = sorted(
        (task for task in job.with_status(TaskStatus.PENDING) if not task.best_effort),
        key=session.task_order,
    )
    if not tasks:
        return 0
    if session.overused(session.queues[job.queue]):
        session.explain_unplaced(tasks[0])
        return 0
    gang = GangPlacement(session, job, tasks)
    chosen = gang.greedy()
    worth, variables = gang.value(chosen), 0
    if gang.could_be_better(worth) and gang.variables <= min(most_variables, MAX_VARIABLES):
        variables = gang.variables
        solved = gang.solved()
        if solved is not None and gang.value(solved) > worth and gang.holds(solved):
            chosen = solved
    statement = session.statement()
    gang.allocate(statement, chosen)
    placed = {task.key for task, _ in chosen}
    unplaced = next((task for task in tasks if task.key not in placed), None)
    if unplaced is not None:
        session.explain_unplaced(unplaced)
    if session.job_ready(job):
        statement.commit()
    else:
        statement.discard()
    return variables


class GangPlacement:
    """Placements of the tasks of one job in a session."""

    def __init__(self, session: Session, job: Job, tasks: Sequence[Task]) -> None:
        self._session = session
        self._queue = session.queues[job.queue]
        self._tasks = tasks
        self._kinds: dict[bytes, list[Task]] = {}
        for task in tasks:
            pod = task.info.pod
            key = _encode((pod.metadata.labels, pod.spec))
            self._kinds.setdefault(key, []).append(task)
        self._domains = self._domains_of(_topology_label(session, job))

    def _domains_of(self, label: str) -> list[int]:
        """The number of each row's domain. Without a label there is one domain."""
        nodes = self._session.nodes
        if not label:
            return [0] * nodes.size
        known = self._session.cluster.objects(Node)
        numbers: dict[str, int] = {}
        found = []
        for row, name in enumerate(nodes.names):
            node = known.get(name)
            value = "" if node is None else node.metadata.labels.get(label, "")
            # A node without the label is a domain of its own.
            found.append(numbers.setdefault(value or f"/{row}", len(numbers)))
        return found

    @property
    def variables(self) -> int:
        """Kinds of tasks times nodes."""
        return len(self._kinds) * self._session.nodes.size

    def value(self, places: Places) -> Objective:
        """What a placement is worth."""
        rows = {row for _, row in places}
        return Objective(len(places), -len({self._domains[row] for row in rows}), -len(rows))

    def could_be_better(self, worth: Objective) -> bool:
        """Whether any placement could be better: not if all tasks are on one node."""
        return worth < Objective(len(self._tasks), -1, -1)

    def greedy(self) -> Places:
        """Each task on the best node by score, ties by name."""
        session, places = self._session, Places()
        statement = session.statement()
        for task in self._tasks:
            if not session.allocatable(self._queue, task):
                break
            feasible = np.flatnonzero(session.feasible(task)).tolist()
            rows = [row for row in feasible if self._fits(task, row)]
            if not rows:
                continue
            column = np.array(rows, dtype=np.intp)
            scores = session.scores(task, column).tolist()
            names = session.nodes.names
            row = min(zip(rows, scores, strict=True), key=lambda at: (-at[1], names[at[0]]))[0]
            statement.allocate(task, row)
            places.append((task, row))
        statement.discard()
        return places

    def holds(self, places: Places) -> bool:
        """Whether the predicates allow each task where it is, with those before it."""
        statement = self._session.statement()
        complete = self.allocate(statement, places)
        statement.discard()
        return complete

    def allocate(self, statement: Statement, places: Places) -> bool:
        """Allocate the tasks up to the first that is not allowed. Returns whether all are."""
        for task, row in places:
            allowed = self._session.allocatable(self._queue, task)
            if not (allowed and self._session.feasible(task)[row] and self._fits(task, row)):
                return False
            statement.allocate(task, row)
        return True

    def solved(self) -> Places | None:
        """The placement of the solver, in the order of the tasks; None if it finds none."""
        kinds = [*self._kinds.values()]
        allowed = self._allowed(kinds)
        rows = np.flatnonzero(allowed.any(axis=0)).tolist()
        if not rows:
            return None
        conflicts = self._conflicts(kinds, allowed) if self._interacts() else {}
        if conflicts is None:
            return None
        place_of = {row: place for place, row in enumerate(rows)}
        resources = sorted({name for tasks in kinds for name in _amounts(tasks[0])})
        idle = [self._session.idle(row) for row in rows]
        found = solve(
            GangProgram(
                counts=tuple(map(len, kinds)),
                requests=_matrix([_amounts(tasks[0]) for tasks in kinds], resources),
                idle=_matrix([vector.amounts() for vector in idle], resources),
                allowed=allowed[:, rows],
                domains=tuple(self._domains[row] for row in rows),
                conflicts={
                    (kind, place_of[row]): frozenset((k, place_of[r]) for k, r in cells)
                    for (kind, row), cells in conflicts.items()
                },
            )
        )
        if found is None:
            return None
        left = {(kind, rows[place]): number for (kind, place), number in found.items()}
        return self._in_order(kinds, left)

    def _in_order(self, kinds: Sequence[list[Task]], left: dict[Cell, int]) -> Places:
        places = Places()
        number_of = {task.uid: number for number, tasks in enumerate(kinds) for task in tasks}
        for task in self._tasks:
            kind = number_of[task.uid]
            row = next((r for (k, r), number in left.items() if k == kind and number), None)
            if row is not None:
                left[kind, row] -= 1
                places.append((task, row))
        return places

    def _allowed(self, kinds: Sequence[list[Task]]) -> BoolColumn:
        """By kind and row, whether a task may run there as things are."""
        found = np.array([self._session.feasible(tasks[0]) for tasks in kinds], dtype=bool)
        for kind, row in np.argwhere(found):
            found[kind, row] = self._fits(kinds[kind][0], int(row))
        return found

    def _interacts(self) -> bool:
        """Whether a task may depend on where other tasks of the job are."""
        for tasks in self._kinds.values():
            spec = tasks[0].info.pod.spec
            affinity = spec.affinity
            if affinity is not None and (affinity.pod_affinity or affinity.pod_anti_affinity):
                return True
            if any(port.host_port for c in spec.containers for port in c.ports):
                return True
        return False

    def _conflicts(
        self, kinds: Sequence[list[Task]], allowed: BoolColumn
    ) -> dict[Cell, frozenset[Cell]] | None:
        """What a task in each cell forbids, found by placing one there and asking the predicates.

        None for more than the solver takes.
        """
        session, found, pairs = self._session, dict[Cell, frozenset[Cell]](), 0
        for kind, row in np.argwhere(allowed).tolist():
            statement = session.statement()
            statement.allocate(kinds[kind][0], row)
            forbidden: set[Cell] = set()
            for other, tasks in enumerate(kinds):
                task = tasks[-1]
                if task is kinds[kind][0]:
                    continue  # the only one of its kind
                lost = allowed[other] & ~session.feasible(task)
                forbidden.update((other, int(r)) for r in np.flatnonzero(lost))
            statement.discard()
            pairs += len(forbidden)
            if pairs > MAX_CONFLICTS:
                return None
            if forbidden:
                found[kind, row] = frozenset(forbidden)
        return found

    def _fits(self, task: Task, row: int) -> bool:
        return task.init_request.less_equal(self._session.idle(row), EXACT)


def _amounts(task: Task) -> dict[str, float]:
    return {name: amount for name, amount in task.init_request.amounts().items() if amount > 0}


def _matrix(vectors: Sequence[dict[str, float]], resources: Sequence[str]) -> NDArray[np.float64]:
    return np.array([[float(v.get(name, 0.0)) for name in resources] for v in vectors])


def _topology_label(session: Session, job: Job) -> str:
    """The narrowest label of the PodGroup's annotation ``asched.dev/preferred-topology``."""
    for kind in _GROUPS:
        group = session.cluster.objects(kind).get(job.group)
        if group is not None:
            labels = group.metadata.annotations.preferred_topology or ""
            return labels.rpartition(",")[2].strip()
    return ""
