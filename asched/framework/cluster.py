"""The cluster as plugins may read it: what a :class:`~asched.framework.interface.Handle` leads to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from asched.framework.change_log import RowCounts
from asched.framework.nodes import Int64Column, Nodes, RowArray, SupposedNodes
from asched.framework.pod_groups import GroupMembers, PodGroupKey
from asched.framework.pod_queries import PodQuery, TermHolders, TermKind
from asched.framework.volumes import MountedVolumes
from asched.model.meta import Object

ObjectT = TypeVar("ObjectT", bound=Object)


class Cluster(Protocol):
    """What a plugin may read of the cluster. Views, never to be changed by a plugin."""

    def count_pods(self, query: PodQuery) -> Int64Column:
        """How many matching pods the node of each row of :attr:`nodes` has, assumed ones included."""

    def row_counts(self, query: PodQuery) -> RowCounts:
        """As :meth:`count_pods`, with what moved lately. The same object for as long as the question
        is remembered, brought up to date by each call."""

    def term_holders(self, kind: TermKind) -> Sequence[TermHolders]:
        """Every distinct affinity term of that kind which pods on nodes have, and where. The same
        object as before while the terms are the same; the columns move on."""

    @property
    def nodes(self) -> Nodes: ...

    @property
    def pods_version(self) -> int:
        """Changes whenever a pod comes to a node or leaves it, or changes there."""

    @property
    def lowest_priority(self) -> int | None:
        """The lowest priority of all pods on nodes; None where there is none."""

    @property
    def terms_version(self) -> int:
        """Changes whenever :meth:`term_holders` of any kind has another answer; how many pods hold a
        term where does not matter."""

    @property
    def has_term_holders(self) -> bool:
        """Whether any pod on a node has any affinity term, of whatever kind."""

    @property
    def row_stamps(self) -> Int64Column:
        """By row of :attr:`nodes`: a number that changes whenever anything about the row does: its
        node, the pods on it, the pods nominated to it."""

    def suppose(self, rows: RowArray) -> SupposedNodes:
        """A hypothesis about these rows of :attr:`nodes`; at first all is as it is."""

    @property
    def volumes(self) -> MountedVolumes:
        """What the pods on nodes mount."""

    def group_members(self, group: PodGroupKey) -> GroupMembers:
        """The pods of a group."""

    def sleeping_members(self, group: PodGroupKey) -> Sequence[str]:
        """Keys of the members that wait, turned away for the sake of the group alone, sorted."""

    @property
    def groups_holding(self) -> Collection[PodGroupKey]:
        """The groups with members that Permit holds, sorted."""

    def objects(self, kind: type[ObjectT]) -> Mapping[str, ObjectT]:
        """All objects of one kind other than pods and nodes, by ``namespace/name`` (or name). Of custom
        resources those that :attr:`asched.framework.interface.Plugin.custom_resources` name."""

    def objects_version(self, *kinds: type[Object]) -> int:
        """Grows whenever one of :meth:`objects` of these kinds appears, changes or goes."""

    @property
    def now_ns(self) -> int:
        """The time of the present turn, nanoseconds since the epoch: the only clock of a plugin."""
