"""The decisions of group cycles: one header, the decisions about all members, and the condition of
the PodGroup. They are folded together and recorded in one batch."""

from __future__ import annotations

from collections.abc import Sequence

from asched.cycle.pod_groups import group_status_decision
from asched.cycle.shape_cache import ShapeCache
from asched.framework.pod_groups import (
    GANG_SCHEDULING,
    POD_GROUP_SCHEDULED,
    PodGroupKey,
    find_group,
)
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.profile import Profile
from asched.group_cycle.conclusions import MemberDecision, group_condition, member_decisions
from asched.group_cycle.cycle import AWAITS_VICTIMS, GroupCycle, GroupResult
from asched.group_cycle.members import CycleMembers, collect_members
from asched.model.groups import PodGroup
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from asched.state.session_records import PodGroupStatusDecided
from asched.state.waiting_pods import PermitAnswer

NO_EXTENDERS = "a group cycle calls no extenders and no external plugins: set groupCycle to false"
_PREEMPTION = "DefaultPreemption"


class GroupDecider:
    """Decides whole pod groups for one state."""

    def __init__(self, cluster: ClusterState, cache: ShapeCache) -> None:
        self._cluster = cluster
        self._cache = cache

    def decide(self, profile: Profile, head: QueuedPod) -> tuple[r.Decision, ...]:
        """The decisions about the group of a pod; empty if it is in no group that exists."""
        cluster = self._cluster
        members = collect_members(cluster, profile, head)
        if members is None:
            return ()
        if self._awaits_victims(members.rules.group):
            return (_put_back(head),)
        if profile.external or cluster.extenders:
            result = GroupResult(GroupOutcome.ERROR, NO_EXTENDERS)
        else:
            result = GroupCycle(cluster, profile, self._cache).run(members)
        self._end_waits(result.victims)
        decisions = member_decisions(cluster, members, result)
        return (
            self._header(profile, members, result, decisions),
            *decisions,
            *self._status(profile, members, result),
        )

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
        decisions: Sequence[MemberDecision],
    ) -> PodGroupAttempted:
        rules = members.rules
        declared = find_group(self._cluster, rules.group)
        return PodGroupAttempted(
            type(declared).__name__,
            rules.group.key,
            rules.uid,
            profile.scheduler_name,
            result.outcome,
            len(decisions),
            placed=sum(member.fits for member in result.members),
            message=result.message,
            placement=result.placement,
            placements=len(result.tried),
        )

    def _status(
        self, profile: Profile, members: CycleMembers, result: GroupResult
    ) -> tuple[PodGroupStatusDecided, ...]:
        """The new status of the PodGroup, if it changes. Once the condition is True, it stays."""
        rules = members.rules
        declared = self._cluster.objects(PodGroup).get(rules.group.key)
        if not rules.group.native or declared is None:
            return ()
        condition = group_condition(result)
        was_true = any(
            c.type == POD_GROUP_SCHEDULED and c.status == "True" for c in declared.status.conditions
        )
        if was_true and condition.status != "True":
            return ()
        decided = group_status_decision(
            self._cluster, rules.group, condition, profile.scheduler_name
        )
        return () if decided is None else (decided,)


def _put_back(head: QueuedPod) -> r.Rejected:
    """The decision about a member that became active while victims of its group still run."""
    info = head.info
    return r.Rejected(info.key, info.uid, head.attempts + 1, AWAITS_VICTIMS, (GANG_SCHEDULING,))
