"""Pods that are to be scheduled together: the group that a pod is of, and how its members stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from asched.model.groups import CUSTOM_POD_GROUPS, CustomPodGroup, PodGroup
from asched.model.meta import Object
from asched.model.pod import Pod

if TYPE_CHECKING:
    from asched.framework.cluster import Cluster

GANG_SCHEDULING = "GangScheduling"
"""The plugin that holds pods back for the sake of their group. A pod that it alone turned away is in
order itself, and is tried again as soon as one of its siblings gets a place."""

GANG_ROOM = "GangRoom"
"""What stands for its siblings among the plugins that rejected a pod that would have preempted for a gang
that stays incomplete (:attr:`MemberStatus.IN_VAIN`). Anything may help one of them, so every event wakes
the pod, after its backoff."""

POD_GROUP_SCHEDULED = "PodGroupScheduled"
"""The condition of Kubernetes' own PodGroups that says whether the gang has its places."""

AnyPodGroup = PodGroup | CustomPodGroup
"""A PodGroup of Kubernetes' own, or of a custom kind."""


class PodGroupKey(NamedTuple):
    """What a pod says it belongs to, whether or not that exists."""

    key: str
    """``namespace/name`` of the PodGroup."""
    native: bool
    """It is Kubernetes' own PodGroup, not a custom resource."""


def group_of(pod: Pod) -> PodGroupKey | None:
    """The group that the pod names: in ``spec.schedulingGroup.podGroupName`` one of Kubernetes' own,
    else in the annotation ``scheduling.k8s.io/group-name`` a custom one (as for kube-batch)."""
    own = pod.spec.scheduling_group
    if own is not None and own.pod_group_name:
        return PodGroupKey(f"{pod.metadata.namespace}/{own.pod_group_name}", True)
    name = pod.metadata.annotations.group_name
    return PodGroupKey(f"{pod.metadata.namespace}/{name}", False) if name else None


def key_of(group: AnyPodGroup) -> PodGroupKey:
    """How pods name this group."""
    return PodGroupKey(group.key, isinstance(group, PodGroup))


def only_status_changed(old: Object | None, new: Object | None) -> bool:
    """Whether these are one and the same PodGroup asking for the same: what schedulers write into its
    status makes no difference to its pods."""
    return (
        isinstance(old, PodGroup | CustomPodGroup)
        and isinstance(new, PodGroup | CustomPodGroup)
        and (old.uid, old.spec) == (new.uid, new.spec)
    )


def find_group(cluster: Cluster, group: PodGroupKey) -> AnyPodGroup | None:
    """The PodGroup of that key; None while there is none."""
    if group.native:
        return cluster.objects(PodGroup).get(group.key)
    for kind in CUSTOM_POD_GROUPS:
        found = cluster.objects(kind).get(group.key)
        if found is not None:
            return found
    return None


def min_count(group: AnyPodGroup) -> int:
    """How many pods of the group must run together; 0 where they are scheduled one by one."""
    return group.min_count if isinstance(group, PodGroup) else group.spec.min_member


class MemberStatus(Enum):
    """Where a member of a group stands."""

    READY = "ready"
    """Pending, and nothing is known against it."""
    ASLEEP = "asleep"
    """Pending; its last attempt ended for the sake of the group alone."""
    REFUSED = "refused"
    """Pending; its last attempt ended for a reason of its own, and none has ended otherwise since."""
    IN_VAIN = "in vain"
    """Pending; it could have had room made for it, but not enough of its siblings."""
    AWAITING_ROOM = "awaiting room"
    """Refused as well, but room is being made for it on a node."""
    HELD_BACK = "held back"
    """Pending, with scheduling gates or without a profile that would try it."""
    WAITING = "waiting"
    """Assumed on a node, and held there by Permit."""
    PLACED = "placed"
    """Assumed on a node or bound to it."""
    LEAVING = "leaving"
    """Being deleted: it counts for nothing any more."""


SETTLED = (MemberStatus.AWAITING_ROOM, MemberStatus.WAITING, MemberStatus.PLACED)
"""Members that have a place, or for which room is being made."""

HOPEFUL = (MemberStatus.READY, MemberStatus.ASLEEP, *SETTLED)
"""Those, and members that may get a place when they are tried."""

REFUSED = (MemberStatus.REFUSED, MemberStatus.IN_VAIN)
"""Members for whose sake no other is tried: only they themselves, once something changes for them."""

UNSETTLED = (MemberStatus.READY, MemberStatus.ASLEEP, MemberStatus.IN_VAIN)
"""Members without a place, of which nothing says that there would be none if room were made."""


class GroupMembers(Protocol):
    """The pods of one group that are not finished."""

    @property
    def standings(self) -> Mapping[str, MemberStatus]:
        """By the pod's key."""

    def count(self, *standings: MemberStatus) -> int:
        """How many members stand so. Takes no longer for more members."""


def siblings(members: GroupMembers, key: str, standings: Sequence[MemberStatus]) -> int:
    """How many members other than the pod of that key stand so. A pod that is being tried is none of
    them, whatever became of it before."""
    return members.count(*standings) - (members.standings.get(key) in standings)
