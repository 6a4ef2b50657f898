"""What is said of Kubernetes' own PodGroups when their pods are scheduled one by one.

kube-scheduler 1.36 writes one condition, PodGroupScheduled: True once as many pods have their places
as the gang needs, False with the reason Unschedulable when an attempt to get there came to nothing.
It posts no Event about a PodGroup: those are posted about its pods.
"""

from __future__ import annotations

from collections.abc import Sequence

from asched.framework.pod_groups import (
    GANG_SCHEDULING,
    HOPEFUL,
    POD_GROUP_SCHEDULED,
    MemberStatus,
    PodGroupKey,
    group_of,
    siblings,
)
from asched.framework.sessions import PodGroupPhase
from asched.model.groups import PodGroup
from asched.state.cluster import ClusterState
from asched.state.records import Assigned, Decision, PermitAllowed, PermitRejected, Rejected
from asched.state.session_records import GroupCondition, PodGroupDecided
from asched.state.sessions import same_status, says

UNSCHEDULABLE = "0/1 placements are available, first placement status: pod group is unschedulable"
"""kube-scheduler 1.36's words; it tries one placement where no topology is asked for."""

_SCHEDULED = GroupCondition(POD_GROUP_SCHEDULED, "True", "Scheduled")
_UNSCHEDULABLE = GroupCondition(POD_GROUP_SCHEDULED, "False", "Unschedulable", UNSCHEDULABLE)


def group_decisions(
    cluster: ClusterState, decisions: Sequence[Decision]
) -> tuple[PodGroupDecided, ...]:
    """The new statuses of PodGroups that follow from decisions about their pods, which are made
    together and not folded yet. Nothing that the PodGroup says already, or is about to."""
    if not decisions or not cluster.objects(PodGroup):
        return ()
    found: dict[PodGroupKey, PodGroupDecided] = {}
    for decision in decisions:
        if not isinstance(decision, Assigned | Rejected | PermitAllowed | PermitRejected):
            continue
        pod = cluster.pods[decision.key].info.pod
        group = group_of(pod)
        profile = cluster.profiles.get(pod.spec.scheduler_name)
        if group is None or not group.native or group in found:
            continue
        if profile is None or GANG_SCHEDULING not in profile.plugins:
            continue
        condition = _condition(cluster, group, decision)
        if condition is not None:
            decided = _decided(cluster, group, condition, profile.scheduler_name)
            if decided is not None:
                found[group] = decided
    return tuple(found.values())


def _condition(
    cluster: ClusterState,
    group: PodGroupKey,
    decision: Assigned | Rejected | PermitAllowed | PermitRejected,
) -> GroupCondition | None:
    """What is to be said after the first of several decisions; None for nothing new."""
    found = cluster.objects(PodGroup).get(group.key)
    members = cluster.group_members(group)
    if found is None or not found.min_count:
        return None
    if isinstance(decision, PermitAllowed | PermitRejected) and decision.plugin != GANG_SCHEDULING:
        return None
    if isinstance(decision, PermitAllowed):
        return _SCHEDULED
    placed = members.count(MemberStatus.PLACED)
    if isinstance(decision, Assigned):
        complete = not decision.holds and placed + 1 >= found.min_count
        return _SCHEDULED if complete else None
    if placed >= found.min_count:
        return None
    if isinstance(decision, PermitRejected):
        return _UNSCHEDULABLE
    others = siblings(members, decision.key, HOPEFUL)
    if others + bool(decision.nominated_node) + decision.at_once >= found.min_count:
        return None
    return _UNSCHEDULABLE


def _decided(
    cluster: ClusterState, group: PodGroupKey, condition: GroupCondition, scheduler_name: str
) -> PodGroupDecided | None:
    found = cluster.objects(PodGroup)[group.key]
    kept = tuple(
        GroupCondition(c.type, c.status, c.reason, c.message)
        for c in found.status.conditions
        if c.type != POD_GROUP_SCHEDULED
    )
    scheduled = condition is _SCHEDULED
    decided = PodGroupDecided(
        PodGroup.__name__,
        group.key,
        found.uid,
        0,
        PodGroupPhase.RUNNING if scheduled else PodGroupPhase.PENDING,
        conditions=(*kept, condition),
        scheduler_name=scheduler_name,
    )
    write = cluster.sessions.writes.get((decided.kind, decided.group))
    if write is not None and write.decision.uid == decided.uid:
        return None if same_status(write.decision, decided) else decided
    return None if says(found, decided) else decided
