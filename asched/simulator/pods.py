"""A pod's life in a simulation, while it goes on.

What is due when: the heap that a virtual clock runs on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec

from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.simulator.trace import EndReason, PodPlacement, PodCreated, PodRun

DEFAULT_GRACE_S = 30
"""What a pod gets that does not say (``terminationGracePeriodSeconds`` as the API server defaults it)."""


class SimulatedPod:
    """One pod from its creation to its end, whatever it is called in between: a pod that its
    controller makes anew goes on here under another uid."""

    __slots__ = (
        "attempts",
        "created",
        "created_ns",
        "end",
        "ended_ns",
        "evicted_by",
        "evicted_for",
        "evicted_ns",
        "message",
        "nominated",
        "pod",
        "rejections",
        "returned",
        "run_left_ns",
        "placements",
    )

    def __init__(self, created: PodCreated, created_ns: int) -> None:
        self.created = created
        self.created_ns = created_ns
        self.pod = created.pod
        """As it is now."""
        self.run_left_ns = created.run_ns
        self.placements: list[PodPlacement] = []
        self.attempts = 0
        self.rejections = 0
        self.returned = 0
        """How often it was made anew."""
        self.message = ""
        self.nominated = ""
        """The node on which room is being made for it."""
        self.evicted_ns: int | None = None
        """When its eviction was decided; None while it is not being evicted."""
        self.evicted_for = EndReason.DELETED
        self.evicted_by = ""
        self.ended_ns: int | None = None
        self.end: EndReason | None = None

    @property
    def key(self) -> str:
        return self.pod.key

    @property
    def uid(self) -> str:
        """Its present uid."""
        return self.pod.metadata.uid

    @property
    def placement(self) -> PodPlacement | None:
        """The placement that it is in now."""
        last = self.placements[-1] if self.placements else None
        return last if last is not None and last.ended_ns is None else None

    @property
    def bound(self) -> bool:
        return self.placement is not None and self.placement.bound_ns is not None

    @property
    def grace_ns(self) -> int:
        """How long it may take to end when it is evicted; nothing before it is bound."""
        if not self.bound:
            return 0
        grace_s = self.pod.spec.termination_grace_period_seconds
        return (DEFAULT_GRACE_S if grace_s is None else max(0, grace_s)) * NS_PER_S

    # -- on a node ----------------------------------------------------------------------------

    def assign(self, node: str, at_ns: int) -> None:
        self.placements.append(PodPlacement(node, at_ns))
        self.nominated = ""

    def bind(self, at_ns: int) -> None:
        """It is bound where it was assigned, and runs."""
        placement = self.placements[-1]
        self.placements[-1] = msgspec.structs.replace(placement, bound_ns=at_ns)
        replace, pod = msgspec.structs.replace, self.pod
        self.pod = replace(
            pod,
            spec=replace(pod.spec, node_name=placement.node),
            status=replace(pod.status, phase="Running", start_time=moment(at_ns)),
        )

    def leave(self, at_ns: int, why: EndReason) -> None:
        """It holds no room any more, if it did."""
        placement = self.placement
        if placement is None:
            return
        if self.run_left_ns is not None and placement.bound_ns is not None:
            self.run_left_ns -= at_ns - placement.bound_ns
        self.placements[-1] = msgspec.structs.replace(placement, ended_ns=at_ns, end=why)

    # -- eviction, return and end ---------------------------------------------------------------

    def evict(self, at_ns: int, why: EndReason, by: str) -> None:
        """It is to go, and ends after its grace period."""
        self.evicted_ns, self.evicted_for, self.evicted_by = at_ns, why, by
        placement = self.placement
        if placement is not None:
            self.placements[-1] = msgspec.structs.replace(placement, by=by, evicted_ns=at_ns)
        metadata = msgspec.structs.replace(
            self.pod.metadata, deletion_timestamp=moment(at_ns + self.grace_ns)
        )
        self.pod = msgspec.structs.replace(self.pod, metadata=metadata)

    def come_back(self, at_ns: int) -> None:
        """Its controller made it anew: pending, with a uid of its own."""
        self.returned += 1
        self.evicted_ns, self.evicted_by = None, ""
        replace, pod = msgspec.structs.replace, self.pod
        original = self.created.pod
        metadata = replace(
            pod.metadata,
            uid=f"{original.metadata.uid}-{self.returned}",
            creation_timestamp=moment(at_ns),
            deletion_timestamp=None,
        )
        spec = replace(pod.spec, node_name="")
        self.pod = Pod(metadata=metadata, spec=spec)

    def finish(self, at_ns: int, why: EndReason) -> None:
        self.ended_ns, self.end, self.message = at_ns, why, ""

    def as_run(self) -> PodRun:
        return PodRun(
            self.created.pod,
            self.created_ns,
            self.attempts,
            self.rejections,
            tuple(self.placements),
            self.ended_ns,
            self.end,
            "" if self.placement is not None else self.message,
        )


def moment(at_ns: int) -> datetime:
    """A time as the API server writes it: to the second."""
    return datetime.fromtimestamp(at_ns // NS_PER_S, UTC)


Action: TypeAlias = Callable[[int], None]
"""Something that happens; it is told when, in nanoseconds."""


class EventQueue:
    """Actions by the time they are due; those of the same time in the order they were entered."""

    __slots__ = ("_entered", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Action]] = []
        self._entered = 0

    def enter(self, due_ns: int, action: Action) -> None:
        self._entered += 1
        heapq.heappush(self._heap, (due_ns, self._entered, action))

    @property
    def next_ns(self) -> int | None:
        """When the first is due; None for none."""
        return self._heap[0][0] if self._heap else None

    def act(self) -> None:
        """Let the first happen. Raises IndexError for none."""
        due_ns, _, action = heapq.heappop(self._heap)
        action(due_ns)
