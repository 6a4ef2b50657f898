"""Tries the placements of a group, tier by tier, and chooses one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from asched.framework.placements import GroupAssignments, GroupPlacement, PlacedMember
from asched.framework.runtime.profile import Profile
from asched.group_cycle.fewest_domains import fewest_domains
from asched.group_cycle.member_pass import PassResult
from asched.group_cycle.members import CycleMembers
from asched.group_cycle.placement_choice import (
    PlacementChooser,
    PlacementScores,
    TriedPlacement,
    best_placement,
    score_placements,
)
from asched.group_cycle.screening import Room, Screening
from asched.group_cycle.work import CycleWork
from asched.state.cluster import ClusterState

_MAX_EXTRA_DOMAINS = 2
"""With how many domains more than a group of unlike members seems to need it is tried."""

TryPlacement = Callable[[GroupPlacement, bool], PassResult]
"""Runs a pass in a placement; the flag: it is in the last tier, so members may preempt."""


@dataclass(slots=True)
class SearchResult:
    """What was tried, and what was chosen."""

    tried: list[TriedPlacement] = field(default_factory=list)
    chosen: TriedPlacement | None = None
    scores: Sequence[PlacementScores] = ()
    reported: TriedPlacement | None = None
    """If none was chosen: the one with the reported messages, or the one that failed."""
    plugins: frozenset[str] = frozenset()
    """The filters that limit the room in placements that were not tried, and the plugin that
    generates the domains."""
    omitted: str = ""
    """For the message: placements that were not tried because it would take too long."""


class PlacementSearch:
    """Searches the placements of one group.

    Tiers are tried in order, until all members fit. If they fit in none, the first tier in which
    most members fit is used. So a narrow domain is preferred, but leaves no member behind. In a
    wider domain they run in as few narrower ones as possible.
    """

    def __init__(
        self,
        cluster: ClusterState,
        profile: Profile,
        members: CycleMembers,
        try_placement: TryPlacement,
        choose: PlacementChooser | None,
    ) -> None:
        self._cluster = cluster
        self._profile = profile
        self._members = members
        self._try_placement = try_placement
        self._choose_name = choose
        self._result = SearchResult()
        self.work: CycleWork | None = None
        """Ends the search when it is spent."""
        self.rooms: Screening | None = None
        """Counts the room in narrower domains; None to use all of a wide domain."""

    def run(
        self,
        placements: Sequence[GroupPlacement],
        screening: Screening | None,
        *,
        may_preempt: bool,
    ) -> SearchResult:
        """``screening``: omit placements without enough room. ``may_preempt``: members may find
        victims in the last tier."""
        result, generator = self._result, self._profile.placement.generate
        if generator is not None and any(placement.name for placement in placements):
            result.plugins |= {generator.name}  # other nodes in a domain may help
        tiers = [[*tier] for _, tier in groupby(placements, key=lambda one: one.tier)]
        for number, tier in enumerate(tiers):
            if result.tried and self._is_spent(len(tier)):
                break
            last = number == len(tiers) - 1
            skips = screening if not (last and may_preempt) else None
            begin = len(result.tried)
            found = self._search(tier, skips, last=last, several=len(tiers) > 1)
            if any(one.result.error is not None for one in result.tried[begin:]):
                result.chosen, result.reported = None, result.tried[-1]
                return result
            most = -1 if result.chosen is None else result.chosen.result.placed
            if found is not None and found[0].result.placed > most:
                result.chosen, result.scores = found
            if result.chosen is not None and self._is_complete(result.chosen):
                result.chosen = self._concentrated(result.chosen, tiers[:number])
                return result
        if result.chosen is None:
            # Not the first one: the messages must not depend on the order of the placements.
            result.reported = max(
                result.tried[begin:] or result.tried, key=lambda one: one.result.placed
            )
        return result

    def _is_complete(self, tried: TriedPlacement) -> bool:
        return tried.result.placed == len(self._members.pending)

    def _concentrated(
        self, chosen: TriedPlacement, narrower: Sequence[Sequence[GroupPlacement]]
    ) -> TriedPlacement:
        """The same domain with all members in few of the narrower domains, if they fit there."""
        pending, nominator = self._members.pending, self._cluster.nominator
        if self.rooms is None or not narrower or chosen.result.needs_victims:
            return chosen
        if any(nominator.node_of(queued.info.key) for queued in pending):
            return chosen  # victims were evicted for these nodes
        rows = chosen.placement.rows
        for extra in range(_MAX_EXTRA_DOMAINS + 1):
            if self.work is not None and not self.work.allows(1, pending):
                break
            few = fewest_domains(self.rooms, self._members, chosen.placement, narrower, extra)
            if few is None or np.array_equal(few.rows, rows):
                break
            rows = few.rows
            tried = TriedPlacement(few, self._try_placement(few, False))
            if tried.result.feasible and self._is_complete(tried):
                return tried
        return chosen

    def _search(
        self,
        tier: Sequence[GroupPlacement],
        screening: Screening | None,
        *,
        last: bool,
        several: bool,
    ) -> tuple[TriedPlacement, Sequence[PlacementScores]] | None:
        """The choice of one tier; None if the group is feasible in no placement of it."""
        rooms = None
        if screening is not None and (len(tier) > 1 or not last):
            rooms = screening.rooms(self._members, tier)
        if rooms is None:
            return self._choose(self._try_all(tier, last), several=several)
        self._result.plugins |= rooms.plugins
        pairs = zip(tier, rooms.found, strict=True)
        viable = [(place, room) for place, room in pairs if room.members >= self._members.needed]
        if not viable:
            if last:
                most = max(range(len(tier)), key=lambda at: rooms.found[at].members)
                self._try_all([tier[most]], last)
            return None
        forecast = self._forecast(viable, several=several)
        if forecast is not None:
            at, scores = forecast
            (tried,) = self._try_all([viable[at][0]], last)
            if tried.result.error is not None:
                return None
            if tried.result.feasible and tried.result.placed == viable[at][1].members:
                return tried, scores
        return self._choose(self._try_all([place for place, _ in viable], last), several=several)

    def _try_all(self, placements: Sequence[GroupPlacement], last: bool) -> list[TriedPlacement]:
        """Up to the first one that fails."""
        found: list[TriedPlacement] = []
        for placement in placements:
            if found and self._is_spent(len(placements) - len(found)):
                break
            found.append(TriedPlacement(placement, self._try_placement(placement, last)))
            self._result.tried.append(found[-1])
            if found[-1].result.error is not None:
                break
        return found

    def _is_spent(self, left: int) -> bool:
        """Whether the work is spent before the last ``left`` placements."""
        if self.work is None or not self.work.spent:
            return False
        self._result.omitted = f", {left} placements not tried because that takes too long"
        return True

    def _choose(
        self, tried: Sequence[TriedPlacement], *, several: bool
    ) -> tuple[TriedPlacement, Sequence[PlacementScores]] | None:
        feasible = [one for one in tried if one.result.feasible]
        if not feasible or tried[-1].result.error is not None:
            return None
        if several:
            most = max(one.result.placed for one in feasible)
            feasible = [one for one in feasible if one.result.placed == most]
        if len(feasible) == 1:
            return feasible[0], ()
        at, scores = self._best([one.assignments() for one in feasible])
        return feasible[at], scores

    def _forecast(
        self, viable: Sequence[tuple[GroupPlacement, Room]], *, several: bool
    ) -> tuple[int, Sequence[PlacementScores]] | None:
        """The best placement, if it follows from the numbers of members that fit."""
        if len(viable) == 1 or not all(room.exact for _, room in viable):
            return None
        if any(plugin.reads_member_nodes for plugin, _ in self._profile.placement.score):
            return None
        pending = self._members.group.pending
        positions = [*range(len(viable))]
        if several:
            most = max(room.members for _, room in viable)
            positions = [at for at in positions if viable[at][1].members == most]
        if len(positions) == 1:
            return positions[0], ()
        assignments = [
            GroupAssignments(place, tuple(PlacedMember(pod, "") for pod in pending[: room.members]))
            for place, room in (viable[at] for at in positions)
        ]
        at, scores = self._best(assignments)
        return positions[at], scores

    def _best(self, assignments: Sequence[GroupAssignments]) -> tuple[int, list[PlacementScores]]:
        members = self._members
        scores = score_placements(self._profile, members.group, assignments)
        text = f"{members.rules.uid}/{members.pending[0].attempts + 1}"
        seed = self._cluster.engine.seed
        return best_placement(scores, self._choose_name, seed, text), scores
