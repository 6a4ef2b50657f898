"""Preemption of a group that runs in one placement: the one with the lowest cost of its victims.

The placements in which the group has most room without evictions are searched, as many as the limit
of the search allows. In each, the victims are those of :mod:`asched.group_cycle.preemption`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from asched.framework.placements import GroupPlacement
from asched.group_cycle.member_pass import PassResult
from asched.group_cycle.members import CycleMembers
from asched.group_cycle.preemption import (
    MAX_TRIES,
    MIN_PASSES,
    GroupVictims,
    VictimUnit,
    eviction_cost,
    find_victims,
    possible_victims,
)
from asched.group_cycle.screening import Screening
from asched.group_cycle.trial import Trial
from asched.state.cluster import ClusterState

MAX_PLACEMENTS = 16
"""In how many placements victims are searched."""

TryGroupIn = Callable[[GroupPlacement], PassResult]
"""Tries the group in a placement on the state as it is, without PostFilter."""


class DomainVictims(NamedTuple):
    """The placement in which the group preempts, and its victims there."""

    placement: GroupPlacement
    victims: GroupVictims


class DomainPreemption:
    """Finds the placement in which a group preempts."""

    def __init__(
        self,
        cluster: ClusterState,
        trial: Trial,
        screening: Screening,
        members: CycleMembers,
        try_group_in: TryGroupIn,
        *,
        spared: Collection[str] = (),
    ) -> None:
        """``spared``: uids of pods that are no victims."""
        self._cluster = cluster
        self._trial = trial
        self._screening = screening
        self._members = members
        self._try_group_in = try_group_in
        self._spared = spared

    def find(self, placements: Sequence[GroupPlacement]) -> DomainVictims | bool:
        """The placement with the lowest cost. Otherwise whether there are possible victims."""
        units = [
            unit
            for unit in possible_victims(self._cluster, self._members)
            if not any(pod.uid in self._spared for pod in unit.pods)
        ]
        if not units:
            return False
        searched = self._worth_a_search(placements, units)
        best: tuple[object, ...] | None = None
        found: DomainVictims | None = None
        for position, placement in enumerate(searched):
            victims = self._victims_in(placement, units, MAX_TRIES // len(searched))
            if victims is None:
                continue
            cost = (eviction_cost(self._cluster, victims.units), placement.tier, position)
            if best is None or cost < best:
                best, found = cost, DomainVictims(placement, victims)
        return found or True

    def _victims_in(
        self, placement: GroupPlacement, units: Sequence[VictimUnit], max_tries: int
    ) -> GroupVictims | None:
        cluster = self._cluster
        if len(placement.rows) < cluster.nodes.cluster_size:
            names = {cluster.nodes.names[row] for row in placement.rows.tolist()}
            units = [
                unit
                for unit in units
                if any(cluster.pods[pod.key].node in names for pod in unit.pods)
            ]
        if not units:
            return None
        found = find_victims(
            cluster,
            self._trial,
            self._members,
            units,
            lambda: self._try_group_in(placement),
            max_tries,
        )
        # No victims: the answers of some plugin depend on more than the state.
        return found if isinstance(found, GroupVictims) and found.units else None

    def _worth_a_search(
        self, placements: Sequence[GroupPlacement], units: Sequence[VictimUnit]
    ) -> Sequence[GroupPlacement]:
        """The placements with enough room without the possible victims, those with most room as it
        is first."""
        if len(placements) == 1:
            return placements
        now = self._screening.rooms(self._members, placements)
        pods = [pod for unit in units for pod in unit.pods]
        with self._trial.without(pods):
            emptied = self._screening.rooms(self._members, placements)
        positions = [*range(len(placements))]
        if emptied is not None:
            needed = self._members.needed
            positions = [at for at in positions if emptied.found[at].members >= needed]
        if now is not None:
            positions.sort(key=lambda at: -now.found[at].members)
        tries = max(1, MAX_TRIES // (MIN_PASSES * len(self._members.pending)))
        chosen = {*positions[: min(MAX_PLACEMENTS, tries)]}
        return [placement for at, placement in enumerate(placements) if at in chosen]
