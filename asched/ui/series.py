"""Counts and states of a cluster over time, at a grid that becomes coarser as the history grows."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime
from typing import Final

import msgspec

from asched.audit.pod_state import AWAITS_SESSION
from asched.audit.timeline import time_of
from asched.model.quantity import NS_PER_S
from asched.model.requests import PODS
from asched.state.cluster import ClusterState

MAX_BUCKETS: Final = 4096
"""Above this number two buckets become one."""
POINTS: Final = 240
"""Points of an overview, at most."""
_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400)
_PER_OCTAVE: Final = 8
"""Classes of a histogram for a factor of 2: percentiles are within 9 %."""
_SMALLEST_S: Final = 0.001


class WaitHistogram:
    """Durations in classes of equal ratio."""

    __slots__ = ("classes",)

    def __init__(self) -> None:
        self.classes: Counter[int] = Counter()

    def add(self, wait_s: float) -> None:
        self.classes[math.ceil(_PER_OCTAVE * math.log2(max(wait_s, _SMALLEST_S)))] += 1

    def percentile_s(self, share: float) -> float | None:
        """The duration that this share of all durations does not exceed; None without any."""
        wanted, found = share * self.classes.total(), 0
        for number in sorted(self.classes):
            found += self.classes[number]
            if found >= wanted:
                return round(math.exp2(number / _PER_OCTAVE), 4)
        return None


class Gauges(msgspec.Struct, frozen=True):
    """What a bucket shows as of its end."""

    queues: dict[str, int] = {}
    pending_by_plugin: dict[str, int] = {}
    nodes: int = 0
    used: dict[str, float] = {}
    """Requested share of what all nodes offer, by resource."""


class BucketForm(msgspec.Struct, array_like=True):
    """How a bucket is stored."""

    counts: dict[str, int]
    rejected_by: dict[str, int]
    waits: dict[int, int]
    gauges: Gauges


class Bucket:
    """What happened from :attr:`start_s` on, until the next bucket."""

    __slots__ = ("counts", "gauges", "rejected_by", "start_s", "waits")

    def __init__(self, start_s: int) -> None:
        self.start_s = start_s
        self.counts: Counter[str] = Counter()
        self.rejected_by: Counter[str] = Counter()
        self.waits = WaitHistogram()
        self.gauges = Gauges()

    @classmethod
    def restore(cls, start_s: int, form: BucketForm) -> Bucket:
        bucket = cls(start_s)
        bucket.counts.update(form.counts)
        bucket.rejected_by.update(form.rejected_by)
        bucket.waits.classes.update(form.waits)
        bucket.gauges = form.gauges
        return bucket

    def form(self) -> BucketForm:
        counts, rejected_by = dict(self.counts), dict(self.rejected_by)
        return BucketForm(counts, rejected_by, dict(self.waits.classes), self.gauges)

    def add(self, later: Bucket) -> None:
        self.counts.update(later.counts)
        self.rejected_by.update(later.rejected_by)
        self.waits.classes.update(later.waits.classes)
        self.gauges = later.gauges


class OverviewPoint(msgspec.Struct, frozen=True, rename="camel"):
    """What happened from :attr:`at` on, during one step."""

    at: datetime
    observed: int
    """New pods without a node."""
    assigned: int
    rejected: int
    failed: int
    """Attempts that ended with an error."""
    bound: int
    preempted: int
    deleted: int
    rejected_by: dict[str, int]
    """Rejected attempts by plugin."""
    wait_p50_s: float | None
    """From the first observation of a pod to its binding, within 9 %; None without a binding."""
    wait_p99_s: float | None
    queues: dict[str, int]
    """Pods by queue at the end of the step."""
    pending_by_plugin: dict[str, int]
    """Pods without a node at the end of the step, by the plugins that rejected them."""
    nodes: int
    used: dict[str, float]
    """Requested share of what all nodes offer, by resource, at the end of the step."""


class Overview(msgspec.Struct, frozen=True, rename="camel"):
    """The series of a period."""

    since: datetime | None
    until: datetime | None
    step_s: int
    indexed_seq: int
    """The last record that is counted."""
    points: tuple[OverviewPoint, ...]


class Series:
    """Buckets of a journal."""

    def __init__(self) -> None:
        self.step_s = 1
        self.buckets: list[Bucket] = []
        self.blocked: dict[str, tuple[str, ...]] = {}
        """The plugins that rejected the last attempt of each pod without a node."""
        self._blocked_by: Counter[str] = Counter()

    def move_to(self, state: ClusterState) -> None:
        """A turn begins: open the bucket of its time."""
        start_s = state.date_ns // NS_PER_S // self.step_s * self.step_s
        if self.buckets:
            # Dates are not monotonic; a bucket is.
            if start_s <= self.buckets[-1].start_s:
                return
            self.buckets[-1].gauges = self._gauges(state)
        self.buckets.append(Bucket(start_s))
        if len(self.buckets) > MAX_BUCKETS:
            self._coarsen()

    @property
    def current(self) -> Bucket:
        if not self.buckets:
            self.buckets.append(Bucket(0))
        return self.buckets[-1]

    def block(self, key: str, plugins: tuple[str, ...]) -> None:
        self.unblock(key)
        self.blocked[key] = plugins
        self._blocked_by.update(plugins)

    def unblock(self, key: str) -> None:
        for plugin in self.blocked.pop(key, ()):
            self._blocked_by[plugin] -= 1
            if not self._blocked_by[plugin]:
                del self._blocked_by[plugin]

    def _coarsen(self) -> None:
        self.step_s *= 2
        merged: list[Bucket] = []
        for bucket in self.buckets:
            bucket.start_s = bucket.start_s // self.step_s * self.step_s
            if merged and merged[-1].start_s == bucket.start_s:
                merged[-1].add(bucket)
            else:
                merged.append(bucket)
        self.buckets = merged

    def _gauges(self, state: ClusterState) -> Gauges:
        return Gauges(queue_lengths(state), dict(self._blocked_by), *used_shares(state))

    def measure(self, state: ClusterState) -> None:
        """Set what the last bucket shows as of its end."""
        self.current.gauges = self._gauges(state)

    def overview(
        self, state: ClusterState | None, seq: int, since_s: int, until_s: int
    ) -> Overview:
        """The series from ``since_s`` to ``until_s``; ``state`` is the one after record ``seq``,
        None if it is not folded yet."""
        if not self.buckets:
            return Overview(None, None, self.step_s, seq, ())
        if state is not None:
            self.measure(state)
        first_s = max(since_s, self.buckets[0].start_s)
        last_s = min(until_s, self.buckets[-1].start_s)
        step_s = self._grid(last_s - first_s)
        first_s = first_s // step_s * step_s
        points: list[OverviewPoint] = []
        gauges, rest = Gauges(), [*self.buckets]
        rest.reverse()
        for start_s in range(first_s, last_s + 1, step_s):
            merged = Bucket(start_s)
            merged.gauges = gauges
            while rest and rest[-1].start_s < start_s + step_s:
                bucket = rest.pop()
                if bucket.start_s >= start_s:
                    merged.add(bucket)
                merged.gauges = bucket.gauges
            gauges = merged.gauges
            points.append(_point(merged))
        since, until = time_of(first_s * NS_PER_S), time_of((last_s + step_s) * NS_PER_S)
        return Overview(since, until, step_s, seq, tuple(points))

    def _grid(self, length_s: int) -> int:
        wanted_s = max(self.step_s, length_s / POINTS)
        fitting = (step for step in _STEPS_S if step >= wanted_s and step % self.step_s == 0)
        multiple = math.ceil(wanted_s / self.step_s) * self.step_s
        return next(fitting, multiple)


def queue_lengths(state: ClusterState) -> dict[str, int]:
    """The pods without a node by queue."""
    queue = state.queue
    lengths = {
        "active": len(queue.active),
        "backoff": len(queue.backoff),
        "unschedulable": len(queue.unschedulable),
        "gated": len(queue.gated),
    }
    if state.sessions:
        lengths[AWAITS_SESSION] = sum(len(profile.pending) for profile in state.sessions)
    return lengths


def used_shares(state: ClusterState) -> tuple[int, dict[str, float]]:
    """The number of nodes, and the requested share of each resource that they offer."""
    table = state.nodes
    columns = {
        name: (table.requested(name), table.allocatable(name))
        for name in table.columns.allocatable
        if name != PODS
    }
    columns[PODS] = (table.pod_count, table.allowed_pods)
    shares = {
        name: round(int(requested.sum()) / offered, 4)
        for name, (requested, allocatable) in columns.items()
        if (offered := int(allocatable.sum()))
    }
    return table.cluster_size, shares


def _point(bucket: Bucket) -> OverviewPoint:
    counts, gauges = bucket.counts, bucket.gauges
    return OverviewPoint(
        at=time_of(bucket.start_s * NS_PER_S),
        observed=counts["observed"],
        assigned=counts["assigned"],
        rejected=counts["rejected"],
        failed=counts["failed"],
        bound=counts["bound"],
        preempted=counts["preempted"],
        deleted=counts["deleted"],
        rejected_by=dict(bucket.rejected_by),
        wait_p50_s=bucket.waits.percentile_s(0.5),
        wait_p99_s=bucket.waits.percentile_s(0.99),
        queues=gauges.queues,
        pending_by_plugin=gauges.pending_by_plugin,
        nodes=gauges.nodes,
        used=gauges.used,
    )
