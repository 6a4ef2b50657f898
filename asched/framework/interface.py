"""The extension points as base classes.

A plugin is one class that derives from one base class for each extension point it serves.
Distributions offer plugins in the entry-point group :data:`ENTRY_POINT_GROUP`; the entry point's
name is the plugin's name.

Extension points before PreBind are part of a decision: their methods are synchronous and pure. They
read no clock, draw no random numbers, do no I/O and do not depend on the iteration order of sets,
so a replay gives the same answers. PreBind, Bind and PostBind are asynchronous and may do I/O.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from asched.framework.binding import BindingClient, ClaimRef, ExecutionMode, Permission
from asched.framework.cluster import Handle, PodRef
from asched.framework.cycle_state import CycleState
from asched.framework.events import ClusterEventWithHint
from asched.framework.nodes import FilterResult, Int64Column, NodeInfo, Nodes, RowArray
from asched.framework.placements import GeneratedPlacements, GroupAssignments, GroupInCycle
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.status import SUCCESS, Code, Status
from asched.model.custom import CustomResource
from asched.model.meta import Object

API_VERSION = 1
"""Version of this API. Within one version it only grows."""

ENTRY_POINT_GROUP = "asched.plugins"


class Scope(Enum):
    """What the answer for one node depends on, before normalization.

    Answers of all scopes but CLUSTER are cached by :class:`~asched.framework.pod_info.PodShape` and
    shared between pods of one shape. They are computed again only for rows where the scope's inputs
    changed. Such a plugin may be called with any pod of the shape, and for nodes that other filters
    rejected.

    The PreFilter and PreScore of such a plugin should read only the pod's shape. If one reads
    ``nodes``, every node change invalidates all cached answers for the shape.
    """

    NODE_OBJECT = "nodeObject"
    """The pod's shape and the node's API object, not the pods on the node."""
    RESOURCES = "resources"
    """The pod's shape and the node's allocatable and requested resources. Equally full nodes of
    equal size get the same answer."""
    NODE = "node"
    """The pod's shape and the node's row, including the pods on the node."""
    CLUSTER = "cluster"
    """Anything: computed for each attempt."""

    @property
    def shared(self) -> bool:
        """Whether pods of one shape share answers."""
        return self is not Scope.CLUSTER


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of a plugin's typed arguments; ``__post_init__`` may raise ValueError."""


class Plugin(ABC):
    """Base of all plugins."""

    name: ClassVar[str]
    """The name in profiles; must equal the name of the entry point."""
    api_version: ClassVar[int]
    """The :data:`API_VERSION` that the plugin was written for. Must be set, not inherited."""
    arguments: ClassVar[type[msgspec.Struct] | None] = None
    """Type of ``args`` in ``pluginConfig``; None for a plugin without arguments."""
    scope: ClassVar[Scope] = Scope.CLUSTER
    pure: ClassVar[bool] = True
    """False if an answer depends on a clock, a file, random numbers or the network. The answers of
    PreFilter, Filter, PreScore and Score are then recorded, and a replay does not call the plugin.
    Other extension points of a decision require a pure plugin."""
    execution_mode: ClassVar[ExecutionMode] = ExecutionMode.IN_PROCESS
    """WORKER for slow plugins: they run in a separate process, and their answers are recorded."""
    needs: ClassVar[frozenset[Permission]] = frozenset()
    """The ``BindingClient`` methods that the plugin uses. All others raise ``NotPermitted``."""
    custom_resources: ClassVar[tuple[type[CustomResource], ...]] = ()
    """Custom resources that it reads with ``Cluster.objects``; watched if a profile enables it."""
    reads_annotations: ClassVar[tuple[str, ...]] = ()
    """Pod annotations that it reads from ``PodShape.annotations``. Others are not decoded."""
    honors_gates: ClassVar[frozenset[str]] = frozenset()
    """Feature gates of kube-scheduler that only this plugin reads. A configuration may set them to
    other values than their defaults only if they are listed here."""
    applies_per_template: ClassVar[bool] = False
    """Whether :meth:`applies_to` depends only on the pod's namespace, spec and annotations, and on
    what :attr:`shared_answers_version` covers. It is then called once for all pods of a
    template."""

    filters_passing_nodes: ClassVar[bool] = False
    """Whether the Filter of a plugin of scope CLUSTER is called only for nodes that no earlier
    filter rejects. For expensive filters."""

    shared_answers_version: Callable[[], int] | None = None
    """Returns a number that changes when shared answers change for another reason than nodes and
    pods. Shared answers are those that are cached by
    :class:`~asched.framework.pod_info.PodShape`, and :meth:`applies_to` with
    :attr:`applies_per_template`. Called for each attempt: must be fast. Set it in ``__init__``."""

    def __init__(self, args: Any, handle: Handle) -> None:
        """``args`` is an instance of :attr:`arguments`, or None. Raise ValueError to reject it."""
        self.handle = handle

    def applies_to(self, pod: PodInfo) -> bool:
        """Whether a plugin of scope CLUSTER has anything to do for this pod.

        Optional, and must be fast. False means that PreFilter and PreScore would return Skip, that
        Score would be 0 for every node, and that Reserve has nothing to reserve.
        """
        return True


class PreEnqueuePlugin(Plugin):
    """Called before a pod enters the active queue."""

    @abstractmethod
    def pre_enqueue(self, pod: PodInfo) -> Status:
        """Any status but Success gates the pod until a hint of the plugin returns QUEUE."""


class QueueSortPlugin(Plugin):
    """Orders the active queue. All profiles share exactly one."""

    @abstractmethod
    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        """Whether ``first`` is scheduled before ``second``."""

    def sort_key(self, pod: QueuedPod) -> Any:
        """A value that sorts as :meth:`less` does. Optional, and much faster."""
        return None


class EnqueueExtensions(Plugin):
    """For plugins that reject pods: the events that may make a rejected pod schedulable."""

    @abstractmethod
    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        """Called once, when the profile is built."""


class PreFilterResult(msgspec.Struct, frozen=True):
    """A status, and optionally the only nodes that can be feasible."""

    status: Status = SUCCESS
    node_names: frozenset[str] | None = None


class PreFilterPlugin(Plugin):
    """Called once per attempt, before the filters."""

    @abstractmethod
    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        """Prepare data for Filter, or reject the pod. Skip omits this plugin's Filter."""


class PreFilterExtensions(Plugin):
    """For filters that prepare data about pods on nodes: keeps it valid during a dry run."""

    @abstractmethod
    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        """Update ``state``, a clone, for ``added`` being on the node."""

    @abstractmethod
    def remove_pod(
        self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo
    ) -> Status:
        """Update ``state``, a clone, for ``removed`` not being on the node."""


class UnavoidableRejections(PreFilterExtensions):
    """For filters of scope CLUSTER that know nodes which no removal of pods from them makes fit.
    Preemption does not try these nodes one at a time."""

    @abstractmethod
    def unavoidable(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        """The rejections of nodes that remain, with the same status, whichever pods of the node
        itself are removed. May omit some."""


class FilterPlugin(Plugin):
    """Filters nodes one at a time.

    A plugin may also implement :class:`FilterAllPlugin` with the same answers. The framework then
    calls that form for many nodes and this form for few.
    """

    @abstractmethod
    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        """Success, or a rejection with its reasons. Reuse Status objects instead of making one for
        each node."""


class FilterAllPlugin(Plugin):
    """Filters all nodes in one call, on columns."""

    @abstractmethod
    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        """One entry per row of ``nodes``, which may be any selection of rows."""


class CapacityFilter(Plugin):
    """For filters of scope RESOURCES that only count, so that whole groups need fewer trials."""

    @abstractmethod
    def capacity(self, pod: PodInfo, nodes: Nodes) -> Int64Column:
        """How many pods like this one the filter lets onto each node, one after the other, if
        nothing else changes. One entry per row of ``nodes``."""


class NodeToStatus(Protocol):
    """Why each node was rejected, for PostFilter."""

    def status(self, node_name: str) -> Status | None:
        """The status that rejected the node; None if it passed or was not evaluated."""

    def names(self, *, unresolvable: bool) -> Sequence[str]:
        """Rejected nodes with (or without) status UnschedulableAndUnresolvable."""

    def rows(self, code: Code) -> RowArray:
        """Ascending rows of the cluster's nodes that were rejected with this code."""


class ReleasedClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A ResourceClaim that keeps a pod from being scheduled, and that is released for it."""

    claim: ClaimRef
    delete: bool = False
    """Delete the claim, which serves extended resources. Otherwise it loses its allocation."""


class PostFilterResult(msgspec.Struct, frozen=True):
    """The outcome of a PostFilter plugin."""

    status: Status
    nominated_node: str | None = None
    """Empty clears the pod's nomination; None keeps it."""
    victims: tuple[PodRef, ...] = ()
    cleared_nominations: tuple[PodRef, ...] = ()
    """Pending pods of lower priority that lose their nomination to the node."""
    requeue_now: bool = False
    """Retry the rejected pod without backoff, because waiting pods were rejected to make room."""
    released_claim: ReleasedClaim | None = None
    """Carried out even if a later plugin returns the result of the phase."""


class PostFilterPlugin(Plugin):
    """Called when no node is feasible."""

    rejects_like_pods: ClassVar[bool] = False
    """Whether a rejection without nomination holds for all pods with the same shape, priority and
    preemption policy, if no plugin of scope CLUSTER applies to them, until something changes. Only
    one of the like members of a pod group is then tried."""

    @abstractmethod
    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeToStatus
    ) -> PostFilterResult:
        """Success if the pod fits after the victims are evicted."""


class PreScorePlugin(Plugin):
    """Called once per attempt, before scoring."""

    @abstractmethod
    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        """``nodes`` are the feasible nodes, or all nodes for a plugin with a shared
        :class:`Scope`. Skip omits this plugin's Score."""


class ScorePlugin(Plugin):
    """Scores nodes one at a time. May be combined with :class:`ScoreAllPlugin`."""

    @abstractmethod
    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        """0 to 100, or any integer if the plugin is a :class:`NormalizeScore`."""


class ScoreAllPlugin(Plugin):
    """Scores all nodes in one call, on columns."""

    @abstractmethod
    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        """One score per row of ``nodes``."""


class NormalizeScore(Plugin):
    """Scales raw scores to 0 to 100."""

    by_extremes: ClassVar[bool] = False
    """Whether a normalized score depends only on the node's raw score and on the lowest and highest
    raw score. Results are then reused while both extremes are unchanged."""

    @abstractmethod
    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """``scores`` are those of the feasible nodes; returns a new array of the same length."""


class ReserveResult(msgspec.Struct, frozen=True):
    """The outcome of a Reserve plugin."""

    status: Status = SUCCESS
    reservation: dict[str, Any] | None = None
    """JSON values, recorded with the decision and passed to the other :class:`ReservePlugin`
    methods."""


class ReservePlugin(Plugin):
    """Reserves something for a pod on the selected node.

    :meth:`reserve` only decides. The other methods maintain the plugin's own state. Only the fold
    calls them, live and in every replay, so that state is rebuilt from the journal. In
    kube-scheduler one method does both.
    """

    only_own_reservations: ClassVar[bool] = False
    """Whether the other methods are called only for pods with a reservation of the plugin."""

    @abstractmethod
    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        """Accept or reject the node. Must not change the plugin's state."""

    def on_reserved(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        """The pod was assumed on the node."""

    def unreserve(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        """The assumed pod was forgotten."""

    def on_bound(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        """The pod is bound; the API server's objects now reflect what it uses."""

    def on_deleted(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        """The bound pod is gone. After a restart, :meth:`on_reserved` and :meth:`on_bound` are
        called for every pod that was bound as decided and still exists."""


class ChangedReservation(NamedTuple):
    """A reservation that a :class:`SettlingReservePlugin` changed."""

    value: dict[str, Any] | None
    """The new value, which checkpoints keep. None if it ended, and the plugin forgot it."""
    frees: bool = False
    """Whether pods that the plugin rejected may get what it held."""


class SettlingReservePlugin(ReservePlugin):
    """A Reserve plugin with reservations that end once the API server shows what bound pods have.

    Not part of the public API.
    """

    @abstractmethod
    def settle(self, changed: Object) -> Mapping[str, ChangedReservation]:
        """The reservations that change, by UID of the pod.

        ``changed`` is an object that was observed, or a pod that was bound just now.
        """

    @abstractmethod
    def give_up(self, pod_uid: str) -> None:
        """Forget the reservation of a bound pod: the API server did not show what it has."""


class PermitResult(msgspec.Struct, frozen=True):
    """Success continues, a rejection fails the attempt, WAIT waits for at most ``timeout_s``."""

    status: Status = SUCCESS
    timeout_s: float = 0.0
    activate: tuple[str, ...] = ()
    """Keys of pending pods to move to the active queue if this pod is assumed (``PodsToActivate``
    of kube-scheduler)."""


class PermitPlugin(Plugin):
    """Can delay or reject an assumed pod before it is bound."""

    @abstractmethod
    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        """Allow the pod to be bound to the node, reject it, or let it wait."""


class WaitingPodReviewer(PermitPlugin):
    """A Permit plugin that reviews its waiting pods."""

    @abstractmethod
    def review_waiting_pods(self) -> None:
        """Allow or reject pods of :meth:`~asched.framework.cluster.Handle.waiting_pods`.

        Called before each decision while any pod waits, so it must be fast. If it raises, the pods
        that wait for this plugin are rejected.
        """


class GroupCycleSettings(msgspec.Struct, frozen=True):
    """How a profile schedules whole pod groups."""

    group_preemption: bool = False
    """The group preempts as one. Otherwise each member preempts for itself."""
    topology_preemption: bool = True
    """So do groups with scheduling constraints: in one of their domains."""


class GroupSchedulingPlugin(Plugin):
    """Decides whether the groups of a profile are scheduled as a whole or pod by pod."""

    @property
    @abstractmethod
    def group_cycle(self) -> GroupCycleSettings | None:
        """None: pod by pod."""


class PlacementGeneratePlugin(Plugin):
    """Called once per group cycle. As in kube-scheduler, only the first plugin of a profile is."""

    @abstractmethod
    def generate_placements(self, group: GroupInCycle, nodes: Nodes) -> GeneratedPlacements:
        """The placements to try, in order; none if the group cannot run anywhere. An error status
        fails the attempt of the group."""


class PlacementScorePlugin(Plugin):
    """Called for each placement in which the group is feasible, if there are several."""

    reads_member_nodes: ClassVar[bool] = True
    """False if the score depends on which members fit, and not on their nodes. The nodes may then
    be empty: like members are counted instead of being tried in each placement."""

    @abstractmethod
    def score_placement(self, group: GroupInCycle, assignments: GroupAssignments) -> int:
        """0 to 100, or any integer if :meth:`normalize_placements` scales it."""

    def normalize_placements(self, scores: Sequence[int]) -> Sequence[int]:
        """The scores of all placements, scaled to 0 to 100. Optional."""
        return scores


PRE_BIND_TIME_LIMIT_S = 600.0


class PreBindPlugin(Plugin):
    """Asynchronous work that must finish before the pod is bound."""

    @property
    def time_limit_s(self) -> float:
        """Limit for :meth:`pre_bind`; exceeding it fails the binding."""
        return PRE_BIND_TIME_LIMIT_S

    def pre_bind_pre_flight(self, pod: PodInfo, node_name: str) -> bool:
        """Whether :meth:`pre_bind` has anything to do (``PreBindPreFlight`` of kube-scheduler).
        Optional, and must be fast."""
        return True

    @abstractmethod
    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        """Success when all work is done; any other status fails the binding."""

    async def undo_pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> None:
        """Undo what :meth:`pre_bind` wrote, after it or a later step failed.

        Optional. The pod keeps its node and its reservations until it returns.
        """


class BindPlugin(Plugin):
    """Binds the pod. Plugins are called in order until one does not return Skip."""

    needs: ClassVar[frozenset[Permission]] = frozenset({Permission.BIND})
    awaits_client_only: ClassVar[bool] = False
    """Set to True if :meth:`bind` awaits nothing but ``client.bind``. If :attr:`time_limit_s` is
    infinite as well, such a call is neither guarded nor cancelled, not even by a stop."""

    @property
    def time_limit_s(self) -> float:
        """Limit for :meth:`bind`, without the time spent in ``client.bind``. Exceeding it fails the
        binding, unless the pod turns out to be bound."""
        return PRE_BIND_TIME_LIMIT_S

    @abstractmethod
    async def bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        """Success once the pod is bound; Skip leaves it to the next plugin."""


class PostBindPlugin(Plugin):
    """Called after the pod was bound."""

    @abstractmethod
    async def post_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> None:
        """The pod is bound to the node."""


class ExtensionPoint(Enum):
    """The extension points, with their names in KubeSchedulerConfiguration."""

    PRE_ENQUEUE = ("preEnqueue", (PreEnqueuePlugin,))
    QUEUE_SORT = ("queueSort", (QueueSortPlugin,))
    PRE_FILTER = ("preFilter", (PreFilterPlugin,))
    FILTER = ("filter", (FilterPlugin, FilterAllPlugin))
    POST_FILTER = ("postFilter", (PostFilterPlugin,))
    PRE_SCORE = ("preScore", (PreScorePlugin,))
    SCORE = ("score", (ScorePlugin, ScoreAllPlugin))
    PLACEMENT_GENERATE = ("placementGenerate", (PlacementGeneratePlugin,))
    PLACEMENT_SCORE = ("placementScore", (PlacementScorePlugin,))
    RESERVE = ("reserve", (ReservePlugin,))
    PERMIT = ("permit", (PermitPlugin,))
    PRE_BIND = ("preBind", (PreBindPlugin,))
    BIND = ("bind", (BindPlugin,))
    POST_BIND = ("postBind", (PostBindPlugin,))

    def __init__(self, field: str, bases: tuple[type[Plugin], ...]) -> None:
        self.field = field
        self.bases = bases

    def served_by(self, plugin: type[Plugin]) -> bool:
        return issubclass(plugin, self.bases)
