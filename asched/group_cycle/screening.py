"""How many members of a group each placement has room for, without trying them.

Filters that only count (:class:`~asched.framework.interface.CapacityFilter`) answer for all nodes
and all placements at once. A placement without enough room is not tried. If all members are alike
and no other filter depends on them, the number is exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asched.cycle.precheck import refusal
from asched.cycle.shape_cache import ShapeCache
from asched.framework.interface import CapacityFilter
from asched.framework.nodes import BoolColumn, Int64Column
from asched.framework.placements import GroupPlacement
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.runtime.plugin_calls import call
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code
from asched.group_cycle.members import CycleMembers
from asched.group_cycle.work import CycleWork
from asched.state.cluster import ClusterState


class Room(NamedTuple):
    """How many pending members a placement has room for at most."""

    members: int
    exact: bool
    """Whether that many fit."""


class Rooms(NamedTuple):
    """The room in each placement."""

    found: list[Room]
    plugins: frozenset[str]
    """The filters that limit it somewhere."""


class _ShapeRoom(NamedTuple):
    """How many pods of one shape fit, if no others are added."""

    by_row: Int64Column
    exact: bool
    plugins: frozenset[str]


class Screening:
    """Counts the room for groups under one profile. Its cache changes no result."""

    def __init__(self, cluster: ClusterState, profile: Profile, cache: ShapeCache) -> None:
        self._cluster = cluster
        self._profile = profile
        self._cache = cache
        self.work: CycleWork | None = None
        """Counts what the screening does."""

    def rooms(self, members: CycleMembers, placements: Sequence[GroupPlacement]) -> Rooms | None:
        """The room in each placement; None if filters do not count. Raises
        :class:`PluginFailure`."""
        counts = Counter(pod.shape for pod in members.group.pending)
        firsts: dict[PodShape, PodInfo] = {}
        for pod in members.group.pending:
            firsts.setdefault(pod.shape, pod)
        if self.work is not None:
            self.work.screen(len(firsts))
        shapes = [(self._room(pod), counts[shape]) for shape, pod in firsts.items()]
        known = [(room, count) for room, count in shapes if room is not None]
        if len(known) < len(shapes):
            return None
        exact = len(known) == 1 and known[0][0].exact and self._are_alike(members)
        rows = np.concatenate([place.rows for place in placements])
        position = np.repeat(np.arange(len(placements)), [len(place.rows) for place in placements])
        members_fit = np.zeros(len(placements), np.int64)
        for room, count in known:
            # Of the counted form no more than its members matter, which are few enough for floats.
            by_row = np.minimum(room.by_row[rows], count)
            fit = np.bincount(position, weights=by_row, minlength=len(placements))
            members_fit += np.minimum(fit.astype(np.int64), count)
        found = [Room(fit, exact) for fit in members_fit.tolist()]
        return Rooms(found, frozenset().union(*(room.plugins for room, _ in known)))

    def usable(self, members: CycleMembers) -> BoolColumn:
        """By row, the nodes on which some member fits, or might if other pods were gone."""
        nodes = self._cluster.nodes
        usable = np.zeros(nodes.size, np.bool_)
        for pod in {pod.shape: pod for pod in members.group.pending}.values():
            shared = self._cache.filters(self._profile, pod)
            if not shared.pre_filter.passes:
                return nodes.alive
            findings = shared.findings
            curable = np.array([s.code is Code.UNSCHEDULABLE for s in findings.statuses], np.bool_)
            usable |= findings.passing | curable[findings.code]
        return usable & nodes.alive

    def _room(self, pod: PodInfo) -> _ShapeRoom | None:
        shared = self._cache.filters(self._profile, pod)
        if not shared.pre_filter.passes:
            return None
        filters = shared.row_filters
        counting = [plugin for plugin in filters if isinstance(plugin, CapacityFilter)]
        if not counting or shared.findings.has_errors:
            return None
        by_row = np.full(self._cluster.nodes.size, np.iinfo(np.int64).max)
        for plugin in counting:
            room = call(plugin, "Capacity", plugin.capacity, pod, self._cluster.nodes)
            by_row = np.minimum(by_row, room)
        own = self._cache.plugins(self._profile, pod)
        exact = (
            len(counting) == len(filters)
            and own.none_applies
            and not self._profile.permit
            and all(plugin.name in own.inapplicable for plugin in self._profile.reserve)
        )
        plugins = {status.plugin for status, _ in shared.counted()}
        return _ShapeRoom(
            np.where(shared.feasible, by_row, 0),
            exact,
            frozenset(plugins.union(plugin.name for plugin in counting)),
        )

    def _are_alike(self, members: CycleMembers) -> bool:
        """Whether members of one shape are not distinguished by anything else."""
        if self._cluster.nominator:
            return False
        pods = members.group.pending
        return not any(pod.pod.spec.node_name or refusal(self._cluster, pod) for pod in pods) and (
            # Labels and the like decide which plugins apply to a pod.
            all(self._cache.plugins(self._profile, pod).none_applies for pod in pods)
        )
