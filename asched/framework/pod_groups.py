"""PodGroups as plugins see them: the group that a pod names, and the status of its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from asched.model.groups import (
    CUSTOM_POD_GROUPS,
    CompositePodGroup,
    CustomPodGroup,
    NativeGroup,
    PodGroup,
)
from asched.model.meta import Object
from asched.model.pod import Pod

if TYPE_CHECKING:
    from asched.framework.cluster import Cluster

GANG_SCHEDULING = "GangScheduling"
"""The plugin that delays pods until their gang fits. If it is the only plugin that rejected a pod,
the pod itself is schedulable and is retried as soon as another member gets a node."""

GANG_INFEASIBLE_REASON = "GangInfeasible"
"""Recorded as the rejecting plugin of a pod that preempts no other because its gang would stay
incomplete (:attr:`MemberStatus.GANG_INFEASIBLE`). Every event requeues the pod."""

POD_GROUP_SCHEDULED = "PodGroupScheduled"
"""Condition of ``scheduling.k8s.io`` PodGroups: whether the gang had its minimum. Once True it
stays. From Kubernetes 1.37 on the API has it as ``PodGroupInitiallyScheduled``."""

DISRUPTION_TARGET = "DisruptionTarget"
"""Condition of pods and PodGroups that are about to be evicted."""

AnyPodGroup = PodGroup | CustomPodGroup
"""A PodGroup of ``scheduling.k8s.io``, or a custom resource."""


class PodGroupKey(NamedTuple):
    """The group that a pod names. The PodGroup itself may not exist."""

    key: str
    """``namespace/name`` of the PodGroup."""
    native: bool
    """True for ``scheduling.k8s.io``, False for a custom resource."""


def group_of(pod: Pod) -> PodGroupKey | None:
    """The group that the pod names.

    ``spec.schedulingGroup.podGroupName`` names a PodGroup of ``scheduling.k8s.io``, else the
    annotation ``scheduling.k8s.io/group-name`` names a custom resource, as for kube-batch.
    """
    own = pod.spec.scheduling_group
    if own is not None and own.pod_group_name:
        return PodGroupKey(f"{pod.metadata.namespace}/{own.pod_group_name}", True)
    name = pod.metadata.annotations.group_name
    return PodGroupKey(f"{pod.metadata.namespace}/{name}", False) if name else None


def key_of(group: AnyPodGroup | CompositePodGroup) -> PodGroupKey:
    return PodGroupKey(group.key, isinstance(group, NativeGroup))


def only_status_changed(old: Object | None, new: Object | None) -> bool:
    """Whether both are the same PodGroup with equal spec and annotations. The status affects no
    pods."""
    return (
        isinstance(old, PodGroup | CompositePodGroup | CustomPodGroup)
        and isinstance(new, PodGroup | CompositePodGroup | CustomPodGroup)
        and (old.uid, old.spec) == (new.uid, new.spec)
        and old.metadata.annotations == new.metadata.annotations
    )


def find_group(cluster: Cluster, group: PodGroupKey) -> AnyPodGroup | None:
    """The PodGroup with that key, or None."""
    if group.native:
        return cluster.objects(PodGroup).get(group.key)
    for kind in CUSTOM_POD_GROUPS:
        found = cluster.objects(kind).get(group.key)
        if found is not None:
            return found
    return None


class DisruptionMode(Enum):
    """What an eviction ends."""

    SINGLE = "Single"
    """One pod."""
    ALL = "All"
    """All running pods of the group."""


class GroupRules(NamedTuple):
    """How a group is scheduled, whichever API group and version declares it."""

    group: PodGroupKey
    uid: str
    min_count: int = 0
    """Pods that must run together; 0 if each pod is useful alone."""
    constrained: bool = False
    """Whether it declares scheduling constraints."""
    topology_key: str = ""
    """The node label that must have one value for all pods; empty for none."""
    preferred_topology: tuple[str, ...] = ()
    """Node labels of nested topology levels, the widest first: all pods should run in one domain of
    the last one, or else of the one before, and so on."""
    disruption_mode: DisruptionMode = DisruptionMode.SINGLE
    priority: int = 0
    preempts: bool = True
    """False if the group itself declares that it never preempts."""
    parent: str = ""
    """Key of the CompositePodGroup that it belongs to; empty for none."""
    unsupported: str = ""
    """A value of its specification that asched does not know: it is not scheduled."""


def rules_of(group: AnyPodGroup | CompositePodGroup) -> GroupRules:
    """The rules that a group declares; those of a CompositePodGroup have no minimum of pods."""
    key, annotations = key_of(group), group.metadata.annotations
    required = (annotations.required_topology or "").strip()
    listed = (annotations.preferred_topology or "").split(",")
    preferred = tuple(level.strip() for level in listed if level.strip())
    if isinstance(group, CustomPodGroup):
        return GroupRules(
            key,
            group.uid,
            group.spec.min_member,
            constrained=bool(required),
            topology_key=required,
            preferred_topology=preferred,
        )
    spec = group.spec
    constraints = spec.scheduling_constraints
    levels = () if constraints is None else constraints.topology
    return GroupRules(
        key,
        group.uid,
        min_count=group.min_count if isinstance(group, PodGroup) else 0,
        constrained=constraints is not None or bool(required),
        topology_key=levels[0].key if levels else required,
        preferred_topology=preferred,
        disruption_mode=DisruptionMode(spec.disruption_mode or DisruptionMode.SINGLE),
        priority=spec.priority or 0,
        preempts=spec.preemption_policy != "Never",
        parent=parent_key(group),
        unsupported=spec.unsupported,
    )


def parent_key(group: PodGroup | CompositePodGroup) -> str:
    """The key of the CompositePodGroup that the group belongs to; empty for none."""
    parent = group.spec.parent_composite_pod_group_name
    return f"{group.namespace}/{parent}" if parent else ""


def min_count(group: AnyPodGroup) -> int:
    """How many pods of the group must run together; 0 if they are scheduled one by one."""
    return group.min_count if isinstance(group, PodGroup) else group.spec.min_member


class MemberStatus(Enum):
    """Scheduling status of a member of a pod group."""

    READY = "ready"
    """Pending; its last attempt did not reject it."""
    GANG_PENDING = "gang pending"
    """Pending; only :data:`GANG_SCHEDULING` rejected its last attempt."""
    REJECTED = "rejected"
    """Pending; another plugin rejected its last attempt, and no later attempt ended otherwise."""
    GANG_INFEASIBLE = "gang infeasible"
    """Pending; preemption would help this pod, but not enough other members."""
    NOMINATED = "nominated"
    """Rejected, and nominated to a node on which preemption makes room."""
    GATED = "gated"
    """Pending with scheduling gates."""
    FOREIGN = "foreign"
    """Pending, and no profile schedules it."""
    WAITING = "waiting"
    """Assumed on a node and waiting on Permit."""
    ASSIGNED = "assigned"
    """Assumed on a node or bound to it."""
    TERMINATING = "terminating"
    """Being deleted: never counted."""

    # Enum's own hash is a Python function, which each decision about a member would call.
    __hash__ = object.__hash__


WITH_NODE = (MemberStatus.NOMINATED, MemberStatus.WAITING, MemberStatus.ASSIGNED)
"""Members that have a node or are nominated to one."""

SCHEDULABLE = (MemberStatus.READY, MemberStatus.GANG_PENDING, *WITH_NODE)
"""Members that have a node, or may get one when they are tried."""

UNSCHEDULABLE = (MemberStatus.REJECTED, MemberStatus.GANG_INFEASIBLE)
"""Members that are retried only when an event may make them schedulable."""

WITHOUT_NODE = (MemberStatus.READY, MemberStatus.GANG_PENDING, MemberStatus.GANG_INFEASIBLE)
"""Members without a node that may get one by preemption."""


class GroupMembers(Protocol):
    """The pods of one group that have not finished."""

    @property
    def statuses(self) -> Mapping[str, MemberStatus]:
        """By pod key."""

    def count(self, *statuses: MemberStatus) -> int:
        """How many members have one of these statuses, in constant time."""


def siblings(members: GroupMembers, key: str, statuses: Sequence[MemberStatus]) -> int:
    """How many members other than the pod ``key`` have one of these statuses."""
    return members.count(*statuses) - (members.statuses.get(key) in statuses)
