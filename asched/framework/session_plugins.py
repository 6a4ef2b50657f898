"""What takes part in a batch session: session plugins and actions, as base classes.

A session plugin derives from one class for each callback it serves, an action from :class:`Action`.
Distributions offer them in the entry-point groups :data:`PLUGIN_GROUP` and :data:`ACTION_GROUP`; the
entry point's name is the name that configurations use. Both live for one session. All of it is
synchronous and pure: no clock, no random numbers, no I/O, no dependence on the order of sets.

The callbacks and how tiers combine them are kube-batch's. Where kube-batch compares two jobs, a
plugin here gives a value to sort by.
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
    """Changes to the session that are made at once and can be taken back together."""

    def allocate(self, task: Task, row: int) -> None:
        """The task gets room that is idle."""

    def pipeline(self, task: Task, row: int) -> None:
        """The task waits on the node for room that is being released."""

    def evict(self, task: Task, reason: EvictionReason, preemptor: Task) -> None:
        """The running task goes, for ``preemptor``."""

    def commit(self) -> None:
        """Let it count: evictions are sent, and so are the bindings of a job that is ready."""

    def discard(self) -> None:
        """Take everything back, the latest first."""


class Session(Protocol):
    """An open session."""

    @property
    def compatibility(self) -> Compatibility: ...

    @property
    def cluster(self) -> Cluster:
        """The cluster as the session leaves it: what it placed is there."""

    @property
    def nodes(self) -> Nodes:
        """Columns of :attr:`cluster`. Rows of nodes outside the session stay empty-handed:
        :meth:`feasible` never names them."""

    @property
    def jobs(self) -> Mapping[str, Job]:
        """The jobs of the session by id, in the order in which they were first seen."""

    @property
    def queues(self) -> Mapping[str, Queue]: ...

    @property
    def total(self) -> ResourceVector:
        """What the session's nodes offer together. Not to be changed."""

    def tasks_on(self, row: int) -> Sequence[Task]:
        """The tasks on a node, in the order in which they came."""

    def idle(self, row: int) -> ResourceVector: ...

    def releasing(self, row: int) -> ResourceVector:
        """What is being released and not promised to pipelined tasks."""

    # -- what the plugins say together --------------------------------------------------------

    def job_order(self, job: Job) -> Any:
        """Sorts jobs of a queue: smaller goes first."""

    def queue_order(self, queue: Queue) -> Any: ...

    def task_order(self, task: Task) -> Any: ...

    def overused(self, queue: Queue) -> bool: ...

    def job_ready(self, job: Job) -> bool: ...

    def job_pipelined(self, job: Job) -> bool: ...

    def feasible(self, task: Task) -> BoolColumn:
        """The rows where every predicate lets the task go; room is not looked at."""

    def scores(self, task: Task, rows: RowArray) -> Int64Column:
        """How good each of these rows is for the task."""

    def preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]: ...

    def reclaimable(self, reclaimer: Task, candidates: Sequence[Task]) -> list[Task]: ...

    def statement(self) -> Statement: ...

    def draw(self, words: str, below: int) -> int:
        """A number from 0 to ``below - 1``, in place of a random one."""


class ClosingSession(Protocol):
    """What a plugin may still say when the session closes."""

    def set_condition(self, job: Job, condition_type: str, reason: str, message: str) -> None:
        """The job's PodGroup gets this condition with status True, in place of one of its type."""

    def fit_message(self, job: Job) -> str:
        """How the nodes refused the job's tasks, in kube-batch's words."""


# -- plugins --------------------------------------------------------------------------------------


class SessionPlugin(ABC):
    """Base of all session plugins."""

    name: ClassVar[str]
    """The name that configurations use; must equal the name of the entry point."""

    def __init__(self, arguments: Mapping[str, str]) -> None:
        """``arguments`` as configured. Values are text: the plugin reads them as it pleases."""
        self.arguments = arguments

    def on_open(self, session: Session) -> None:
        """The session begins: all tasks are where they were found. An override calls this one."""
        self.session = session


class ClosingPlugin(SessionPlugin):
    """Asked when a session closes."""

    @abstractmethod
    def on_close(self, closing: ClosingSession) -> None:
        """The actions have run: what is there to be said about the jobs?"""


class EventHandlerPlugin(SessionPlugin):
    """For plugins that keep count of who has what."""

    @abstractmethod
    def on_allocate(self, task: Task) -> None:
        """The task was allocated or pipelined, or an eviction of it was taken back."""

    @abstractmethod
    def on_deallocate(self, task: Task) -> None:
        """The task was evicted, or its placement was taken back."""


class JobOrderPlugin(SessionPlugin):
    """Which job goes first."""

    @abstractmethod
    def job_order(self, job: Job) -> Any:
        """Sorts jobs: smaller goes first. Jobs with equal values are left to the next plugin."""


class QueueOrderPlugin(SessionPlugin):
    """Which queue goes first."""

    @abstractmethod
    def queue_order(self, queue: Queue) -> Any: ...


class TaskOrderPlugin(SessionPlugin):
    """Which task of a job goes first."""

    @abstractmethod
    def task_order(self, task: Task) -> Any: ...


class JobReadyPlugin(SessionPlugin):
    """Has the job enough tasks placed to be started?"""

    @abstractmethod
    def job_ready(self, job: Job) -> bool:
        """Whether enough tasks have room for the job to start."""


class JobPipelinedPlugin(SessionPlugin):
    """Will the job be ready once what is promised to it is free?"""

    @abstractmethod
    def job_pipelined(self, job: Job) -> bool:
        """Whether enough tasks have room or wait for it."""


class ValidateResult(Protocol):
    """Why a job is not worth trying."""

    @property
    def reason(self) -> str: ...

    @property
    def message(self) -> str: ...


class JobValidPlugin(SessionPlugin):
    """Can the job be scheduled at all in this session?"""

    @abstractmethod
    def job_valid(self, job: Job) -> ValidateResult | None:
        """None for a job that is worth trying."""


class OverusedPlugin(SessionPlugin):
    """Has the queue more than it deserves?"""

    @abstractmethod
    def overused(self, queue: Queue) -> bool:
        """Whether the queue has all it deserves."""

    def why_overused(self, queue: Queue) -> str:
        """For explanations: what makes it so."""
        return ""


class AllocatablePlugin(SessionPlugin):
    """May the queue have more for this task?"""

    @abstractmethod
    def allocatable(self, queue: Queue, task: Task, *, reclaiming: bool) -> bool:
        """Whether the queue may have the task's request as well; ``reclaiming``: at the cost of
        other queues."""


class PredicatePlugin(SessionPlugin):
    """Can the task run on a node?"""

    @abstractmethod
    def predicate(self, task: Task) -> BoolColumn:
        """Where the task may go, by row of the session's nodes; room is not looked at."""

    def refusals(self, task: Task) -> Mapping[str, int]:
        """How many nodes were refused for each reason: for explanations, not for decisions."""
        return {}


class NodeOrderPlugin(SessionPlugin):
    """How good is a node for a task?"""

    @abstractmethod
    def node_order(self, task: Task, rows: RowArray) -> Int64Column:
        """The score of each of these rows, which are those that the task could go to."""


class VictimFilter(Protocol):
    """One plugin's opinion while victims are chosen for one task on one node, one by one."""

    def allows(self, candidate: Task) -> bool:
        """Whether this one may go, those taken before being gone."""

    def take(self, candidate: Task) -> None:
        """It goes."""


class PreemptablePlugin(SessionPlugin):
    """Which tasks may be evicted for one of the same queue?"""

    @abstractmethod
    def preemptable(self, preemptor: Task) -> VictimFilter: ...

    def may_lose_to_preemptor(self, job: Job, preemptor: Task) -> bool:
        """Whether any task of the job could pass the test. Saves looking at each; may be generous,
        never mean."""
        return True


class ReclaimablePlugin(SessionPlugin):
    """Which tasks may be evicted for one of another queue?"""

    @abstractmethod
    def reclaimable(self, reclaimer: Task) -> VictimFilter: ...

    def may_lose_to_reclaimer(self, job: Job, reclaimer: Task) -> bool:
        """As :meth:`PreemptablePlugin.may_lose_to_preemptor`."""
        return True


# -- actions --------------------------------------------------------------------------------------


class Action(ABC):
    """A step of a session."""

    name: ClassVar[str]

    @abstractmethod
    def execute(self, session: Session) -> None: ...
