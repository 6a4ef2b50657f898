"""The CompositePodGroups above a PodGroup, and the groups below a CompositePodGroup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from asched.framework.pod_groups import parent_key
from asched.model.groups import CompositePodGroup, PodGroup

if TYPE_CHECKING:
    from asched.framework.cluster import Cluster

MAX_LEVELS = 4
"""How many CompositePodGroups may be above a PodGroup."""

ChildGroup = PodGroup | CompositePodGroup


class Ancestors(NamedTuple):
    """The CompositePodGroups above a group."""

    chain: tuple[CompositePodGroup, ...] = ()
    """The parent first."""
    problem: str = ""
    """Why the group cannot be scheduled: the chain is not complete."""


class TreePosition(NamedTuple):
    """The tree in which a PodGroup is scheduled."""

    root: CompositePodGroup | None = None
    """None if the PodGroup is scheduled on its own."""
    levels: int = MAX_LEVELS
    """How many levels of CompositePodGroups the tree may have, the root included."""
    problem: str = ""
    """As for :class:`Ancestors`."""


def ancestors(cluster: Cluster, group: ChildGroup) -> Ancestors:
    """The CompositePodGroups above a group, up to the root or to a problem."""
    known = cluster.objects(CompositePodGroup)
    chain: list[CompositePodGroup] = []
    below: ChildGroup = group
    while key := parent_key(below):
        if any(one.key == key for one in chain):
            cycle = " -> ".join(one.key for one in chain)
            problem = f"CompositePodGroups are parents of each other: {cycle} -> {key}"
            return Ancestors(tuple(chain), problem)
        parent = known.get(key)
        if parent is None:
            child = f"{type(below).__name__} {below.key}"
            return Ancestors(tuple(chain), f"{child}: its parent CompositePodGroup {key} not found")
        if len(chain) == MAX_LEVELS:
            problem = f"more than {MAX_LEVELS} CompositePodGroups are above PodGroup {group.key}"
            return Ancestors(tuple(chain), problem)
        chain.append(parent)
        below = parent
    return Ancestors(tuple(chain))


def tree_position(cluster: Cluster, group: PodGroup) -> TreePosition:
    """The tree that is scheduled as one with the PodGroup.

    Its root is the topmost CompositePodGroup that has a rule about its children. Those above it
    have none, so their children are scheduled independently of each other.
    """
    if not parent_key(group):
        return TreePosition()
    chain, problem = ancestors(cluster, group)
    if problem:
        return TreePosition(problem=problem)
    for above, composite in enumerate(reversed(chain)):
        if _has_rules(composite):
            return TreePosition(composite, MAX_LEVELS - above)
    return TreePosition()


def _has_rules(composite: CompositePodGroup) -> bool:
    spec, annotations = composite.spec, composite.metadata.annotations
    return bool(
        spec.scheduling_policy.gang is not None
        or spec.scheduling_constraints is not None
        or (annotations.required_topology or "").strip()
        or (annotations.preferred_topology or "").strip()
        or spec.unsupported
    )


def children_by_parent(cluster: Cluster) -> Mapping[str, tuple[ChildGroup, ...]]:
    """The groups that name a parent, by its key."""
    found: dict[str, list[ChildGroup]] = {}
    composites, groups = cluster.objects(CompositePodGroup), cluster.objects(PodGroup)
    every: tuple[ChildGroup, ...] = (*composites.values(), *groups.values())
    for group in every:
        key = parent_key(group)
        if key:
            found.setdefault(key, []).append(group)
    return {key: tuple(groups) for key, groups in found.items()}


def groups_below(cluster: Cluster, composite: str) -> Iterator[PodGroup]:
    """The PodGroups below the CompositePodGroup of that key, at all levels."""
    children = children_by_parent(cluster)
    level: Sequence[str] = (composite,)
    for _ in range(MAX_LEVELS):
        found = [child for key in level for child in children.get(key, ())]
        yield from (child for child in found if isinstance(child, PodGroup))
        level = [child.key for child in found if isinstance(child, CompositePodGroup)]


def needed_children(composite: CompositePodGroup) -> int:
    """How many child groups must be feasible at least, so that the group is."""
    return max(1, composite.min_group_count)
