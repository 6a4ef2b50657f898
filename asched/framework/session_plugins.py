"""Base classes of session plugins and actions.

A session plugin derives from one base class for each callback it implements. Distributions offer
plugins and actions in the entry-point groups :data:`PLUGIN_GROUP` and :data:`ACTION_GROUP`; the
entry point's name is the name in configurations. Instances live for one session. All methods are
synchronous and pure: no clock, no random numbers, no I/O.

Callbacks and tiers work as in kube-batch. Instead of comparing two jobs, a plugin returns a sort
key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from asched.framework.cluster import Cluster
from asched.framework.nodes import BoolColumn, Int64Column, Nodes, RowArray
from asched.framework.resource_vector import ResourceVector
from asched.framework.session_objects import Job, Queue, Task
from asched.framework.sessions import Compatibility, EvictionReason

PLUGIN_GROUP = "asched.session_plugins"
ACTION_GROUP = "asched.actions"


class Statement(Protocol):
    """Changes to the session that take effect immediately and can be rolled back together."""

    def allocate(self, task: Task, row: int) -> None:
        """Allocate idle resources of the node."""

    def pipeline(self, task: Task, row: int) -> None:
        """Let the task wait for resources that are being released on the node."""

    def evict(self, task: Task, reason: EvictionReason, preemptor: Task) -> None:
        """Evict the running task for ``preemptor``."""

    def commit(self) -> None:
        """Send the evictions, and the bindings of jobs that are ready."""

    def discard(self) -> None:
        """Roll back all changes, the latest first."""


class Session(Protocol):
    """An open session."""

    @property
    def compatibility(self) -> Compatibility: ...

    @property
    def cluster(self) -> Cluster:
        """The cluster with the placements of this session."""

    @property
    def nodes(self) -> Nodes:
        """Columns of :attr:`cluster`. :meth:`feasible` excludes nodes outside the session."""

    @property
    def jobs(self) -> Mapping[str, Job]:
        """Jobs by id, in the order in which they were first observed."""

    @property
    def queues(self) -> Mapping[str, Queue]: ...

    @property
    def total(self) -> ResourceVector:
        """Allocatable resources of all nodes of the session; read-only."""

    def tasks_on(self, row: int) -> Sequence[Task]:
        """The tasks on a node, in order of arrival."""

    def idle(self, row: int) -> ResourceVector: ...

    def releasing(self, row: int) -> ResourceVector:
        """Resources that are being released and not reserved for pipelined tasks."""

    # -- combined results of the plugins ------------------------------------------------------

    def job_order(self, job: Job) -> Any:
        """A sort key: smaller goes first."""

    def queue_order(self, queue: Queue) -> Any: ...

    def task_order(self, task: Task) -> Any: ...

    def overused(self, queue: Queue) -> bool: ...

    def allocatable(self, queue: Queue, task: Task, *, reclaiming: bool = False) -> bool:
        """Whether the queue may also use the task's request."""

    def job_ready(self, job: Job) -> bool: ...

    def job_pipelined(self, job: Job) -> bool: ...

    def feasible(self, task: Task) -> BoolColumn:
        """The rows on which all predicates pass. Free resources are not considered."""

    def scores(self, task: Task, rows: RowArray) -> Int64Column:
        """The score of each row for the task."""

    def preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]: ...

    def reclaimable(self, reclaimer: Task, candidates: Sequence[Task]) -> list[Task]: ...

    def statement(self) -> Statement: ...

    def explain_unplaced(self, task: Task) -> None:
        """Set the message of the task's job to why the task gets no node in the present state.

        For actions that place tasks. Without it, a job that does not start has a general message.
        """

    def stable_random(self, text: str, below: int) -> int:
        """A reproducible pseudo-random number from 0 to ``below - 1``."""


class ClosingSession(Protocol):
    """What a plugin can do when the session closes."""

    def set_condition(self, job: Job, condition_type: str, reason: str, message: str) -> None:
        """Set a condition of the job's PodGroup, with status True."""

    def fit_message(self, job: Job) -> str:
        """kube-batch's message about why the job's tasks do not fit on nodes."""


class SessionPlugin(ABC):
    """Base of all session plugins."""

    name: ClassVar[str]
    """The name in configurations; must equal the name of the entry point."""

    def __init__(self, arguments: Mapping[str, str]) -> None:
        """``arguments`` as configured; the plugin parses the values."""
        self.arguments = arguments

    def on_open(self, session: Session) -> None:
        """The session opens. An override must call this method."""
        self.session = session


class ClosingPlugin(SessionPlugin):
    """Called when the session closes."""

    @abstractmethod
    def on_close(self, closing: ClosingSession) -> None:
        """All actions have run: set conditions of PodGroups."""


class EventHandlerPlugin(SessionPlugin):
    """For plugins that track allocations."""

    @abstractmethod
    def on_allocate(self, task: Task) -> None:
        """The task was allocated or pipelined, or its eviction was rolled back."""

    @abstractmethod
    def on_deallocate(self, task: Task) -> None:
        """The task was evicted, or its placement was rolled back."""


class JobOrderPlugin(SessionPlugin):
    """Orders the jobs of a queue."""

    @abstractmethod
    def job_order(self, job: Job) -> Any:
        """A sort key: smaller goes first. The next plugin orders jobs with equal keys."""


class QueueOrderPlugin(SessionPlugin):
    """Orders queues."""

    @abstractmethod
    def queue_order(self, queue: Queue) -> Any: ...


class TaskOrderPlugin(SessionPlugin):
    """Orders the tasks of a job."""

    @abstractmethod
    def task_order(self, task: Task) -> Any: ...


class JobReadyPlugin(SessionPlugin):
    """Decides whether a job is ready to start."""

    @abstractmethod
    def job_ready(self, job: Job) -> bool:
        """Whether enough tasks are allocated for the job to start."""


class JobPipelinedPlugin(SessionPlugin):
    """Decides whether a job will be ready once resources are released."""

    @abstractmethod
    def job_pipelined(self, job: Job) -> bool:
        """Whether enough tasks are allocated or pipelined."""


class ValidateResult(Protocol):
    """Why a job is invalid (``ValidateResult`` of kube-batch)."""

    @property
    def reason(self) -> str: ...

    @property
    def message(self) -> str: ...


class JobValidPlugin(SessionPlugin):
    """Validates jobs."""

    @abstractmethod
    def job_valid(self, job: Job) -> ValidateResult | None:
        """None if the job is valid."""


class OverusedPlugin(SessionPlugin):
    """Decides whether a queue is overused."""

    @abstractmethod
    def overused(self, queue: Queue) -> bool:
        """Whether the queue uses all of its deserved share."""

    def why_overused(self, queue: Queue) -> str:
        """The reason, for explanations."""
        return ""


class AllocatablePlugin(SessionPlugin):
    """Decides whether a queue may get more resources."""

    @abstractmethod
    def allocatable(self, queue: Queue, task: Task, *, reclaiming: bool) -> bool:
        """Whether the task's request may be added to the queue. ``reclaiming``: from others."""


class PredicatePlugin(SessionPlugin):
    """Filters nodes for a task."""

    @abstractmethod
    def predicate(self, task: Task) -> BoolColumn:
        """By row, whether the task can run there. Free resources are not considered."""

    def rejections(self, task: Task) -> Mapping[str, int]:
        """Number of rejected nodes by reason, for explanations."""
        return {}


class NodeOrderPlugin(SessionPlugin):
    """Scores nodes for a task."""

    @abstractmethod
    def node_order(self, task: Task, rows: RowArray) -> Int64Column:
        """The score of each of these feasible rows."""


class VictimFilter(Protocol):
    """One plugin's decisions while victims for one task are selected on one node."""

    def allows(self, candidate: Task) -> bool:
        """Whether the candidate may be evicted in addition to those taken before."""

    def take(self, candidate: Task) -> None:
        """The candidate was selected as a victim."""


class PreemptablePlugin(SessionPlugin):
    """Selects tasks that may be evicted for a task of the same queue."""

    @abstractmethod
    def preemptable(self, preemptor: Task) -> VictimFilter: ...

    def may_lose_to_preemptor(self, job: Job, preemptor: Task) -> bool:
        """Whether any task of the job could be a victim. An optimization: False must be exact."""
        return True


class ReclaimablePlugin(SessionPlugin):
    """Selects tasks that may be evicted for a task of another queue."""

    @abstractmethod
    def reclaimable(self, reclaimer: Task) -> VictimFilter: ...

    def may_lose_to_reclaimer(self, job: Job, reclaimer: Task) -> bool:
        """See :meth:`PreemptablePlugin.may_lose_to_preemptor`."""
        return True


class Action(ABC):
    """A step of a session."""

    name: ClassVar[str]

    @abstractmethod
    def execute(self, session: Session) -> None: ...
