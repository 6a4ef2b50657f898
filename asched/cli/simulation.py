"""Input and output of ``asched simulate``: scenarios and traces, the report, the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from asched.audit.timeline import time_of
from asched.audit.whatif.comparison import Comparison, RunReport, figure_rows
from asched.audit.whatif.measures import MeasuredRun, to_place
from asched.audit.whatif.node_changes import ChangedTrace
from asched.cli.errors import BadInput, InvalidFile
from asched.cli.output import print_table, print_text
from asched.config.file import read_text
from asched.journal.store import JournalStore
from asched.model.quantity import NS_PER_S
from asched.simulator.loop import Turn
from asched.simulator.openb import Table, TraceError, assumptions, read_openb
from asched.simulator.trace import EndReason, PodRun, WorkloadRun
from asched.state.records import AnyRecord

_BATCH: Final = 64
"""Minimum number of records in a batch. A batch has the virtual time of its last turn, so this also
limits the resolution of ``explain --at``."""

_LIMIT: Final = 20
"""Pods listed in each table of a terminal."""

_MOVED: Final = (EndReason.DRAINED, EndReason.NODE_GONE)
_EVICTED: Final = (EndReason.PREEMPTED, *_MOVED)


class PodOutcome(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The result for one pod. Seconds count from the start of the simulation."""

    pod: str
    created_seconds: float
    node: str = ""
    """The node of its first binding."""
    bound_seconds: float | None = None
    ended_seconds: float | None = None
    end: EndReason | None = None
    attempts: int = 0
    evictions: int = 0
    message: str = ""
    """Why it is pending at the end."""

    @classmethod
    def of(cls, pod: PodRun, begin_ns: int) -> PodOutcome:
        def seconds(at_ns: int | None) -> float | None:
            return None if at_ns is None else (at_ns - begin_ns) / NS_PER_S

        return cls(
            pod=pod.key,
            created_seconds=(pod.created_ns - begin_ns) / NS_PER_S,
            node=pod.node,
            bound_seconds=seconds(pod.bound_ns),
            ended_seconds=seconds(pod.ended_ns),
            end=pod.end,
            attempts=pod.attempts,
            evictions=sum(placement.evicted_ns is not None for placement in pod.placements),
            message=pod.message,
        )


class SimulationReport(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a simulation in its JSON form (see ``docs/how-to/simulate.md``)."""

    begin: datetime
    end: datetime
    ends: dict[str, int]
    """Number of pods by the reason of their end."""
    run: RunReport
    pods: tuple[PodOutcome, ...]
    notes: tuple[str, ...]
    """The version, the configuration and changes of the workload."""

    @classmethod
    def of(cls, name: str, measures: MeasuredRun, notes: tuple[str, ...]) -> SimulationReport:
        run = measures.run
        ends = Counter(pod.end.value for pod in run.pods if pod.end is not None)
        return cls(
            time_of(run.begin_ns),
            time_of(run.end_ns),
            {end: ends[end] for end in sorted(ends)},
            RunReport.of(name, measures),
            tuple(PodOutcome.of(pod, run.begin_ns) for pod in run.pods),
            notes,
        )


def print_summary(measures: MeasuredRun, notes: Iterable[str]) -> None:
    """Print the run as one table."""
    run = measures.run
    begin, end = time_of(run.begin_ns), time_of(run.end_ns)
    nodes = len({span.node.name for span in run.nodes})
    print_text(f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC, {nodes} nodes")
    for note in notes:
        print_text(f"note: {note}")
    rows = [(row.label, *row.values) for row in figure_rows([measures.figures])]
    print_table(("", ""), [*rows, *_outcomes(run)])


def _outcomes(run: WorkloadRun) -> Iterator[tuple[str, str]]:
    pods = to_place(run)
    ends = Counter(pod.end for pod in pods)
    yield "finished", f"{ends[EndReason.FINISHED]:,}"
    yield "deleted", f"{ends[EndReason.DELETED]:,}"
    yield "present at the end", f"{ends[None]:,}"
    yield "evicted for good", f"{sum(ends[end] for end in _EVICTED):,}"
    moved = sum(any(placement.end in _MOVED for placement in pod.placements) for pod in pods)
    yield "moved by a drained or removed node", f"{moved:,}"


def print_comparison(found: Comparison) -> None:
    """Print the figures of both runs side by side, and the pods that differ."""
    report = found.report()
    nodes = len({span.node.name for span in found.baseline.run.nodes})
    print_text(
        f"{report.begin:%Y-%m-%d %H:%M:%S} to {report.end:%Y-%m-%d %H:%M:%S} UTC, {nodes} nodes"
    )
    for note in found.notes:
        print_text(f"note: {note}")
    recorded = [found.recorded] if found.recorded else []
    runs = [found.baseline, found.candidate, *recorded]
    rows = [
        (row.label, *row.values[:2], row.change, *row.values[2:])
        for row in figure_rows([run.figures for run in runs])
    ]
    print_table(("", *found.names, "CHANGE", *(["AS RECORDED"] if recorded else [])), rows)
    elsewhere = [(pod.pod, pod.baseline, pod.candidate) for pod in found.placed_elsewhere]
    _print_pods("placed differently", ("POD", *found.names), elsewhere)
    only = (found.placed_in_baseline_only, found.placed_in_candidate_only)
    for name, pods in zip(found.names, only, strict=True):
        placed = [(pod.pod, pod.node, pod.message) for pod in pods]
        _print_pods(f"placed only by: {name}", ("POD", "NODE", "MESSAGE OF THE OTHER"), placed)


def _print_pods(what: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print_text(f"{len(rows)} pod(s) {what}")
    if rows:
        print_table(columns, rows[:_LIMIT])
        if len(rows) > _LIMIT:
            print_text(f"... and {len(rows) - _LIMIT} more (-o json lists all)")


class JournalWriter:
    """Appends turns to a new journal in batches."""

    def __init__(self, journal: JournalStore) -> None:
        self._journal = journal
        self._pending: list[AnyRecord] = []
        self._now_ns = 0

    @classmethod
    async def claim(cls, journal: JournalStore, begin_ns: int) -> JournalWriter:
        """Raises BadInput if the journal is not empty."""
        if (await journal.head()).seq:
            raise BadInput("the journal is not empty; a simulation writes a new one")
        await journal.claim("asched simulate", claimed_at_ns=begin_ns)
        return cls(journal)

    async def add(self, turn: Turn) -> None:
        self._pending += turn.records
        self._now_ns = turn.now_ns
        if len(self._pending) >= _BATCH:
            await self.flush()

    async def flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, []
            await self._journal.append(pending, written_at_ns=self._now_ns)


def openb_trace(nodes: Path, pods: Path, scheduler_name: str) -> ChangedTrace:
    """The workload of an openb trace in two CSV files, and what is assumed for absent columns.

    Raises BadInput, ConfigFileError.
    """
    node_table, pod_table = (Table(str(p), read_text(p).splitlines()) for p in (nodes, pods))
    try:
        trace = read_openb(node_table, pod_table, scheduler_name)
    except TraceError as error:
        raise InvalidFile([str(error)]) from None
    return ChangedTrace(trace, assumptions(node_table, pod_table))
