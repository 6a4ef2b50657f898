"""One group cycle: placements, one pass over the members in each, preemption, and the outcome.

The state is the same before and after it. What becomes of the members is decided for the whole
group: in :mod:`asched.group_cycle.decide`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from asched.cycle.shape_cache import ShapeCache
from asched.framework.interface import GroupCycleSettings
from asched.framework.pod_groups import GANG_SCHEDULING
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.observation import to_printable
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code
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
    best_placement,
    generate_placements,
    rows_within,
    score_placements,
)
from asched.group_cycle.preemption import NO_VICTIMS, GroupVictims, find_victims, ineligible
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


class GroupCycle:
    """Runs group cycles under one profile that has them."""

    def __init__(
        self,
        cluster: ClusterState,
        profile: Profile,
        cache: ShapeCache,
        ties: TieBreakers | None = None,
    ) -> None:
        self._cluster = cluster
        # The cycle itself enforces the minimum. The plugin would wait for each other member.
        skipped = cluster.guards.circuits.in_force(profile).skipped
        self._profile = profile.without(skipped | {GANG_SCHEDULING})
        self._settings = profile.group_cycle or GroupCycleSettings()
        self._ties = ties or TieBreakers()
        self._passes = MemberPass(cluster, self._profile, cache, self._ties.node)

    def run(self, members: CycleMembers) -> GroupResult:
        """Try the group. The state is the same afterwards."""
        if members.mixed:
            return GroupResult(GroupOutcome.ERROR, members.mixed)
        try:
            result = self._run(members)
        except PluginFailure as failure:
            return GroupResult(GroupOutcome.ERROR, str(failure), plugin=failure.plugin)
        except AssertionError:
            raise  # the state is inconsistent
        except Exception as error:  # noqa: BLE001  an invalid answer
            why = f"a plugin's answer is invalid: {type(error).__name__}: {to_printable(error)}"
            return GroupResult(GroupOutcome.ERROR, why)
        if result.outcome is GroupOutcome.UNSCHEDULABLE and self._settings.group_preemption:
            self._preempt(members, result)
        return result

    # -- placements ---------------------------------------------------------------------------

    def _run(self, members: CycleMembers) -> GroupResult:
        generated = generate_placements(self._cluster, self._profile, members.group)
        status, generator = generated.status, self._profile.placement.generate
        plugin = "" if generator is None else generator.name
        if not status.is_success:
            error = status.code is Code.ERROR
            outcome = GroupOutcome.ERROR if error else GroupOutcome.UNSCHEDULABLE
            return GroupResult(outcome, status.message, plugin=plugin)
        if not generated.placements:
            return GroupResult(GroupOutcome.UNSCHEDULABLE, NO_PLACEMENTS, plugin=plugin)
        tried: list[TriedPlacement] = []
        for placement in generated.placements:
            within = rows_within(self._cluster, placement)
            result = self._try_placement(members, PassMode(Preemption.IGNORED, within=within))
            tried.append(TriedPlacement(placement, result))
            if result.error is not None:
                message = OTHER_FAILED + result.error.message
                return _of(GroupOutcome.ERROR, message, tried[-1], tried)
        return self._choose(members, tried)

    def _try_placement(self, members: CycleMembers, mode: PassMode) -> PassResult:
        """The pass without victims, or else one with victims that make the group feasible."""
        mode = mode._replace(no_preemption=self._no_preemption(members))
        plain = self._passes.run(members, mode)
        if plain.feasible or plain.error is not None:
            return plain
        if not any(member.found_victims for member in plain.members):
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
        uids = {
            victim.uid
            for member in preempting.members
            if isinstance(member.decision, r.Rejected)
            for victim in member.decision.victims
        }
        pods = self._cluster.pods
        keys = [
            self._cluster.pod_keys[uid] for uid in sorted(uids) if uid in self._cluster.pod_keys
        ]
        victims = [pods[key].info for key in keys if pods[key].node]
        placed = [(m.queued.info, m.node) for m in preempting.members if m.fits]
        trial = self._passes.trial
        with trial.without(victims), trial.nominated(placed):
            without = mode._replace(preemption=Preemption.NONE)
            return self._passes.run(members, without).feasible

    def _choose(self, members: CycleMembers, tried: Sequence[TriedPlacement]) -> GroupResult:
        feasible = [one for one in tried if one.result.feasible]
        if not feasible:
            message = GROUP_UNSCHEDULABLE
            if self._profile.placement.generate is not None:
                message = (
                    f"0/{len(tried)} placements are available, first placement status:"
                    f" {GROUP_UNSCHEDULABLE}"
                )
            # Not the first one: the messages must not depend on the order of the placements.
            reported = max(tried, key=lambda one: one.result.placed)
            return _of(GroupOutcome.UNSCHEDULABLE, message, reported, tried)
        chosen, scores = feasible[0], []
        if len(feasible) > 1:
            scores = score_placements(self._profile, members.group, feasible)
            text = f"{members.rules.uid}/{members.pending[0].attempts + 1}"
            seed = self._cluster.engine.seed
            chosen = feasible[best_placement(scores, self._ties.placement, seed, text)]
        if chosen.result.needs_victims:
            return _of(GroupOutcome.WAITING, AWAITS_VICTIMS, chosen, tried)
        result = _of(GroupOutcome.SCHEDULED, "", chosen, tried)
        result.scores = scores
        return result

    # -- the group preempts as one ------------------------------------------------------------

    def _preempt(self, members: CycleMembers, result: GroupResult) -> None:
        """Find victims for an unschedulable group, or note in its message why there are none."""
        has_placements = self._profile.placement.generate is not None
        reason = ineligible(members, has_placements=has_placements)
        if reason:
            result.message += f", {reason}"
            return

        def try_group() -> PassResult:
            return self._passes.run(members, PassMode(Preemption.NONE))

        found = find_victims(self._cluster, self._passes.trial, members, try_group)
        if found is None:
            result.message += f", {NO_VICTIMS}"
        elif isinstance(found, GroupVictims):
            result.outcome, result.victims = GroupOutcome.WAITING, found.pods
            fitting = (member for member in found.result.members if member.fits)
            result.targets = {member.queued.info.key: member.node for member in fitting}
        else:
            result.message += f", {result.message}"


def _of(
    outcome: GroupOutcome, message: str, one: TriedPlacement, tried: Sequence[TriedPlacement]
) -> GroupResult:
    name = one.placement.name
    return GroupResult(outcome, message, one.result.members, name, tuple(tried))
