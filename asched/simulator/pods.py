"""Simulated pods and the event queue of the virtual clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec

from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.simulator.trace import EndReason, PodCreated, PodPlacement, PodRun

DEFAULT_GRACE_S = 30
"""Default of ``terminationGracePeriodSeconds`` in the API server."""


class SimulatedPod:
    """One pod from its creation to its end.

    A pod that its controller recreates under another uid remains the same simulated pod.
    """

    def __init__(self, created: PodCreated, created_ns: int) -> None:
        self.created = created
        self.created_ns = created_ns
        self.pod = created.pod
        self.remaining_ns = created.run_ns
        """Remaining running time; None for unlimited."""
        self.placements: list[PodPlacement] = []
        self.attempts = 0
        self.rejections = 0
        self.recreations = 0
        self.message = ""
        self.nominated = ""
        self.evicted_ns: int | None = None
        """When its eviction was decided; None unless it is being evicted."""
        self.evict_reason = EndReason.DELETED
        self.evicted_by = ""
        self.ended_ns: int | None = None
        self.end_reason: EndReason | None = None

    @property
    def key(self) -> str:
        return self.pod.key

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def placement(self) -> PodPlacement | None:
        last = self.placements[-1] if self.placements else None
        return last if last is not None and last.ended_ns is None else None

    @property
    def bound(self) -> bool:
        return self.placement is not None and self.placement.bound_ns is not None

    @property
    def grace_ns(self) -> int:
        """Time from an eviction to the end; 0 unless the pod is bound."""
        if not self.bound:
            return 0
        before = sum(p.evicted_ns is not None and p.bound_ns is not None for p in self.placements)
        known = self.created.terminations_ns[before : before + 1]
        if known and known[0] is not None:
            return known[0]
        grace_s = self.pod.spec.termination_grace_period_seconds
        return (DEFAULT_GRACE_S if grace_s is None else max(0, grace_s)) * NS_PER_S

    def assign(self, node: str, at_ns: int) -> None:
        self.placements.append(PodPlacement(node, at_ns))
        self.nominated = ""

    def bind(self, at_ns: int) -> None:
        """Bind the pod to its assigned node, where it starts running."""
        placement = self.placements[-1]
        self.placements[-1] = msgspec.structs.replace(placement, bound_ns=at_ns)
        replace, pod = msgspec.structs.replace, self.pod
        self.pod = replace(
            pod,
            spec=replace(pod.spec, node_name=placement.node),
            status=replace(pod.status, phase="Running", start_time=api_time(at_ns)),
        )

    def release(self, at_ns: int, reason: EndReason) -> None:
        placement = self.placement
        if placement is None:
            return
        if self.remaining_ns is not None and placement.bound_ns is not None:
            self.remaining_ns -= at_ns - placement.bound_ns
        self.placements[-1] = msgspec.structs.replace(placement, ended_ns=at_ns, end=reason)

    def evict(self, at_ns: int, reason: EndReason, by: str) -> None:
        """Start terminating; the pod ends after its grace period."""
        self.evicted_ns, self.evict_reason, self.evicted_by = at_ns, reason, by
        metadata = msgspec.structs.replace(
            self.pod.metadata, deletion_timestamp=api_time(at_ns + self.grace_ns)
        )
        placement = self.placement
        if placement is not None:
            self.placements[-1] = msgspec.structs.replace(placement, by=by, evicted_ns=at_ns)
        self.pod = msgspec.structs.replace(self.pod, metadata=metadata)

    def recreate(self, at_ns: int) -> None:
        self.recreations += 1
        self.evicted_ns, self.evicted_by = None, ""
        replace, pod = msgspec.structs.replace, self.pod
        metadata = replace(
            pod.metadata,
            uid=f"{self.created.pod.metadata.uid}-{self.recreations}",
            creation_timestamp=api_time(at_ns),
            deletion_timestamp=None,
        )
        self.pod = Pod(metadata=metadata, spec=replace(pod.spec, node_name=""))

    def end(self, at_ns: int, reason: EndReason) -> None:
        self.ended_ns, self.end_reason, self.message = at_ns, reason, ""

    def as_run(self) -> PodRun:
        return PodRun(
            pod=self.created.pod,
            created_ns=self.created_ns,
            attempts=self.attempts,
            rejections=self.rejections,
            placements=tuple(self.placements),
            ended_ns=self.ended_ns,
            end=self.end_reason,
            message="" if self.placement is not None else self.message,
        )


def api_time(at_ns: int) -> datetime:
    """A time in the precision of the API server: whole seconds."""
    return datetime.fromtimestamp(at_ns // NS_PER_S, UTC)


Action: TypeAlias = Callable[[int], None]
"""Called with its due time in nanoseconds."""


class EventQueue:
    """Actions in order of their due time; those with the same time in order of insertion."""

    __slots__ = ("_heap", "_inserted")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Action]] = []
        self._inserted = 0

    def schedule(self, due_ns: int, action: Action) -> None:
        self._inserted += 1
        heapq.heappush(self._heap, (due_ns, self._inserted, action))

    @property
    def next_ns(self) -> int | None:
        """Due time of the first action; None if empty."""
        return self._heap[0][0] if self._heap else None

    def run_next(self) -> None:
        """Remove and call the first action. Raises IndexError if empty."""
        due_ns, _, action = heapq.heappop(self._heap)
        action(due_ns)
