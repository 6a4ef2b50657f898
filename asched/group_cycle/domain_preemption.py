"""Preemption of a group that runs in one placement: the one with the lowest cost of its victims.

The placements in which the group has most room without evictions are searched, as many as the work
of the cycle allows. In each, the victims are those of :mod:`asched.group_cycle.preemption`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from asched.framework.placements import GroupPlacement
from asched.group_cycle.member_pass import PassResult
from asched.group_cycle.members import CycleMembers
from asched.group_cycle.preemption import (
    MIN_PASSES,
    NO_VICTIMS,
    GroupVictims,
    VictimUnit,
    eviction_cost,
    find_victims,
    possible_victims,
)
from asched.group_cycle.screening import Screening
from asched.group_cycle.trial import Trial
from asched.group_cycle.victim_nodes import on_cheapest_nodes
from asched.group_cycle.work import TRY_STEPS, CycleWork
from asched.state.cluster import ClusterState

MAX_PLACEMENTS = 16
"""In how many placements victims are searched."""

FEW_PODS = 2_000
"""How many possible victims are left out of the state at first, those that cost least."""

TOO_LARGE = "not eligible because its victims take too long to find"

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
        work: CycleWork,
        *,
        spared: Collection[str] = (),
    ) -> None:
        """``spared``: uids of pods that are no victims."""
        self._cluster = cluster
        self._trial = trial
        self._screening = screening
        self._members = members
        self._try_group_in = try_group_in
        self._work = work
        self._spared = spared
        self._omitted = 0
        """Possible victims that were not considered in some placement."""

    def find(self, placements: Sequence[GroupPlacement]) -> DomainVictims | str:
        """The placement with the lowest cost. Otherwise why there is none; empty if the group fits
        nowhere, even without the possible victims."""
        units = [
            unit
            for unit in possible_victims(self._cluster, self._members)
            if not any(pod.uid in self._spared for pod in unit.pods)
        ]
        if not units:
            return NO_VICTIMS
        self._work.consider(len(units))
        if not self._may_search():
            return TOO_LARGE
        searched = self._worth_a_search(placements, units)
        best: tuple[object, ...] | None = None
        found: DomainVictims | None = None
        for position, placement in enumerate(searched):
            if position and not self._may_search():
                break
            victims = self._victims_in(placement, units, len(searched) - position)
            if victims is None:
                continue
            cost = (eviction_cost(self._cluster, victims.units), placement.tier, position)
            if best is None or cost < best:
                best, found = cost, DomainVictims(placement, victims)
        if found is None and self._omitted:
            return f"{NO_VICTIMS}: {self._omitted} pods with costlier evictions were not tried"
        return found or ""

    def _may_search(self) -> bool:
        return self._work.allows(MIN_PASSES, self._members.pending)

    def _victims_in(
        self, placement: GroupPlacement, units: Sequence[VictimUnit], placements_left: int
    ) -> GroupVictims | None:
        """``placements_left``: share the work with so many placements, this one included."""
        cluster, work = self._cluster, self._work
        if len(placement.rows) < cluster.nodes.cluster_size:
            names = {cluster.nodes.names[row] for row in placement.rows.tolist()}
            units = [
                unit
                for unit in units
                if any(cluster.pods[pod.key].node in names for pod in unit.pods)
            ]
        if not units:
            return None
        usable = self._screening.usable(self._members)
        for most_pods in (FEW_PODS, work.removable // placements_left):
            part = on_cheapest_nodes(cluster, units, usable, most_pods)
            work.remove(sum(len(unit.pods) for unit in part))
            found = find_victims(
                cluster,
                self._trial,
                self._members,
                part,
                lambda: self._try_group_in(placement),
                work.left // TRY_STEPS // placements_left,
            )
            if isinstance(found, GroupVictims):
                # No victims: the answers of some plugin depend on more than the state.
                return found if found.units else None
            if len(part) == len(units):
                return None
            if not self._may_search() or work.removable <= FEW_PODS:
                break
        self._omitted = max(self._omitted, len(units) - len(part))
        return None

    def _worth_a_search(
        self, placements: Sequence[GroupPlacement], units: Sequence[VictimUnit]
    ) -> Sequence[GroupPlacement]:
        """The placements with enough room without the possible victims, those with most room as it
        is first."""
        if len(placements) == 1:
            return placements
        now, needed = self._screening.rooms(self._members, placements), self._members.needed
        pods = [pod for unit in units for pod in unit.pods]
        positions = [*range(len(placements))]
        if len(pods) <= FEW_PODS:
            with self._trial.without(pods):
                emptied = self._screening.rooms(self._members, placements)
            if emptied is not None:
                positions = [at for at in positions if emptied.found[at].members >= needed]
        if now is not None:
            positions.sort(key=lambda at: -now.found[at].members)
        chosen = {*positions[:MAX_PLACEMENTS]}
        return [placement for at, placement in enumerate(placements) if at in chosen]
