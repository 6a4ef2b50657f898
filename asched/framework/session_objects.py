"""Jobs, tasks and queues of a batch session. Only the session changes them; plugins read them."""

from __future__ import annotations

from enum import StrEnum

from asched.framework.pod_info import PodInfo
from asched.framework.resource_vector import ResourceVector


class TaskStatus(StrEnum):
    """The status of a task (``TaskStatus`` of kube-batch)."""

    PENDING = "Pending"
    ALLOCATED = "Allocated"
    """Allocated on a node; not bound until the gang is ready."""
    PIPELINED = "Pipelined"
    """Waits on a node for resources that are being released."""
    BINDING = "Binding"
    """Binding is decided or in progress."""
    BOUND = "Bound"
    RUNNING = "Running"
    RELEASING = "Releasing"
    """Being deleted, or evicted in this session."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


ALLOCATED_STATUSES = (
    TaskStatus.RUNNING,
    TaskStatus.BOUND,
    TaskStatus.BINDING,
    TaskStatus.ALLOCATED,
)
"""Statuses in which a task occupies resources."""


class Task:
    """A pod in a session."""

    __slots__ = (
        "best_effort",
        "created_s",
        "info",
        "init_request",
        "job",
        "key",
        "node",
        "priority",
        "request",
        "row",
        "status",
        "uid",
    )

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
        """Resources it uses while running."""
        self.init_request = init_request
        """Resources it needs to start, including init containers."""
        self.status = status
        self.priority = priority
        self.created_s = created_s
        """Creation time, seconds since the epoch."""
        self.best_effort = best_effort
        """It requests nothing."""
        self.job = ""
        """Id of its job; empty for a pod of another scheduler."""
        self.node = ""
        self.row = -1
        """Row of its node among the session's nodes, or -1."""

    def __repr__(self) -> str:
        return f"Task({self.key} {self.status.value}{' on ' + self.node if self.node else ''})"


class Job:
    """The tasks of one PodGroup. Pods without a PodGroup get a shadow PodGroup."""

    def __init__(self, job_id: str) -> None:
        self.id = job_id
        self.name = ""
        self.namespace = ""
        self.queue = ""
        self.min_available = 0
        self.min_member = 0
        """``minMember`` of the PodGroup. A PDB may override it in :attr:`min_available`."""
        self.priority = 0
        self.created_s = 0.0
        self.shadow = False
        """The scheduler created the PodGroup in memory."""
        self.group = ""
        """``namespace/name`` of the PodGroup object; empty if there is none."""
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
        """Change the status of a task. Raises KeyError if it is not a task of this job."""
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
        """Number of tasks that occupy resources or succeeded."""
        return self.allocated_count + self.count(TaskStatus.SUCCEEDED)

    @property
    def waiting_count(self) -> int:
        return self.count(TaskStatus.PIPELINED)

    @property
    def valid_count(self) -> int:
        """Number of tasks that are ready, pipelined or pending."""
        return self.ready_count + self.waiting_count + self.count(TaskStatus.PENDING)

    @property
    def ready(self) -> bool:
        """Whether the gang can start."""
        return self.ready_count >= self.min_available

    @property
    def pipelined(self) -> bool:
        """Whether the gang can start once its pipelined tasks get their resources."""
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
        """Limit for all its jobs together. None, or a missing resource, means no limit."""

    def __repr__(self) -> str:
        return f"Queue({self.name})"
