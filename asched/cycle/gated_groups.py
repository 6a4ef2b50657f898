"""The condition of PodGroups with all members gated by PreEnqueue.

No member is ever tried, so no decision about one sets the condition. kube-scheduler sets none. What
is decided follows from the state alone; the logs of changes only spare looking at all groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from asched.cycle.pod_groups import conditions_of, group_status_decision
from asched.framework.pod_groups import (
    GANG_SCHEDULING,
    POD_GROUP_SCHEDULED,
    MemberStatus,
    PodGroupKey,
    group_of,
)
from asched.framework.pod_info import QueuedPod
from asched.framework.runtime.plugin_calls import gate_status
from asched.model.groups import PodGroup
from asched.model.quantity import NS_PER_S
from asched.state.cluster import ClusterState
from asched.state.session_records import DecidedGroupCondition, PodGroupStatusDecided

SCHEDULING_GATED: Final = "SchedulingGated"
"""The reason of the condition, as that of gated pods."""
DELAY_NS: Final = 5 * NS_PER_S
"""From the arrival of the newest member: usually the members of a group, and their claims, are
created one after the other."""

_NOT_COUNTED: Final = (MemberStatus.TERMINATING, MemberStatus.FOREIGN)


class GatedGroups:
    """Decides the condition of gated groups of one state."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._pods_read = self._members_read = self._groups_read = -1
        """The ends of the logs of changes at the last decision."""
        self._due_ns: dict[PodGroupKey, int] = {}
        """When to look again at groups with a member that is too new."""

    def next_due_ns(self) -> int | None:
        """When the next condition may be due."""
        return min(self._due_ns.values(), default=None)

    def decide(self) -> tuple[PodGroupStatusDecided, ...]:
        """The conditions that are due."""
        cluster, changed = self._cluster, self._changed()
        for group in changed:
            self._due_ns.pop(group, None)
        now_ns = cluster.now_ns
        due = {group for group, due_ns in self._due_ns.items() if due_ns <= now_ns}
        for group in due:
            del self._due_ns[group]
        decided = (self._decision(group) for group in sorted({*changed, *due}))
        return tuple(decision for decision in decided if decision is not None)

    def _changed(self) -> set[PodGroupKey]:
        """The groups that changed; all with gated pods if that is not known."""
        cluster, queue = self._cluster, self._cluster.queue
        pods = queue.changes.since(self._pods_read)
        members = cluster.groups.changes.since(self._members_read)
        objects = cluster.object_changes(PodGroup, self._groups_read)
        self._pods_read, self._members_read = queue.changes.cursor, cluster.groups.changes.cursor
        self._groups_read = objects.cursor
        if not cluster.objects(PodGroup) or not queue.gated:
            return set()
        if pods is None or members is None or objects.keys is None:
            self._due_ns.clear()
            return self._groups_of(queue.gated)
        found = {group for group in members if group.native}
        found.update(PodGroupKey(key, native=True) for key in objects.keys)
        return found | self._groups_of(pods)

    def _groups_of(self, keys: Iterable[str]) -> set[PodGroupKey]:
        entries = map(self._cluster.pods.get, keys)
        groups = (group_of(entry.info.pod) for entry in entries if entry is not None)
        return {group for group in groups if group is not None and group.native}

    def _decision(self, group: PodGroupKey) -> PodGroupStatusDecided | None:
        """None if some member is not gated, if one is too new, and if the group has the
        condition."""
        cluster, gated = self._cluster, self._cluster.queue.gated
        declared = cluster.objects(PodGroup).get(group.key)
        statuses = cluster.group_members(group).statuses
        keys = [key for key, status in statuses.items() if status not in _NOT_COUNTED]
        if declared is None or not keys or not all(key in gated for key in keys):
            return None
        members = [gated[key] for key in keys]
        newest_ns = max(member.added_at_ns for member in members)
        if newest_ns + DELAY_NS > cluster.now_ns:
            self._due_ns[group] = newest_ns + DELAY_NS
            return None
        example = _example(members)
        profile = cluster.profiles[example.info.pod.spec.scheduler_name]
        if GANG_SCHEDULING not in profile.plugins:
            return None
        plugins = sorted({member.gating_plugin for member in members})
        message = f"all pods are gated by {' and '.join(plugins)}, for example "
        known = (c for c in conditions_of(cluster, declared) if c.reason == SCHEDULING_GATED)
        if any(condition.message.startswith(message) for condition in known):
            return None  # another example is no news
        statuses_of = (gate_status(plugin, example.info) for plugin in profile.pre_enqueue)
        why = next((status.message for status in statuses_of if status is not None), "")
        message += f"{example.info.key}: {why}"
        condition = DecidedGroupCondition(POD_GROUP_SCHEDULED, "False", SCHEDULING_GATED, message)
        return group_status_decision(cluster, group, condition, profile.scheduler_name)


def _example(members: Iterable[QueuedPod]) -> QueuedPod:
    """A pod that waits for something else than other pods if there is one, and the last one by
    name: objects are usually created in the order of the pods."""
    return max(members, key=lambda one: (one.gating_plugin != GANG_SCHEDULING, one.info.key))
