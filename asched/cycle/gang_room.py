"""Before a member of a gang evicts anybody: could the gang be complete if all were away whom it may evict?

kube-scheduler 1.36 tries the pods of a PodGroup together: each sees those before it on their nodes, and
their victims gone. Where the group comes to nothing, so does what preemption found for one of its pods
(``submitPodGroupAlgorithmResult``), and its workload-aware preemption begins with the question whether the
group would fit if everything of lower priority were gone. Here pods are tried one by one, so the question
is asked of each member that is about to evict, on nodes that are supposed to be without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from asched.cycle.attempt import Attempt, Screening
from asched.cycle.shape_cache import ShapeCache
from asched.framework.nodes import BoolColumn, RowArray
from asched.framework.pod_groups import (
    GANG_SCHEDULING,
    SETTLED,
    UNSETTLED,
    MemberStatus,
    PodGroupKey,
    find_group,
    group_of,
    min_count,
    siblings,
)
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code
from asched.framework.trial import Fit, Placed
from asched.plugins.default_preemption.dry_run import less_important
from asched.state.cluster import ClusterState

IN_VAIN = "preemption: gang {0} would be incomplete all the same: {1} of the {2} pods that it needs"
"""What is said of a member that evicts nobody."""

_STEP = 64
"""Rows to be vacated at a time: mostly the first few have room enough."""


def preempts_in_vain(
    cluster: ClusterState, profile: Profile, info: PodInfo, screening: Screening
) -> str:
    """Why the pod, for which no node would do and which found victims, shall evict nobody: it is of a
    gang that would not be complete even if all pods were gone that are less important than some member
    without a place. Empty for any other pod, and where no other member lacks a place. Raises
    :class:`~asched.framework.runtime.plugin_calls.PluginFailure`.
    """
    if GANG_SCHEDULING not in profile.plugins:
        return ""
    group = group_of(info.pod)
    found = None if group is None else find_group(cluster, group)
    if group is None or found is None:
        return ""
    members, needed = cluster.group_members(group), min_count(found)
    settled = siblings(members, info.key, SETTLED)
    missing = needed - settled
    if missing <= 1:
        return ""
    kinds = [*_kinds(cluster, profile, group, info, screening, missing)]
    placed = _Room(cluster, group, info, kinds, missing).placed()
    return "" if placed >= missing else IN_VAIN.format(group.key, settled + placed, needed)


class _Kind:
    """Members that filters cannot tell apart."""

    def __init__(self, fit: Fit, usable: BoolColumn, members: Sequence[PodInfo]) -> None:
        self.fit = fit
        self.usable = usable
        """By row of the table: where they may be, now or once others are gone."""
        self.left = [*reversed(members)]
        """The next one last."""


def _kinds(
    cluster: ClusterState,
    profile: Profile,
    group: PodGroupKey,
    info: PodInfo,
    screening: Screening,
    missing: int,
) -> Iterator[_Kind]:
    """The pod, and the other members without a place that may find one when they are tried; of each
    kind no more than are missing."""
    standings = cluster.group_members(group).standings
    like: dict[PodShape, list[PodInfo]] = {info.shape: [info]}
    others = [
        cluster.pods[key].info
        for key, standing in standings.items()
        if standing in UNSETTLED and key != info.key
    ]
    for member in sorted(others, key=lambda other: (-other.priority, other.key)):
        alike = like.setdefault(member.shape, [])
        if len(alike) < missing:
            alike.append(member)
    for members in like.values():
        first = members[0]
        if first is not info:
            profile = _but_for_the_gang(cluster, cluster.profiles[first.pod.spec.scheduler_name])
            attempt = Attempt(cluster, profile, first, ShapeCache(cluster.nodes))
            screening = attempt.screen(share_of_nodes=False)
        rejected = screening.rejected
        if rejected is None or rejected.code is Code.UNSCHEDULABLE:
            fit = Fit(profile, cluster, cluster.nominator, screening.state, first)
            yield _Kind(fit, _usable(cluster, screening), members)


def _but_for_the_gang(cluster: ClusterState, profile: Profile) -> Profile:
    """As it tries pods now, were it not for GangScheduling, which would count this one as refused."""
    return profile.without(cluster.circuits.in_force(profile).left_out | {GANG_SCHEDULING})


def _usable(cluster: ClusterState, screening: Screening) -> BoolColumn:
    table = cluster.nodes
    if screening.rejected is not None:
        return table.alive
    findings = screening.findings
    curable = np.array([s.code is Code.UNSCHEDULABLE for s in findings.statuses], np.bool_)
    usable: BoolColumn = findings.passing | curable[findings.code]
    return usable & screening.looked_at(table)


class _Room:
    """The nodes as they would be with all gone whom one of the members may evict, filled up with
    members."""

    def __init__(
        self,
        cluster: ClusterState,
        group: PodGroupKey,
        info: PodInfo,
        kinds: Sequence[_Kind],
        wanted: int,
    ) -> None:
        self._table = cluster.nodes
        self._nominator = cluster.nominator
        self._standings = cluster.group_members(group).standings
        self._info = info
        members = (member for kind in kinds for member in kind.left)
        self._most_important = max((info, *members), key=lambda member: member.priority)
        self._kinds = kinds
        self._wanted = wanted
        """No more than so many are placed."""
        self._placed = 0

    def placed(self) -> int:
        """How many members find a place."""
        usable = self._table.alive & np.logical_or.reduce([kind.usable for kind in self._kinds])
        rows = np.flatnonzero(usable)
        # Where no filter looks beyond a row, the rows have nothing to do with each other.
        alone = all(kind.fit.local for kind in self._kinds)
        size = _STEP if alone else max(1, len(rows))
        for begin in range(0, len(rows), size):
            self._fill(rows[begin : begin + size])
            if self._placed == self._wanted:
                break
        return self._placed

    def _guests(self, rows: RowArray) -> list[Placed]:
        """Those for whom room is being made, siblings among them, are as good as there; members that
        look for a place are not, though one was nominated for them before."""
        by_node, names = self._nominator.by_node, self._table.names
        return [
            (place, guest)
            for place, row in enumerate(rows.tolist())
            for guest in by_node.get(names[row], {}).values()
            if self._stays(guest)
        ]

    def _stays(self, guest: PodInfo) -> bool:
        standing = self._standings.get(guest.key)
        if standing is None:
            return guest.priority >= self._most_important.priority
        return standing is MemberStatus.AWAITING_ROOM and guest.uid != self._info.uid

    def _fill(self, rows: RowArray) -> None:
        """Vacate these rows, some at a time, until enough members are placed on them."""
        table, kinds = self._table, self._kinds
        guests = self._guests(rows)
        supposed = [kind.fit.supposed(rows, guests) for kind in kinds]
        for begin in range(0, len(rows), _STEP):
            part = rows[begin : begin + _STEP].tolist()
            away = [
                (place, pod)
                for place, row in enumerate(part, begin)
                for pod in less_important(table.pods(row), self._most_important)
                if pod.key not in self._standings  # members that are there are counted as such
            ]
            for nodes in supposed:
                nodes.remove(away)
            for kind, nodes in zip(kinds, supposed, strict=True):
                while kind.left and self._placed < self._wanted:
                    free = np.flatnonzero(nodes.refusals().passing & kind.usable[rows])
                    # One may be in the way of the next, unless filters look at one row alone.
                    at_once = min(len(kind.left), self._wanted - self._placed)
                    places = free[: at_once if kind.fit.local else 1].tolist()
                    if not places:
                        break
                    added = [(place, kind.left.pop()) for place in places]
                    for others in supposed:
                        others.add(added)
                    self._placed += len(added)
