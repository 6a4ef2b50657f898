"""One group cycle: placements, one pass over the members in each, preemption, and the outcome.

The state is the same before and after it. What becomes of the members is decided for the whole
group: in :mod:`asched.group_cycle.decide`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from asched.cycle.shape_cache import ShapeCache
from asched.framework.interface import GroupCycleSettings
from asched.framework.placements import GroupPlacement
from asched.framework.pod_groups import GANG_SCHEDULING
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.observation import to_printable
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code
from asched.group_cycle.domain_preemption import DomainPreemption, DomainVictims
from asched.group_cycle.member_pass import (
    MemberPass,
    MemberResult,
    NodeChooser,
    PassMode,
    PassResult,
    Preemption,
)
from asched.group_cycle.members import CycleMembers
from asched.group_cycle.placement_choice import (
    PlacementChooser,
    PlacementScores,
    TriedPlacement,
    generate_placements,
    rows_within,
)
from asched.group_cycle.placement_search import PlacementSearch, SearchResult, TryPlacement
from asched.group_cycle.preemption import MIN_PASSES, ineligible
from asched.group_cycle.screening import RoomCache, Screening
from asched.group_cycle.work import CycleWork, too_expensive
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.group_records import GroupOutcome

GROUP_UNSCHEDULABLE = "pod group is unschedulable"
AWAITS_VICTIMS = f"{GROUP_UNSCHEDULABLE}, pod group is waiting for preemption to complete"
NO_PLACEMENTS = "no feasible placements found"
OTHER_FAILED = "failed to schedule other pod from a pod group: "
BY_PLACEMENTS = "not eligible due to placement-based pod group scheduling limitation"
BY_GROUP_PREEMPTION = "not eligible due to workload aware preemption enabled"


class TieBreakers(NamedTuple):
    """How ties are broken; by default at random, reproducibly."""

    node: NodeChooser | None = None
    placement: PlacementChooser | None = None


@dataclass(slots=True)
class GroupResult:
    """What one cycle found. Nothing of it is decided yet."""

    outcome: GroupOutcome
    message: str = ""
    """Of the group's condition."""
    members: list[MemberResult] = field(default_factory=list)
    """In order; fewer than the group has if the cycle failed early."""
    placement: str = ""
    """The name of the placement of ``members``."""
    tried: Sequence[TriedPlacement] = ()
    """All placements, with the results of a pass in each."""
    scores: Sequence[PlacementScores] = ()
    """If several placements are feasible."""
    victims: tuple[PodInfo, ...] = ()
    """Of a group that preempts as one."""
    targets: dict[str, str] = field(default_factory=dict)
    """Where such members fit once the victims are gone: nodes by pod key."""
    plugin: str = ""
    """The plugin that rejected or failed the group as a whole."""
    placements: int = 0
    """How many there are. Those without enough room may not have been tried."""
    limiting_plugins: frozenset[str] = frozenset()
    """The filters that limit the room in such placements, and the plugin that generates them."""
    steps: int = 0
    """What the cycle costs the namespace; 0 if it is free."""
    retries_surplus: bool = False
    """The group, or the tree above it, is scheduled. Members that do not fit may preempt as one, in
    a cycle of their own."""
    left_behind: str = ""
    """The message of members that fit in a group that is not scheduled; empty for the usual one."""


class GroupCycle:
    """Runs group cycles under one profile that has them."""

    def __init__(
        self,
        cluster: ClusterState,
        profile: Profile,
        cache: ShapeCache,
        ties: TieBreakers | None = None,
        *,
        rooms: RoomCache | None = None,
    ) -> None:
        """``rooms``: do not try members in placements without enough room, which changes no
        outcome. Otherwise :attr:`GroupResult.tried` has all placements."""
        self._cluster = cluster
        # The cycle itself enforces the minimum. The plugin would wait for each other member.
        skipped = cluster.guards.circuits.in_force(profile).skipped
        self._profile = profile.without(skipped | {GANG_SCHEDULING})
        self._settings = profile.group_cycle or GroupCycleSettings()
        self._ties = ties or TieBreakers()
        self._passes = MemberPass(cluster, self._profile, cache, self._ties.node)
        self._screening = Screening(
            cluster, self._profile, cache, self._passes.like_members, rooms or RoomCache()
        )
        self._screens = rooms is not None
        self._work = CycleWork(cluster, ())

    def run(self, members: CycleMembers) -> GroupResult:
        """Try the group. The state is the same afterwards."""
        if members.mixed:
            return GroupResult(GroupOutcome.ERROR, members.mixed)
        unsupported = members.rules.unsupported
        if unsupported:
            return GroupResult(GroupOutcome.UNSCHEDULABLE, unsupported, plugin=GANG_SCHEDULING)
        work = self._work = CycleWork(self._cluster, members.pending)
        self._passes.work = self._screening.work = work
        if not work.allows(1, members.pending):
            message = too_expensive(self._needed_at_once(members), work.forms)
            return GroupResult(GroupOutcome.UNSCHEDULABLE, message, plugin=GANG_SCHEDULING)
        result = self._guarded(members)
        result.steps = work.charged
        return result

    def _guarded(self, members: CycleMembers) -> GroupResult:
        try:
            return self._run(members)
        except PluginFailure as failure:
            return GroupResult(GroupOutcome.ERROR, str(failure), plugin=failure.plugin)
        except AssertionError:
            raise  # the state is inconsistent
        except Exception as error:  # noqa: BLE001  an invalid answer
            why = f"a plugin's answer is invalid: {type(error).__name__}: {to_printable(error)}"
            return GroupResult(GroupOutcome.ERROR, why)

    # -- placements ---------------------------------------------------------------------------

    def _run(self, members: CycleMembers) -> GroupResult:
        generated = generate_placements(self._cluster, self._profile, members.group)
        status, generator = generated.status, self._profile.placement.generate
        plugin = "" if generator is None else generator.name
        if not status.is_success:
            if status.code is Code.ERROR:
                return GroupResult(GroupOutcome.ERROR, status.message, plugin=plugin)
            return self._without_placements(members, status.message, plugin)
        if not generated.placements:
            return self._without_placements(members, NO_PLACEMENTS, plugin)
        placements = generated.placements
        search = PlacementSearch(
            self._cluster, self._profile, members, self._in_placement(members), self._ties.placement
        )
        search.work, search.rooms = self._work, self._screening
        may_preempt = not self._no_preemption(members)
        screening = self._screening if self._screens else None
        found = search.run(placements, screening, may_preempt=may_preempt)
        result = self._result_of(found, len(placements))
        result.placements, result.limiting_plugins = len(placements), found.plugins
        if self._settings.group_preemption:
            if result.outcome is GroupOutcome.UNSCHEDULABLE:
                self._preempt(members, placements, result)
            scheduled = result.outcome is GroupOutcome.SCHEDULED
            result.retries_surplus = scheduled and not self.ineligible_reason(members)
        return result

    def _without_placements(self, members: CycleMembers, message: str, plugin: str) -> GroupResult:
        """Without placements there is nowhere to preempt."""
        settings = self._settings
        if settings.group_preemption and not settings.topology_preemption:
            message += f", {self.ineligible_reason(members)}"
        return GroupResult(GroupOutcome.UNSCHEDULABLE, message, plugin=plugin)

    def _in_placement(self, members: CycleMembers) -> TryPlacement:
        def try_placement(placement: GroupPlacement, last_tier: bool) -> PassResult:
            within = rows_within(self._cluster, placement)
            if not last_tier:
                # A wider domain is better than an eviction.
                return self._passes.run(members, PassMode(Preemption.NONE, within=within))
            return self._try_placement(members, PassMode(Preemption.IGNORED, within=within))

        return try_placement

    def _result_of(self, found: SearchResult, placements: int) -> GroupResult:
        reported = found.reported
        if reported is not None and reported.result.error is not None:
            message = OTHER_FAILED + reported.result.error.message
            return _of(GroupOutcome.ERROR, message, reported, found.tried)
        if reported is not None:
            message = self._unschedulable(placements) + found.omitted
            return _of(GroupOutcome.UNSCHEDULABLE, message, reported, found.tried)
        assert found.chosen is not None
        if found.chosen.result.needs_victims:
            return _of(GroupOutcome.WAITING, AWAITS_VICTIMS, found.chosen, found.tried)
        result = _of(GroupOutcome.SCHEDULED, "", found.chosen, found.tried)
        result.scores = found.scores
        return result

    def _unschedulable(self, placements: int) -> str:
        """The message of a group that fits in none of its placements."""
        if self._profile.placement.generate is None:
            return GROUP_UNSCHEDULABLE
        return (
            f"0/{placements} placements are available, first placement status:"
            f" {GROUP_UNSCHEDULABLE}"
        )

    def _try_placement(self, members: CycleMembers, mode: PassMode) -> PassResult:
        """The pass without victims, or else one with victims that make the group feasible."""
        mode = mode._replace(no_preemption=self._no_preemption(members))
        plain = self._passes.run(members, mode)
        if plain.feasible or plain.error is not None:
            return plain
        searches = sum(member.found_victims for member in plain.members)
        if not searches or not self._work.allows_victims(members.pending, searches):
            return plain
        answers = self._cluster.waiting_pods.answers
        preempting = self._passes.run(members, mode._replace(preemption=Preemption.ASSUMED))
        if preempting.feasible and self._victims_suffice(members, mode, preempting):
            return preempting
        self._cluster.waiting_pods.reset_answers(answers)
        return plain

    def _no_preemption(self, members: CycleMembers) -> str:
        if members.rules.constrained and self._profile.placement.generate is not None:
            return BY_PLACEMENTS
        return BY_GROUP_PREEMPTION if self._settings.group_preemption else ""

    def _victims_suffice(
        self, members: CycleMembers, mode: PassMode, preempting: PassResult
    ) -> bool:
        """Whether the group is feasible once all victims that its members found are gone.

        Members find victims one after the other, while the earlier victims still run. Two may
        expect the same room.
        """
        placed = [(m.queued.info, m.node) for m in preempting.members if m.fits]
        trial = self._passes.trial
        with trial.without(self._gone_for(preempting)), trial.nominated(placed):
            without = mode._replace(preemption=Preemption.NONE)
            return self._passes.run(members, without).feasible

    def _gone_for(self, preempting: PassResult) -> list[PodInfo]:
        """The victims of the members, and the pods on nominated nodes that terminate already:
        PostFilter counts them as gone, but does not name them."""
        cluster, found = self._cluster, dict[str, PodInfo]()
        for member in preempting.members:
            if not isinstance(member.decision, r.Rejected) or not member.preempts:
                continue
            for victim in member.decision.victims:
                key = cluster.pods_by_uid.key_of(victim.uid)
                if key is not None and cluster.pods[key].node:
                    found[victim.uid] = cluster.pods[key].info
            row, priority = cluster.nodes.row_of(member.node), member.queued.info.priority
            for pod in () if row is None else cluster.nodes.pods(row):
                if pod.pod.terminating and pod.priority < priority:
                    found[pod.uid] = pod
        return [found[uid] for uid in sorted(found)]

    # -- the group preempts as one ------------------------------------------------------------

    def _preempt(
        self, members: CycleMembers, placements: Sequence[GroupPlacement], result: GroupResult
    ) -> None:
        """Find victims for an unschedulable group, or note in its message why there are none."""
        reason = self.ineligible_reason(members)
        if reason:
            result.message += f", {reason}"
            return
        members = self._to_make_room_for(members)
        search = DomainPreemption(
            self._cluster,
            self._passes.trial,
            self._screening,
            members,
            partial(self._try_group_in, members),
            self._work,
            spared=self._spared(members),
        )
        found = search.find(placements)
        if not isinstance(found, DomainVictims):
            result.message += f", {found or result.message}"
            return
        result.outcome, result.victims = GroupOutcome.WAITING, found.victims.pods
        result.placement = found.placement.name
        fitting = (member for member in found.victims.result.members if member.fits)
        result.targets = {member.queued.info.key: member.node for member in fitting}

    def _try_group_in(self, members: CycleMembers, placement: GroupPlacement) -> PassResult:
        within = rows_within(self._cluster, placement)
        return self._passes.run(members, PassMode(Preemption.NONE, within=within))

    def _to_make_room_for(self, members: CycleMembers) -> CycleMembers:
        """The members for which victims are searched: of a large group only as many as it needs."""
        if self._work.allows(MIN_PASSES, members.pending):
            return members
        return members.only(members.pending[: members.needed])

    def _needed_at_once(self, members: CycleMembers) -> int:
        """How many members must be tried in one cycle at least."""
        return members.needed

    def _spared(self, members: CycleMembers) -> Collection[str]:
        """Uids of pods that are no victims: the group needs its own pods, whatever their
        priority."""
        return {member.pod.uid for member in members.group.running}

    def ineligible_reason(self, members: CycleMembers) -> str:
        """Why the group must not preempt as one; empty if it may."""
        keeps_constraints = not self._settings.topology_preemption
        return ineligible(self._cluster, members, keeps_constraints=keeps_constraints)


def _of(
    outcome: GroupOutcome, message: str, one: TriedPlacement, tried: Sequence[TriedPlacement]
) -> GroupResult:
    name = one.placement.name
    return GroupResult(outcome, message, one.result.members, name, tuple(tried))
