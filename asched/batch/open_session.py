"""An open session: what actions and plugins work with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from asched.batch.corrections import Correction, corrections_of
from asched.batch.nodes import FloatColumn
from asched.batch.priority_queue import SessionQueue, line
from asched.batch.session_handle import SessionHandle
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
    """A :class:`asched.framework.session_plugins.Session`, with what only built-in actions use."""

    def __init__(
        self,
        spec: SessionSpec,
        number: int,
        handle: SessionHandle,
        table: NodeTable,
        snapshot: Snapshot,
        books: SessionChanges,
        trace: SessionTrace,
    ) -> None:
        """``number`` counts the profile's sessions. ``table``: the nodes as the session leaves them."""
        self._compatibility = spec.compatibility
        self.corrections = corrections_of(spec.compatibility)
        self._name = f"{spec.scheduler_name}/{number}"
        self.handle = handle
        self.table = table
        self.node_books = snapshot.nodes
        self._jobs = snapshot.jobs
        self._queues = snapshot.queues
        self.books = books
        self.trace = trace
        self._total = snapshot.nodes.total()
        self._ranks = self._drawn_ranks()
        self.tiers = Tiers([], self.corrections)
        self.fit_deltas: dict[str, dict[str, ResourceVector]] = {}
        """By job: by node, what was lacking there for the task that allocate tried last."""
        self.fit_messages: dict[str, str] = {}
        """By job: how the nodes refused the task that did not fit."""

    def corrects(self, correction: Correction) -> bool:
        return correction in self.corrections

    # -- what is there ------------------------------------------------------------------------

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
        """The job takes no part in the session."""
        del self._jobs[job_id]

    def tasks_on(self, row: int) -> Sequence[Task]:
        return [*self.node_books.tasks[row].values()]

    def idle(self, row: int) -> ResourceVector:
        return self.node_books.at(self.node_books.idle, row)

    def releasing(self, row: int) -> ResourceVector:
        return self.node_books.at(self.node_books.releasing, row)

    # -- what the plugins say together --------------------------------------------------------

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
        """Whether the queue may have the task's request as well."""
        return self.tiers.allocatable(queue, task, reclaiming=reclaiming)

    def feasible(self, task: Task) -> BoolColumn:
        return self.tiers.predicate(task, self.node_books.present)

    def scores(self, task: Task, rows: RowArray) -> Int64Column:
        return self.tiers.node_order(task, rows)

    def preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:
        return self.tiers.preemptable(preemptor, candidates)

    def reclaimable(self, reclaimer: Task, candidates: Sequence[Task]) -> list[Task]:
        return self.tiers.reclaimable(reclaimer, candidates)

    def statement(self) -> BatchStatement:
        return BatchStatement(self.books, self.node_books.names, self.trace, self._bind_if_ready)

    def draw(self, words: str, below: int) -> int:
        return self.handle.draw(f"{self._name}/{words}", below)

    # -- for actions --------------------------------------------------------------------------

    def line(self, key: Any, items: Iterable[T]) -> SessionQueue[T]:
        """``items`` in order of ``key``, which is one of the orders above."""
        return line(key, items, live=not self.corrects(Correction.ORDERED_QUEUES))

    def fit(self, task: Task, columns: Mapping[str, FloatColumn]) -> BoolColumn:
        """Where what the task needs to start is there, by one of the columns of the node books."""
        return self.node_books.fit(task.init_request, columns)

    def best(self, rows: RowArray, scores: Int64Column) -> int:
        """The row with the highest score; of several the one that this session's lot prefers."""
        ranks = self._ranks if len(rows) == len(self._ranks) else self._ranks.take(rows)
        return int(rows[(scores * np.int64(len(self._ranks)) + ranks).argmax()])

    def _drawn_ranks(self) -> Int64Column:
        """A place for each row among all, drawn for this session. Hangs on names, not on rows."""
        ranks = np.empty(self.table.size, np.int64)
        every = self.shuffled(np.arange(self.table.size, dtype=np.intp), "ranks")
        ranks[every] = np.arange(len(every))
        return ranks

    def shuffled(self, rows: RowArray, words: str) -> RowArray:
        """The rows in an order that is as good as random and hangs on names, not on rows."""
        ticket = np.uint64(self.draw(words, 1 << 64))
        order = np.argsort(self.table.tie_break_keys[rows] ^ ticket, kind="stable")
        shuffled: RowArray = rows[order]
        return shuffled

    def by_node(self, rows: RowArray, scores: Int64Column) -> dict[str, int]:
        """Scores by the node's name, for a trace."""
        names = self.table.names
        return {
            names[row]: score for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
        }

    def try_task(self, task: Task, word: str = "task") -> None:
        """An action turns to the task."""
        self.books.tally["tasks"] += 1
        self.trace.line(word, task.key)

    def allocate_at_once(self, task: Task, row: int) -> None:
        """Allocate outside of any statement, and bind the job's allocated tasks if it is ready now.
        Raises :class:`asched.batch.statement.Misplaced`."""
        self.trace.line("allocate", task.key, self.node_books.names[row])
        self.books.place(task, row, TaskStatus.ALLOCATED)
        self._bind_if_ready(task.job)

    def pipeline_at_once(self, task: Task, row: int) -> None:
        """Raises :class:`asched.batch.statement.Misplaced`."""
        self.trace.line("pipeline", task.key, self.node_books.names[row])
        self.books.place(task, row, TaskStatus.PIPELINED)

    def evict_at_once(self, task: Task, reason: EvictionReason, preemptor: Task) -> None:
        self.books.release(task)
        self.books.send_eviction(task, reason, preemptor)
        self.trace.line("evict", task.key)

    def _bind_if_ready(self, job_id: str) -> None:
        job = self._jobs[job_id]
        if self.job_ready(job):
            self.books.send_binds(job)
