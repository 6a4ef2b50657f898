"""The decision about each member that follows from the outcome of the group."""

from __future__ import annotations

import msgspec

from asched.framework.cluster import PodRef
from asched.framework.pod_groups import GANG_SCHEDULING, POD_GROUP_SCHEDULED
from asched.framework.pod_info import QueuedPod
from asched.group_cycle.cycle import GroupResult
from asched.group_cycle.member_pass import MemberResult
from asched.group_cycle.members import CycleMembers
from asched.plugins.gang_scheduling import INCOMPLETE
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.group_records import GroupOutcome
from asched.state.session_records import DecidedGroupCondition

MemberDecision = r.Assigned | r.Rejected | r.AttemptFailed

_replace = msgspec.structs.replace


def group_condition(result: GroupResult) -> DecidedGroupCondition:
    """The condition PodGroupScheduled after the cycle."""
    match result.outcome:
        case GroupOutcome.SCHEDULED:
            return DecidedGroupCondition(POD_GROUP_SCHEDULED, "True", "Scheduled")
        case GroupOutcome.ERROR:
            reason = "SchedulerError"
        case _:
            reason = "Unschedulable"
    return DecidedGroupCondition(POD_GROUP_SCHEDULED, "False", reason, result.message)


def member_decisions(
    cluster: ClusterState, members: CycleMembers, result: GroupResult
) -> list[MemberDecision]:
    """All members are assigned or rejected together, except those beyond the minimum that do not
    fit. In the order of the members."""
    found = {member.queued.info.key: member for member in result.members}
    rejected_by = _rejecting_plugins(result)
    decisions = [
        _replace(_decision(queued, found, rejected_by, result, members.pending[0]), grouped=True)
        for queued in members.pending
    ]
    if result.retries_surplus:
        decisions = [_backing_off(decision) for decision in decisions]
    victims = _evicted(cluster, result)
    if victims and isinstance(decisions[0], r.Rejected):
        # One pod represents the group: while its victims run, the group is not tried.
        decisions[0] = _replace(decisions[0], victims=victims)
    return decisions


def _decision(
    queued: QueuedPod,
    found: dict[str, MemberResult],
    rejected_by: dict[str, tuple[str, ...]],
    result: GroupResult,
    first: QueuedPod,
) -> MemberDecision:
    info, number = queued.info, queued.attempts + 1
    member = found.get(info.key)
    if result.outcome is GroupOutcome.ERROR:
        if member is not None and isinstance(member.decision, r.AttemptFailed):
            return member.decision
        # The failure of a plugin counts once for its circuit breaker.
        plugin = result.plugin if queued is first else ""
        return r.AttemptFailed(info.key, info.uid, number, plugin, result.message)
    if member is None:
        by = (result.plugin,) if result.plugin else ()
        node = result.targets.get(info.key, "")
        return r.Rejected(info.key, info.uid, number, result.message, by, nominated_node=node)
    # Without a node no plugin rejects a member: it backs off, as no event of a plugin would help.
    plugins = rejected_by.get(info.key, (GANG_SCHEDULING,))
    if result.outcome is GroupOutcome.SCHEDULED:
        return _scheduled(member, plugins)
    if result.outcome is GroupOutcome.WAITING:
        return _waiting(member, plugins, result)
    if member.fits:
        message = result.left_behind or INCOMPLETE
        return r.Rejected(info.key, info.uid, number, message, plugins, nominated_node="")
    return _unplaced(member, plugins)


def _scheduled(member: MemberResult, plugins: tuple[str, ...]) -> MemberDecision:
    """A member of a group that is scheduled. One that is left may fit in another placement later,
    as preferred domains do not bind it."""
    decision = member.decision
    if member.found_victims or not isinstance(decision, r.Rejected):
        return _backing_off(decision)
    return _replace(decision, unschedulable_plugins=_without(plugins, decision.pending_plugins))


def _without(plugins: tuple[str, ...], pending: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in plugins if name not in pending)


def _backing_off(decision: MemberDecision) -> MemberDecision:
    """A surplus member may preempt only once the others have their nodes: rejected by no plugin, it
    backs off, as no event announces that."""
    if not isinstance(decision, r.Rejected):
        return decision
    return _replace(decision, unschedulable_plugins=(), pending_plugins=())


def _waiting(member: MemberResult, plugins: tuple[str, ...], result: GroupResult) -> MemberDecision:
    """A member of a group that fits once victims are gone."""
    info, number = member.queued.info, member.queued.attempts + 1
    if member.preempts:
        return member.decision
    node = result.targets.get(info.key, "") if result.targets else member.node
    if member.fits:
        return r.Rejected(info.key, info.uid, number, result.message, plugins, nominated_node=node)
    return _replace(_unplaced(member, plugins), nominated_node=node)


def _unplaced(member: MemberResult, plugins: tuple[str, ...]) -> MemberDecision:
    """A member that does not fit keeps its own message. Events of all plugins that rejected it in
    any placement requeue it."""
    decision = member.decision
    assert isinstance(decision, r.Rejected)
    return _replace(
        decision,
        unschedulable_plugins=_without(plugins, decision.pending_plugins),
        nominated_node="" if decision.nominated_node is None else decision.nominated_node,
    )


def _rejecting_plugins(result: GroupResult) -> dict[str, tuple[str, ...]]:
    """By pod key, the plugins that rejected the member in any placement, sorted.

    GangScheduling is one of them if a change of the PodGroup could help, by a smaller minimum or
    another topology: the member fits in some placement in which the group does not, or it was
    rejected in a domain, or some placement was not tried because it has too little room.
    """
    found: dict[str, set[str]] = {}
    tried = ((place, one) for place, passed in result.tried for one in passed.members)
    for placement, member in tried:
        plugins = found.setdefault(member.queued.info.key, set())
        decision = member.decision
        if isinstance(decision, r.Rejected):
            plugins.update(decision.unschedulable_plugins, decision.pending_plugins)
            if placement.name:
                plugins.add(GANG_SCHEDULING)
        elif member.fits:
            plugins.add(GANG_SCHEDULING)
    if result.limiting_plugins:
        for member in result.members:
            plugins = found.setdefault(member.queued.info.key, set())
            plugins.update(result.limiting_plugins, (GANG_SCHEDULING,))
    return {key: tuple(sorted(plugins)) for key, plugins in found.items()}


def _evicted(cluster: ClusterState, result: GroupResult) -> tuple[PodRef, ...]:
    """The victims to evict for a group that preempts as one: not those that are terminating, that
    are being evicted already, or that wait on Permit."""
    return tuple(
        PodRef(pod.key, pod.uid)
        for pod in result.victims
        if not pod.pod.terminating
        and pod.uid not in cluster.evictions
        and pod.key not in cluster.waiting
    )
