"""What a plugin may read: its :class:`Handle` and the :class:`Cluster` behind it.

Everything here is a read-only view; a plugin changes none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec

from asched.framework.caching import ChangeLog, RowCounts
from asched.framework.cycle_state import CycleState
from asched.framework.feature_gates import FeatureGates
from asched.framework.nodes import HypotheticalNodes, Int64Column, Nodes, ReducedNodes, RowArray
from asched.framework.pod_groups import GroupMembers, PodGroupKey
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import PodQuery, TermKind
from asched.framework.term_table import TermTable
from asched.model.meta import Object

if TYPE_CHECKING:
    from asched.framework.runtime.dry_run import FilterDryRunner

ObjectT = TypeVar("ObjectT", bound=Object)
SharedT = TypeVar("SharedT")


class MountedVolumes(Protocol):
    """The volumes that pods on nodes mount, by row of :attr:`Cluster.nodes`."""

    def pods_with_claim(self, key: str) -> int:
        """How many pods on nodes use the claim ``namespace/name``."""

    def pods_with_disks(self) -> Mapping[int, Mapping[str, PodInfo]]:
        """The pods with inline disks (:func:`asched.framework.volumes.is_disk`), by row and UID."""

    @property
    def attachable(self) -> Int64Column:
        """By row, how many volumes of its pods may count against an attach limit
        (:func:`asched.framework.volumes.is_attachable`). A volume counts once for each pod."""


class ObjectChanges(NamedTuple):
    """The changes of the objects of one kind."""

    cursor: int
    """The end of the log: pass it to the next call."""
    keys: Collection[str] | None
    """Distinct keys of the objects that were added, updated or deleted, oldest first. None: read
    all objects again."""


class Cluster(Protocol):
    """The cluster, with assumed pods on their nodes."""

    @property
    def nodes(self) -> Nodes:
        """All nodes, as columns."""

    @property
    def row_stamps(self) -> Int64Column:
        """By row of :attr:`nodes`: a number that changes with the node, the pods on it and the pods
        nominated to it."""

    def hypothetical_nodes(self, rows: RowArray) -> HypotheticalNodes:
        """A copy of these rows of :attr:`nodes` on which pods can be added and removed."""

    def reduced_nodes(self, rows: RowArray, pods: Sequence[Sequence[PodInfo]]) -> ReducedNodes:
        """These rows of :attr:`nodes` without these of their pods, at least one for each row. The
        pods are numbered in this order, those of the first row first."""

    @property
    def pods_version(self) -> int:
        """Changes when a pod is added to a node, removed from it or updated there."""

    @property
    def lowest_priority(self) -> int | None:
        """The lowest priority of all pods on nodes; None if there are none."""

    def count_pods(self, query: PodQuery) -> Int64Column:
        """By row of :attr:`nodes`, how many pods match."""

    def row_counts(self, query: PodQuery) -> RowCounts:
        """:meth:`count_pods` with a log of recent changes. Each call updates and returns the same
        object while the query stays cached."""

    def affinity_terms(self, kind: TermKind) -> TermTable:
        """The affinity terms of that kind of pods on nodes. Updated in place."""

    @property
    def affinity_terms_version(self) -> int:
        """Changes with :meth:`affinity_terms` of any kind."""

    @property
    def has_affinity_terms(self) -> bool:
        """Whether any pod on a node has an affinity term of any kind."""

    @property
    def volumes(self) -> MountedVolumes:
        """The volumes that pods on nodes mount."""

    def group_members(self, group: PodGroupKey) -> GroupMembers:
        """The members of a pod group, counted by status."""

    def gang_pending_members(self, group: PodGroupKey) -> Sequence[str]:
        """Sorted keys of the members with status ``GANG_PENDING``."""

    @property
    def groups_at_permit(self) -> Collection[PodGroupKey]:
        """Sorted groups with members that wait on Permit."""

    @property
    def permit_changes(self) -> ChangeLog[PodGroupKey]:
        """The groups with members that wait on Permit, each when its PodGroup changed, the status
        of a member, or what a member waits for."""

    def objects(self, kind: type[ObjectT]) -> Mapping[str, ObjectT]:
        """All objects of a kind other than Pod and Node, by ``namespace/name`` (or name).

        Custom resources must be listed in
        :attr:`asched.framework.interface.Plugin.custom_resources`.
        """

    def objects_version(self, *kinds: type[Object]) -> int:
        """Grows when any object of these kinds is added, updated or deleted."""

    def object_changes(self, kind: type[Object], since: int) -> ObjectChanges:
        """What changed since :attr:`ObjectChanges.cursor` of an earlier call; -1 for the first
        call. The log of each kind is bounded."""

    @property
    def now_ns(self) -> int:
        """Time of the current turn, nanoseconds since the epoch. A plugin has no other clock."""

    @property
    def date_ns(self) -> int:
        """Date of the current turn, nanoseconds since the epoch: :attr:`now_ns` corrected for a
        wall clock that was set. For comparisons with dates of objects."""


class WaitingPod(Protocol):
    """A pod that waits on Permit."""

    @property
    def info(self) -> PodInfo:
        """The pod."""

    @property
    def node_name(self) -> str:
        """The node on which the pod is assumed."""

    @property
    def pending(self) -> frozenset[str]:
        """The Permit plugins that have not allowed the pod yet."""

    def allow(self, plugin: str) -> None:
        """Allow the pod in the name of a plugin. The last of :attr:`pending` lets it bind."""

    def reject(self, plugin: str, message: str) -> None:
        """Reject the pod in the name of a plugin. It returns to the queue."""


class PodRef(msgspec.Struct, frozen=True, gc=False):
    """One particular pod: a later one of the same name has another UID."""

    key: str
    uid: str


class Eviction(NamedTuple):
    """A victim and its preemptor."""

    victim: PodRef
    preemptor: PodRef
    node: str
    reason: str = ""
    """The action of the batch session that evicts; empty for preemption in a scheduling cycle."""


class Handle(Protocol):
    """The framework as a plugin sees it, for the lifetime of its profile."""

    @property
    def cluster(self) -> Cluster:
        """The cluster, with assumed pods on their nodes."""

    @property
    def scheduler_name(self) -> str:
        """The ``schedulerName`` that the profile serves."""

    @property
    def feature_gates(self) -> FeatureGates:
        """The gates of the configuration. They do not change while the profile exists."""

    def shared(self, make: Callable[[Cluster], SharedT]) -> SharedT:
        """An object that the plugins of all profiles share: ``make(cluster)``, called once until
        profiles are loaded again. ``make`` is the key, so use a class or a module's function."""

    def waiting_pods(self) -> Sequence[WaitingPod]:
        """Pods that wait on Permit, oldest first. Calls to ``allow`` and ``reject`` become
        decisions of their own right after the current attempt."""

    def waiting_members(self, group: PodGroupKey) -> Sequence[WaitingPod]:
        """Those of :meth:`waiting_pods` that name the group."""

    def nominated_node(self, pod: PodInfo) -> str:
        """The node to which the pod is nominated, or an empty string."""

    def nominated_pods(self, node_name: str) -> Sequence[PodInfo]:
        """The pods that are nominated to the node."""

    @property
    def evictions(self) -> Mapping[str, Eviction]:
        """Evictions that are decided but not yet observed, by UID of the victim."""

    def is_preempting(self, uid: str) -> bool:
        """Whether the pod with that UID is the preemptor of any of :attr:`evictions`."""

    @property
    def preemptors_without_evictions(self) -> Collection[str]:
        """Keys of unbound preemptors without outstanding evictions.

        Includes pods that a plugin rejected while they waited on Permit for another plugin.
        """

    def dry_run(self, state: CycleState, pod: PodInfo) -> FilterDryRunner:
        """Runs the profile's filters for the pod on hypothetical nodes. ``state`` is the state of
        the pod's attempt, after PreFilter."""

    def stable_random(self, text: str, below: int) -> int:
        """A pseudo-random number from 0 to ``below - 1``, which is the same in a replay."""
