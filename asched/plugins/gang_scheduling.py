"""GangScheduling (all-or-nothing scheduling of the pods of a PodGroup) and GangSort (queue
order)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from asched.framework.cluster import Handle, WaitingPod
from asched.framework.cycle_state import CycleState
from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.framework.group_hierarchy import ancestors, groups_below
from asched.framework.interface import (
    Arguments,
    EnqueueExtensions,
    GroupCycleSettings,
    GroupSchedulingPlugin,
    NodeToStatus,
    PermitResult,
    PostFilterPlugin,
    PostFilterResult,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreFilterResult,
    QueueSortPlugin,
    WaitingPodReviewer,
)
from asched.framework.nodes import Nodes
from asched.framework.pod_groups import (
    GANG_SCHEDULING,
    SCHEDULABLE,
    UNSCHEDULABLE,
    GroupMembers,
    MemberStatus,
    PodGroupKey,
    find_group,
    group_of,
    key_of,
    min_count,
    only_status_changed,
    siblings,
)
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.query_index import RejectedPods
from asched.framework.runtime.dry_run import Removal
from asched.framework.status import SUCCESS, Code, Status
from asched.model.groups import CustomPodGroup, PodGroup
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.plugins.shared import SKIP, queue_if

NO_GROUP = "waiting for pod's pod group to appear"
TOO_FEW = "waiting for minCount pods from a gang to appear"
WAITING = "waiting for minCount pods from a gang to be scheduled"
INCOMPLETE = (
    f"pod group is unschedulable, {WAITING},"
    " one or more plugins asked to wait and no plugin rejected pod"
)
"""kube-scheduler 1.36's message for a pod that had a node when its gang could not be completed."""
_MAX_RUNS = 256
"""Nodes to try one at a time, if a filter reads more than a node's row: about 0.2 seconds."""
RELEASED_FOR = "reservation released for earlier gang "
"""Before the gang, in the message of a member that loses its reservation to an earlier gang."""
RELEASED = "reservations of later incomplete gangs are released: "
MAX_WAITING_TIME_S = 15 * 60
"""The longest time that the framework lets a pod wait."""


class GangSchedulingArgs(Arguments, frozen=True):
    """``pluginConfig`` of GangScheduling."""

    permit_waiting_time_seconds: int = 60
    """How long a member waits on Permit for the other members, evictions included."""
    group_cycle: bool = False
    """Schedule each group as a whole on one state instead of pod by pod."""
    group_preemption: bool = False
    """With ``group_cycle``: a group preempts as one, and victims are whole groups where their
    ``disruptionMode`` says so (``WorkloadAwarePreemption``)."""
    topology_preemption: bool = True
    """With ``group_preemption``: so does a group with scheduling constraints, in the domain with
    the fewest and least important victims. kube-scheduler 1.36 has no such preemption."""

    def __post_init__(self) -> None:
        if not 0 < self.permit_waiting_time_seconds <= MAX_WAITING_TIME_S:
            raise ValueError(
                f"permitWaitingTimeSeconds: Invalid value: {self.permit_waiting_time_seconds}:"
                f" not in valid range [1, {MAX_WAITING_TIME_S}]"
            )
        if self.group_preemption and not self.group_cycle:
            raise ValueError("groupPreemption: Invalid value: true: needs groupCycle")


class Gang(NamedTuple):
    """A PodGroup with a minimum count, and its members now."""

    group: PodGroupKey
    min_count: int
    members: GroupMembers
    created_s: float
    """Creation time of the PodGroup, seconds since the epoch."""

    def precedence(self, priority: int) -> tuple[int, float, PodGroupKey]:
        """Sort key of gangs, with the priority of their pods: higher priorities first, then earlier
        gangs."""
        return -priority, self.created_s, self.group


class GangScheduling(
    PreEnqueuePlugin,
    PreFilterPlugin,
    PostFilterPlugin,
    WaitingPodReviewer,
    GroupSchedulingPlugin,
    EnqueueExtensions,
):
    """Makes members wait on Permit until the gang has its minimum count.

    As soon as too few members can still get a node, all waiting members are rejected, which
    releases their reservations. A rejected member is retried after an event that may help it, and
    its siblings are activated once it has a node. If a member would fit without the reservations of
    a later incomplete gang, that gang releases them. So of several incomplete gangs, the earliest
    completes first.
    """

    name: ClassVar[str] = GANG_SCHEDULING
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[GangSchedulingArgs]] = GangSchedulingArgs
    applies_per_template: ClassVar[bool] = True

    def __init__(self, args: GangSchedulingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._args = args
        self._reviewed = -1
        """The end of the log of changes at the last review."""
        self._answered: list[PodGroupKey] = []
        """The groups with answers at the last review. An answer that was dropped is given again."""

    @property
    def group_cycle(self) -> GroupCycleSettings | None:
        args = self._args
        if not args.group_cycle:
            return None
        return GroupCycleSettings(args.group_preemption, args.topology_preemption)

    def applies_to(self, pod: PodInfo) -> bool:
        return group_of(pod.pod) is not None

    def _gang(self, group: PodGroupKey | None) -> Gang | None:
        """None if the group does not exist or has no minimum count."""
        if group is None:
            return None
        cluster = self.handle.cluster
        found = find_group(cluster, group)
        if found is None or min_count(found) < 1:
            return None
        created = found.metadata.creation_timestamp
        created_s = created.timestamp() if created is not None else 0.0
        return Gang(group, min_count(found), cluster.group_members(group), created_s)

    def pre_enqueue(self, pod: PodInfo) -> Status:
        group = group_of(pod.pod)
        if group is None:
            return SUCCESS
        if find_group(self.handle.cluster, group) is None:
            return Status.unresolvable(NO_GROUP)
        return SUCCESS if self._has_min_count(group) else Status.unresolvable(TOO_FEW)

    def _has_min_count(self, group: PodGroupKey) -> bool:
        """Whether the gang has enough pods. Gated pods do not count: the others would hold
        reservations for them for an unknown time."""
        gang = self._gang(group)
        if gang is None:
            return find_group(self.handle.cluster, group) is not None
        if self._args.group_cycle:
            # A group cycle holds no reservations for members that cannot be scheduled.
            members = gang.members
            return len(members.statuses) - members.count(MemberStatus.FOREIGN) >= gang.min_count
        return gang.members.count(*SCHEDULABLE, *UNSCHEDULABLE) >= gang.min_count

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        events: tuple[ClusterEvent, ...] = (
            ClusterEvent(EventResource.POD, ActionType.ADD),
            ClusterEvent(
                EventResource.UNSCHEDULED_POD, ActionType.UPDATE_POD_SCHEDULING_GATES_ELIMINATED
            ),
            ClusterEvent(EventResource.POD_GROUP, ActionType.ADD | ActionType.UPDATE),
        )
        if not self._args.group_cycle:
            hint = self._reaches_min_count
            return tuple(ClusterEventWithHint(event, hint, own_group=True) for event in events)
        # A member for which the others await victims may be gone.
        deleted = ClusterEvent(EventResource.UNSCHEDULED_POD, ActionType.DELETE)
        composite = ClusterEvent(
            EventResource.COMPOSITE_POD_GROUP, ActionType.ADD | ActionType.UPDATE
        )
        return (
            *(
                ClusterEventWithHint(event, self._may_complete, select=self._members_to_complete)
                for event in (*events, deleted)
            ),
            ClusterEventWithHint(composite, self._is_above),
        )

    def _is_above(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if the CompositePodGroup is above the pod's group."""
        if new is None or only_status_changed(old, new):
            return QueueingHint.SKIP
        return queue_if(new.key in self._above(group_of(pod)))

    def _above(self, key: PodGroupKey | None) -> Sequence[str]:
        """The keys of the CompositePodGroups above a group."""
        found = None if key is None else find_group(self.handle.cluster, key)
        if not isinstance(found, PodGroup):
            return ()
        return [one.key for one in ancestors(self.handle.cluster, found).chain]

    def _reaches_min_count(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        group = group_of(pod)
        return queue_if(
            group is not None and not only_status_changed(old, new) and self._has_min_count(group)
        )

    def _may_complete(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if the event is about the pod's group, or about another group of its tree."""
        changed, own = _group_of_subject(new or old), group_of(pod)
        if changed == own:
            return self._reaches_min_count(pod, old, new)
        return queue_if(not {*self._above(own)}.isdisjoint(self._above(changed)))

    def _members_to_complete(
        self, rejected: RejectedPods, old: Object | None, new: Object | None
    ) -> Collection[str]:
        """The rejected members of the group that changed and, if it may count for its tree now, of
        the other groups in the tree."""
        changed = _group_of_subject(new or old)
        if changed is None or not rejected.waiting or only_status_changed(old, new):
            return ()
        cluster = self.handle.cluster
        found = (
            {*cluster.group_members(changed).statuses} if self._has_min_count(changed) else {*()}
        )
        above = self._above(changed)
        if above and self._may_count(changed):
            for group in groups_below(cluster, above[-1]):
                found.update(cluster.group_members(key_of(group)).statuses)
        return found & rejected.waiting.keys()

    def _may_count(self, group: PodGroupKey) -> bool:
        """Whether a group has its minimum without the members that are pending."""
        gang = self._gang(group)
        assigned = self.handle.cluster.group_members(group).count(MemberStatus.ASSIGNED)
        return assigned >= (1 if gang is None else gang.min_count)

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        """Reject a pod if its gang cannot be completed now, so that it reserves nothing."""
        group = group_of(pod.pod)
        found = None if group is None else find_group(self.handle.cluster, group)
        if isinstance(found, PodGroup) and found.spec.unsupported:
            return PreFilterResult(
                Status.unresolvable(f"PodGroup {found.key}: {found.spec.unsupported}")
            )
        gang = self._gang(group)
        if gang is None:
            if group is not None and found is None:
                return PreFilterResult(Status.unresolvable(NO_GROUP))
            return SKIP
        schedulable = siblings(gang.members, pod.key, SCHEDULABLE) + 1
        if schedulable >= gang.min_count:
            return SKIP
        return PreFilterResult(
            Status.unresolvable(
                f"gang {gang.group.key} cannot be completed: only {schedulable} of its"
                f" {gang.min_count} required pods are schedulable"
            )
        )

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        gang = self._gang(group_of(pod.pod))
        if gang is None or gang.members.count(MemberStatus.ASSIGNED) + 1 >= gang.min_count:
            return PermitResult()
        pending = self.handle.cluster.gang_pending_members(gang.group)
        return PermitResult(
            Status(Code.WAIT, (WAITING,)),
            timeout_s=self._args.permit_waiting_time_seconds,
            activate=tuple(key for key in pending if key != pod.key),
        )

    # -- members that wait on Permit ----------------------------------------------------------

    def review_waiting_pods(self) -> None:
        """Allow the members of complete gangs, and reject those of gangs that cannot complete.

        Looks only at gangs that changed: with many gangs, each decision changes few.
        """
        cluster = self.handle.cluster
        changes = cluster.permit_changes
        changed = changes.since(self._reviewed)
        if changed is None:
            groups = cluster.groups_at_permit
        elif changed or self._answered:
            groups = sorted({*changed, *self._answered})
        else:
            return
        self._reviewed = changes.cursor
        self._answered = [group for group in groups if self._review(group)]

    def _review(self, group: PodGroupKey) -> bool:
        """Returns whether the waiting members got an answer."""
        cluster = self.handle.cluster
        gang = self._gang(group)
        if gang is None:
            if not cluster.group_members(group).count(MemberStatus.WAITING):
                return False
            if find_group(cluster, group) is None:
                self._reject(group, NO_GROUP)
                return True
            for waiting in self._waiting(group):
                waiting.allow(self.name)  # no longer a gang
        elif not gang.members.count(MemberStatus.WAITING):
            return False
        elif gang.members.count(MemberStatus.ASSIGNED, MemberStatus.WAITING) >= gang.min_count:
            self._allow_if_complete(gang)
        elif self._cannot_complete(gang):
            self._reject(group, INCOMPLETE)
        else:
            return False
        return True

    def _cannot_complete(self, gang: Gang) -> bool:
        """Whether too few members are schedulable, or a member lost its reservation meanwhile."""
        if gang.members.count(*SCHEDULABLE) < gang.min_count:
            return True
        return bool(self.handle.cluster.gang_pending_members(gang.group))

    def _waiting(self, group: PodGroupKey) -> Iterator[WaitingPod]:
        for waiting in self.handle.waiting_members(group):
            if self.name in waiting.pending:
                yield waiting

    def _allow_if_complete(self, gang: Gang) -> None:
        """Members that also wait for another plugin do not count: it may still reject them."""
        waiting = [pod for pod in self._waiting(gang.group) if len(pod.pending) == 1]
        if gang.members.count(MemberStatus.ASSIGNED) + len(waiting) >= gang.min_count:
            for pod in waiting:
                pod.allow(self.name)

    def _reject(self, group: PodGroupKey, message: str) -> None:
        for waiting in self._waiting(group):
            waiting.reject(self.name, message)

    # -- later gangs yield --------------------------------------------------------------------

    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeToStatus
    ) -> PostFilterResult:
        """If the pod would fit without the reservations of later gangs, those release them."""
        gang = self._gang(group_of(pod.pod))
        later = [] if gang is None else self._later_gangs(gang, pod)
        if gang is None or not later:
            return PostFilterResult(Status.unschedulable())
        released = self._sufficient(state, pod, statuses, later)
        if not released:
            return PostFilterResult(Status.unschedulable())
        for one in released:
            self._reject(one.group, f"{RELEASED_FOR}{gang.group.key}")
        names = ", ".join(one.group.key for one in released)
        return PostFilterResult(Status.unschedulable(f"{RELEASED}{names}."), requeue_now=True)

    def _later_gangs(self, gang: Gang, pod: PodInfo) -> list[Gang]:
        """The gangs with waiting members that come after this one, the last one first."""
        found: list[tuple[int, Gang]] = []
        for group in self.handle.cluster.groups_at_permit:
            other = self._gang(group) if group != gang.group else None
            if other is None:
                continue
            highest = max((waiting.info.priority for waiting in self._waiting(group)), default=None)
            if highest is not None and other.precedence(highest) > gang.precedence(pod.priority):
                found.append((highest, other))
        found.sort(key=lambda item: item[1].precedence(item[0]), reverse=True)
        return [other for _, other in found]

    def _sufficient(
        self, state: CycleState, pod: PodInfo, statuses: NodeToStatus, gangs: Sequence[Gang]
    ) -> Sequence[Gang]:
        """The first gang that keeps the pod from fitting: without its waiting members the pod fits
        on some node. Otherwise all gangs if the pod fits without all of them; else empty."""
        unschedulable = {*statuses.rows(Code.UNSCHEDULABLE).tolist()}
        removals: list[Removal] = []
        owners: list[Gang] = []
        together: dict[int, list[PodInfo]] = {}
        shared: dict[int, None] = {}
        for gang in gangs:
            for row, pods in self._reserved(gang).items():
                if row in unschedulable:
                    removals.append(Removal(row, pods))
                    owners.append(gang)
                    if row in together:
                        shared[row] = None
                    together.setdefault(row, []).extend(pods)
        if not removals:
            return ()
        dry_runner = self.handle.dry_run(state, pod)
        first = dry_runner.first_fit(removals, _MAX_RUNS)
        if first is not None:
            return (owners[first],)
        # Rows with members of one gang are known not to suffice.
        removals = [Removal(row, together[row]) for row in shared]
        return () if dry_runner.first_fit(removals, _MAX_RUNS) is None else gangs

    def _reserved(self, gang: Gang) -> Mapping[int, Sequence[PodInfo]]:
        """The waiting members of the gang by row."""
        nodes = self.handle.cluster.nodes
        found: dict[int, list[PodInfo]] = {}
        for waiting in self._waiting(gang.group):
            row = nodes.row_of(waiting.node_name)
            if row is not None:
                found.setdefault(row, []).append(waiting.info)
        return found


def _group_of_subject(subject: Object | None) -> PodGroupKey | None:
    """The group that an event is about, or the group of its pod."""
    if isinstance(subject, Pod):
        return group_of(subject)
    return key_of(subject) if isinstance(subject, PodGroup | CustomPodGroup) else None


class GangSort(QueueSortPlugin):
    """Orders the queue by priority, and keeps the members of a gang together.

    Among equal priorities, a pod of a group counts from the creation of its PodGroup, then by the
    group's name. Other pods count from their entry into a queue, as with PrioritySort.
    """

    name: ClassVar[str] = "GangSort"
    api_version: ClassVar[int] = 1

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return self.sort_key(first) < self.sort_key(second)

    def sort_key(self, pod: QueuedPod) -> tuple[int, int, str]:
        group = group_of(pod.info.pod)
        if group is None:
            return -pod.info.priority, pod.timestamp_ns, ""
        found = find_group(self.handle.cluster, group)
        created = None if found is None else found.metadata.creation_timestamp
        # creationTimestamp has whole seconds.
        created_ns = 0 if created is None else int(created.timestamp()) * NS_PER_S
        return -pod.info.priority, created_ns, group.key
