"""The part of the scheduling queue with the pods that back off. A part of
:mod:`asched.state.queue`.

While no pod is active, pods are taken from here early, unless they back off after an error
(``SchedulerPopFromBackoffQ``): in order of the second in which their backoff ends, and within it as
QueueSort orders them.

Members of a gang keep their backoff: gangs release reservations of each other, and nothing else
would limit how often they are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy

from asched.framework.pod_groups import group_of
from asched.framework.pod_info import QueuedPod
from asched.model.quantity import NS_PER_S
from asched.state.pod_heap import PodHeap, SortKey
from asched.state.records import QueueSettings

ORDERING_WINDOW_NS = NS_PER_S
"""Backoffs that end within one window end together (``backoffQOrderingWindowDuration``)."""

_MOST_DOUBLINGS = 62
"""2**62 s is far beyond any maximum; the bound keeps the number small."""


class BackoffQueue:
    """Pods by the time at which their backoff ends."""

    def __init__(self) -> None:
        self.settings = QueueSettings()
        self.pops_early = False
        self.by_end = PodHeap()
        self.early = PodHeap()
        """The pods that may be scheduled early."""

    @property
    def pods(self) -> Mapping[str, QueuedPod]:
        return self.by_end.pods

    def may_pop_early(self, pod: QueuedPod) -> bool:
        """Whether a plugin rejected the pod, and it is in no gang, or it was put off for others.
        Others back off after an error, or wait for their turn."""
        rejected = bool(pod.unschedulable_plugins or pod.pending_plugins or pod.yields)
        return self.pops_early and rejected and group_of(pod.info.pod) is None

    def push(
        self, pod: QueuedPod, sort_key: Callable[[QueuedPod], SortKey], *, early: bool
    ) -> None:
        """Add a pod, or move it. ``sort_key`` returns its key for QueueSort. ``early``: it may be
        scheduled early."""
        ends_ns = self.ends_ns(pod)
        self.by_end.push(pod, ends_ns)
        if early:
            self.early.push(pod, (ends_ns, sort_key(pod)))

    def pop(self, key: str) -> QueuedPod | None:
        """Remove the pod of that key; None if there is none."""
        self.early.pop(key)
        return self.by_end.pop(key)

    def clear(self) -> None:
        self.by_end.clear()
        self.early.clear()

    def copy(self) -> BackoffQueue:
        """A queue with the same pods that can be changed on its own."""
        copied = copy(self)
        copied.by_end, copied.early = self.by_end.copy(), self.early.copy()
        return copied

    def ends_ns(self, pod: QueuedPod) -> int:
        """When a rejected pod may be retried: after 1 s, doubling up to 10 s with its failures, and
        not before its turn."""
        failures = pod.consecutive_errors or pod.unschedulable_count
        if not failures:
            return pod.turn_ns
        backoff_ns = self.duration_ns(failures)
        ends_ns = pod.timestamp_ns + backoff_ns
        if self.pops_early and backoff_ns:
            # All backoffs of one window end when it is over.
            ends_ns += ORDERING_WINDOW_NS - ends_ns % ORDERING_WINDOW_NS
        return max(ends_ns, pod.turn_ns)

    def duration_ns(self, failures: int) -> int:
        """The backoff after that many failures in a row, at least one."""
        delay_s = self.settings.initial_backoff_s * (1 << min(failures - 1, _MOST_DOUBLINGS))
        return round(min(delay_s, self.settings.max_backoff_s) * NS_PER_S)
