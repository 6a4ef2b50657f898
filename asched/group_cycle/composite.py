"""The cycle of a CompositePodGroup: all groups below it are tried on one state, as one.

A child that reaches its minimum counts, and its members stay assumed while the next child is tried.
The placements of a group are those of its own constraint within the placement of its parent. The
tree preempts as one: no member preempts for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from asched.cycle.shape_cache import ShapeCache
from asched.framework.nodes import BoolColumn
from asched.framework.placements import GroupPlacement
from asched.framework.pod_groups import GANG_SCHEDULING
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code
from asched.group_cycle.cycle import (
    NO_PLACEMENTS,
    OTHER_FAILED,
    GroupCycle,
    GroupResult,
)
from asched.group_cycle.group_tree import GroupNode
from asched.group_cycle.member_pass import PassMode, PassResult, Preemption
from asched.group_cycle.members import CycleMembers
from asched.group_cycle.placement_choice import (
    TriedPlacement,
    generate_placements,
    rows_within,
)
from asched.group_cycle.placement_search import PlacementSearch
from asched.group_cycle.preemption import any_less_important
from asched.group_cycle.screening import RoomCache
from asched.model.groups import PodGroup
from asched.state.cluster import ClusterState
from asched.state.group_records import GroupOutcome
from asched.state.records import Assigned

AWAITS_PREEMPTION = "waiting for preemption to complete"
NEEDS_GROUP_PREEMPTION = "groups below a CompositePodGroup preempt only with groupPreemption"


@dataclass(slots=True)
class TriedNode:
    """What was found for one group of the tree."""

    node: GroupNode
    counts: bool
    """It has its minimum, running members included."""
    passed: PassResult = field(default_factory=PassResult)
    """In the chosen placement, or else in the one in which most members fit."""
    placement: str = ""
    placements: int = 0
    outcome: GroupOutcome = GroupOutcome.UNSCHEDULABLE
    """If it was not feasible."""
    message: str = ""
    """If it could be tried in no placement."""
    plugin: str = ""
    omitted: str = ""
    """Which placements were not tried because it would take too long."""


@dataclass(slots=True)
class SubtreeResult(PassResult):
    """What a pass over the children found. The members are those of feasible children."""

    children: list[TriedNode] = field(default_factory=list)
    """In order; fewer than there are if one failed."""


@dataclass(slots=True)
class _Rejections:
    """What rejected the members of a PodGroup, in all placements of its parents."""

    tried: list[TriedPlacement] = field(default_factory=list)
    plugins: frozenset[str] = frozenset()


class CompositeCycle(GroupCycle):
    """Tries one tree once."""

    def __init__(
        self,
        cluster: ClusterState,
        profile: Profile,
        cache: ShapeCache,
        root: GroupNode,
        rooms: RoomCache,
        untried: str = "",
    ) -> None:
        """``untried``: for the message of the root, that only a part of its members is tried."""
        super().__init__(cluster, profile, cache, rooms=rooms)
        self._root = root
        self._untried = untried
        self._found: TriedNode | None = None
        self._rejections: dict[str, _Rejections] = {}
        self._retries_surplus = False

    def _run(self, members: CycleMembers) -> GroupResult:
        found = self._found = self._try_tree(members)
        passed, outcome, message = found.passed, found.outcome, found.message or _shortage(found)
        if passed.error is not None:
            outcome, message = GroupOutcome.ERROR, OTHER_FAILED + passed.error.message
        elif passed.feasible:
            outcome, message = GroupOutcome.SCHEDULED, ""
        result = GroupResult(outcome, message, passed.members, found.placement)
        result.plugin, result.placements = found.plugin, found.placements
        if outcome is GroupOutcome.UNSCHEDULABLE and found.placements:
            self._preempt_as_one(members, result)
            if result.outcome is GroupOutcome.UNSCHEDULABLE:
                result.message += self._untried
            found.message = result.message
        elif outcome is GroupOutcome.SCHEDULED and self._settings.group_preemption:
            self._retries_surplus = not self.ineligible_reason(members)
        return result

    def _try_tree(self, members: CycleMembers) -> TriedNode:
        """The whole tree, or else the members that its groups need: more members of one group can
        take the room that another one needs. The others have the next cycle."""
        whole, found = self._root, self._try_root(members)
        failed = found.passed.error is None and not found.passed.feasible and found.placements
        if not failed or not whole.surplus:
            return found
        least = whole.least()
        if not least.members.pending or not self._work.allows(1, least.members.pending):
            return found
        rejections, self._rejections, self._root = self._rejections, {}, least
        again = self._try_root(least.members)
        if again.passed.feasible:
            return again
        self._root, self._rejections = whole, rejections
        return found

    def _try_root(self, members: CycleMembers) -> TriedNode:
        """As in :meth:`MemberPass.run` also without the nominations of the members."""
        nominator = self._cluster.nominator
        found = self._try(self._root, None)
        nominated = [pod.key for pod in members.group.pending if nominator.node_of(pod.key)]
        if found.passed.feasible or found.passed.error is not None or not nominated:
            return found
        if not self._work.allows(1, members.pending):
            return found
        with self._passes.trial.members():
            for key in nominated:
                nominator.withdraw(key)
            again = self._try(self._root, None)
        return again if again.passed.feasible else found

    # -- the tree preempts as one -------------------------------------------------------------

    def _preempt_as_one(self, members: CycleMembers, result: GroupResult) -> None:
        if not self._settings.group_preemption:
            if any_less_important(self._cluster, members.rules.priority):
                result.message += f", {NEEDS_GROUP_PREEMPTION}"
            return
        generated = generate_placements(self._cluster, self._profile, members.group)
        # What rejects members while possible victims are gone requeues nothing.
        rejections, self._rejections = self._rejections, {}
        self._preempt(members, generated.placements, result)
        self._rejections = rejections
        if result.outcome is GroupOutcome.WAITING:
            result.message += f", {AWAITS_PREEMPTION}"

    def _try_group_in(self, members: CycleMembers, placement: GroupPlacement) -> PassResult:
        return self._pass(self._root, placement, True)

    def _to_make_room_for(self, members: CycleMembers) -> CycleMembers:
        return members

    def _needed_at_once(self, members: CycleMembers) -> int:
        groups = (node for node in self._root.subtree() if isinstance(node.declared, PodGroup))
        needed = (
            min(one.members.needed, len(one.members.pending)) for one in groups if not one.runs
        )
        return max(1, sum(needed))

    def ineligible_reason(self, members: CycleMembers) -> str:
        check = super().ineligible_reason
        return next(filter(None, (check(node.members) for node in self._root.subtree())), "")

    # -- one group of the tree ----------------------------------------------------------------

    def _try(self, node: GroupNode, within: BoolColumn | None) -> TriedNode:
        """Try a group in its placements within those rows."""
        found, members = TriedNode(node, node.runs), node.members
        if members.rules.unsupported:
            found.counts = False
            found.message, found.plugin = members.rules.unsupported, GANG_SCHEDULING
            return found
        if not members.pending:
            return found
        generated = generate_placements(self._cluster, self._profile, members.group)
        generator = self._profile.placement.generate
        placements = _restricted(generated.placements, within)
        if not generated.status.is_success or not placements:
            if generated.status.code is Code.ERROR:
                found.outcome = GroupOutcome.ERROR
            found.message = generated.status.message or NO_PLACEMENTS
            found.plugin = "" if generator is None else generator.name
            return found
        self._search(found, placements)
        return found

    def _search(self, found: TriedNode, placements: Sequence[GroupPlacement]) -> None:
        node = found.node
        try_placement = partial(self._pass, node)
        search = PlacementSearch(
            self._cluster, self._profile, node.members, try_placement, self._ties.placement
        )
        search.work, search.rooms = self._work, self._screening
        # The room in a placement says nothing about which children fit.
        screening = self._screening if isinstance(node.declared, PodGroup) else None
        result = search.run(placements, screening, may_preempt=False)
        chosen = result.chosen or result.reported
        assert chosen is not None
        found.passed, found.placement = chosen.result, chosen.placement.name
        found.placements, found.omitted = len(placements), result.omitted
        found.counts |= result.chosen is not None
        for one in node.subtree():
            if isinstance(one.declared, PodGroup):
                rejections = self._rejections.setdefault(one.declared.key, _Rejections())
                rejections.plugins |= result.plugins
                if one is node:
                    rejections.tried += result.tried

    def _pass(self, node: GroupNode, placement: GroupPlacement, _last_tier: bool) -> PassResult:
        within = rows_within(self._cluster, placement)
        if isinstance(node.declared, PodGroup):
            return self._passes.run(node.members, PassMode(Preemption.NONE, within=within))
        result, counted = SubtreeResult(), 0
        with self._passes.trial.members():
            for child in node.children:
                tried = self._try(child, within)
                result.children.append(tried)
                counted += tried.counts
                if tried.passed.error is not None:
                    result.error = tried.passed.error
                    return result
                if tried.passed.feasible:
                    self._assume(tried.passed)
                    result.members += tried.passed.members
        result.feasible = counted >= node.needed and result.placed > 0
        return result

    def _assume(self, passed: PassResult) -> None:
        for member in passed.members:
            if member.fits:
                assigned = member.decision if isinstance(member.decision, Assigned) else None
                self._passes.trial.assume(member.queued.info, member.node, assigned)

    # -- what becomes of each group -----------------------------------------------------------

    def results(self, result: GroupResult) -> Iterator[tuple[GroupNode, GroupResult]]:
        """The result of each group of the tree that follows from that of the root: of all
        CompositePodGroups, and of PodGroups with pending members."""
        found: dict[str, GroupResult] = {}
        if self._found is not None:
            committed = result.outcome is GroupOutcome.SCHEDULED
            found = {
                _id(node): one
                for node, one in self._results(self._found, committed, result.message)
            }
        plugin, victims = result.plugin, result.victims
        for node in self._root.subtree():
            known = found.get(_id(node))
            is_group = isinstance(node.declared, PodGroup)
            if not node.members.pending and (is_group or (known is None and found)):
                continue
            known = known or GroupResult(result.outcome, result.message)
            if is_group and any(pod.key in result.targets for pod in node.members.group.pending):
                # The first decision about a member has the victims of the tree.
                known = replace(
                    known, outcome=result.outcome, targets=result.targets, victims=victims
                )
                victims = ()
            if result.outcome is GroupOutcome.ERROR:
                known = replace(known, outcome=result.outcome, message=result.message)
            if result.outcome is not GroupOutcome.SCHEDULED and is_group and not known.plugin:
                # The failure of a plugin counts once for its circuit breaker.
                known = replace(known, plugin=plugin)
                plugin = "" if result.outcome is GroupOutcome.ERROR else plugin
            yield node, known

    def _results(
        self, found: TriedNode, committed: bool, why: str
    ) -> Iterator[tuple[GroupNode, GroupResult]]:
        """``committed``: all groups above it are scheduled; ``why``: else, why they are not."""
        node, passed = found.node, found.passed
        if isinstance(node.declared, PodGroup):
            yield node, self._result_of_group(found, committed, why)
            return
        if not found.counts:
            committed, why = False, found.message or _shortage(found)
        outcome = GroupOutcome.SCHEDULED if committed else found.outcome
        yield node, GroupResult(outcome, "" if committed else why, plugin=found.plugin)
        if isinstance(passed, SubtreeResult):
            for child in passed.children:
                yield from self._results(child, committed and passed.feasible, why)
            return
        for one in node.subtree():
            if one is not node and one.members.pending:
                yield one, GroupResult(found.outcome, why, plugin=found.plugin)

    def _result_of_group(self, found: TriedNode, committed: bool, why: str) -> GroupResult:
        passed, left_behind = found.passed, ""
        outcome, message = found.outcome, found.message
        if passed.feasible and committed:
            outcome = GroupOutcome.SCHEDULED
        elif passed.feasible:
            message = left_behind = why
        elif not message:
            message = self._unschedulable(found.placements) + found.omitted
        rejections = self._rejections.get(found.node.declared.key, _Rejections())
        return GroupResult(
            outcome,
            message,
            passed.members,
            found.placement,
            tuple(rejections.tried),
            plugin=found.plugin,
            placements=found.placements,
            limiting_plugins=rejections.plugins,
            retries_surplus=self._retries_surplus,
            left_behind=left_behind,
        )


def _id(node: GroupNode) -> str:
    return f"{type(node.declared).__name__} {node.declared.key}"


def _restricted(
    placements: Sequence[GroupPlacement], within: BoolColumn | None
) -> tuple[GroupPlacement, ...]:
    """The part of each placement within those rows, if it has any."""
    if within is None:
        return tuple(placements)
    parts = (place._replace(rows=place.rows[within[place.rows]]) for place in placements)
    return tuple(place for place in parts if len(place.rows))


def _shortage(found: TriedNode) -> str:
    """Why a CompositePodGroup is not feasible."""
    node, passed = found.node, found.passed
    fit = node.running_children
    if isinstance(passed, SubtreeResult):
        fit = sum(child.counts for child in passed.children)
    if fit >= node.needed:
        return f"CompositePodGroup {node.declared.key}: no pending child group fits{found.omitted}"
    return (
        f"CompositePodGroup {node.declared.key} is unschedulable: {fit} of its {node.needed}"
        f" required child groups fit{found.omitted}"
    )
