"""GangScheduling: the pods of a gang get their nodes all together, or none does.

GangSort: the active queue with the members of a gang one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.framework.interface import (
    Arguments,
    EnqueueExtensions,
    Handle,
    NodeStatuses,
    PermitResult,
    PermitReview,
    PostFilterPlugin,
    PostFilterResult,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreFilterResult,
    QueueSortPlugin,
    Waiting,
)
from asched.framework.nodes import Nodes
from asched.framework.pod_groups import (
    GANG_SCHEDULING,
    HOPEFUL,
    REFUSED,
    GroupMembers,
    MemberStatus,
    PodGroupKey,
    find_group,
    group_of,
    min_count,
    only_status_changed,
    siblings,
)
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.status import SUCCESS, Code, Status
from asched.framework.trial import Placed
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S

NO_GROUP = "waiting for pod's pod group to appear"
TOO_FEW = "waiting for minCount pods from a gang to appear"
WAITING = "waiting for minCount pods from a gang to be scheduled"
INCOMPLETE = (
    f"pod group is unschedulable, {WAITING},"
    " one or more plugins asked to wait and no plugin rejected pod"
)
"""What kube-scheduler 1.36 says of a pod that had found a node when its gang could not be completed."""
GIVES_WAY = "room is given back by gangs that come later and are not complete: "
MAX_WAITING_TIME_S = 15 * 60
"""The framework holds no pod longer."""


class GangSchedulingArgs(Arguments, frozen=True):
    """``pluginConfig`` of GangScheduling."""

    permit_waiting_time_seconds: int = 60
    """How long a member holds its place while others are tried or room is made for them."""

    def __post_init__(self) -> None:
        if not 0 < self.permit_waiting_time_seconds <= MAX_WAITING_TIME_S:
            raise ValueError(
                f"permitWaitingTimeSeconds: Invalid value: {self.permit_waiting_time_seconds}:"
                f" not in valid range [1, {MAX_WAITING_TIME_S}]"
            )


class GangStatus(NamedTuple):
    """A group whose pods are to run together, as things are now."""

    group: PodGroupKey
    min_count: int
    members: GroupMembers
    created_s: float
    """When its PodGroup was made, seconds since the epoch."""

    @property
    def age(self) -> tuple[float, PodGroupKey]:
        """The smaller goes first among gangs of one priority."""
        return self.created_s, self.group


class GangScheduling(
    PreEnqueuePlugin, PreFilterPlugin, PostFilterPlugin, PermitReview, EnqueueExtensions
):
    """A member that finds a node is held there until as many are placed as the gang needs.

    A gang never waits for what cannot come. As soon as too few of its members are left that may get a
    place, all it holds is given back. The member that was refused is tried again when something
    changes for it, or, where it could have preempted but for its siblings, when anything changes; the
    others are tried with it once it has a place. Where a refused member would have found a place but for
    a younger gang that is incomplete itself, that one gives way. So of several gangs that hold some
    of the room each, the oldest is completed first.
    """

    name: ClassVar[str] = GANG_SCHEDULING
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[GangSchedulingArgs]] = GangSchedulingArgs
    concerns_templates: ClassVar[bool] = True

    def __init__(self, args: GangSchedulingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._args = args

    def concerns(self, pod: PodInfo) -> bool:
        return group_of(pod.pod) is not None

    def _gang(self, group: PodGroupKey | None) -> GangStatus | None:
        """None for a group that does not exist, or whose pods are scheduled one by one."""
        if group is None:
            return None
        cluster = self.handle.cluster
        found = find_group(cluster, group)
        if found is None or min_count(found) < 1:
            return None
        created = found.metadata.creation_timestamp
        created_s = created.timestamp() if created is not None else 0.0
        return GangStatus(group, min_count(found), cluster.group_members(group), created_s)

    # -- before there are enough --------------------------------------------------------------

    def pre_enqueue(self, pod: PodInfo) -> Status:
        group = group_of(pod.pod)
        if group is None:
            return SUCCESS
        if find_group(self.handle.cluster, group) is None:
            return Status.unresolvable(NO_GROUP)
        return SUCCESS if self._is_there(group) else Status.unresolvable(TOO_FEW)

    def _is_there(self, group: PodGroupKey) -> bool:
        """Whether as many pods exist as the gang needs. Those with scheduling gates do not count:
        others would hold room for them, nobody knows how long."""
        gang = self._gang(group)
        if gang is None:
            return find_group(self.handle.cluster, group) is not None
        return gang.members.count(*HOPEFUL, *REFUSED) >= gang.min_count

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        came = ClusterEvent(EventResource.POD, ActionType.ADD)
        ungated = ClusterEvent(
            EventResource.UNSCHEDULED_POD, ActionType.UPDATE_POD_SCHEDULING_GATES_ELIMINATED
        )
        group = ClusterEvent(EventResource.POD_GROUP, ActionType.ADD | ActionType.UPDATE)
        return tuple(
            ClusterEventWithHint(event, self._now_enough, own_group=True)
            for event in (came, ungated, group)
        )

    def _now_enough(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        group = group_of(pod)
        news = not only_status_changed(old, new)
        enough = news and group is not None and self._is_there(group)
        return QueueingHint.QUEUE if enough else QueueingHint.SKIP

    # -- an attempt ---------------------------------------------------------------------------

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        """Turn a pod away for whose gang there is no hope now, so that it takes no room."""
        group = group_of(pod.pod)
        gang = self._gang(group)
        if gang is None:
            if group is not None and find_group(self.handle.cluster, group) is None:
                return PreFilterResult(Status.unresolvable(NO_GROUP))
            return PreFilterResult(Status.skip())
        hopeful = siblings(gang.members, pod.key, HOPEFUL) + 1
        if hopeful >= gang.min_count:
            return PreFilterResult(Status.skip())
        why = f"gang {gang.group.key} cannot be completed now: {hopeful} of the {gang.min_count}"
        return PreFilterResult(Status.unresolvable(f"{why} pods that it needs may get a node"))

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        gang = self._gang(group_of(pod.pod))
        if gang is None or gang.members.count(MemberStatus.PLACED) + 1 >= gang.min_count:
            return PermitResult()
        sleeping = self.handle.cluster.sleeping_members(gang.group)
        return PermitResult(
            Status(Code.WAIT, (WAITING,)),
            timeout_s=self._args.permit_waiting_time_seconds,
            activate=tuple(key for key in sleeping if key != pod.key),
        )

    # -- while members are held ---------------------------------------------------------------

    def review(self) -> None:
        """Let complete gangs go, and give back what incomplete ones hold in vain."""
        cluster = self.handle.cluster
        for group in cluster.groups_holding:
            gang = self._gang(group)
            if gang is None:
                # Gone, or by now a group that is no gang.
                if find_group(cluster, group) is None:
                    self._reject(group, NO_GROUP)
                else:
                    self._allow(group)
            elif gang.members.count(MemberStatus.PLACED, MemberStatus.WAITING) >= gang.min_count:
                self._allow_if_complete(gang)
            elif self._waits_in_vain(gang):
                self._reject(group, INCOMPLETE)

    def _waits_in_vain(self, gang: GangStatus) -> bool:
        """Whether the gang is not going to be completed by what is under way: too few members may
        get a place, or one that had its place lost it, so that they would not be there together."""
        if gang.members.count(*HOPEFUL) < gang.min_count:
            return True
        return bool(self.handle.cluster.sleeping_members(gang.group))

    def _held(self, group: PodGroupKey) -> Iterator[Waiting]:
        for waiting in self.handle.waiting_pods():
            if self.name in waiting.pending and group_of(waiting.info.pod) == group:
                yield waiting

    def _allow_if_complete(self, gang: GangStatus) -> None:
        """What another plugin holds as well may yet be rejected: it does not count."""
        certain = [waiting for waiting in self._held(gang.group) if len(waiting.pending) == 1]
        if gang.members.count(MemberStatus.PLACED) + len(certain) >= gang.min_count:
            for waiting in certain:
                waiting.allow(self.name)

    def _allow(self, group: PodGroupKey) -> None:
        for waiting in self._held(group):
            waiting.allow(self.name)

    def _reject(self, group: PodGroupKey, message: str) -> None:
        for waiting in self._held(group):
            waiting.reject(self.name, message)

    # -- a younger gang gives way ---------------------------------------------------------------

    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeStatuses
    ) -> PostFilterResult:
        gang = self._gang(group_of(pod.pod))
        younger = [] if gang is None else self._younger(gang, pod)
        if gang is None or not younger:
            return PostFilterResult(Status.unschedulable())
        for giving_way in (*((one,) for one in younger), tuple(younger)):
            if self._would_fit(state, pod, statuses, giving_way):
                for one in giving_way:
                    self._reject(
                        one.group, f"gang {gang.group.key} comes before and needs the room"
                    )
                names = ", ".join(one.group.key for one in giving_way)
                return PostFilterResult(Status.unschedulable(f"{GIVES_WAY}{names}."), at_once=True)
        return PostFilterResult(Status.unschedulable())

    def _younger(self, gang: GangStatus, pod: PodInfo) -> list[GangStatus]:
        """The gangs that hold places and come after this one, the last of them first."""
        found: list[tuple[int, GangStatus]] = []
        for group in self.handle.cluster.groups_holding:
            other = self._gang(group) if group != gang.group else None
            if other is None:
                continue
            highest = max((held.info.priority for held in self._held(group)), default=None)
            if highest is not None and (highest, gang.age) < (pod.priority, other.age):
                found.append((highest, other))
        found.sort(key=lambda item: item[1].age, reverse=True)
        found.sort(key=lambda item: item[0])
        return [other for _, other in found]

    def _would_fit(
        self, state: CycleState, pod: PodInfo, statuses: NodeStatuses, gangs: Sequence[GangStatus]
    ) -> bool:
        """Whether the pod would fit on some node if these gangs gave back what they hold."""
        nodes = self.handle.cluster.nodes
        held: dict[int, list[PodInfo]] = {}
        for waiting in (waiting for gang in gangs for waiting in self._held(gang.group)):
            row = nodes.row_of(waiting.node_name)
            if row is not None:
                held.setdefault(row, []).append(waiting.info)
        rows = np.array(
            [r for r in statuses.rows(Code.UNSCHEDULABLE).tolist() if r in held], np.intp
        )
        if not len(rows):
            return False
        for trial in self.handle.fit(state, pod).trials(rows):
            gone: list[Placed] = [
                (index, info) for index, row in enumerate(trial.rows.tolist()) for info in held[row]
            ]
            trial.remove(gone)
            if trial.refusals().passing.any():
                return True
        return False


class GangSort(QueueSortPlugin):
    """Higher priority first. Among equals a pod of a group counts from when its PodGroup was made,
    any other from when it entered a queue (as with PrioritySort); groups of one age go by name."""

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
        # PodGroups are made at full seconds.
        created_ns = 0 if created is None else int(created.timestamp()) * NS_PER_S
        return -pod.info.priority, created_ns, group.key
