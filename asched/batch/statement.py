"""All changes that a session makes to jobs, nodes and plugins, and statements that group them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from asched.batch.nodes import FloatColumn, SessionNodes
from asched.batch.session_volumes import VolumeClaims
from asched.batch.trace import SessionTrace
from asched.framework.session_objects import Job, Task, TaskStatus
from asched.framework.session_plugins import EventHandlerPlugin
from asched.framework.sessions import EvictionReason, SessionBind, SessionEviction
from asched.state.node_table import NodeTable

REFUSED = "Selected node NotReady"


class PlacementError(Exception):
    """A task cannot be placed. The message says why."""


class SessionChanges:
    """Changes tasks, and collects the bindings and evictions to send. Each change updates the
    job's status counts, the node's amounts, the cluster that plugins see, and the event handler
    plugins."""

    def __init__(
        self,
        jobs: Mapping[str, Job],
        nodes: SessionNodes,
        table: NodeTable | None,
        volumes: VolumeClaims,
        trace: SessionTrace,
    ) -> None:
        """``table``: where plugins see the session's placements; None in compatibility mode. There
        an undone placement leaves the node's name on the task. Such a task may be bound later to a
        node without room, and kube-batch's cache then refuses the binding."""
        self._jobs = jobs
        self._nodes = nodes
        self._table = table
        self._volumes = volumes
        self._trace = trace
        self._cache_idle: dict[str, FloatColumn] | None = None
        """What kube-batch's cache considers idle: only sent bindings use resources."""
        if table is None:
            self._cache_idle = {name: column.copy() for name, column in nodes.idle.items()}
        self.handlers: list[EventHandlerPlugin] = []
        self.binds: list[SessionBind] = []
        self.evictions: list[SessionEviction] = []
        self.refused_binds: dict[str, str] = {}
        """By pod: the error of kube-batch's cache."""
        self.counts: Counter[str] = Counter()
        """Operations of the current action."""

    def place(self, task: Task, row: int, status: TaskStatus, verb: str) -> None:
        """``status`` is Allocated or Pipelined; ``verb`` is for the trace. Raises
        :class:`PlacementError`."""
        name = self._nodes.names[row]
        self._trace.line(verb, task.key, name)
        if status is TaskStatus.ALLOCATED:
            problem = self._volumes.reserve(task, name)
            if problem:
                raise PlacementError(problem)
        self._jobs[task.job].move(task, status)
        if task.node and task.node != name:
            raise PlacementError(
                f"task <{task.info.namespace}/{task.info.name}> already on different node"
                f" <{task.node}>"
            )
        task.node, task.row = name, row
        self._nodes.add(row, task)
        if self._table is not None:
            self._table.add_pod(name, task.info)
        for handler in self.handlers:
            handler.on_allocate(task)
        self.counts[status.value] += 1

    def unplace(self, task: Task) -> None:
        """Makes the task pending again."""
        self._jobs[task.job].move(task, TaskStatus.PENDING)
        self._nodes.remove(task.row, task)
        if self._table is not None:
            self._table.remove_pod(task.node, task.info)
        for handler in self.handlers:
            handler.on_deallocate(task)
        if self._table is not None:
            task.node, task.row = "", -1
        self.counts["discarded"] += 1

    def release(self, task: Task) -> None:
        """Marks the task as releasing, without sending an eviction."""
        self._jobs[task.job].move(task, TaskStatus.RELEASING)
        self._renew(task)
        for handler in self.handlers:
            handler.on_deallocate(task)

    def unrelease(self, task: Task) -> None:
        """Makes the task running again."""
        self._jobs[task.job].move(task, TaskStatus.RUNNING)
        self._renew(task)
        for handler in self.handlers:
            handler.on_allocate(task)
        self.counts["discarded"] += 1

    def _renew(self, task: Task) -> None:
        self._nodes.remove(task.row, task)
        self._nodes.add(task.row, task)

    def send_eviction(self, task: Task, reason: EvictionReason, preemptor: Task) -> None:
        self.evictions.append(
            SessionEviction(task.key, task.uid, task.node, reason, preemptor.key, preemptor.uid)
        )
        self.counts["evicted"] += 1

    def send_binds(self, job: Job) -> None:
        """Binds the job's allocated tasks, up to the first that fails."""
        sent = []
        for task in job.with_status(TaskStatus.ALLOCATED):
            if self._volumes.bind(task) or not self._accepts(task):
                break
            job.move(task, TaskStatus.BINDING)
            self.binds.append(SessionBind(task.key, task.uid, task.node))
            sent.append(task)
        self.counts["bound"] += len(sent)
        if self._trace.wanted:
            for task in sorted(sent, key=lambda task: task.key):
                self._trace.line("bind", task.key, task.node)

    def _accepts(self, task: Task) -> bool:
        """Whether kube-batch's cache accepts the binding; true outside compatibility mode."""
        idle = self._cache_idle
        if idle is None:
            return True
        row = self._nodes.row_of(task.node)
        if not self._nodes.fit(task.request, idle, slice(row, row + 1))[0]:
            self.refused_binds[task.key] = REFUSED
            return False
        for name, number in task.request.amounts().items():
            if name in idle:
                idle[name][row] -= number
        return True


class _Evicted(NamedTuple):
    task: Task
    reason: EvictionReason
    preemptor: Task


class BatchStatement:
    """A :class:`asched.framework.session_plugins.Statement`."""

    def __init__(
        self, changes: SessionChanges, trace: SessionTrace, bind_if_ready: Callable[[str], None]
    ) -> None:
        """``bind_if_ready`` takes a job id."""
        self._changes = changes
        self._trace = trace
        self._bind_if_ready = bind_if_ready
        self._operations: list[Task | _Evicted] = []
        """Placed tasks and evictions."""

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def evicts(self) -> bool:
        return any(isinstance(operation, _Evicted) for operation in self._operations)

    def allocate(self, task: Task, row: int) -> None:
        """Raises :class:`PlacementError`."""
        self._changes.place(task, row, TaskStatus.ALLOCATED, "allocate")
        self._operations.append(task)

    def pipeline(self, task: Task, row: int) -> None:
        """Raises :class:`PlacementError`."""
        self._changes.place(task, row, TaskStatus.PIPELINED, "stmt-pipeline")
        self._operations.append(task)

    def evict(self, task: Task, reason: EvictionReason, preemptor: Task) -> None:
        self._changes.release(task)
        self._operations.append(_Evicted(task, reason, preemptor))
        self._trace.line("stmt-evict", task.key)

    def commit(self) -> None:
        self._trace.line("commit", len(self._operations))
        allocated: dict[str, None] = {}
        for operation in self._operations:
            if isinstance(operation, _Evicted):
                self._changes.send_eviction(*operation)
            elif operation.status is TaskStatus.ALLOCATED:
                allocated[operation.job] = None
        self._operations.clear()
        for job in allocated:
            self._bind_if_ready(job)

    def discard(self) -> None:
        self._trace.line("discard", len(self._operations))
        for operation in reversed(self._operations):
            if isinstance(operation, _Evicted):
                self._changes.unrelease(operation.task)
            else:
                self._changes.unplace(operation)
        self._operations.clear()
