"""What a simulation came to: a table for people, JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import msgspec

from asched.audit.timeline import time_of
from asched.audit.whatif.comparison import RunReport
from asched.audit.whatif.measures import NS_PER_S, MeasuredRun, Times, measured, to_place
from asched.audit.whatif.occupancy import workload_of
from asched.cli.output import print_table
from asched.framework.duration import format_duration
from asched.sim.virtual.outcome import End, PodRun, Run


class PodOutcome(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What became of one pod. Seconds count from the beginning of the simulation."""

    pod: str
    created_seconds: float
    node: str = ""
    """Where it was bound first."""
    bound_seconds: float | None = None
    ended_seconds: float | None = None
    end: End | None = None
    attempts: int = 0
    evictions: int = 0
    message: str = ""
    """Why it is pending at the end."""

    @classmethod
    def of(cls, pod: PodRun, begin_ns: int) -> PodOutcome:
        def seconds(at_ns: int | None) -> float | None:
            return None if at_ns is None else (at_ns - begin_ns) / NS_PER_S

        return cls(
            pod.key,
            (pod.created_ns - begin_ns) / NS_PER_S,
            pod.node,
            seconds(pod.bound_ns),
            seconds(pod.ended_ns),
            pod.end,
            pod.attempts,
            sum(stint.evicted_ns is not None for stint in pod.stints),
            pod.message,
        )


class SimulationReport(msgspec.Struct, frozen=True, rename="camel"):
    """What a simulation found. This is the JSON form (see ``docs/simulate.md``)."""

    begin: datetime
    end: datetime
    ends: dict[str, int]
    """How many pods ended, by why."""
    run: RunReport
    pods: tuple[PodOutcome, ...]

    @classmethod
    def of(cls, name: str, run: Run) -> SimulationReport:
        ends = Counter(pod.end.value for pod in run.pods if pod.end is not None)
        return cls(
            time_of(run.begin_ns),
            time_of(run.end_ns),
            {end: ends[end] for end in sorted(ends)},
            RunReport.of(name, measured(run, workload_of(run.pods))),
            tuple(PodOutcome.of(pod, run.begin_ns) for pod in run.pods),
        )


def print_summary(measures: MeasuredRun) -> None:
    """The run in a few tables."""
    run, figures = measures.run, measures.figures
    pods = to_place(run)
    ends = Counter(pod.end for pod in pods)
    nodes = {span.node.name for span in run.nodes}
    print_table(
        ("", ""),
        (
            ("simulated", _long((run.end_ns - run.begin_ns) / NS_PER_S)),
            ("nodes", str(len(nodes))),
            ("pods to place", str(figures.pods)),
            ("  placed", str(figures.placed)),
            ("  finished", str(ends[End.FINISHED])),
            ("  deleted", str(ends[End.DELETED])),
            ("  lost in an eviction", str(_lost(ends))),
            ("  pending at the end", str(figures.pending_at_end)),
            ("attempts", str(figures.attempts)),
            ("  that found no node", str(figures.rejections)),
            ("preemptions", str(figures.preemptions)),
            ("drained, or lost their node", str(sum(1 for _ in _moved(run.pods)))),
            ("broken spread constraints", str(figures.spread.hard_at_placement)),
        ),
    )
    print_table(
        ("time", "p50", "p90", "p99", "max"),
        (_times("to bind", figures.time_to_bind), _times("pending", figures.time_pending)),
    )
    print_table(
        ("resource", "allocated, mean", "peak", "unusable share of what is free, mean", "peak"),
        (
            (
                name,
                _percent(found.utilisation.mean),
                _percent(found.utilisation.peak),
                _percent(found.fragmentation.mean) if found.fragmentation else "",
                _percent(found.fragmentation.peak) if found.fragmentation else "",
            )
            for name, found in figures.resources.items()
        ),
    )


def _moved(pods: Iterable[PodRun]) -> Iterator[PodRun]:
    """The pods that had to leave a node that was drained or went."""
    left = (End.DRAINED, End.NODE_GONE)
    return (pod for pod in pods if any(stint.end in left for stint in pod.stints))


def _lost(ends: Counter[End | None]) -> int:
    return ends[End.PREEMPTED] + ends[End.DRAINED] + ends[End.NODE_GONE]


def _times(title: str, times: Times) -> tuple[str, ...]:
    points = (times.p50_seconds, times.p90_seconds, times.p99_seconds, times.max_seconds)
    return (title, *("" if seconds is None else _long(seconds) for seconds in points))


def _percent(share: float) -> str:
    return f"{share * 100:.1f}%"


def _long(seconds: float) -> str:
    """A duration in Go's notation, days first; milliseconds matter below a minute only."""
    days, rest_s = divmod(seconds, 86_400)
    rest = timedelta(seconds=round(rest_s) if seconds >= 60 else round(rest_s, 3))
    return f"{days:.0f}d {format_duration(rest)}" if days else format_duration(rest)
