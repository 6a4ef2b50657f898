"""PodGroups of pods that are scheduled one by one: the preemption check of gangs, and PodGroup
conditions.

kube-scheduler 1.36 schedules the pods of a PodGroup together: if the group fails, so does the
preemption for one of its pods (``submitPodGroupAlgorithmResult``). Its workload-aware preemption
first checks whether the group would fit without any pod of lower priority. Here each member that is
about to evict runs that check: :func:`gang_stays_incomplete`.

It sets one condition, PodGroupScheduled: True once enough pods have a node, False with the reason
Unschedulable after a failed attempt. :func:`decide_group_conditions` does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from asched.cycle.attempt import Attempt
from asched.cycle.feasible_nodes import FeasibleNodes
from asched.cycle.shape_cache import ShapeCache
from asched.framework.nodes import BoolColumn, RowArray
from asched.framework.pod_groups import (
    DISRUPTION_TARGET,
    GANG_SCHEDULING,
    POD_GROUP_SCHEDULED,
    SCHEDULABLE,
    WITH_NODE,
    WITHOUT_NODE,
    MemberStatus,
    PodGroupKey,
    find_group,
    group_of,
    min_count,
    siblings,
)
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.runtime.dry_run import FilterDryRunner, Placed
from asched.framework.runtime.profile import Profile
from asched.framework.sessions import PodGroupPhase
from asched.framework.status import Code
from asched.model.groups import CompositePodGroup, PodGroup
from asched.plugins.default_preemption.victims import less_important
from asched.state.attempt_budget import most_gang_forms
from asched.state.cluster import ClusterState
from asched.state.records import Assigned, Decision, PermitAllowed, PermitRejected, Rejected
from asched.state.session_records import DecidedGroupCondition, PodGroupStatusDecided
from asched.state.sessions import same_status, status_matches

GANG_INCOMPLETE = (
    "preemption: gang {0} would stay incomplete: {1} of its {2} required pods would have a node"
)
"""The reason not to evict anything for a member."""

GANG_TOO_VARIED = (
    "preemption: the members of gang {0} have {1} forms, at most {2} are tried in this cluster"
)
"""The reason not to evict anything for a member of a gang that would take long to try."""

_BATCH_ROWS = 64
"""Rows to vacate at a time: usually the first few are sufficient."""


def gang_stays_incomplete(
    cluster: ClusterState, profile: Profile, info: PodInfo, found: FeasibleNodes
) -> str:
    """Why the pod, for which preemption found victims, must not evict them; empty if it may.

    It must not if its gang would stay incomplete even without all pods that are less important than
    some member without a node. Raises
    :class:`~asched.framework.runtime.plugin_calls.PluginFailure`.
    """
    if GANG_SCHEDULING not in profile.plugins or GANG_SCHEDULING in profile.skipped:
        return ""
    key = group_of(info.pod)
    group = None if key is None else find_group(cluster, key)
    if key is None or group is None:
        return ""
    required = min_count(group)
    # A member that the pod preempts while it waits on Permit is lost to the gang.
    displaced = sum(
        answer.message is not None and answer.key in cluster.group_members(key).statuses
        for answer in cluster.waiting_pods.answers
    )
    with_node = siblings(cluster.group_members(key), info.key, WITH_NODE) - displaced
    missing = required - with_node
    if missing <= 1:
        return ""
    by_form = _members_by_form(cluster, key, info, missing)
    most = most_gang_forms(cluster.nodes.cluster_size)
    if len(by_form) > most:
        return GANG_TOO_VARIED.format(key.key, len(by_form), most)
    classes = [*_member_classes(cluster, profile, by_form, info, found)]
    placed = _GangDryRun(cluster, key, info, classes, missing).run()
    if placed >= missing:
        return ""
    return GANG_INCOMPLETE.format(key.key, with_node + placed, required)


class _MemberClass(NamedTuple):
    """Members of the same shape, which filters do not distinguish."""

    dry_runner: FilterDryRunner
    usable: BoolColumn
    """By row: whether a member may fit, now or after evictions."""
    left: list[PodInfo]
    """Members to place; the next one is the last."""


def _members_by_form(
    cluster: ClusterState, group: PodGroupKey, info: PodInfo, missing: int
) -> dict[PodShape, list[PodInfo]]:
    """The pod and the other members without a node, at most ``missing`` of each shape."""
    by_form: dict[PodShape, list[PodInfo]] = {info.shape: [info]}
    others = [
        cluster.pods[key].info
        for key, status in cluster.group_members(group).statuses.items()
        if status in WITHOUT_NODE
        and key != info.key
        and not cluster.pods[key].info.pod.spec.oversized
    ]
    for member in sorted(others, key=lambda other: (-other.priority, other.key)):
        same_form = by_form.setdefault(member.shape, [])
        if len(same_form) < missing:
            same_form.append(member)
    return by_form


def _member_classes(
    cluster: ClusterState,
    profile: Profile,
    by_form: Mapping[PodShape, Sequence[PodInfo]],
    info: PodInfo,
    found: FeasibleNodes,
) -> Iterator[_MemberClass]:
    """Those that may fit somewhere. ``profile`` and ``found`` are those of the pod ``info``."""
    for members in by_form.values():
        first = members[0]
        if first is not info:
            profile = cluster.profiles[first.pod.spec.scheduler_name]
            # GangScheduling would count this pod as rejected.
            skipped = cluster.guards.circuits.in_force(profile).skipped
            profile = profile.without(skipped | {GANG_SCHEDULING})
            attempt = Attempt(cluster, profile, first, ShapeCache(cluster.nodes))
            found = attempt.find_feasible_nodes(limit_nodes=False)
        rejected = found.rejected
        if rejected is None or rejected.code is Code.UNSCHEDULABLE:
            dry_runner = FilterDryRunner(profile, cluster, cluster.nominator, found.state, first)
            yield _MemberClass(dry_runner, _usable(cluster, found), [*reversed(members)])


def _usable(cluster: ClusterState, found: FeasibleNodes) -> BoolColumn:
    table = cluster.nodes
    if found.rejected is not None:
        return table.alive
    findings = found.findings
    resolvable = np.array([s.code is Code.UNSCHEDULABLE for s in findings.statuses], np.bool_)
    usable: BoolColumn = findings.passing | resolvable[findings.code]
    return usable & found.considered(table)


class _GangDryRun:
    """Places members on nodes without the pods that one of the members may evict."""

    def __init__(
        self,
        cluster: ClusterState,
        group: PodGroupKey,
        info: PodInfo,
        classes: Sequence[_MemberClass],
        missing: int,
    ) -> None:
        self._table = cluster.nodes
        self._nominator = cluster.nominator
        self._statuses = cluster.group_members(group).statuses
        self._info = info
        members = (member for one in classes for member in one.left)
        self._most_important = max((info, *members), key=lambda member: member.priority)
        self._classes = classes
        self._missing = missing
        self._placed = 0

    def run(self) -> int:
        """How many members fit, at most as many as are missing."""
        usable = self._table.alive & np.logical_or.reduce([one.usable for one in self._classes])
        rows = np.flatnonzero(usable)
        # If no filter looks beyond a node's row, rows are independent of each other.
        independent = all(one.dry_runner.reads_only_own_row for one in self._classes)
        size = _BATCH_ROWS if independent else max(1, len(rows))
        for begin in range(0, len(rows), size):
            self._fill(rows[begin : begin + size])
            if self._placed == self._missing:
                break
        return self._placed

    def _nominated(self, rows: RowArray) -> list[Placed]:
        """Nominated pods that count as present; not the members that this run places."""
        by_node, names = self._nominator.by_node, self._table.names
        return [
            (place, pod)
            for place, row in enumerate(rows.tolist())
            for pod in by_node.get(names[row], {}).values()
            if self._counts_as_present(pod)
        ]

    def _counts_as_present(self, pod: PodInfo) -> bool:
        status = self._statuses.get(pod.key)
        if status is None:
            return pod.priority >= self._most_important.priority
        return status is MemberStatus.NOMINATED and pod.uid != self._info.uid

    def _fill(self, rows: RowArray) -> None:
        """Vacate these rows, a batch at a time, until enough members are placed on them."""
        nominated = self._nominated(rows)
        hypotheses = [one.dry_runner.hypothetical(rows, nominated) for one in self._classes]
        for begin in range(0, len(rows), _BATCH_ROWS):
            batch = rows[begin : begin + _BATCH_ROWS].tolist()
            removed = [
                (place, pod)
                for place, row in enumerate(batch, begin)
                for pod in less_important(self._table.pods(row), self._most_important)
                if pod.key not in self._statuses  # members with a node are counted as such
            ]
            for hypothesis in hypotheses:
                hypothesis.remove(removed)
            for one, hypothesis in zip(self._classes, hypotheses, strict=True):
                while one.left and self._placed < self._missing:
                    free = np.flatnonzero(hypothesis.diagnose().passing & one.usable[rows])
                    # A placed member may block the next one, unless filters look at one row only.
                    limit = min(len(one.left), self._missing - self._placed)
                    places = free[: limit if one.dry_runner.reads_only_own_row else 1].tolist()
                    if not places:
                        break
                    added = [(place, one.left.pop()) for place in places]
                    for each in hypotheses:
                        each.add(added)
                    self._placed += len(added)


# -- conditions -----------------------------------------------------------------------------------

UNSCHEDULABLE = "0/1 placements are available, first placement status: pod group is unschedulable"
"""The message of kube-scheduler 1.36, which tries one placement without topology constraints."""

_SCHEDULED = DecidedGroupCondition(POD_GROUP_SCHEDULED, "True", "Scheduled")
_UNSCHEDULABLE = DecidedGroupCondition(POD_GROUP_SCHEDULED, "False", "Unschedulable", UNSCHEDULABLE)


def decide_group_conditions(
    cluster: ClusterState, decisions: Sequence[Decision]
) -> tuple[PodGroupStatusDecided, ...]:
    """The new statuses of PodGroups after decisions that are not folded yet.

    A status that the PodGroup already has, or that is being written, is omitted.
    """
    if not decisions or not cluster.objects(PodGroup):
        return ()
    found: dict[PodGroupKey, PodGroupStatusDecided] = {}
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
        if profile.group_cycle is not None:
            continue  # a group cycle decides it with the members
        condition = _condition(cluster, group, decision)
        if condition is not None:
            decided = group_status_decision(cluster, group, condition, profile.scheduler_name)
            if decided is not None:
                found[group] = decided
    return tuple(found.values())


def _condition(
    cluster: ClusterState,
    group: PodGroupKey,
    decision: Assigned | Rejected | PermitAllowed | PermitRejected,
) -> DecidedGroupCondition | None:
    """The condition that follows from the first decision about the group; None if none does."""
    found = cluster.objects(PodGroup).get(group.key)
    members = cluster.group_members(group)
    if found is None:
        return None
    if found.spec.unsupported and isinstance(decision, Rejected):
        return msgspec.structs.replace(_UNSCHEDULABLE, message=found.spec.unsupported)
    if not found.min_count:
        return None
    if isinstance(decision, PermitAllowed | PermitRejected) and decision.plugin != GANG_SCHEDULING:
        return None
    if isinstance(decision, PermitAllowed):
        return _SCHEDULED
    assigned = members.count(MemberStatus.ASSIGNED)
    if isinstance(decision, Assigned):
        complete = not decision.permit_waits and assigned + 1 >= found.min_count
        return _SCHEDULED if complete else None
    if assigned >= found.min_count:
        return None
    if isinstance(decision, PermitRejected):
        return _UNSCHEDULABLE
    others = siblings(members, decision.key, SCHEDULABLE)
    if others + bool(decision.nominated_node) + decision.requeue_now >= found.min_count:
        return None
    return _UNSCHEDULABLE


def group_status_decision(
    cluster: ClusterState,
    group: PodGroupKey,
    condition: DecidedGroupCondition,
    scheduler_name: str,
    kind: type[PodGroup | CompositePodGroup] = PodGroup,
) -> PodGroupStatusDecided | None:
    """The status of a PodGroup or CompositePodGroup with this condition; None if it has
    it, or if it is written now.

    Once PodGroupScheduled is True it stays, whatever becomes of the pods. A group that is scheduled
    again is no target of a disruption any longer.
    """
    found = cluster.objects(kind)[group.key]
    before = conditions_of(cluster, found)
    scheduled = condition.type == POD_GROUP_SCHEDULED and condition.status == "True"
    was_scheduled = any(c.type == POD_GROUP_SCHEDULED and c.status == "True" for c in before)
    if condition.type == POD_GROUP_SCHEDULED and was_scheduled and not scheduled:
        return None
    replaced = {condition.type, DISRUPTION_TARGET} if scheduled else {condition.type}
    decided = PodGroupStatusDecided(
        kind.__name__,
        group.key,
        found.uid,
        0,
        PodGroupPhase.RUNNING if scheduled else PodGroupPhase.PENDING,
        conditions=(*(c for c in before if c.type not in replaced), condition),
        scheduler_name=scheduler_name,
    )
    write = cluster.sessions.writes.get((decided.kind, decided.group))
    if write is not None and write.decision.uid == decided.uid:
        return None if same_status(write.decision, decided) else decided
    return None if status_matches(found, decided) else decided


def conditions_of(
    cluster: ClusterState, group: PodGroup | CompositePodGroup
) -> tuple[DecidedGroupCondition, ...]:
    """The conditions of the group, those included that are decided and not observed yet."""
    write = cluster.sessions.writes.get((type(group).__name__, group.key))
    if write is not None and write.decision.uid == group.uid:
        return write.decision.conditions
    return tuple(
        DecidedGroupCondition(c.type, c.status, c.reason, c.message)
        for c in group.status.conditions
    )
