"""The extension points, as base classes for plugins.

They are those of kube-scheduler 1.36. A plugin derives from one class per extension point it
serves, takes its arguments and a :class:`Handle` when a profile is built, and is one instance per
profile. Everything up to and including Permit is synchronous and pure: no clock, no random
numbers, no I/O, no dependence on the order of sets. What must talk to the outside belongs in
PreBind, Bind or PostBind, which are asynchronous.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import msgspec

from asched.framework.binding import BindingClient, Isolation, Permission
from asched.framework.cluster import Cluster
from asched.framework.cycle_state import CycleState
from asched.framework.events import ClusterEventWithHint
from asched.framework.nodes import Int64Column, NodeInfo, Nodes, RowArray, Verdicts
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.status import SUCCESS, Code, Status
from asched.model.custom import CustomResource

if TYPE_CHECKING:
    from asched.framework.trial import Fit

API_VERSION = 1
"""Version of this contract. Within one version it only grows."""

ENTRY_POINT_GROUP = "asched.plugins"


class Scope(Enum):
    """How far a plugin looks when it filters or scores one node (before normalising).

    The narrower, the less is computed again: answers of all but the last are shared between like pods,
    and renewed only for rows in which something changed that the plugin looks at. Such a plugin is
    asked about any one of the like pods, and also about nodes that other filters refused.

    Its PreFilter and PreScore are to look at nothing but the pod's shape: where one looks at ``nodes``, all
    that the profile's plugins said of the shape is asked anew after each change to any node.
    """

    NODE_OBJECT = "nodeObject"
    """Only at the pod's shape and that node's own API object, not at the pods on it."""
    AMOUNTS = "amounts"
    """Only at the pod's shape and at what that node offers and its pods use of it, in numbers: nodes
    of one size that are equally full get the same answer."""
    NODE = "node"
    """Only at the pod's shape and that node's own row, pods on it included."""
    CLUSTER = "cluster"
    """Anywhere: computed anew for each attempt."""

    @property
    def shared(self) -> bool:
        """Whether like pods get the same answers."""
        return self is not Scope.CLUSTER


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of a plugin's typed arguments; ``__post_init__`` may raise ValueError to refuse some."""


class Waiting(Protocol):
    """A pod that Permit plugins hold back."""

    @property
    def info(self) -> PodInfo: ...

    @property
    def node_name(self) -> str: ...

    @property
    def pending(self) -> frozenset[str]:
        """The Permit plugins that have not allowed it yet."""

    def allow(self, plugin: str) -> None: ...

    def reject(self, plugin: str, message: str) -> None: ...


class Victim(msgspec.Struct, frozen=True, gc=False):
    """A pod to be evicted."""

    key: str
    uid: str


class Eviction(NamedTuple):
    """A victim and the pod it makes room for."""

    victim: Victim
    preemptor: Victim
    node: str
    reason: str = ""
    """The action of the batch session that evicts; empty for preemption pod by pod."""


class Handle(Protocol):
    """What the framework offers a plugin, for as long as its profile lives."""

    @property
    def cluster(self) -> Cluster: ...

    @property
    def scheduler_name(self) -> str: ...

    def waiting_pods(self) -> Sequence[Waiting]:
        """Pods held by Permit, oldest first. What is allowed or rejected through them takes effect
        right after the present attempt, as decisions of their own."""

    def nominated_node(self, pod: PodInfo) -> str:
        """The node on which room is being made for the pod, or empty."""

    def nominated_pods(self, node_name: str) -> Sequence[PodInfo]:
        """The pods for which room is being made on the node."""

    @property
    def evictions(self) -> Mapping[str, Eviction]:
        """Evictions decided and not known to be carried out, by the victim's uid."""

    def is_preempting(self, uid: str) -> bool:
        """Whether any of :attr:`evictions` makes room for the pod of that uid."""

    @property
    def preempted_for(self) -> Collection[str]:
        """Keys of the pods for which evictions were carried out or given up, none is under way any
        more, and which are not yet bound; and of those that a plugin turned away which did not hold
        them at Permit."""

    def fit(self, state: CycleState, pod: PodInfo) -> Fit:
        """The pod against all filters of the profile, to be tried on nodes whose pods are supposed
        to come and go. ``state`` is the one of the pod's attempt, after PreFilter."""

    def draw(self, words: str, below: int) -> int:
        """A number from 0 to ``below - 1``, in place of a random one: the same in every replay for
        the same words."""


class Plugin(ABC):
    """Base of all plugins."""

    name: ClassVar[str]
    """The name that profiles use; must equal the name of the entry point."""
    api_version: ClassVar[int]
    """The :data:`API_VERSION` the plugin was written for. It must be stated, not inherited."""
    arguments: ClassVar[type[msgspec.Struct] | None] = None
    """The type of ``args`` in ``pluginConfig``; None for a plugin without arguments."""
    scope: ClassVar[Scope] = Scope.CLUSTER
    pure: ClassVar[bool] = True
    """Whether its answers follow from what it is asked about alone. False for one that reads a clock, a
    file, chance or the network: what it answers to PreFilter, Filter, PreScore and Score is then
    recorded, and a replay does not call it. It cannot serve points that the fold needs."""
    runs_in: ClassVar[Isolation] = Isolation.LOOP
    """WORKER for one that may take long: it is asked in a process of its own, as one that is not
    pure."""
    needs: ClassVar[frozenset[Permission]] = frozenset()
    """What it asks of its ``BindingClient``; all else is refused by name."""
    custom_resources: ClassVar[tuple[type[CustomResource], ...]] = ()
    """What it reads by ``Cluster.objects`` beside Kubernetes' own: watched where a profile enables it."""
    reads_annotations: ClassVar[tuple[str, ...]] = ()
    """The annotations of pods that it reads, from ``PodShape.annotations``. Others are never kept."""
    concerns_templates: ClassVar[bool] = False
    """Whether :meth:`concerns` looks at nothing of a pod but its namespace, specification and
    annotations, and at nothing else at all: then it is asked once for all copies of a template."""

    def __init__(self, args: Any, handle: Handle) -> None:
        """``args`` is an instance of :attr:`arguments` (or None). Raise ValueError to refuse it."""
        self.handle = handle

    def concerns(self, pod: PodInfo) -> bool:
        """Whether a plugin of scope CLUSTER has anything to do for this pod, as things are now.

        Optional. False says what a Skip of both its PreFilter and its PreScore would say, that its
        Score would be 0 everywhere and that its Reserve has nothing to set aside, without the cost of
        asking them: most plugins concern few pods. It has to be quick.
        """
        return True


class PreEnqueuePlugin(Plugin):
    """Before a pod enters the active queue."""

    @abstractmethod
    def pre_enqueue(self, pod: PodInfo) -> Status:
        """Anything but success keeps the pod out until one of the plugin's events says QUEUE."""


class QueueSortPlugin(Plugin):
    """The order of the active queue; exactly one in a configuration."""

    @abstractmethod
    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        """Whether ``first`` is to be tried before ``second``."""

    def sort_key(self, pod: QueuedPod) -> Any:
        """A value that sorts as :meth:`less` does. Optional, and much faster where given."""
        return None


class EnqueueExtensions(Plugin):
    """For every plugin that can reject a pod: which events may lift the rejection."""

    @abstractmethod
    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        """Asked once, when the profile is built."""


class PreFilterResult(msgspec.Struct, frozen=True):
    """A PreFilter's answer: a status, and optionally the only nodes worth looking at."""

    status: Status = SUCCESS
    node_names: frozenset[str] | None = None


class PreFilterPlugin(Plugin):
    """Once per attempt, before the filters."""

    @abstractmethod
    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        """Prepare; reject outright; or answer Skip, so that this plugin's Filter is not run. A plugin
        whose scope is shared looks at the pod's shape alone (:class:`Scope`)."""


class PreFilterExtensions(Plugin):
    """For filters whose prepared data depends on the pods of nodes: preemption tries pods on and
    off, on a clone of the state, and tells them."""

    @abstractmethod
    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        """``added`` is supposed to be on the node: enter it in what ``state`` holds."""

    @abstractmethod
    def remove_pod(
        self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo
    ) -> Status:
        """``removed`` is supposed to be away from it: take it out."""


class FilterPlugin(Plugin):
    """Can the pod run here? Written for one node; simple.

    A plugin may have both forms, which must agree: the one for all nodes is then used for many, this
    one for few.
    """

    @abstractmethod
    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        """Success, or a rejection with its reasons; make statuses once, not for each node."""


class FilterAllPlugin(Plugin):
    """Can the pod run here? Written for all nodes at once; fast."""

    @abstractmethod
    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Verdicts:
        """One verdict per row of ``nodes``, which may be any choice of rows."""


class NodeStatuses(Protocol):
    """Why each node was refused, for PostFilter."""

    def status(self, node_name: str) -> Status | None:
        """The status that refused a node, None where it was never looked at or passed."""

    def names(self, *, unresolvable: bool) -> Sequence[str]:
        """Refused nodes whose status is (or is not) UnschedulableAndUnresolvable."""

    def rows(self, code: Code) -> RowArray:
        """The rows of the cluster's nodes that were refused with just this code, ascending."""


class PostFilterResult(msgspec.Struct, frozen=True):
    """A PostFilter's answer. ``nominated_node``: empty clears it, None leaves it as it is."""

    status: Status
    nominated_node: str | None = None
    victims: tuple[Victim, ...] = ()
    displaced: tuple[Victim, ...] = ()
    """Pending pods that lose their nomination to the node, because this pod comes before them."""
    at_once: bool = False
    """Pods that Permit held were rejected to make room: try the pod again without waiting. Only
    counts with a rejection."""


class PostFilterPlugin(Plugin):
    """When no node was feasible: make room."""

    @abstractmethod
    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeStatuses
    ) -> PostFilterResult:
        """Success where room is made; ``statuses`` say why each node was refused."""


class PreScorePlugin(Plugin):
    """Once per attempt, before scoring."""

    @abstractmethod
    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        """``nodes`` are the feasible ones; for a plugin whose scope is shared, all of them, but see
        :class:`Scope`. Skip leaves this plugin's Score out."""


class ScorePlugin(Plugin):
    """How good is this node? Written for one node; simple. May be had beside the other form, as for
    filters."""

    @abstractmethod
    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        """Any integer if the plugin normalises, else 0 to 100."""


class ScoreAllPlugin(Plugin):
    """How good is each node? Written for all nodes at once; fast."""

    @abstractmethod
    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        """One score per row of ``nodes``, as :meth:`ScorePlugin.score` has it."""


class NormalizeScore(Plugin):
    """Bring raw scores into 0 to 100."""

    by_extremes: ClassVar[bool] = False
    """Whether a node's score depends on nothing but its raw score and the lowest and the highest raw
    score of all, so that it need not be asked again while those are as before."""

    @abstractmethod
    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """``scores`` are those of the feasible nodes; a new array of the same length comes back."""


class ReserveResult(msgspec.Struct, frozen=True):
    """A Reserve's answer. ``note`` is what the plugin wants to remember of it, as JSON values: it is
    recorded with the decision and handed back to :meth:`ReservePlugin.reserved`."""

    status: Status = SUCCESS
    note: dict[str, Any] | None = None


class ReservePlugin(Plugin):
    """Set something aside for a pod on the node that was chosen.

    kube-scheduler's Reserve both answers and keeps books. Here the two are apart, so that the books
    can be rebuilt from the journal: :meth:`reserve` only answers; :meth:`reserved` and
    :meth:`unreserve` keep the books, and are called by the fold alone, live and in every replay.
    """

    @abstractmethod
    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        """May the pod have what it needs there? Changes nothing."""

    def reserved(self, pod: PodInfo, node_name: str, note: dict[str, Any] | None) -> None:
        """The pod was assigned: enter it in the plugin's own books, if it keeps any."""

    def unreserve(self, pod: PodInfo, node_name: str, note: dict[str, Any] | None) -> None:
        """The pod will not get there after all: take it out again."""

    def settled(self, pod: PodInfo, node_name: str, note: dict[str, Any] | None) -> None:
        """The pod is bound there: from now on the API server's objects say what it has."""

    def released(self, pod: PodInfo, node_name: str, note: dict[str, Any] | None) -> None:
        """A pod that was bound there is gone. Notes are kept that long: after a start the books are
        told ``reserved`` and ``settled`` of every pod that was bound as decided."""


class PermitResult(msgspec.Struct, frozen=True):
    """Success lets the pod go on; a rejection fails it; WAIT holds it for at most ``timeout_s``."""

    status: Status = SUCCESS
    timeout_s: float = 0.0
    activate: tuple[str, ...] = ()
    """Keys of pending pods to be tried now, whatever they wait for (kube-scheduler's
    ``PodsToActivate``). Only counts where the pod is assigned."""


class PermitPlugin(Plugin):
    """The last word before binding."""

    @abstractmethod
    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        """May the pod be bound to the node now?"""


class PermitReview(PermitPlugin):
    """A Permit plugin that is asked again about the pods it holds."""

    @abstractmethod
    def review(self) -> None:
        """Before each decision, while any pod is held: shall the pods of :meth:`Handle.waiting_pods`
        still be? What is said of them becomes decisions at once. It is asked often and has to be
        quick. Where it raises, the pods that it holds are rejected."""


PRE_BIND_TIME_LIMIT_S = 600.0


class PreBindPlugin(Plugin):
    """Work that must be done before the pod is bound. Asynchronous; may take long."""

    @property
    def time_limit_s(self) -> float:
        """A :meth:`pre_bind` that takes longer has failed."""
        return PRE_BIND_TIME_LIMIT_S

    def pre_bind_pre_flight(self, pod: PodInfo, node_name: str) -> bool:
        """Whether :meth:`pre_bind` has anything to do. Optional: False saves the cost of asking it
        (as a Skip of ``PreBindPreFlight`` in kube-scheduler). It has to be quick."""
        return True

    @abstractmethod
    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        """Success once all is done; anything else fails the binding."""


class BindPlugin(Plugin):
    """Bind the pod. Plugins are asked in order until one does not answer Skip."""

    needs: ClassVar[frozenset[Permission]] = frozenset({Permission.BIND})

    @property
    def time_limit_s(self) -> float:
        """A :meth:`bind` that takes longer has failed, unless the pod turns out to be bound. While the
        client's own ``bind`` is awaited no time passes."""
        return PRE_BIND_TIME_LIMIT_S

    @abstractmethod
    async def bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        """Success once the pod is bound; Skip leaves it to the next plugin."""


class PostBindPlugin(Plugin):
    """Told after the pod was bound."""

    @abstractmethod
    async def post_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> None:
        """The pod is on its node."""


class ExtensionPoint(Enum):
    """The extension points by the names that KubeSchedulerConfiguration gives them."""

    PRE_ENQUEUE = ("preEnqueue", (PreEnqueuePlugin,))
    QUEUE_SORT = ("queueSort", (QueueSortPlugin,))
    PRE_FILTER = ("preFilter", (PreFilterPlugin,))
    FILTER = ("filter", (FilterPlugin, FilterAllPlugin))
    POST_FILTER = ("postFilter", (PostFilterPlugin,))
    PRE_SCORE = ("preScore", (PreScorePlugin,))
    SCORE = ("score", (ScorePlugin, ScoreAllPlugin))
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
