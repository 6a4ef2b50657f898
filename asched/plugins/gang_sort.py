"""GangSort: the active queue with the members of a gang one after the other."""

from __future__ import annotations

from typing import ClassVar

from asched.framework.interface import QueueSortPlugin
from asched.framework.pod_groups import find_group, group_of
from asched.framework.pod_info import QueuedPod

_NS_PER_S = 1_000_000_000


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
        created_ns = 0 if created is None else int(created.timestamp()) * _NS_PER_S
        return -pod.info.priority, created_ns, group.key
