"""The groups below a CompositePodGroup, with their members, in the order in which they are tried.

Children are tried by the priority and the arrival of their first member, then by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from asched.framework.group_hierarchy import (
    ChildGroup,
    TreePosition,
    children_by_parent,
    needed_children,
)
from asched.framework.placements import GroupInCycle
from asched.framework.pod_groups import rules_of
from asched.framework.pod_info import QueuedPod
from asched.framework.runtime.profile import Profile
from asched.group_cycle.members import CycleMembers, member_order, members_of, mixed_names
from asched.model.groups import CompositePodGroup, PodGroup
from asched.state.cluster import ClusterState

_NodeOrder = tuple[bool, tuple[int, int, bool, int, str] | tuple[()], str]


class GroupNode(NamedTuple):
    """A group of the tree. A PodGroup has no children."""

    declared: ChildGroup
    members: CycleMembers
    """All pods below it."""
    children: tuple[GroupNode, ...] = ()

    @property
    def needed(self) -> int:
        """How many children must be feasible; 0 for a PodGroup."""
        declared = self.declared
        return needed_children(declared) if isinstance(declared, CompositePodGroup) else 0

    @property
    def running_children(self) -> int:
        return sum(child.runs for child in self.children)

    @property
    def runs(self) -> bool:
        """Whether it has its minimum without its pending members."""
        if isinstance(self.declared, PodGroup):
            return len(self.members.group.running) >= max(1, self.declared.min_count)
        return self.running_children >= self.needed

    def only(self, keys: Collection[str]) -> GroupNode:
        """The same tree with these pending members only, by pod key."""
        if isinstance(self.declared, PodGroup):
            kept = (one for one in self.members.pending if one.info.key in keys)
            return self._replace(members=self.members.only(kept))
        children = tuple(sorted((child.only(keys) for child in self.children), key=_order))
        return GroupNode(self.declared, _together(self.declared, children), children)

    @property
    def surplus(self) -> bool:
        """Whether a PodGroup has more pending members than it needs."""
        return len(self._least()) < len(self.members.pending)

    def least(self) -> GroupNode:
        """The same tree with only as many pending members of each PodGroup as it needs."""
        return self.only(self._least())

    def _least(self) -> set[str]:
        groups = (node for node in self.subtree() if isinstance(node.declared, PodGroup))
        return {
            one.info.key
            for node in groups
            if not node.runs
            for one in node.members.pending[: node.members.needed]
        }

    def subtree(self) -> Iterator[GroupNode]:
        """The group and all below it, each before its children."""
        yield self
        for child in self.children:
            yield from child.subtree()


class _Collection(NamedTuple):
    cluster: ClusterState
    profile: Profile
    head: QueuedPod
    below: Mapping[str, tuple[ChildGroup, ...]]

    def node(self, declared: ChildGroup, levels: int) -> GroupNode | None:
        """None for a CompositePodGroup below the deepest level."""
        if isinstance(declared, PodGroup):
            members = members_of(self.cluster, self.profile, declared, self.head)
            return GroupNode(declared, members)
        if not levels:
            return None
        found = (self.node(child, levels - 1) for child in self.below.get(declared.key, ()))
        children = tuple(sorted((one for one in found if one is not None), key=_order))
        return GroupNode(declared, _together(declared, children), children)


def collect_tree(
    cluster: ClusterState, profile: Profile, head: QueuedPod, position: TreePosition
) -> GroupNode:
    """The tree that the pod at the head of the queue belongs to, below ``position.root``."""
    assert position.root is not None
    collection = _Collection(cluster, profile, head, children_by_parent(cluster))
    root = collection.node(position.root, position.levels)
    assert root is not None
    return root


def _together(declared: CompositePodGroup, children: Sequence[GroupNode]) -> CycleMembers:
    pending = tuple(queued for child in children for queued in child.members.pending)
    running = (member for child in children for member in child.members.group.running)
    in_order = tuple(sorted(running, key=lambda member: member.pod.key))
    group = GroupInCycle(rules_of(declared), tuple(one.info for one in pending), in_order)
    return CycleMembers(group, pending, mixed_names(pending))


def _order(node: GroupNode) -> _NodeOrder:
    """Groups without pending members come last: nothing of them is tried."""
    pending = node.members.pending
    return not pending, member_order(pending[0]) if pending else (), node.declared.key
