"""An open session: the interface between actions, plugins and the session's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from asched.batch.corrections import Correction, corrections_of
from asched.batch.priority_queue import SessionQueue, priority_queue
from asched.batch.snapshot import Snapshot
from asched.batch.statement import BatchStatement, SessionChanges
from asched.batch.tiers import Tiers
from asched.batch.trace import SessionTrace
from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.resource_vector import ResourceVector
from asched.framework.session_objects import Job, Queue, Task, TaskStatus
from asched.framework.sessions import EvictionReason, SessionSpec
from asched.state.cluster import ProfileHandle

T = TypeVar("T")


def over_capability(queue: Queue) -> str:
    """The message for a job of a queue that has reached its capability."""
    return f"queue {queue.name} has reached its capability."


class OpenSession:
    """A :class:`asched.framework.session_plugins.Session` with the methods of built-in actions."""

    def __init__(
        self,
        spec: SessionSpec,
        number: int,
        handle: ProfileHandle,
        snapshot: Snapshot,
        changes: SessionChanges,
        tiers: Tiers,
        trace: SessionTrace,
    ) -> None:
        """The cluster of ``handle`` includes the session's placements, except in compatibility
        mode."""
        self.compatibility = spec.compatibility
        self._corrections = corrections_of(spec.compatibility)
        self._name = f"{spec.scheduler_name}/{number}"
        self.handle = handle
        self.cluster = handle.cluster
        self.nodes = handle.cluster.nodes
        self.session_nodes = snapshot.nodes
        self.jobs = snapshot.jobs
        self.queues = snapshot.queues
        self.total = snapshot.nodes.total()
        self.changes = changes
        self.tiers = tiers
        self.trace = trace
        self._ranks = self._shuffled_ranks()
        self.fit_deltas: dict[str, dict[str, ResourceVector]] = {}
        """By job: by node, the missing resources for the task that allocate tried last."""
        self.fit_errors: dict[str, str] = {}
        """By job: why the last task did not fit."""

    def corrects(self, correction: Correction) -> bool:
        return correction in self._corrections

    def tasks_on(self, row: int) -> Sequence[Task]:
        return [*self.session_nodes.tasks[row].values()]

    def idle(self, row: int) -> ResourceVector:
        return self.session_nodes.at(self.session_nodes.idle, row)

    def releasing(self, row: int) -> ResourceVector:
        return self.session_nodes.at(self.session_nodes.releasing, row)

    def job_order(self, job: Job) -> tuple[Any, ...]:
        return self.tiers.job_order(job)

    def queue_order(self, queue: Queue) -> tuple[Any, ...]:
        return self.tiers.queue_order(queue)

    def task_order(self, task: Task) -> tuple[Any, ...]:
        return self.tiers.task_order(task)

    def overused(self, queue: Queue) -> bool:
        return self.tiers.overused(queue)

    def job_ready(self, job: Job) -> bool:
        return self.tiers.job_ready(job)

    def job_pipelined(self, job: Job) -> bool:
        return self.tiers.job_pipelined(job)

    def allocatable(self, queue: Queue, task: Task, *, reclaiming: bool = False) -> bool:
        """Whether the queue may get the task's request."""
        return self.tiers.allocatable(queue, task, reclaiming=reclaiming)

    def feasible(self, task: Task) -> BoolColumn:
        return self.tiers.predicate(task, self.session_nodes.present)

    def scores(self, task: Task, rows: RowArray) -> Int64Column:
        return self.tiers.node_order(task, rows)

    def preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:
        return self.tiers.preemptable(preemptor, candidates)

    def reclaimable(self, reclaimer: Task, candidates: Sequence[Task]) -> list[Task]:
        return self.tiers.reclaimable(reclaimer, candidates)

    def statement(self) -> BatchStatement:
        return BatchStatement(self.changes, self.trace, self._bind_if_ready)

    def stable_random(self, text: str, below: int) -> int:
        return self.handle.stable_random(f"{self._name}/{text}", below)

    def priority_queue(self, key: Any, items: Iterable[T]) -> SessionQueue[T]:
        """``items`` by ``key``, which is one of the orders above."""
        return priority_queue(key, items, live=not self.corrects(Correction.ORDERED_QUEUES))

    def jobs_by_queue(self, jobs: Iterable[Job]) -> dict[str, SessionQueue[Job]]:
        by_queue: dict[str, list[Job]] = {}
        for job in jobs:
            by_queue.setdefault(job.queue, []).append(job)
        return {name: self.priority_queue(self.job_order, jobs) for name, jobs in by_queue.items()}

    def pending_tasks(self, jobs: Iterable[Job]) -> dict[str, SessionQueue[Task]]:
        """By job."""
        return {
            job.id: self.priority_queue(self.task_order, job.with_status(TaskStatus.PENDING))
            for job in jobs
        }

    def explain_unplaced(self, task: Task) -> None:
        if not self.corrects(Correction.NODES_IN_MESSAGES):
            return
        queue = self.queues[self.jobs[task.job].queue]
        if self.overused(queue):
            message = self.tiers.why_overused(queue)
        elif not self.allocatable(queue, task):
            message = over_capability(queue)
        else:
            message = ""
        self.fit_errors[task.job] = message or self.fit_error(task)

    def fit_error(self, task: Task) -> str:
        """``0/5 nodes are available: 3 Insufficient cpu, 2 node(s) had untolerated taint(s).``

        The form is kube-scheduler's: a node counts for the first predicate that rejects it, or for
        each resource that it is short of.
        """
        counts: Counter[str] = Counter(self.tiers.rejected_nodes(task))
        open_rows = self.feasible(task)
        for name, number in task.init_request.amounts().items():
            if number > 0:
                idle = self.session_nodes.idle.get(name)
                short = open_rows if idle is None else open_rows & (idle < number)
                counts[f"Insufficient {name}"] += int(np.count_nonzero(short))
        reasons = sorted(f"{count} {reason}" for reason, count in counts.items() if count)
        tail = f": {', '.join(reasons)}" if reasons else ""
        return f"0/{self.nodes.cluster_size} nodes are available{tail}."

    def best(self, rows: RowArray, scores: Int64Column) -> int:
        """The row with the highest score; the session's random ranks break ties."""
        ranks = self._ranks if len(rows) == len(self._ranks) else self._ranks.take(rows)
        return int(rows[(scores * np.int64(len(self._ranks)) + ranks).argmax()])

    def _shuffled_ranks(self) -> Int64Column:
        """A pseudo-random rank for each row, which depends on node names and not on rows."""
        ranks = np.empty(self.nodes.size, np.int64)
        every = self.shuffled(np.arange(self.nodes.size, dtype=np.intp), "ranks")
        ranks[every] = np.arange(len(every))
        return ranks

    def shuffled(self, rows: RowArray, words: str) -> RowArray:
        """The rows in a pseudo-random order, which depends on node names and not on rows."""
        salt = np.uint64(self.stable_random(words, 1 << 64))
        order = np.argsort(self.nodes.tie_break_keys[rows] ^ salt, kind="stable")
        shuffled: RowArray = rows[order]
        return shuffled

    def by_node(self, rows: RowArray, scores: Int64Column) -> dict[str, int]:
        """Scores by node name, for a trace."""
        names = self.nodes.names
        return {
            names[row]: score for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
        }

    def begin_task(self, task: Task, word: str = "task") -> None:
        """Counts and traces that an action handles the task."""
        self.changes.counts["tasks"] += 1
        self.trace.line(word, task.key)

    def allocate_at_once(self, task: Task, row: int) -> None:
        """Allocates without a statement, and binds the job's allocated tasks if it is ready.
        Raises :class:`asched.batch.statement.PlacementError`."""
        self.changes.place(task, row, TaskStatus.ALLOCATED, "allocate")
        self._bind_if_ready(task.job)

    def pipeline_at_once(self, task: Task, row: int) -> None:
        """Raises :class:`asched.batch.statement.PlacementError`."""
        self.changes.place(task, row, TaskStatus.PIPELINED, "pipeline")

    def evict_at_once(self, task: Task, reason: EvictionReason, preemptor: Task) -> None:
        self.changes.release(task)
        self.changes.send_eviction(task, reason, preemptor)
        self.trace.line("evict", task.key)

    def _bind_if_ready(self, job_id: str) -> None:
        job = self.jobs[job_id]
        if self.job_ready(job):
            self.changes.send_binds(job)
