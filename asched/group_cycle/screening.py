"""How many members of a group each placement has room for, without trying them.

Filters that only count (:class:`~asched.framework.interface.CapacityFilter`) answer for all nodes
and all placements at once. A placement without enough room is not tried. If all members are alike
and no other filter depends on them, the number is exact.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from operator import is_
from typing import NamedTuple

import numpy as np

from asched.cycle.shape_cache import ShapeCache
from asched.cycle.shape_filters import ShapeFilters
from asched.framework.interface import CapacityFilter
from asched.framework.nodes import BoolColumn, Int64Column
from asched.framework.placements import GroupPlacement
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.runtime.plugin_calls import call
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code
from asched.group_cycle.like_members import LikeMembers
from asched.group_cycle.members import CycleMembers
from asched.group_cycle.work import CycleWork
from asched.state.cluster import ClusterState

_MAX_SHAPES = 128


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


class _ShapeRoom:
    """How many pods of one shape fit, if no others are added."""

    def __init__(
        self, shared: ShapeFilters, by_row: Int64Column, plugins: frozenset[str], *, only: bool
    ) -> None:
        self._shared = shared
        self._version = shared.version
        self.by_row = by_row
        self.plugins = plugins
        """The filters that limit it."""
        self.only = only
        """Whether all row filters were counted."""
        self._count = 0
        self._placements: Sequence[GroupPlacement] = ()
        self._fit: Int64Column = np.zeros(0, np.int64)

    def is_current(self, shared: ShapeFilters) -> bool:
        """Whether no node has changed since. ``shared``: the shape's filters now."""
        return self._shared is shared and self._version == shared.version

    def fit(self, count: int, placements: Sequence[GroupPlacement]) -> Int64Column:
        """How many of ``count`` pods have room in each placement. Like groups get the last
        answer."""
        same = count == self._count and len(placements) == len(self._placements)
        if not same or not all(map(is_, placements, self._placements)):
            rows = np.concatenate([place.rows for place in placements])
            lengths = [len(place.rows) for place in placements]
            position = np.repeat(np.arange(len(placements)), lengths)
            # Only as many as its members matter, which are few enough for floats.
            by_row = np.minimum(self.by_row[rows], count)
            fit = np.bincount(position, weights=by_row, minlength=len(placements))
            self._fit = np.minimum(fit.astype(np.int64), count)
            self._count, self._placements = count, placements
        return self._fit


class RoomCache:
    """The room that was counted for earlier groups. Dropping it changes no answer."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Profile, PodShape], _ShapeRoom] = OrderedDict()

    def find(self, profile: Profile, shape: PodShape, shared: ShapeFilters) -> _ShapeRoom | None:
        """What is known about a shape, if no node has changed since."""
        known = self._known.get((profile, shape))
        return known if known is not None and known.is_current(shared) else None

    def keep(self, profile: Profile, shape: PodShape, room: _ShapeRoom) -> None:
        """Keep what was counted, instead of what was counted before for the shape."""
        self._known[profile, shape] = room
        self._known.move_to_end((profile, shape))
        if len(self._known) > _MAX_SHAPES:
            self._known.popitem(last=False)


class Screening:
    """Counts the room for groups under one profile. Its cache changes no result."""

    def __init__(
        self,
        cluster: ClusterState,
        profile: Profile,
        cache: ShapeCache,
        like_members: LikeMembers,
        rooms: RoomCache,
    ) -> None:
        self._cluster = cluster
        self._profile = profile
        self._cache = cache
        self._like_members = like_members
        self._rooms = rooms
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
        shapes = [(pod, self._room(pod)) for pod in firsts.values()]
        known = [(pod, room) for pod, room in shapes if room is not None]
        if len(known) < len(shapes):
            return None
        members_fit = np.zeros(len(placements), np.int64)
        for pod, room in known:
            members_fit += room.fit(counts[pod.shape], placements)
        exact = len(known) == 1 and self._is_exact(*known[0]) and self._are_alike(members)
        found = [Room(fit, exact) for fit in members_fit.tolist()]
        return Rooms(found, frozenset().union(*(room.plugins for _, room in known)))

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
        known = self._rooms.find(self._profile, pod.shape, shared)
        if known is not None:
            return known
        filters = shared.row_filters
        counting = [plugin for plugin in filters if isinstance(plugin, CapacityFilter)]
        if not counting or shared.findings.has_errors:
            return None
        by_row = np.full(self._cluster.nodes.size, np.iinfo(np.int64).max)
        for plugin in counting:
            room = call(plugin, "Capacity", plugin.capacity, pod, self._cluster.nodes)
            by_row = np.minimum(by_row, room)
        plugins = {status.plugin for status, _ in shared.counted()}
        found = _ShapeRoom(
            shared,
            np.where(shared.feasible, by_row, 0),
            frozenset(plugins.union(plugin.name for plugin in counting)),
            only=len(counting) == len(filters),
        )
        self._rooms.keep(self._profile, pod.shape, found)
        return found

    def _is_exact(self, pod: PodInfo, room: _ShapeRoom) -> bool:
        """Whether nothing but the counted filters decides about pods like this one."""
        own = self._cache.plugins(self._profile, pod)
        return (
            room.only
            and own.none_applies
            and not self._profile.permit
            and all(plugin.name in own.inapplicable for plugin in self._profile.reserve)
        )

    def _are_alike(self, members: CycleMembers) -> bool:
        """Whether members of one shape are not distinguished by anything else."""
        if self._cluster.nominator:
            return False
        return all(self._like_members.key(pod) is not None for pod in members.group.pending)
