"""The decisions of group cycles: one header, the decisions about all members, and the condition of
the PodGroup. They are folded together and recorded in one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from asched.cycle.pod_groups import group_status_decision
from asched.cycle.shape_cache import ShapeCache
from asched.framework.group_hierarchy import ChildGroup, TreePosition, tree_position
from asched.framework.pod_groups import (
    DISRUPTION_TARGET,
    GANG_SCHEDULING,
    DisruptionMode,
    PodGroupKey,
    find_group,
    group_of,
    rules_of,
)
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.profile import Profile
from asched.group_cycle.composite import CompositeCycle
from asched.group_cycle.conclusions import group_condition, member_decisions
from asched.group_cycle.cycle import AWAITS_VICTIMS, GroupCycle, GroupResult
from asched.group_cycle.group_tree import collect_tree
from asched.group_cycle.members import CycleMembers, members_of, members_put_off
from asched.group_cycle.partial import left_members, note_untried, part_of_tree, part_to_try
from asched.group_cycle.screening import RoomCache
from asched.group_cycle.work import CycleWork
from asched.model.groups import PodGroup
from asched.state import records as r
from asched.state.attempt_budget import FREE_STEPS
from asched.state.cluster import ClusterState
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from asched.state.session_records import DecidedGroupCondition, PodGroupStatusDecided
from asched.state.waiting_pods import PermitAnswer

NO_EXTENDERS = "a group cycle calls no extenders and no external plugins: set groupCycle to false"
_MEMBER_DECISIONS = (r.Assigned, r.Rejected, r.AttemptFailed)
_PREEMPTION = "DefaultPreemption"
_replace = msgspec.structs.replace


class GroupDecider:
    """Decides whole pod groups for one state."""

    def __init__(self, cluster: ClusterState, cache: ShapeCache) -> None:
        self._cluster = cluster
        self._cache = cache
        self._rooms = RoomCache()

    def decide(self, profile: Profile, head: QueuedPod) -> tuple[r.Decision, ...]:
        """The decisions about the group of a pod; empty if it is in no group that exists."""
        cluster = self._cluster
        group = group_of(head.info.pod)
        declared = None if group is None else find_group(cluster, group)
        if declared is None:
            return ()
        position = tree_position(cluster, declared) if isinstance(declared, PodGroup) else None
        if position is not None and position.root is not None:
            return self._decide_tree(profile, head, position)
        kind = type(declared).__name__
        early = members_put_off(cluster, declared)
        if early and (untried := self._untried(profile, head, kind, early, [early])):
            return untried
        members = members_of(cluster, profile, declared, head)
        if untried := self._untried(profile, head, kind, members, [members]):
            return untried
        part = part_to_try(cluster, members, head)
        if profile.external or cluster.extenders:
            result = GroupResult(GroupOutcome.ERROR, NO_EXTENDERS)
        elif position is not None and position.problem:
            problem = position.problem
            result = GroupResult(GroupOutcome.UNSCHEDULABLE, problem, plugin=GANG_SCHEDULING)
        else:
            result = GroupCycle(cluster, profile, self._cache, rooms=self._rooms).run(part)
        self._end_waits(result.victims)
        if result.members and result.outcome is GroupOutcome.UNSCHEDULABLE:
            result.message += note_untried(members, part)
        # What keeps a group from being tried keeps all members.
        decisions: list[r.Decision] = [
            *member_decisions(cluster, part if result.members else members, result),
            *left_members(cluster, members, part, result),
        ]
        return (
            self._header(profile, members, result, kind, len(decisions)),
            *decisions,
            *self._status(profile, members, result),
            *self._disrupted(profile, result.victims),
        )

    def _decide_tree(
        self, profile: Profile, head: QueuedPod, position: TreePosition
    ) -> tuple[r.Decision, ...]:
        """The decisions about all groups below a CompositePodGroup."""
        cluster = self._cluster
        root = collect_tree(cluster, profile, head, position)
        below = (node for node in root.subtree() if isinstance(node.declared, PodGroup))
        kind, groups = type(root.declared).__name__, [node.members for node in below]
        if untried := self._untried(profile, head, kind, root.members, groups):
            return untried
        part = part_of_tree(cluster, root, head)
        note = note_untried(root.members, part.members)
        cycle = CompositeCycle(cluster, profile, self._cache, part, self._rooms, note)
        if profile.external or cluster.extenders:
            result = GroupResult(GroupOutcome.ERROR, NO_EXTENDERS)
        else:
            result = cycle.run(part.members)
        self._end_waits(result.victims)
        whole = {node.declared.uid: node.members for node in root.subtree()}
        found: list[r.Decision] = []
        for node, one in cycle.results(result):
            if isinstance(node.declared, PodGroup):
                decisions: list[r.Decision] = [
                    *member_decisions(cluster, node.members, one),
                    *left_members(cluster, whole[node.declared.uid], node.members, one),
                ]
                kind = PodGroup.__name__
                header = self._header(profile, node.members, one, kind, len(decisions))
                found += (_replace(header, root=root.declared.key), *decisions)
            found += self._status(profile, node.members, one, type(node.declared))
        kind = type(root.declared).__name__
        count = sum(isinstance(one, _MEMBER_DECISIONS) for one in found)
        return (
            self._header(profile, part.members, result, kind, count),
            *found,
            *self._disrupted(profile, result.victims),
        )

    def _untried(
        self,
        profile: Profile,
        head: QueuedPod,
        kind: str,
        members: CycleMembers,
        groups: Sequence[CycleMembers],
    ) -> tuple[r.Decision, ...]:
        """The decisions about all active members if the group must not be tried now: for each of
        them alone, all members would be collected again.

        ``groups``: the PodGroups with these members, several below a CompositePodGroup.
        """
        result, turn_ns = GroupResult(GroupOutcome.WAITING, AWAITS_VICTIMS), 0
        if any(self._awaits_victims(group.rules.group) for group in groups):
            result.plugin = GANG_SCHEDULING
        elif turn_ns := self._turn_ns(members):
            result = GroupResult(GroupOutcome.UNSCHEDULABLE, _put_off(members, head))
        else:
            return ()
        found: list[r.Decision] = []
        for group in groups:
            decisions = [
                r.Rejected(
                    one.info.key,
                    one.info.uid,
                    one.attempts + 1,
                    result.message,
                    (result.plugin,) if result.plugin else (),
                    put_off_until_ns=turn_ns,
                    grouped=True,
                )
                for one in group.pending
                if one is head or one.info.key in self._cluster.queue.active
            ]
            if decisions and group is not members:
                header = self._header(profile, group, result, PodGroup.__name__, len(decisions))
                found.append(_replace(header, root=members.rules.group.key))
            found += decisions
        count = sum(isinstance(decision, r.Rejected) for decision in found)
        return (self._header(profile, members, result, kind, count), *found)

    def _turn_ns(self, members: CycleMembers) -> int:
        """When the group may be tried: its namespace has to pay for earlier ones; 0 for now."""
        cluster, pending = self._cluster, members.pending
        budgets, namespace = cluster.guards.budgets, pending[0].info.namespace
        if not budgets.owes(namespace, cluster.now_ns):
            return 0
        turn_ns = max(queued.turn_ns for queued in pending)
        if turn_ns > cluster.now_ns:
            return turn_ns
        steps = CycleWork(cluster, pending).pass_steps(pending)
        if steps <= FREE_STEPS and not members.rules.topology_key:
            return 0
        if not cluster.guards.costs.limits(namespace, steps):
            return 0
        return budgets.group_turn_ns(namespace, max(steps, FREE_STEPS), cluster.now_ns)

    def _awaits_victims(self, group: PodGroupKey) -> bool:
        """Whether victims of a member are still running: the group needs their room."""
        evictions = self._cluster.evictions
        if not evictions:
            return False
        statuses, pods = self._cluster.group_members(group).statuses, self._cluster.pods
        return any(
            eviction.preemptor.key in statuses
            and pods[eviction.preemptor.key].info.uid == eviction.preemptor.uid
            for eviction in evictions.values()
        )

    def _disrupted(
        self, profile: Profile, victims: Sequence[PodInfo]
    ) -> Iterator[PodGroupStatusDecided]:
        """The condition DisruptionTarget of each PodGroup that is evicted as a whole."""
        keys = {group_of(victim.pod) for victim in victims}
        message = f"{profile.scheduler_name}: preempting to accommodate a higher priority pod group"
        condition = DecidedGroupCondition(
            DISRUPTION_TARGET, "True", "PreemptionByScheduler", message
        )
        for key in sorted(key for key in keys if key is not None and key.native):
            group = self._cluster.objects(PodGroup).get(key.key)
            if group is None or rules_of(group).disruption_mode is not DisruptionMode.ALL:
                continue
            name = profile.scheduler_name
            decided = group_status_decision(self._cluster, key, condition, name)
            if decided is not None:
                yield decided

    def _end_waits(self, victims: Sequence[PodInfo]) -> None:
        """Victims that wait on Permit are not bound yet: rejecting them is enough."""
        for victim in victims:
            if victim.key in self._cluster.waiting:
                answer = PermitAnswer(victim.key, _PREEMPTION, "preempted")
                self._cluster.waiting_pods.answer(answer)

    def _header(
        self,
        profile: Profile,
        members: CycleMembers,
        result: GroupResult,
        kind: str,
        decisions: int,
    ) -> PodGroupAttempted:
        rules = members.rules
        return PodGroupAttempted(
            kind,
            rules.group.key,
            rules.uid,
            profile.scheduler_name,
            result.outcome,
            decisions,
            placed=sum(member.fits for member in result.members),
            message=result.message,
            placement=result.placement,
            placements=result.placements,
            steps=result.steps,
        )

    def _status(
        self,
        profile: Profile,
        members: CycleMembers,
        result: GroupResult,
        kind: type[ChildGroup] = PodGroup,
    ) -> tuple[PodGroupStatusDecided, ...]:
        """The new status of the group, if it changes."""
        rules = members.rules
        declared = self._cluster.objects(kind).get(rules.group.key)
        if not rules.group.native or declared is None:
            return ()
        condition, name = group_condition(result), profile.scheduler_name
        decided = group_status_decision(self._cluster, rules.group, condition, name, kind)
        return () if decided is None else (decided,)


def _put_off(members: CycleMembers, head: QueuedPod) -> str:
    """The message about a group if its namespace has to pay for earlier ones."""
    return (
        f"put off: a group of {len(members.pending)} members takes long to try, and namespace"
        f" {head.info.namespace} used up its share of decision time"
    )
