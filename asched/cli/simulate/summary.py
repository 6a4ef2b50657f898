"""What a simulation came to: a table for people, JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

import msgspec

from asched.audit.timeline import time_of
from asched.audit.whatif.comparison import RunReport
from asched.audit.whatif.measures import NS_PER_S, MeasuredRun, to_place
from asched.audit.whatif.rows import figure_rows
from asched.cli.output import print_table
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
    def of(cls, name: str, measures: MeasuredRun) -> SimulationReport:
        run = measures.run
        ends = Counter(pod.end.value for pod in run.pods if pod.end is not None)
        return cls(
            time_of(run.begin_ns),
            time_of(run.end_ns),
            {end: ends[end] for end in sorted(ends)},
            RunReport.of(name, measures),
            tuple(PodOutcome.of(pod, run.begin_ns) for pod in run.pods),
        )


def print_summary(measures: MeasuredRun) -> None:
    """The run in one table."""
    run = measures.run
    begin, end = time_of(run.begin_ns), time_of(run.end_ns)
    nodes = len({span.node.name for span in run.nodes})
    print(f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC, {nodes} nodes")
    rows = [(row.label, *row.values) for row in figure_rows([measures.figures])]
    print_table(("", ""), [*rows, *_outcomes(run)])


def _outcomes(run: Run) -> Iterator[tuple[str, str]]:
    """How the pods that were to be placed ended."""
    pods = to_place(run)
    ends = Counter(pod.end for pod in pods)
    yield "finished", f"{ends[End.FINISHED]:,}"
    yield "deleted", f"{ends[End.DELETED]:,}"
    yield "still there", f"{ends[None]:,}"
    yield "evicted, and did not come back", f"{sum(ends[end] for end in _EVICTED):,}"
    moved = sum(any(stint.end in _MOVED for stint in pod.stints) for pod in pods)
    yield "had to leave a node that was drained or went", f"{moved:,}"


_MOVED = (End.DRAINED, End.NODE_GONE)
_EVICTED = (End.PREEMPTED, *_MOVED)
