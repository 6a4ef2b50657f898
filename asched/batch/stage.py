"""The cluster as a session leaves it: a view with the session's placements, for plugins."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from asched.framework.change_log import RowCounts
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.pod_groups import GroupMembers, PodGroupKey
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import PodQuery, TermHolders, TermKind
from asched.model.meta import Object
from asched.state.cluster import ClusterState
from asched.state.node_rows import NodeRows
from asched.state.node_table import NodeTable
from asched.state.pod_index import PodIndex
from asched.state.table_fork import fork
from asched.state.volume_index import VolumeIndex

ObjectT = TypeVar("ObjectT", bound=Object)


class SessionStage:
    """A :class:`asched.framework.cluster.Cluster` of its own, which nobody else sees."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._table = fork(cluster.nodes)
        self._index = PodIndex(self._table)
        self._volumes = VolumeIndex(self._table)

    def enter(self, row: int, pod: PodInfo) -> None:
        self._table.add_pod(self._table.names[row], pod)

    def leave(self, row: int, pod: PodInfo) -> None:
        self._table.remove_pod(self._table.names[row], pod)

    @property
    def nodes(self) -> NodeTable:
        return self._table

    def count_pods(self, query: PodQuery) -> Int64Column:
        return self._index.count_pods(query)

    def row_counts(self, query: PodQuery) -> RowCounts:
        return self._index.row_counts(query)

    def term_holders(self, kind: TermKind) -> Sequence[TermHolders]:
        return self._index.term_holders(kind)

    @property
    def pods_version(self) -> int:
        return self._table.pods_cursor

    @property
    def lowest_priority(self) -> int | None:
        return self._index.lowest_priority

    @property
    def terms_version(self) -> int:
        return self._index.terms_version

    @property
    def has_term_holders(self) -> bool:
        return self._index.has_term_holders

    @property
    def row_stamps(self) -> Int64Column:
        return self._table.stamps

    def suppose(self, rows: RowArray) -> NodeRows:
        return self._table.take(rows)

    @property
    def volumes(self) -> VolumeIndex:
        return self._volumes

    def group_members(self, group: PodGroupKey) -> GroupMembers:
        return self._cluster.group_members(group)

    def sleeping_members(self, group: PodGroupKey) -> Sequence[str]:
        return self._cluster.sleeping_members(group)

    @property
    def groups_holding(self) -> Collection[PodGroupKey]:
        return self._cluster.groups_holding

    def objects(self, kind: type[ObjectT]) -> Mapping[str, ObjectT]:
        return self._cluster.objects(kind)

    def objects_version(self, *kinds: type[Object]) -> int:
        return self._cluster.objects_version(*kinds)

    @property
    def now_ns(self) -> int:
        return self._cluster.now_ns
