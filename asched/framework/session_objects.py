"""Jobs, tasks and queues as a session's plugins and actions see them.

The session alone changes them, by :meth:`asched.framework.session_plugins.Session.allocate` and its
like; a plugin reads.
"""

from __future__ import annotations

from enum import StrEnum

from asched.framework.pod_info import PodInfo
from asched.framework.resource_vector import ResourceVector


class TaskStatus(StrEnum):
    """Where a pod stands, in kube-batch's words."""

    PENDING = "Pending"
    ALLOCATED = "Allocated"
    """A node was chosen and charged, but the gang is not ready: nothing is sent."""
    PIPELINED = "Pipelined"
    """It waits on a node for room that is being released."""
    BINDING = "Binding"
    """It is to be bound, or its binding is under way."""
    BOUND = "Bound"
    RUNNING = "Running"
    RELEASING = "Releasing"
    """It is being deleted, or evicted in this session."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


ALLOCATED_STATUSES = (
    TaskStatus.RUNNING,
    TaskStatus.BOUND,
    TaskStatus.BINDING,
    TaskStatus.ALLOCATED,
)
"""Statuses whose tasks hold resources for good."""


class Task:
    """A pod in a session."""

    __slots__ = (
        "best_effort", "created_s", "info", "init_request", "job", "key", "node", "priority",
        "request", "row", "status", "uid",
    )  # fmt: skip

    def __init__(
        self,
        info: PodInfo,
        *,
        request: ResourceVector,
        init_request: ResourceVector,
        status: TaskStatus,
        priority: int,
        created_s: float,
        best_effort: bool,
    ) -> None:
        self.info = info
        self.key = info.key
        self.uid = info.uid
        self.request = request
        """What it uses while it runs."""
        self.init_request = init_request
        """What it needs to start: the larger of that and what its init containers need."""
        self.status = status
        self.priority = priority
        self.created_s = created_s
        """Creation time, seconds since the epoch."""
        self.best_effort = best_effort
        """It asks for nothing."""
        self.job = ""
        """The id of its job; empty for a pod of another scheduler."""
        self.node = ""
        self.row = -1
        """The row of its node among the session's nodes; -1 where it has none there."""

    def __repr__(self) -> str:
        return f"Task({self.key} {self.status.value}{' on ' + self.node if self.node else ''})"


class Job:
    """The tasks that belong together: those of one PodGroup, real or shadow."""

    def __init__(self, job_id: str) -> None:
        self.id = job_id
        self.name = ""
        self.namespace = ""
        self.queue = ""
        self.min_available = 0
        self.min_member = 0
        """As its PodGroup says; differs from :attr:`min_available` only where a PDB says other."""
        self.priority = 0
        self.created_s = 0.0
        self.shadow = False
        """The PodGroup is made up by the scheduler."""
        self.group = ""
        """``namespace/name`` of its real PodGroup; empty where it has none."""
        self.tasks: dict[str, Task] = {}
        """By uid, in order of arrival."""
        self.by_status: dict[TaskStatus, dict[str, Task]] = {}
        self.allocated_count = 0
        """Tasks in :data:`ALLOCATED_STATUSES`."""

    def add(self, task: Task) -> None:
        task.job = self.id
        self.tasks[task.uid] = task
        self._enter(task)

    def move(self, task: Task, status: TaskStatus) -> None:
        """The task's status changes. Raises KeyError if the task is not the job's."""
        held = self.by_status[task.status]
        del held[task.uid]
        if task.status in ALLOCATED_STATUSES:
            self.allocated_count -= 1
        task.status = status
        self._enter(task)

    def _enter(self, task: Task) -> None:
        self.by_status.setdefault(task.status, {})[task.uid] = task
        if task.status in ALLOCATED_STATUSES:
            self.allocated_count += 1

    def count(self, status: TaskStatus) -> int:
        held = self.by_status.get(status)
        return len(held) if held else 0

    def with_status(self, status: TaskStatus) -> list[Task]:
        held = self.by_status.get(status)
        return [*held.values()] if held else []

    @property
    def ready_count(self) -> int:
        """Tasks that hold resources or are done."""
        return self.allocated_count + self.count(TaskStatus.SUCCEEDED)

    @property
    def waiting_count(self) -> int:
        return self.count(TaskStatus.PIPELINED)

    @property
    def valid_count(self) -> int:
        """Tasks that hold resources, are done, or may still get there."""
        return self.ready_count + self.waiting_count + self.count(TaskStatus.PENDING)

    @property
    def ready(self) -> bool:
        """Whether the gang can start."""
        return self.ready_count >= self.min_available

    @property
    def pipelined(self) -> bool:
        """Whether the gang can start once what it waits for is released."""
        return self.ready_count + self.waiting_count >= self.min_available

    def __repr__(self) -> str:
        return f"Job({self.id})"


class Queue:
    """A queue of jobs."""

    __slots__ = ("capability", "created_s", "name", "weight")

    def __init__(
        self,
        name: str,
        weight: int,
        *,
        created_s: float = 0.0,
        capability: ResourceVector | None = None,
    ) -> None:
        self.name = name
        self.weight = weight
        self.created_s = created_s
        self.capability = capability
        """The most that its jobs may have together; None for no limit. A resource that is not in it
        is not limited."""

    def __repr__(self) -> str:
        return f"Queue({self.name})"
