"""An open session: the interface between actions, plugins and the session's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from asched.batch.corrections import Correction, corrections_of
from asched.batch.nodes import FloatColumn
from asched.batch.priority_queue import SessionQueue, priority_queue
from asched.batch.session_cluster import SessionHandle
from asched.batch.snapshot import Snapshot
from asched.batch.statement import BatchStatement, SessionChanges
from asched.batch.tiers import Tiers
from asched.batch.trace import SessionTrace
from asched.framework.cluster import Cluster
from asched.framework.nodes import BoolColumn, Int64Column, Nodes, RowArray
from asched.framework.resource_vector import ResourceVector
from asched.framework.session_objects import Job, Queue, Task, TaskStatus
from asched.framework.sessions import Compatibility, EvictionReason, SessionSpec
from asched.state.node_table import NodeTable

T = TypeVar("T")


class OpenSession:
    """A :class:`asched.framework.session_plugins.Session` with the methods of built-in actions."""

    def __init__(
        self,
        spec: SessionSpec,
        number: int,
        handle: SessionHandle,
        table: NodeTable,
        snapshot: Snapshot,
        changes: SessionChanges,
        trace: SessionTrace,
    ) -> None:
        """``table`` includes the session's placements, except in compatibility mode."""
        self._compatibility = spec.compatibility
        self.corrections = corrections_of(spec.compatibility)
        self._name = f"{spec.scheduler_name}/{number}"
        self.handle = handle
        self.table = table
        self.session_nodes = snapshot.nodes
        self._jobs = snapshot.jobs
        self._queues = snapshot.queues
        self.changes = changes
        self.trace = trace
        self._total = snapshot.nodes.total()
        self._ranks = self._shuffled_ranks()
        self.tiers = Tiers([], self.corrections)
        self.fit_deltas: dict[str, dict[str, ResourceVector]] = {}
        """By job: by node, the missing resources for the task that allocate tried last."""
        self.fit_errors: dict[str, str] = {}
        """By job: why the last task did not fit."""

    def corrects(self, correction: Correction) -> bool:
        return correction in self.corrections

    @property
    def compatibility(self) -> Compatibility:
        return self._compatibility

    @property
    def cluster(self) -> Cluster:
        return self.handle.cluster

    @property
    def nodes(self) -> Nodes:
        return self.table

    @property
    def jobs(self) -> Mapping[str, Job]:
        return self._jobs

    @property
    def queues(self) -> Mapping[str, Queue]:
        return self._queues

    @property
    def total(self) -> ResourceVector:
        return self._total

    def drop_job(self, job_id: str) -> None:
        """Removes the job from the session."""
        del self._jobs[job_id]

    def tasks_on(self, row: int) -> Sequence[Task]:
        return [*self.session_nodes.tasks[row].values()]

    def idle(self, row: int) -> ResourceVector:
        return self.session_nodes.at(self.session_nodes.idle, row)

    def releasing(self, row: int) -> ResourceVector:
        return self.session_nodes.at(self.session_nodes.releasing, row)

    # -- combined results of the plugins ------------------------------------------------------

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
        names = self.session_nodes.names
        return BatchStatement(self.changes, names, self.trace, self._bind_if_ready)

    def stable_random(self, text: str, below: int) -> int:
        return self.handle.stable_random(f"{self._name}/{text}", below)

    # -- for actions --------------------------------------------------------------------------

    def priority_queue(self, key: Any, items: Iterable[T]) -> SessionQueue[T]:
        """``items`` by ``key``, which is one of the orders above."""
        return priority_queue(key, items, live=not self.corrects(Correction.ORDERED_QUEUES))

    def fit(self, task: Task, columns: Mapping[str, FloatColumn]) -> BoolColumn:
        """The rows that hold what the task needs to start; ``columns`` are the session nodes'."""
        return self.session_nodes.fit(task.init_request, columns)

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
        ranks = np.empty(self.table.size, np.int64)
        every = self.shuffled(np.arange(self.table.size, dtype=np.intp), "ranks")
        ranks[every] = np.arange(len(every))
        return ranks

    def shuffled(self, rows: RowArray, words: str) -> RowArray:
        """The rows in a pseudo-random order, which depends on node names and not on rows."""
        salt = np.uint64(self.stable_random(words, 1 << 64))
        order = np.argsort(self.table.tie_break_keys[rows] ^ salt, kind="stable")
        shuffled: RowArray = rows[order]
        return shuffled

    def by_node(self, rows: RowArray, scores: Int64Column) -> dict[str, int]:
        """Scores by node name, for a trace."""
        names = self.table.names
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
        self.trace.line("allocate", task.key, self.session_nodes.names[row])
        self.changes.place(task, row, TaskStatus.ALLOCATED)
        self._bind_if_ready(task.job)

    def pipeline_at_once(self, task: Task, row: int) -> None:
        """Raises :class:`asched.batch.statement.PlacementError`."""
        self.trace.line("pipeline", task.key, self.session_nodes.names[row])
        self.changes.place(task, row, TaskStatus.PIPELINED)

    def evict_at_once(self, task: Task, reason: EvictionReason, preemptor: Task) -> None:
        self.changes.release(task)
        self.changes.send_eviction(task, reason, preemptor)
        self.trace.line("evict", task.key)

    def _bind_if_ready(self, job_id: str) -> None:
        job = self._jobs[job_id]
        if self.job_ready(job):
            self.changes.send_binds(job)
