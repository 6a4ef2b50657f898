"""Placements by topology domain: TopologyPlacementGenerator, and PlacementBestFit to choose one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from asched.framework.caching import LruCache
from asched.framework.cluster import Handle
from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.framework.group_hierarchy import ancestors
from asched.framework.interface import (
    Arguments,
    EnqueueExtensions,
    PlacementGeneratePlugin,
    PlacementScorePlugin,
)
from asched.framework.nodes import MAX_NODE_SCORE, LabelColumn, Nodes, RowArray
from asched.framework.placements import (
    GeneratedPlacements,
    GroupAssignments,
    GroupInCycle,
    GroupPlacement,
)
from asched.framework.pod_groups import (
    AnyPodGroup,
    GroupRules,
    find_group,
    group_of,
    only_status_changed,
    rules_of,
)
from asched.framework.status import Status
from asched.model.groups import CompositePodGroup, PodGroup
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.selectors import is_qualified_name
from asched.plugins.shared import queue_if

_UNDETERMINED = "cannot determine domain for already scheduled pods: "
_MAX_LEVELS = 16
_CACHE_BYTES = 16 * 1024 * 1024
_PLACEMENT_BYTES = 256

_Topology = tuple[str, tuple[str, ...]]
"""Required and preferred labels."""


class TopologyPlacementGeneratorArgs(Arguments, frozen=True):
    """The topology of the cluster."""

    levels: tuple[str, ...] = ()
    """Node labels of nested topology levels, the widest first, such as block, rack and NVLink
    domain. A group that prefers one of them falls back to those before it. A group that requires
    one of them, and prefers none, prefers those after it."""

    def __post_init__(self) -> None:
        problem = _level_problem(self.levels)
        if problem:
            raise ValueError(f"levels: {problem}")


def _level_problem(levels: Sequence[str]) -> str:
    """What is wrong with a list of node labels; empty if nothing is."""
    for level in levels:
        if not is_qualified_name(level):
            return f"{level!r} is not a label key"
    if len({*levels}) < len(levels):
        return "a label occurs twice"
    return f"more than {_MAX_LEVELS} labels" if len(levels) > _MAX_LEVELS else ""


class TopologyPlacementGenerator(PlacementGeneratePlugin, EnqueueExtensions):
    """The domains of the node labels that a group requires or prefers, in the order of their names.

    A group that prefers levels is tried in the domains of the narrowest one first. Members that run
    already determine the domain. Nodes without a label are in no domain of it. A group without
    topology has one placement without a name, all nodes.
    """

    name: ClassVar[str] = "TopologyPlacementGenerator"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[TopologyPlacementGeneratorArgs]] = TopologyPlacementGeneratorArgs

    def __init__(self, args: TopologyPlacementGeneratorArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._levels = args.levels
        self._known: LruCache[_Topology, GeneratedPlacements] = LruCache(_CACHE_BYTES, _size_bytes)
        self._known_nodes: Nodes | None = None
        self._known_version = -1

    def generate_placements(self, group: GroupInCycle, nodes: Nodes) -> GeneratedPlacements:
        if group.running:
            return self._generate(group, nodes)
        if self._known_nodes is not nodes or self._known_version != nodes.version:
            self._known.clear()
            self._known_nodes, self._known_version = nodes, nodes.version
        topology = (group.rules.topology_key, group.rules.preferred_topology)
        return self._known.get(topology, lambda: self._generate(group, nodes))

    def _generate(self, group: GroupInCycle, nodes: Nodes) -> GeneratedPlacements:
        rules = group.rules
        problem = _level_problem(rules.preferred_topology)
        if not problem and rules.topology_key and not is_qualified_name(rules.topology_key):
            problem = f"{rules.topology_key!r} is not a label key"
        if problem:
            return GeneratedPlacements(Status.unschedulable(f"topology of the PodGroup: {problem}"))
        every: tuple[GroupPlacement, ...] = (GroupPlacement("", np.flatnonzero(nodes.alive)),)
        required = self._required(rules)
        if required:
            domains = _required_domains(group, nodes, required)
            if isinstance(domains, Status):
                return GeneratedPlacements(domains)
            every = tuple(domains)
        preferred = [level for level in self._preferred(rules) if level not in required]
        if not preferred or not every:
            return GeneratedPlacements(placements=every)
        within = np.concatenate([placement.rows for placement in every])
        tiers: list[list[GroupPlacement]] = []
        for depth in range(len(preferred), 0, -1):
            keys = (*required, *preferred[:depth])
            tiers.append([*_preferred_domains(group, nodes, keys, within, len(tiers))])
        last = [GroupPlacement(name, rows, len(tiers)) for name, rows, _ in every]
        return GeneratedPlacements(placements=(*_distinct(tiers, last), *last))

    def _required(self, rules: GroupRules) -> tuple[str, ...]:
        """The required level, after those that contain it; empty for none."""
        level = rules.topology_key
        for levels in (rules.preferred_topology, self._levels):
            if level in levels:
                return levels[: levels.index(level) + 1]
        return (level,) if level else ()

    def _preferred(self, rules: GroupRules) -> tuple[str, ...]:
        """The preferred levels of a group. One that is configured includes those above it. Within
        a required level few of the narrower domains are preferred."""
        listed = rules.preferred_topology
        if not listed and rules.topology_key in self._levels:
            return self._levels
        if len(listed) == 1 and listed[0] in self._levels:
            return self._levels[: self._levels.index(listed[0]) + 1]
        return listed

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        changed = ActionType.ADD | ActionType.UPDATE
        node = ClusterEvent(EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_LABEL)
        group = ClusterEvent(EventResource.POD_GROUP, changed)
        composite = ClusterEvent(EventResource.COMPOSITE_POD_GROUP, changed)
        return (
            ClusterEventWithHint(node, self._domain_may_fit),
            ClusterEventWithHint(group, _topology_may_change, own_group=True),
            ClusterEventWithHint(composite, self._tree_may_change),
        )

    def _domain_may_fit(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if a node enters a domain of the pod's group, or of one above it."""
        if not isinstance(new, Node):
            return QueueingHint.SKIP
        before = old.labels if isinstance(old, Node) else {}
        groups = self._own_and_above(pod)
        labels = {label for group in groups for label in self._required(rules_of(group))}
        return queue_if(
            any(label in new.labels and new.labels[label] != before.get(label) for label in labels)
        )

    def _tree_may_change(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if the CompositePodGroup is above the pod's group."""
        if new is None or only_status_changed(old, new):
            return QueueingHint.SKIP
        return queue_if(any(one.key == new.key for one in self._own_and_above(pod)[1:]))

    def _own_and_above(self, pod: Pod) -> Sequence[AnyPodGroup | CompositePodGroup]:
        """The pod's group, and the CompositePodGroups above it."""
        key = group_of(pod)
        group = None if key is None else find_group(self.handle.cluster, key)
        if group is None:
            return ()
        if not isinstance(group, PodGroup):
            return (group,)
        return (group, *ancestors(self.handle.cluster, group).chain)


def _size_bytes(generated: GeneratedPlacements) -> int:
    """The memory of an answer that is kept. Its rows become read-only."""
    for placement in generated.placements:
        placement.rows.flags.writeable = False
    return sum(_PLACEMENT_BYTES + placement.rows.nbytes for placement in generated.placements)


def _topology_may_change(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    return queue_if(not only_status_changed(old, new))


def _distinct(
    tiers: Sequence[Sequence[GroupPlacement]], last: Sequence[GroupPlacement]
) -> Iterator[GroupPlacement]:
    """Without domains that are equal to one of the next tier: they would be tried twice."""
    for number, tier in enumerate(tiers):
        wider = tiers[number + 1] if number + 1 < len(tiers) else last
        known = {one.rows.tobytes() for one in wider}
        yield from (one for one in tier if one.rows.tobytes() not in known)


def _domains(nodes: Nodes, keys: Sequence[str], rows: RowArray) -> list[tuple[str, RowArray]]:
    """The domains of the last of these labels, each within those of the others: (name, rows)."""
    columns = [nodes.label(key) for key in keys]
    numbers = np.zeros(len(rows), np.int64)
    present = np.ones(len(rows), np.bool_)
    for column in columns:
        ids = column.ids[rows]
        present &= ids >= 0
        # Dense again at each level, so that the products remain small.
        if len(columns) > 1:
            numbers = np.unique(numbers, return_inverse=True)[1].reshape(-1).astype(np.int64)
        numbers = numbers * (int(ids.max(initial=0)) + 1) + ids
    rows, numbers = rows[present], numbers[present]
    order = np.argsort(numbers, kind="stable")
    rows, numbers = rows[order], numbers[order]
    begins = np.flatnonzero(np.diff(numbers)) + 1
    parts = [part for part in np.split(rows, begins) if len(part)]
    names = (_name(columns, [int(column.ids[part[0]]) for column in columns]) for part in parts)
    return sorted(zip(names, parts, strict=True), key=lambda domain: domain[0])


def _name(columns: Sequence[LabelColumn], numbers: Sequence[int]) -> str:
    return "/".join(column.word(number) for column, number in zip(columns, numbers, strict=True))


def _required_domains(
    group: GroupInCycle, nodes: Nodes, keys: Sequence[str]
) -> list[GroupPlacement] | Status:
    """The domains of the last label; only that of the members that run, if any."""
    required = _domain_of_running(group, nodes, keys)
    if isinstance(required, Status):
        return required
    found = _domains(nodes, keys, np.flatnonzero(nodes.alive))
    return [
        GroupPlacement(name, rows) for name, rows in found if required is None or name == required
    ]


def _preferred_domains(
    group: GroupInCycle, nodes: Nodes, keys: Sequence[str], within: RowArray, tier: int
) -> Iterator[GroupPlacement]:
    """The domains of the last label; if members run, only those in which some do."""
    running = {nodes.row_of(member.node) for member in group.running}
    for name, rows in _domains(nodes, keys, np.sort(within)):
        if not running or not running.isdisjoint(rows.tolist()):
            yield GroupPlacement(name, rows, tier)


def _domain_of_running(
    group: GroupInCycle, nodes: Nodes, keys: Sequence[str]
) -> str | Status | None:
    """The domain of the members that run; None if none runs; an error if there is no such one."""
    columns, domain = [nodes.label(key) for key in keys], None
    for member in group.running:
        row = nodes.row_of(member.node)
        if row is None:
            return Status.error(
                f"{_UNDETERMINED}getting node for pod {member.pod.key}: nodeinfo not found for node"
                f' name "{member.node}"'
            )
        numbers = [int(column.ids[row]) for column in columns]
        if min(numbers) < 0:
            return Status.error(f"{_UNDETERMINED}no topology domain found for pod {member.pod.key}")
        found = _name(columns, numbers)
        if domain is not None and found != domain:
            return Status.error(
                f"{_UNDETERMINED}more than 1 domain found for pod group: {domain}, {found}"
            )
        domain = found
    return domain


class PlacementBestFit(PlacementScorePlugin):
    """Prefers the placement in which the fewest further members would fit afterwards, by the free
    resources of its nodes together: the smallest domain that fits, with the least left over."""

    name: ClassVar[str] = "PlacementBestFit"
    api_version: ClassVar[int] = 1
    reads_member_nodes: ClassVar[bool] = False

    def score_placement(self, group: GroupInCycle, assignments: GroupAssignments) -> int:
        """Further members of average size that fit, by the most used resource."""
        nodes, rows = self.handle.cluster.nodes, assignments.placement.rows
        placed, count = assignments.members, len(group.pending)
        names = sorted({name for pod in group.pending for name in pod.shape.requests})
        left = int((nodes.allowed_pods[rows] - nodes.pod_count[rows]).sum()) - len(placed)
        for name in names:
            asked = sum(pod.shape.requests.get(name, 0) for pod in group.pending)
            if asked <= 0:
                continue
            free = int((nodes.allocatable(name)[rows] - nodes.requested(name)[rows]).sum())
            free -= sum(member.pod.shape.requests.get(name, 0) for member in placed)
            left = min(left, free * count // asked)
        return max(left, 0)

    def normalize_placements(self, scores: Sequence[int]) -> Sequence[int]:
        most = max(scores, default=0)
        return [MAX_NODE_SCORE - MAX_NODE_SCORE * left // max(most, 1) for left in scores]
