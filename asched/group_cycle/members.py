"""The members of the group that a cycle schedules, and their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from asched.framework.placements import GroupInCycle, PlacedMember
from asched.framework.pod_groups import (
    AnyPodGroup,
    GroupRules,
    PodGroupKey,
    find_group,
    group_of,
    key_of,
    rules_of,
)
from asched.framework.pod_info import QueuedPod
from asched.framework.runtime.plugin_calls import gate_status
from asched.framework.runtime.profile import Profile
from asched.state.cluster import ClusterState


class CycleMembers(NamedTuple):
    """The pods of one group cycle."""

    group: GroupInCycle
    pending: tuple[QueuedPod, ...]
    """In order; the same pods as ``group.pending``."""
    mixed: str = ""
    """Why they cannot be scheduled together: several scheduler names."""

    @property
    def rules(self) -> GroupRules:
        return self.group.rules

    def under(self, rules: GroupRules) -> CycleMembers:
        """The same members under other rules."""
        group = GroupInCycle(rules, self.group.pending, self.group.running)
        return CycleMembers(group, self.pending, self.mixed)

    def only(self, pending: Iterable[QueuedPod]) -> CycleMembers:
        """With these pending members only."""
        kept = tuple(pending)
        infos = tuple(queued.info for queued in kept)
        group = GroupInCycle(self.group.rules, infos, self.group.running)
        return CycleMembers(group, kept, self.mixed)

    @property
    def needed(self) -> int:
        """How many of them must fit at least, so that the group is feasible."""
        return max(1, self.rules.min_count - len(self.group.running))


def collect_members(
    cluster: ClusterState, profile: Profile, head: QueuedPod
) -> CycleMembers | None:
    """The group of the pod at the head of the queue; None if it is in none that exists.

    The head takes all members with it that wait in any queue and that PreEnqueue lets pass.
    """
    key = group_of(head.info.pod)
    declared = None if key is None else find_group(cluster, key)
    if key is None or declared is None:
        return None
    return members_of(cluster, profile, declared, head)


def members_of(
    cluster: ClusterState, profile: Profile, declared: AnyPodGroup, head: QueuedPod
) -> CycleMembers:
    """The members of a group. ``head`` is at the head of the queue, in this group or another."""
    key = key_of(declared)
    pending = tuple(sorted(_pending(cluster, profile, key, head), key=member_order))
    running = tuple(sorted(_running(cluster, key), key=lambda member: member.pod.key))
    group = GroupInCycle(rules_of(declared), tuple(one.info for one in pending), running)
    return CycleMembers(group, pending, mixed_names(pending))


def members_put_off(cluster: ClusterState, declared: AnyPodGroup) -> CycleMembers | None:
    """The members that are active or back off, if some of them has to wait for its turn: enough to
    put off those that are active, too. A new member of a large group is cheap that way."""
    queue = cluster.queue
    statuses = cluster.group_members(key_of(declared)).statuses
    waiting = [one for key in statuses if (one := queue.backoff.get(key)) is not None]
    if not any(one.turn_ns > cluster.now_ns for one in waiting):
        return None
    active = [one for key in statuses if (one := queue.active.get(key)) is not None]
    pending = (*sorted(active, key=member_order), *waiting)
    group = GroupInCycle(rules_of(declared), tuple(one.info for one in pending), ())
    return CycleMembers(group, pending)


def _pending(
    cluster: ClusterState, profile: Profile, group: PodGroupKey, head: QueuedPod
) -> Iterator[QueuedPod]:
    queue = cluster.queue

    def is_ready(queued: QueuedPod) -> bool:
        if queued is head or queued.info.key in queue.active:
            return True
        return not any(gate_status(plugin, queued.info) for plugin in profile.pre_enqueue)

    for key in cluster.group_members(group).statuses:
        queued = head if key == head.info.key else queue.find_queued(key)
        if queued is not None and not queued.info.pod.terminating and is_ready(queued):
            yield queued


def _running(cluster: ClusterState, group: PodGroupKey) -> Iterator[PlacedMember]:
    """Members with a node. One that is being deleted counts neither for the minimum, as in the
    pod-by-pod way and unlike in kube-scheduler, nor for the domain of the group."""
    for key in cluster.group_members(group).statuses:
        entry = cluster.pods[key]
        if entry.node and not entry.info.pod.terminating:
            yield PlacedMember(entry.info, entry.node)


def member_order(queued: QueuedPod) -> tuple[int, int, bool, int, str]:
    """By priority, then by the first entry into the active queue.

    A member that completes the minimum enters at once; those that waited for it follow.
    """
    entered_ns = queued.entered_at_ns or 0
    waited = queued.added_at_ns != entered_ns
    return -queued.info.priority, entered_ns, waited, queued.added_at_ns, queued.info.key


def mixed_names(pending: tuple[QueuedPod, ...]) -> str:
    """Why pods cannot be scheduled together; empty if they can."""
    names = [*dict.fromkeys(one.info.pod.spec.scheduler_name for one in pending)]
    if len(names) < 2:
        return ""
    return (
        "all pods in a single pod group should have the same .spec.schedulerName set, got:"
        f' "{names[0]}" and "{names[1]}"'
    )


def quorum_is_met(rules: GroupRules, with_node: int) -> bool:
    """Whether as many members have a node as must run together."""
    return with_node >= rules.min_count
