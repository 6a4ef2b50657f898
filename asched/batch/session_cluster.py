"""The cluster and the handle that built-in plugins get inside a session."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from asched.framework.caching import ChangeLog, RowCounts
from asched.framework.cluster import Cluster, Eviction, WaitingPod
from asched.framework.cycle_state import CycleState
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.pod_groups import GroupMembers, PodGroupKey
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import PodQuery, TermHolders, TermKind, TermMove
from asched.framework.runtime.dry_run import FilterDryRunner
from asched.framework.scoring import stable_random
from asched.model.meta import Object
from asched.state.cluster import ClusterState
from asched.state.node_rows import NodeRows
from asched.state.node_table import NodeTable
from asched.state.pod_index import PodIndex, VolumeIndex

ObjectT = TypeVar("ObjectT", bound=Object)


class SessionHandle:
    """A :class:`asched.framework.cluster.Handle` on the cluster of a session, which has neither
    waiting nor nominated pods."""

    def __init__(self, state: ClusterState, cluster: Cluster, scheduler_name: str) -> None:
        self._state = state
        self._cluster = cluster
        self._scheduler_name = scheduler_name

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    @property
    def scheduler_name(self) -> str:
        return self._scheduler_name

    def waiting_pods(self) -> Sequence[WaitingPod]:
        return ()

    def nominated_node(self, pod: PodInfo) -> str:
        return ""

    def nominated_pods(self, node_name: str) -> Sequence[PodInfo]:
        return ()

    @property
    def evictions(self) -> Mapping[str, Eviction]:
        return self._state.evictions

    def is_preempting(self, uid: str) -> bool:
        return False

    @property
    def preemptors_without_evictions(self) -> Collection[str]:
        return ()

    def dry_run(self, state: CycleState, pod: PodInfo) -> FilterDryRunner:
        raise RuntimeError("session plugins do not simulate adding or removing pods")

    def stable_random(self, text: str, below: int) -> int:
        return stable_random(self._state.seed, text, below)


class SessionCluster:
    """A :class:`asched.framework.cluster.Cluster` that includes the session's placements.

    The node table is a fork, so the session does not change the state.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._table = cluster.nodes.fork()
        self._index = PodIndex(self._table)
        self._volumes = VolumeIndex(self._table)

    def add_pod(self, row: int, pod: PodInfo) -> None:
        self._table.add_pod(self._table.names[row], pod)

    def remove_pod(self, row: int, pod: PodInfo) -> None:
        self._table.remove_pod(self._table.names[row], pod)

    @property
    def nodes(self) -> NodeTable:
        return self._table

    def count_pods(self, query: PodQuery) -> Int64Column:
        return self._index.count_pods(query)

    def row_counts(self, query: PodQuery) -> RowCounts:
        return self._index.row_counts(query)

    def term_holders(self, kind: TermKind) -> Collection[TermHolders]:
        return self._index.term_holders(kind)

    def term_moves(self, kind: TermKind) -> ChangeLog[TermMove]:
        return self._index.term_moves(kind)

    @property
    def pods_version(self) -> int:
        return self._table.pods_cursor

    @property
    def lowest_priority(self) -> int | None:
        return self._index.lowest_priority

    @property
    def has_term_holders(self) -> bool:
        return self._index.has_term_holders

    @property
    def row_stamps(self) -> Int64Column:
        return self._table.stamps

    def hypothetical_nodes(self, rows: RowArray) -> NodeRows:
        return self._table.take(rows)

    @property
    def volumes(self) -> VolumeIndex:
        return self._volumes

    def group_members(self, group: PodGroupKey) -> GroupMembers:
        return self._cluster.group_members(group)

    def gang_pending_members(self, group: PodGroupKey) -> Sequence[str]:
        return self._cluster.gang_pending_members(group)

    @property
    def groups_at_permit(self) -> Collection[PodGroupKey]:
        return self._cluster.groups_at_permit

    def objects(self, kind: type[ObjectT]) -> Mapping[str, ObjectT]:
        return self._cluster.objects(kind)

    def objects_version(self, *kinds: type[Object]) -> int:
        return self._cluster.objects_version(*kinds)

    @property
    def now_ns(self) -> int:
        return self._cluster.now_ns
