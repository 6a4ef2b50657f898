"""The state: all that decisions depend on. The fold changes it, everybody else reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import TypeVar, cast

from asched.framework.change_log import RowCounts
from asched.framework.cycle_state import CycleState
from asched.framework.interface import Eviction, Waiting
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.pod_groups import GroupMembers, PodGroupKey
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import PodQuery, TermHolders, TermKind
from asched.framework.runtime.extenders import ExtenderSpec, ExternalEvaluator
from asched.framework.runtime.profile import Profile
from asched.framework.scoring import draw
from asched.framework.trial import Fit
from asched.model.custom import CustomObject, CustomResource
from asched.model.meta import Object
from asched.state.books import ReservePluginCalls
from asched.state.circuits import Circuits
from asched.state.custom_views import CustomViews
from asched.state.evictions import Evictions
from asched.state.inquiries import PendingEvaluation
from asched.state.node_rows import NodeRows
from asched.state.node_table import NodeTable
from asched.state.nominator import Nominator
from asched.state.permits import Permits, WaitingPod
from asched.state.pod_groups import PodGroups
from asched.state.pod_index import PodIndex
from asched.state.queue import SchedulingQueue
from asched.state.records import Assigned, Lottery
from asched.state.rules import Rules
from asched.state.sessions import Sessions
from asched.state.templates import Templates
from asched.state.volume_index import VolumeIndex

ObjectT = TypeVar("ObjectT", bound=Object)


class PodPhase(Enum):
    PENDING = "pending"
    """No node yet."""
    ASSUMED = "assumed"
    """We decided its node; the API server has not confirmed it yet."""
    BOUND = "bound"


class PodEntry:
    """A pod that is not finished, and where it is counted."""

    __slots__ = ("assignment", "info", "node", "phase", "rejection", "reserved", "template")

    def __init__(self, info: PodInfo, template: int) -> None:
        self.info = info
        self.template = template
        """The number of its template; 0 for none."""
        self.phase = PodPhase.PENDING
        self.node = ""
        """The node it uses room of: bound or assumed there. Empty while pending."""
        self.assignment: Assigned | None = None
        """Our own decision for it, from the decision until the binding ended."""
        self.reserved: Assigned | None = None
        """The decision under which Reserve plugins set something aside for it, until it is gone."""
        self.rejection = ""
        """The message of its last rejection."""


class ClusterState:
    """What the records up to now say. A :class:`asched.framework.cluster.Cluster` for plugins."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.seed = 0
        self.lottery = Lottery.SHUFFLE
        self.rules = Rules.FIRST
        self.epoch = 0
        self.nodes = NodeTable()
        self.pods: dict[str, PodEntry] = {}
        self.templates = Templates()
        self._pod_index = PodIndex(self.nodes)
        self.volumes = VolumeIndex(self.nodes)
        self.groups = PodGroups()
        self.queue = SchedulingQueue(self.groups)
        self.nominator = Nominator(self.nodes)
        self.permits = Permits()
        self.books = ReservePluginCalls()
        self.circuits = Circuits()
        self.evictions = Evictions()
        self.sessions = Sessions()
        self.binding_profile: Callable[[str], Profile] = _no_profile
        """The profile under which a pod of a scheduler name that sessions serve is bound."""
        self.profiles: Mapping[str, Profile] = {}
        self.extenders: tuple[ExtenderSpec, ...] = ()
        self.outsiders: tuple[ExternalEvaluator, ...] = ()
        """Who is asked outside decisions, as records number them: the extenders, then the plugins of
        each profile."""
        self.inquiries: dict[str, PendingEvaluation] = {}
        """What extenders were asked for the attempts under way, by the pod's key."""
        self.next_start_row = 0
        """Where the search for feasible nodes begins when a share of them suffices."""
        self.objects_of: dict[type[Object], dict[str, Object]] = {}
        self.objects_changed: Counter[type[Object]] = Counter()
        """How often an object of each kind appeared, changed or went."""
        self.custom = CustomViews(self.objects_of)

    def follow(self, rules: Rules) -> None:
        """The rules in force from here on."""
        self.rules = rules
        self.queue.follow(rules)

    @property
    def waiting(self) -> Mapping[str, WaitingPod]:
        """Assumed pods that Permit plugins hold back, by key."""
        return self.permits.waiting

    def objects(self, kind: type[ObjectT]) -> Mapping[str, ObjectT]:
        if issubclass(kind, CustomResource):
            return self.custom.objects(kind)
        return cast("Mapping[str, ObjectT]", self.objects_of.get(kind, {}))

    def objects_version(self, *kinds: type[Object]) -> int:
        changed = self.objects_changed
        version = 0
        for kind in kinds:
            version += changed.get(kind, 0)
        if CustomObject in changed:
            custom = (kind for kind in kinds if issubclass(kind, CustomResource))
            version += sum(self.custom.version(kind) for kind in custom)
        return version

    @property
    def row_stamps(self) -> Int64Column:
        return self.nodes.stamps

    def suppose(self, rows: RowArray) -> NodeRows:
        return self.nodes.take(rows)

    def count_pods(self, query: PodQuery) -> Int64Column:
        return self._pod_index.count_pods(query)

    def row_counts(self, query: PodQuery) -> RowCounts:
        return self._pod_index.row_counts(query)

    def term_holders(self, kind: TermKind) -> Sequence[TermHolders]:
        return self._pod_index.term_holders(kind)

    @property
    def pods_version(self) -> int:
        return self.nodes.pods_cursor

    @property
    def lowest_priority(self) -> int | None:
        return self._pod_index.lowest_priority

    @property
    def terms_version(self) -> int:
        return self._pod_index.terms_version

    @property
    def has_term_holders(self) -> bool:
        return self._pod_index.has_term_holders

    def group_members(self, group: PodGroupKey) -> GroupMembers:
        return self.groups.members(group)

    def sleeping_members(self, group: PodGroupKey) -> Sequence[str]:
        asleep, queue = self.groups.members(group).asleep, self.queue
        found = sorted(key for key in asleep if key in queue.unschedulable or key in queue.backoff)
        if self.rules < Rules.SLEEPERS_ARE_AS_THEY_STAND:
            asleep.intersection_update(found)
        return found

    @property
    def groups_holding(self) -> Collection[PodGroupKey]:
        return sorted(self.groups.holding)

    def entry(self, key: str, uid: str) -> PodEntry | None:
        """The pod of that key, if it is still the one with that uid."""
        entry = self.pods.get(key)
        return entry if entry is not None and entry.info.uid == uid else None


def _no_profile(scheduler_name: str) -> Profile:
    raise LookupError(f"nothing binds pods of {scheduler_name}: no fold loads plugins")


class ProfileHandle:
    """The :class:`asched.framework.interface.Handle` of one profile."""

    def __init__(self, state: ClusterState, scheduler_name: str) -> None:
        self._state = state
        self._scheduler_name = scheduler_name
        self._profile: Profile | None = None

    @property
    def cluster(self) -> ClusterState:
        return self._state

    @property
    def scheduler_name(self) -> str:
        return self._scheduler_name

    def waiting_pods(self) -> Sequence[Waiting]:
        return self._state.permits.held()

    def built(self, profile: Profile) -> None:
        self._profile = profile

    def nominated_node(self, pod: PodInfo) -> str:
        return self._state.nominator.node_of(pod.key)

    def nominated_pods(self, node_name: str) -> Sequence[PodInfo]:
        return [*self._state.nominator.pods_on(node_name)]

    @property
    def evictions(self) -> Mapping[str, Eviction]:
        return self._state.evictions

    def is_preempting(self, uid: str) -> bool:
        return self._state.evictions.make_room_for(uid)

    @property
    def preempted_for(self) -> Collection[str]:
        return self._state.evictions.done_for.values()

    def fit(self, state: CycleState, pod: PodInfo) -> Fit:
        if self._profile is None:
            raise RuntimeError("no profile was built with this handle")
        return Fit(self._profile, self._state, self._state.nominator, state, pod)

    def draw(self, words: str, below: int) -> int:
        return draw(self._state.seed, words, below)
