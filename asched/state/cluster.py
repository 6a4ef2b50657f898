"""The cluster state: everything that decisions depend on. Only the fold changes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from enum import Enum
from typing import Any, cast

import msgspec

from asched.framework.caching import ChangeLog, RowCounts
from asched.framework.cluster import Cluster, Eviction, ObjectChanges, SharedT, WaitingPod
from asched.framework.cycle_state import CycleState
from asched.framework.feature_gates import DEFAULT_FEATURE_GATES, FeatureGates
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.pod_groups import GroupMembers, PodGroupKey
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import PodQuery, TermKind
from asched.framework.runtime.dry_run import FilterDryRunner
from asched.framework.runtime.extenders import ExtenderSpec, ExternalEvaluator
from asched.framework.runtime.profile import Profile
from asched.framework.scoring import stable_random
from asched.framework.term_table import TermTable
from asched.model.meta import Object
from asched.state.attempt_budget import NS_PER_STEP, AttemptBudgets
from asched.state.attempt_costs import AttemptCosts
from asched.state.captures import Captures
from asched.state.charged_forms import ChargedForms
from asched.state.circuits import Circuits
from asched.state.claim_releases import ClaimReleases
from asched.state.claim_searches import MAX_FORMS
from asched.state.node_rows import NodeRows
from asched.state.node_table import NodeTable
from asched.state.objects import ObjectStore, ObjectT
from asched.state.pending_evaluations import PendingEvaluations
from asched.state.plugins import ReservePluginCalls
from asched.state.pod_groups import PodGroups
from asched.state.pod_index import PodIndex, VolumeIndex
from asched.state.pod_order import PodsByUid
from asched.state.preemption import Evictions, Nominator
from asched.state.queue import SchedulingQueue
from asched.state.records import Assigned
from asched.state.reduced_rows import ReducedRows
from asched.state.seen_versions import SeenVersions
from asched.state.sessions import Sessions
from asched.state.templates import Templates
from asched.state.waiting_pods import WaitingPods, WaitingPodState


class PlacementState(Enum):
    PENDING = "pending"
    """Without a node."""
    ASSUMED = "assumed"
    """We decided its node; the API server has not confirmed the binding."""
    BOUND = "bound"


class PodEntry(msgspec.Struct, array_like=True, gc=False, eq=False):
    """A pod that has not finished. A checkpoint encodes this struct directly."""

    info: PodInfo
    template: int
    """The number of its template; 0 for none."""
    placement_state: PlacementState = PlacementState.PENDING
    node: str = ""
    """The node it is counted on, bound or assumed. Empty while pending."""
    assignment: Assigned | None = None
    """Our decision, until the binding ends."""
    reserved: Assigned | None = None
    """The decision with reservations of Reserve plugins, as they are now, until the pod is
    deleted."""
    rejection: str = ""
    """The message of its last rejection."""


class EngineNumbers(msgspec.Struct, array_like=True):
    """Numbers of the engine that decides."""

    seed: int = 0
    epoch: int = 0
    clock_offset_ns: int = 0
    """See :class:`~asched.state.records.ClockStepped`."""
    step_ns: int = NS_PER_STEP
    """See :class:`~asched.state.records.EngineStarted`."""
    next_start_row: int = 0
    """Where the next search for feasible nodes starts, if a share of them is enough."""


MAX_TERM_FORMS = 64
"""Of one namespace. Counts of matching pods are kept for a limited number of selectors."""


class AttemptGuards:
    """What prevents or delays attempts."""

    def __init__(self, state: ClusterState) -> None:
        self.costs = AttemptCosts(state)
        self.circuits = Circuits()
        self.budgets = AttemptBudgets()
        self.searches = ChargedForms(MAX_FORMS)
        """Of claims that have to be allocated."""
        self.terms = ChargedForms(MAX_TERM_FORMS)
        """Of affinity terms and spread constraints."""
        self.quarantined: dict[str, str] = {}
        """Pods with which the process died twice: uid by key."""


def _no_profile(scheduler_name: str) -> Profile:
    raise LookupError(f"no profile binds pods of {scheduler_name}: no plugins are loaded")


class PluginContext:
    """What plugins of all profiles have in common."""

    def __init__(self) -> None:
        self.binding_profile: Callable[[str], Profile] = _no_profile
        """The profile that binds the pods of a scheduler name that sessions serve."""
        self.shared: dict[Callable[..., Any], Any] = {}
        """The objects of ``Handle.shared``; empty after profiles are loaded."""
        self.feature_gates = DEFAULT_FEATURE_GATES


class ClusterState:
    """The state after all records so far. A :class:`asched.framework.cluster.Cluster` for
    plugins."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.engine = EngineNumbers()
        self.nodes = NodeTable()
        self.pods: dict[str, PodEntry] = {}
        self.pod_captures: Captures[PodEntry] = Captures(msgspec.structs.replace)
        """The pods that checkpoints still read."""
        self.pods_by_uid: PodsByUid[PodEntry] = PodsByUid()
        """Also in the order of :attr:`pods`, for checkpoints."""
        self.templates = Templates()
        self.object_store = ObjectStore()
        self.seen = SeenVersions(self.pods, self.object_store)
        self._pod_index = PodIndex(self.nodes)
        self.groups = PodGroups()
        self.queue = SchedulingQueue(self.groups)
        self.nominator = Nominator(self.nodes)
        self.waiting_pods = WaitingPods()
        self.reserve_calls = ReservePluginCalls()
        self.guards = AttemptGuards(self)
        self.evictions = Evictions()
        self.claim_releases = ClaimReleases()
        self.sessions = Sessions()
        self.pending_evaluations = PendingEvaluations()
        self.profiles: Mapping[str, Profile] = {}
        self.plugin_context = PluginContext()

    def fork(self) -> ClusterState:
        """The same state with a node table of its own, for hypothetical pods on nodes."""
        copied, nodes = copy(self), self.nodes.fork()
        vars(copied).update(nodes=nodes, _pod_index=PodIndex(nodes))
        return copied

    @property
    def date_ns(self) -> int:
        """Date of the last turn: nanoseconds since the epoch."""
        return self.now_ns + self.engine.clock_offset_ns

    @property
    def waiting(self) -> Mapping[str, WaitingPodState]:
        """Assumed pods that wait on Permit, by key."""
        return self.waiting_pods.waiting

    @property
    def extenders(self) -> tuple[ExtenderSpec, ...]:
        return self.pending_evaluations.extenders

    @property
    def evaluators(self) -> tuple[ExternalEvaluator, ...]:
        """The external evaluators as records number them: extenders, then plugins by profile."""
        return self.pending_evaluations.evaluators

    @property
    def volumes(self) -> VolumeIndex:
        return self._pod_index.volumes

    def keep_captured(self, entry: PodEntry) -> None:
        """Call before a pod changes: a checkpoint in progress contains it as it is now."""
        if self.pod_captures.used:
            self.pod_captures.keep(entry)

    def entry(self, key: str, uid: str) -> PodEntry | None:
        """The pod of that key if it has that uid."""
        entry = self.pods.get(key)
        return entry if entry is not None and entry.info.uid == uid else None

    def objects(self, kind: type[ObjectT]) -> Mapping[str, ObjectT]:
        return self.object_store.read(kind)

    def objects_version(self, *kinds: type[Object]) -> int:
        return self.object_store.version(*kinds)

    def object_changes(self, kind: type[Object], since: int) -> ObjectChanges:
        return self.object_store.changes(kind, since)

    @property
    def row_stamps(self) -> Int64Column:
        return self.nodes.stamps

    def hypothetical_nodes(self, rows: RowArray) -> NodeRows:
        return self.nodes.take(rows)

    def reduced_nodes(self, rows: RowArray, pods: Sequence[Sequence[PodInfo]]) -> ReducedRows:
        return ReducedRows(self.nodes, rows, pods)

    def count_pods(self, query: PodQuery) -> Int64Column:
        return self._pod_index.count_pods(query)

    def follow_pods(self) -> None:
        """Bring indexes of pods up to date. Changes no answer: called once in a turn, so that the
        first decision after many changes does not take long."""
        self._pod_index.follow()

    def row_counts(self, query: PodQuery) -> RowCounts:
        return self._pod_index.row_counts(query)

    def affinity_terms(self, kind: TermKind) -> TermTable:
        return self._pod_index.affinity_terms(kind)

    @property
    def affinity_terms_version(self) -> int:
        return self._pod_index.affinity_terms_version

    @property
    def pods_version(self) -> int:
        return self.nodes.pods_cursor

    @property
    def lowest_priority(self) -> int | None:
        return self._pod_index.lowest_priority

    @property
    def has_affinity_terms(self) -> bool:
        return self._pod_index.has_affinity_terms

    def group_members(self, group: PodGroupKey) -> GroupMembers:
        return self.groups.members(group)

    def gang_pending_members(self, group: PodGroupKey) -> Sequence[str]:
        pending, queue = self.groups.members(group).gang_pending, self.queue
        return sorted(key for key in pending if key in queue.unschedulable or key in queue.backoff)

    @property
    def groups_at_permit(self) -> Collection[PodGroupKey]:
        return sorted(self.groups.at_permit)

    @property
    def permit_changes(self) -> ChangeLog[PodGroupKey]:
        return self.groups.permit_changes


class ProfileHandle:
    """The :class:`asched.framework.cluster.Handle` of one profile."""

    def __init__(
        self, state: ClusterState, scheduler_name: str, feature_gates: FeatureGates | None = None
    ) -> None:
        """``feature_gates``: by default those of the state."""
        self._state = state
        self._scheduler_name = scheduler_name
        self._feature_gates = feature_gates or state.plugin_context.feature_gates
        self._profile: Profile | None = None

    @property
    def cluster(self) -> ClusterState:
        return self._state

    @property
    def scheduler_name(self) -> str:
        return self._scheduler_name

    @property
    def feature_gates(self) -> FeatureGates:
        return self._feature_gates

    def shared(self, make: Callable[[Cluster], SharedT]) -> SharedT:
        shared = self._state.plugin_context.shared
        if make not in shared:
            shared[make] = make(self._state)
        return cast(SharedT, shared[make])

    def waiting_pods(self) -> Sequence[WaitingPod]:
        return self._state.waiting_pods.handles()

    def waiting_members(self, group: PodGroupKey) -> Sequence[WaitingPod]:
        return self._state.waiting_pods.members(group)

    def attach(self, profile: Profile) -> None:
        self._profile = profile

    def nominated_node(self, pod: PodInfo) -> str:
        return self._state.nominator.node_of(pod.key)

    def nominated_pods(self, node_name: str) -> Sequence[PodInfo]:
        return [*self._state.nominator.by_node.get(node_name, {}).values()]

    @property
    def evictions(self) -> Mapping[str, Eviction]:
        return self._state.evictions

    def is_preempting(self, uid: str) -> bool:
        return self._state.evictions.is_preempting(uid)

    @property
    def preemptors_without_evictions(self) -> Collection[str]:
        return self._state.evictions.completed_preemptors.values()

    def dry_run(self, state: CycleState, pod: PodInfo) -> FilterDryRunner:
        if self._profile is None:
            raise RuntimeError("no profile was built with this handle")
        return FilterDryRunner(self._profile, self._state, self._state.nominator, state, pod)

    def stable_random(self, text: str, below: int) -> int:
        return stable_random(self._state.engine.seed, text, below)
