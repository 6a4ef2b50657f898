"""Computes the figures of a :class:`~asched.simulator.trace.WorkloadRun`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec
import numpy as np

from asched.audit.whatif.occupancy import RecordedWorkload, Steps, occupancy, percentile
from asched.audit.whatif.spread import SpreadViolations, spread_violations
from asched.model.quantity import NS_PER_S
from asched.pricing.costs import RunCosts, costs_of
from asched.pricing.prices import Prices
from asched.simulator.trace import EndReason, PodRun, WorkloadRun


class Times(msgspec.Struct, frozen=True, rename="camel"):
    """Statistics of durations in seconds; percentiles by nearest rank. None without durations."""

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

        def seconds(ns: float | None) -> float | None:
            return None if ns is None else ns / NS_PER_S

        total_ns = sum(ordered_ns)
        return cls(
            count=len(ordered_ns),
            p50_seconds=seconds(percentile(ordered_ns, 50)),
            p90_seconds=seconds(percentile(ordered_ns, 90)),
            p99_seconds=seconds(percentile(ordered_ns, 99)),
            mean_seconds=seconds(total_ns / len(ordered_ns)) if ordered_ns else None,
            max_seconds=seconds(percentile(ordered_ns, 100)),
            total_seconds=total_ns / NS_PER_S,
        )


class Share(msgspec.Struct, frozen=True, rename="camel"):
    """Statistics of a fraction over the time of the run."""

    mean: float
    """Time-weighted."""
    peak: float
    end: float

    @classmethod
    def of(cls, steps: Steps) -> Share:
        return cls(steps.mean, steps.peak, float(steps.values[-1]))


class ResourceFigures(msgspec.Struct, frozen=True, rename="camel"):
    """Figures of one resource, see :class:`~asched.audit.whatif.occupancy.Occupancy`."""

    utilisation: Share
    fragmentation: Share | None
    """None if no pod of the history requests the resource."""


class Figures(msgspec.Struct, frozen=True, rename="camel"):
    """The figures of a run; part of the JSON form (see ``docs/how-to/what-if.md``)."""

    pods: int
    """Pods that were created without a node."""
    placed: int
    """Number of these that were placed at least once."""
    pending_at_end: int
    """Number of these without a node at the end."""
    time_to_bind: Times
    """From creation to the first binding."""
    time_pending: Times
    """Total time of each pod without a node, including times after evictions."""
    attempts: int
    rejections: int
    """Attempts that found no node."""
    preemptions: int
    """Pods that were evicted for other pods."""
    resources: dict[str, ResourceFigures]
    spread: SpreadViolations
    costs: RunCosts | None = None
    """None without prices."""


class MeasuredRun(NamedTuple):
    """A run, its figures, and their inputs."""

    run: WorkloadRun
    figures: Figures
    to_bind_ns: Sequence[int]
    """Times to bind in ascending order, of bound pods only."""
    pending: Steps
    """Number of pods without a node."""
    placed: Steps
    """Number of pods that were placed at least once so far."""
    evicted: Steps
    """Number of evictions so far, for other pods and by drained or removed nodes."""
    utilisation: dict[str, Steps]
    fragmentation: dict[str, Steps]


def measured(
    run: WorkloadRun, workload: RecordedWorkload, prices: Prices | None = None
) -> MeasuredRun:
    """Measures a run. Fragmentation depends on ``workload``: runs are comparable if measured with
    the same one. ``prices`` adds costs."""
    pods = to_place(run)
    to_bind_ns = sorted(pod.bound_ns - pod.created_ns for pod in pods if pod.bound_ns is not None)
    spans = [pending_spans(pod, run.end_ns) for pod in pods]
    pending_ns = [sum(s.to_ns - s.from_ns for s in of_pod) for of_pod in spans]
    pending = _over_time([span for of_pod in spans for span in of_pod], run)
    shares = occupancy(run, workload)
    figures = Figures(
        pods=len(pods),
        placed=sum(bool(node_of(pod)) for pod in pods),
        pending_at_end=int(pending.values[-1]),
        time_to_bind=Times.of(to_bind_ns),
        time_pending=Times.of(sorted(pending_ns)),
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
        costs=costs_of(run, zip(pods, pending_ns, strict=True), prices) if prices else None,
    )
    return MeasuredRun(
        run=run,
        figures=figures,
        to_bind_ns=to_bind_ns,
        pending=pending,
        placed=_so_far(_first_placements(pods), run),
        evicted=_so_far(_evictions(run.pods), run),
        utilisation=shares.utilisation,
        fragmentation=shares.fragmentation,
    )


def _first_placements(pods: Iterable[PodRun]) -> Iterator[int]:
    for pod in pods:
        placed = (p.assigned_ns for p in pod.placements if p.end is not EndReason.BIND_FAILED)
        first_ns = next(placed, None)
        if first_ns is not None:
            yield first_ns


_EVICTED: Final = (EndReason.PREEMPTED, EndReason.DRAINED, EndReason.NODE_GONE)


def _evictions(pods: Iterable[PodRun]) -> Iterator[int]:
    for pod in pods:
        for placement in pod.placements:
            if placement.evicted_ns is not None:
                yield placement.evicted_ns
            elif placement.end in _EVICTED and placement.ended_ns is not None:
                yield placement.ended_ns


def _so_far(times_ns: Iterable[int], run: WorkloadRun) -> Steps:
    """The number of these times that are past, over the time of the run."""
    within = sorted(max(ns, run.begin_ns) for ns in times_ns if ns <= run.end_ns)
    return Steps([run.begin_ns, *within], [*range(len(within) + 1)], run.end_ns)


def to_place(run: WorkloadRun) -> list[PodRun]:
    """The pods that were created without a node."""
    return [pod for pod in run.pods if not pod.pod.spec.node_name]


def node_of(pod: PodRun) -> str:
    """The node of the pod's first placement; may be empty."""
    bound = (p.node for p in pod.placements if p.end is not EndReason.BIND_FAILED)
    return next(bound, "")


class Span(NamedTuple):
    from_ns: int
    to_ns: int


def pending_spans(pod: PodRun, end_ns: int) -> list[Span]:
    """The spans without a node, until each binding and until the end of the pod or the run."""
    spans = []
    since_ns: int | None = pod.created_ns
    last_ns = end_ns if pod.ended_ns is None else pod.ended_ns
    for placement in pod.placements:
        bound_ns = placement.bound_ns
        if bound_ns is None:
            continue
        if since_ns is None:
            break
        # In a recorded run a replacement may be bound before the deletion of its predecessor.
        if bound_ns > since_ns:
            spans.append(Span(since_ns, bound_ns))
        since_ns = placement.ended_ns
    if since_ns is not None and last_ns > since_ns:
        spans.append(Span(since_ns, last_ns))
    return spans


def _over_time(spans: Sequence[Span], run: WorkloadRun) -> Steps:
    """The number of active spans over time."""
    changes = [(run.begin_ns, 0)]
    for span in spans:
        changes += ((span.from_ns, 1), (span.to_ns, -1))
    # Spans that end with the run stay active.
    changes = sorted(change for change in changes if change[0] < run.end_ns or change[1] >= 0)
    counts = np.fromiter(accumulate(change for _, change in changes), np.float64)
    return Steps([at_ns for at_ns, _ in changes], counts, run.end_ns)
