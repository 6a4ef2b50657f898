"""PrioritySort: the active queue in order of priority, then of waiting."""

from __future__ import annotations

from typing import ClassVar

from asched.framework.interface import QueueSortPlugin
from asched.framework.pod_info import QueuedPod


class PrioritySort(QueueSortPlugin):
    """Higher priority first; among equals the one that entered a queue earlier."""

    name: ClassVar[str] = "PrioritySort"
    api_version: ClassVar[int] = 1

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return self.sort_key(first) < self.sort_key(second)

    def sort_key(self, pod: QueuedPod) -> tuple[int, int]:
        return -pod.info.priority, pod.timestamp_ns
