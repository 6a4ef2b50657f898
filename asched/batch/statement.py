"""Changes that are made at once and count only together.

The one place where a session changes: who is where, and what is to be sent.

Every change goes through here: the job's count of statuses, the node's books, the cluster that
plugins see, and the plugins that count, always together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from asched.batch.nodes import SessionNodes
from asched.batch.session_volumes import VolumeClaims
from asched.batch.trace import SessionTrace
from asched.framework.pod_info import PodInfo
from asched.framework.session_objects import Job, Task, TaskStatus
from asched.framework.session_plugins import EventHandlerPlugin
from asched.framework.sessions import EvictionReason, SessionBind, SessionEviction

REFUSED = "Selected node NotReady"


class SessionOperation(Protocol):
    """The cluster as plugins see it, if it is to follow the session."""

    def enter(self, row: int, pod: PodInfo) -> None: ...

    def leave(self, row: int, pod: PodInfo) -> None: ...


class Misplaced(Exception):  # noqa: N818  an expected outcome of a known oddity
    """A task could not be placed; the message says why."""


class SessionChanges:
    """Makes changes and remembers what they mean to the outside."""

    def __init__(
        self,
        jobs: Mapping[str, Job],
        nodes: SessionNodes,
        stage: SessionOperation | None,
        volumes: VolumeClaims,
        trace: SessionTrace,
        *,
        forgets_node: bool,
    ) -> None:
        """``forgets_node``: a placement that is taken back leaves no trace on the task. In
        kube-batch the task keeps the name of the node, may be bound there later though the node was
        charged for nothing, and its cache then refuses what the node has no room for.
        """
        self._jobs = jobs
        self._nodes = nodes
        self._stage = stage
        self._volumes = volumes
        self._trace = trace
        self._forgets_node = forgets_node
        self._room = None if forgets_node else {n: c.copy() for n, c in nodes.idle.items()}
        """What is idle if only what was sent counts."""
        self.handlers: list[EventHandlerPlugin] = []
        self.binds: list[SessionBind] = []
        self.evictions: list[SessionEviction] = []
        self.refused_binds: dict[str, str] = {}
        """By pod: what kube-batch's cache says."""
        self.tally: Counter[str] = Counter()
        """What the present action did."""

    # -- placing ------------------------------------------------------------------------------

    def place(self, task: Task, row: int, status: TaskStatus) -> None:
        """``status`` is Allocated or Pipelined. Raises :class:`Misplaced`."""
        name = self._nodes.names[row]
        if status is TaskStatus.ALLOCATED:
            problem = self._volumes.reserve(task, name)
            if problem:
                raise Misplaced(problem)
        self._jobs[task.job].move(task, status)
        if task.node and task.node != name:
            raise Misplaced(
                f"task <{task.info.namespace}/{task.info.name}> already on different node"
                f" <{task.node}>"
            )
        task.node, task.row = name, row
        self._nodes.enter(row, task)
        if self._stage is not None:
            self._stage.enter(row, task.info)
        for handler in self.handlers:
            handler.on_allocate(task)
        self.tally[status.value] += 1

    def unplace(self, task: Task) -> None:
        """The task is pending again."""
        self._jobs[task.job].move(task, TaskStatus.PENDING)
        self._nodes.leave(task.row, task)
        if self._stage is not None:
            self._stage.leave(task.row, task.info)
        for handler in self.handlers:
            handler.on_deallocate(task)
        if self._forgets_node:
            task.node, task.row = "", -1
        self.tally["discarded"] += 1

    # -- evicting -----------------------------------------------------------------------------

    def release(self, task: Task) -> None:
        """The task is going; nothing is sent yet."""
        self._jobs[task.job].move(task, TaskStatus.RELEASING)
        self._renew(task)
        for handler in self.handlers:
            handler.on_deallocate(task)

    def unrelease(self, task: Task) -> None:
        """The task stays after all."""
        self._jobs[task.job].move(task, TaskStatus.RUNNING)
        self._renew(task)
        for handler in self.handlers:
            handler.on_allocate(task)
        self.tally["discarded"] += 1

    def _renew(self, task: Task) -> None:
        self._nodes.leave(task.row, task)
        self._nodes.enter(task.row, task)

    # -- sending ------------------------------------------------------------------------------

    def send_eviction(self, task: Task, reason: EvictionReason, preemptor: Task) -> None:
        self.evictions.append(
            SessionEviction(task.key, task.uid, task.node, reason, preemptor.key, preemptor.uid)
        )
        self.tally["evicted"] += 1

    def send_binds(self, job: Job) -> None:
        """Bind every allocated task of the job; up to the first that cannot be."""
        sent = []
        for task in job.with_status(TaskStatus.ALLOCATED):
            if self._volumes.bind(task) or not self._accepts(task):
                break
            job.move(task, TaskStatus.BINDING)
            self.binds.append(SessionBind(task.key, task.uid, task.node))
            sent.append(task)
        self.tally["bound"] += len(sent)
        if self._trace.wanted:
            for task in sorted(sent, key=lambda task: task.key):
                self._trace.line("bind", task.key, task.node)

    def _accepts(self, task: Task) -> bool:
        """Whether kube-batch's cache takes the binding. Others have nothing to refuse."""
        room = self._room
        if room is None:
            return True
        row = self._nodes.row_of(task.node)
        if not self._nodes.fits(task.request, room, row):
            self.refused_binds[task.key] = REFUSED
            return False
        for name, number in task.request.amounts().items():
            if name in room:
                room[name][row] -= number
        return True


class _Placed(NamedTuple):
    task: Task


class _Evicted(NamedTuple):
    task: Task
    reason: EvictionReason
    preemptor: Task


class BatchStatement:
    """A :class:`asched.framework.session_plugins.Statement`."""

    def __init__(
        self,
        books: SessionChanges,
        names: Sequence[str],
        trace: SessionTrace,
        bind_if_ready: Callable[[str], None],
    ) -> None:
        """``names``: those of nodes, by row."""
        self._books = books
        self._names = names
        self._trace = trace
        self._bind_if_ready = bind_if_ready
        self._operations: list[_Placed | _Evicted] = []

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def evicts(self) -> bool:
        """Whether anybody has to go if this is committed."""
        return any(isinstance(operation, _Evicted) for operation in self._operations)

    def allocate(self, task: Task, row: int) -> None:
        """Raises :class:`asched.batch.statement.Misplaced`."""
        self._trace.line("allocate", task.key, self._names[row])
        self._books.place(task, row, TaskStatus.ALLOCATED)
        self._operations.append(_Placed(task))

    def pipeline(self, task: Task, row: int) -> None:
        """Raises :class:`asched.batch.statement.Misplaced`."""
        self._trace.line("stmt-pipeline", task.key, self._names[row])
        self._books.place(task, row, TaskStatus.PIPELINED)
        self._operations.append(_Placed(task))

    def evict(self, task: Task, reason: EvictionReason, preemptor: Task) -> None:
        self._books.release(task)
        self._operations.append(_Evicted(task, reason, preemptor))
        self._trace.line("stmt-evict", task.key)

    def commit(self) -> None:
        self._trace.line("commit", len(self._operations))
        allocated: dict[str, None] = {}
        for operation in self._operations:
            if isinstance(operation, _Evicted):
                self._books.send_eviction(*operation)
            elif operation.task.status is TaskStatus.ALLOCATED:
                allocated[operation.task.job] = None
        self._operations.clear()
        for job in allocated:
            self._bind_if_ready(job)

    def discard(self) -> None:
        self._trace.line("discard", len(self._operations))
        for operation in reversed(self._operations):
            if isinstance(operation, _Evicted):
                self._books.unrelease(operation.task)
            else:
                self._books.unplace(operation.task)
        self._operations.clear()
