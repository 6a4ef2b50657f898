"""What a simulation came to: a table for people, JSON for programs.

A simulation's records, kept in a journal as a daemon would keep them.

From files to a history: scenarios, and the openb trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from asched.audit.timeline import time_of
from asched.audit.whatif.comparison import RunReport, figure_rows
from asched.audit.whatif.measures import MeasuredRun, to_place
from asched.cli.errors import BadInput
from asched.cli.output import print_table
from asched.config.file import ConfigFileError, read_text
from asched.config.yaml import YamlError, parse_documents
from asched.journal.store import JournalStore
from asched.model.quantity import NS_PER_S
from asched.simulator.expansion import expand
from asched.simulator.loop import Turn
from asched.simulator.openb import Table, TraceError, history_of
from asched.simulator.scenario import ScenarioError, read_scenario
from asched.simulator.trace import EndReason, PodRun, Run, WorkloadTrace
from asched.state.records import AnyRecord


class PodOutcome(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What became of one pod. Seconds count from the beginning of the simulation."""

    pod: str
    created_seconds: float
    node: str = ""
    """Where it was bound first."""
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
            pod.key,
            (pod.created_ns - begin_ns) / NS_PER_S,
            pod.node,
            seconds(pod.bound_ns),
            seconds(pod.ended_ns),
            pod.end,
            pod.attempts,
            sum(placement.evicted_ns is not None for placement in pod.placements),
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
    moved = sum(any(placement.end in _MOVED for placement in pod.placements) for pod in pods)
    yield "had to leave a node that was drained or went", f"{moved:,}"


_MOVED = (EndReason.DRAINED, EndReason.NODE_GONE)
_EVICTED = (EndReason.PREEMPTED, *_MOVED)


BATCH = 64
"""Records that are committed together, where a turn does not have more. A batch carries the virtual
time of its last turn, so this is also how finely ``explain --at`` can tell times apart."""


class JournalWriter:
    """Appends turns to a new journal, some at a time."""

    def __init__(self, journal: JournalStore) -> None:
        self._journal = journal
        self._pending: list[AnyRecord] = []
        self._now_ns = 0

    @classmethod
    async def claim(cls, journal: JournalStore, begin_ns: int) -> JournalWriter:
        """Raises BadInput where the journal holds something already."""
        if (await journal.head()).seq:
            raise BadInput("asched: the journal is not empty; a simulation writes a new one")
        await journal.claim("asched simulate", claimed_at_ns=begin_ns)
        return cls(journal)

    async def add(self, turn: Turn) -> None:
        self._pending += turn.records
        self._now_ns = turn.now_ns
        if len(self._pending) >= BATCH:
            await self.flush()

    async def flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, []
            await self._journal.append(pending, written_at_ns=self._now_ns)


def scenario_history(path: Path, scheduler_name: str) -> WorkloadTrace:
    """What happens in the scenario of a file; ``scheduler_name`` is for pods that name none.

    Raises BadInput with a line for each mistake: where it is, and what would be right.
    """
    try:
        documents = parse_documents(_text(path))
    except YamlError as error:
        place = f"{path}:{error.line}" if error.line else str(path)
        raise BadInput(f"{place}: not valid YAML: {error}") from None
    if len(documents) != 1:
        raise BadInput(f"{path}: expected one document of kind Scenario, got {len(documents)}")
    document = documents[0]
    try:
        if document.problems:
            raise ScenarioError(document.problems)
        return expand(read_scenario(document.value), scheduler_name)
    except ScenarioError as error:
        placed = sorted((document.line(p.path), n, p) for n, p in enumerate(error.problems))
        raise BadInput(f"{path}:{line}: {problem}" for line, _, problem in placed) from None


def openb_history(nodes: Path, pods: Path, scheduler_name: str) -> WorkloadTrace:
    """The trace in two CSV files. Raises BadInput."""
    try:
        return history_of(_table(nodes), _table(pods), scheduler_name)
    except TraceError as error:
        raise BadInput(str(error)) from None


def _table(path: Path) -> Table:
    return Table(str(path), _text(path).splitlines())


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except ConfigFileError as error:
        raise BadInput(error.lines) from None
