"""What a run was like, in figures. Pure functions of a :class:`~asched.simulator.trace.Run`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec
import numpy as np

from asched.audit.whatif.occupancy import RecordedWorkload, Steps, mean, occupancy, percentile
from asched.audit.whatif.spread import SpreadViolations, spread_violations
from asched.model.quantity import NS_PER_S
from asched.simulator.trace import EndReason, PodPlacement, PodRun, Run


class Times(msgspec.Struct, frozen=True, rename="camel"):
    """Stretches of time, in seconds; percentiles by nearest rank. None of nothing."""

    count: int
    p50_seconds: float | None
    p90_seconds: float | None
    p99_seconds: float | None
    mean_seconds: float | None
    max_seconds: float | None
    total_seconds: float

    @classmethod
    def of(cls, ordered_ns: Sequence[int]) -> Times:
        """``ordered_ns`` ascending."""
        p50_seconds, p90_seconds, p99_seconds, max_seconds = (
            None if ns is None else ns / NS_PER_S
            for ns in (percentile(ordered_ns, percent) for percent in (50, 90, 99, 100))
        )
        average_ns = mean(ordered_ns)
        mean_seconds = None if average_ns is None else average_ns / NS_PER_S
        return cls(
            len(ordered_ns),
            p50_seconds,
            p90_seconds,
            p99_seconds,
            mean_seconds,
            max_seconds,
            sum(ordered_ns) / NS_PER_S,
        )


class Share(msgspec.Struct, frozen=True, rename="camel"):
    """A share of one over the time of the run."""

    mean: float
    """Weighed by time."""
    peak: float
    end: float

    @classmethod
    def of(cls, steps: Steps) -> Share:
        return cls(steps.mean, steps.peak, float(steps.values[-1]))


class ResourceFigures(msgspec.Struct, frozen=True, rename="camel"):
    """One resource, see :class:`~asched.audit.whatif.occupancy.Occupancy`."""

    utilisation: Share
    fragmentation: Share | None
    """None where no pod of the history asks for the resource."""


class Figures(msgspec.Struct, frozen=True, rename="camel"):
    """A run in figures. This is a part of the JSON form (see ``docs/what-if.md``)."""

    pods: int
    """Pods that were to be placed: all but those that were on a node from the beginning, or were
    placed by others."""
    placed: int
    """Of these, how many were placed at least once."""
    pending_at_end: int
    """Of these, how many wait for a node in the end."""
    time_to_bind: Times
    """From creation to the first binding."""
    time_pending: Times
    """What each pod spent without a node in all, again after an eviction, and up to the end."""
    attempts: int
    rejections: int
    """Attempts that found no node."""
    preemptions: int
    """Pods that were evicted for others."""
    resources: dict[str, ResourceFigures]
    spread: SpreadViolations


class MeasuredRun(NamedTuple):
    """A run, its figures, and what they were made from."""

    run: Run
    figures: Figures
    to_bind_ns: Sequence[int]
    """Ascending; of the pods that were bound."""
    pending: Steps
    """How many pods wait for a node."""
    utilisation: dict[str, Steps]
    fragmentation: dict[str, Steps]


def measured(run: Run, workload: RecordedWorkload) -> MeasuredRun:
    """Measure a run. ``workload`` says what a typical pod asks for, which fragmentation depends on:
    runs are comparable under the same one."""
    pods = to_place(run)
    to_bind_ns = sorted(pod.bound_ns - pod.created_ns for pod in pods if pod.bound_ns is not None)
    spans = [pending_spans(pod, run.end_ns) for pod in pods]
    pending = _over_time([span for of_pod in spans for span in of_pod], run)
    shares = occupancy(run, workload)
    figures = Figures(
        pods=len(pods),
        placed=sum(bool(node_of(pod)) for pod in pods),
        pending_at_end=int(pending.values[-1]),
        time_to_bind=Times.of(to_bind_ns),
        time_pending=Times.of(sorted(sum(s.to_ns - s.from_ns for s in of_pod) for of_pod in spans)),
        attempts=sum(pod.attempts for pod in run.pods),
        rejections=sum(pod.rejections for pod in run.pods),
        preemptions=sum(
            placement.end is EndReason.PREEMPTED or (placement.end is None and bool(placement.by))
            for pod in run.pods
            for placement in pod.placements
        ),
        resources={
            name: ResourceFigures(
                Share.of(steps),
                Share.of(shares.fragmentation[name]) if name in shares.fragmentation else None,
            )
            for name, steps in shares.utilisation.items()
        },
        spread=spread_violations(run),
    )
    return MeasuredRun(run, figures, to_bind_ns, pending, shares.utilisation, shares.fragmentation)


def to_place(run: Run) -> list[PodRun]:
    """The pods that the scheduler had to place: those that did not come with a node."""
    return [pod for pod in run.pods if not pod.pod.spec.node_name]


def node_of(pod: PodRun) -> str:
    """Where the pod was placed first; empty where it never was."""
    return next(
        (
            placement.node
            for placement in pod.placements
            if placement.end is not EndReason.BIND_FAILED
        ),
        "",
    )


class Span(NamedTuple):
    from_ns: int
    to_ns: int


def pending_spans(pod: PodRun, end_ns: int) -> list[Span]:
    """When the pod was without a node: until it was bound, and again from the end of each placement
    until the next binding, or the pod's or the run's end."""
    spans = []
    since_ns: int | None = pod.created_ns
    last_ns = end_ns if pod.ended_ns is None else pod.ended_ns
    for placement in _bound(pod.placements):
        bound_ns = placement.bound_ns or 0
        if since_ns is None:
            break
        # In a record the pod that is made in place of another may be bound before that has gone.
        if bound_ns > since_ns:
            spans.append(Span(since_ns, bound_ns))
        since_ns = placement.ended_ns
    if since_ns is not None and last_ns > since_ns:
        spans.append(Span(since_ns, last_ns))
    return spans


def _bound(placements: Iterable[PodPlacement]) -> Iterable[PodPlacement]:
    return (placement for placement in placements if placement.bound_ns is not None)


def _over_time(spans: Sequence[Span], run: Run) -> Steps:
    """How many of the spans hold, over time."""
    changes = [(run.begin_ns, 0)]
    for span in spans:
        changes += ((span.from_ns, 1), (span.to_ns, -1))
    # What ends with the run has not ended before it.
    changes = sorted(change for change in changes if change[0] < run.end_ns or change[1] >= 0)
    counts = np.fromiter(accumulate(change for _, change in changes), np.float64)
    return Steps([at_ns for at_ns, _ in changes], counts, run.end_ns)
