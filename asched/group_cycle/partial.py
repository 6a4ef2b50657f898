"""The members that one cycle tries, if the whole group, or the whole tree, takes too long.

The group is tried in parts, cycle by cycle: first the pod at the head of the queue and the members
that are active, as the others were tried before. What a cycle leaves is still active and has the
next cycle, or backs off to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from asched.framework.pod_info import QueuedPod
from asched.group_cycle.cycle import GroupResult
from asched.group_cycle.group_tree import GroupNode
from asched.group_cycle.members import CycleMembers
from asched.group_cycle.work import CycleWork, part_size
from asched.model.groups import PodGroup
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.group_records import GroupOutcome

NEXT_CYCLE: Final = "left for the next cycle: only a part of the pod group was tried"


def part_to_try(cluster: ClusterState, members: CycleMembers, head: QueuedPod) -> CycleMembers:
    """The members to try: all if the work of one cycle allows it, or else a part of them with as
    many as the group needs. All of a group that needs more than the work allows."""
    if members.mixed or CycleWork(cluster, members.pending).allows(1, members.pending):
        return members
    # Others were rejected in a cycle before: they are tried again only if the group needs them.
    preferred = _preferred(cluster, members.pending, head)
    waiting = sum(_is_waiting(cluster, one, head) for one in preferred)
    preferred = preferred[: max(waiting, members.needed)]
    count = part_size(cluster, preferred, members.needed)
    if not count:
        return members
    chosen = {one.info.key for one in preferred[:count]}
    return members.only(one for one in members.pending if one.info.key in chosen)


def part_of_tree(cluster: ClusterState, root: GroupNode, head: QueuedPod) -> GroupNode:
    """The tree with the members to try: all if the work of one cycle allows it, or else as many as
    each PodGroup needs, and a part of the others of groups that run: more of one group could take
    the room that another one needs. All of a tree that needs more than the work allows."""
    pending = root.members.pending
    if root.members.mixed or CycleWork(cluster, pending).allows(1, pending):
        return root
    needed: list[QueuedPod] = []
    others: list[QueuedPod] = []
    for node in root.subtree():
        if not isinstance(node.declared, PodGroup):
            continue
        preferred = _preferred(cluster, node.members.pending, head)
        if node.runs:
            # The head is always tried, or it would be the head of the next cycle, too.
            least = int(head in preferred)
            needed += preferred[:least]
            others += (one for one in preferred[least:] if _is_waiting(cluster, one, head))
        else:
            needed += preferred[: node.members.needed]
    count = part_size(cluster, [*needed, *others], len(needed))
    return root.only({one.info.key for one in [*needed, *others][:count]}) if count else root


def _preferred(
    cluster: ClusterState, pending: Sequence[QueuedPod], head: QueuedPod
) -> list[QueuedPod]:
    """In the order in which members are chosen for a part."""
    return sorted(
        pending,
        key=lambda one: (one is not head, not _is_waiting(cluster, one, head), one.attempts),
    )


def _is_waiting(cluster: ClusterState, member: QueuedPod, head: QueuedPod) -> bool:
    """Whether the member waits for its attempt."""
    return member is head or member.info.key in cluster.queue.active


def note_untried(members: CycleMembers, part: CycleMembers) -> str:
    """For the message of an unschedulable group: that only a part of it was tried."""
    untried = len(members.pending) - len(part.pending)
    if not untried:
        return ""
    return f", {untried} of {len(members.pending)} members not tried because that takes too long"


def left_members(
    cluster: ClusterState, members: CycleMembers, part: CycleMembers, result: GroupResult
) -> list[r.Rejected]:
    """The decisions about members that were not tried and that no event would requeue, although
    their group is scheduled now."""
    if result.outcome is not GroupOutcome.SCHEDULED or len(part.pending) == len(members.pending):
        return []
    tried = {one.info.key for one in part.pending}
    waiting = cluster.queue.unschedulable
    return [
        r.Rejected(one.info.key, one.info.uid, one.attempts + 1, NEXT_CYCLE, grouped=True)
        for one in members.pending
        if one.info.key in waiting and one.info.key not in tried
    ]
