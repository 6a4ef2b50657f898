"""What a run simulates: a period of a journal, a scenario, or the tables of a trace.

A source is a small description that a worker resolves. It names the content that it means, by hash,
so that a worker with other data reports an error instead of another result.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

import msgspec

from asched.audit.history import Period
from asched.audit.times import TimeTextError, parse_time_ns
from asched.audit.whatif.recorded_history import recorded_history
from asched.audit.whatif.scenarios import DEFAULTS, scenario_trace
from asched.config.file import ConfigFileError, parse
from asched.config.registry import PluginRegistry
from asched.journal.chain import Head
from asched.journal.opening import open_journal, redacted
from asched.journal.store import JournalStore
from asched.planning.errors import ForeignWorkerError, PlanningError
from asched.simulator.loop import Latencies, SchedulerSettings, scheduler_from_config
from asched.simulator.openb import BEGIN_NS, Table, TraceError, read_openb
from asched.simulator.trace import WorkloadRun, WorkloadTrace


class SourceBase(msgspec.Struct, frozen=True, rename="camel", tag_field="kind"):
    """Base of sources; equal sources name the same content."""


class JournalPeriod(SourceBase, frozen=True, tag="journal"):
    """A period of a journal up to a known record."""

    url: str
    head: Head
    """The end of the journal when the work was planned. Later records do not count."""
    since_ns: int
    until_ns: int

    @property
    def name(self) -> str:
        return redacted(self.url)


class ScenarioText(SourceBase, frozen=True, tag="scenario"):
    """A scenario (``docs/how-to/simulate.md``) with its content."""

    name: str
    text: str


class OpenbTables(SourceBase, frozen=True, tag="openb"):
    """The tables of an openb trace in two files that every worker can read."""

    nodes: str
    pods: str
    sha256: str
    """Of both files."""
    since_ns: int = BEGIN_NS
    """See :func:`~asched.simulator.openb.read_openb`."""

    @property
    def name(self) -> str:
        return Path(self.pods).name

    @classmethod
    def of(cls, nodes: Path, pods: Path, since: str | None = None) -> OpenbTables:
        """``since``: a time; the trace begins on 2023-01-01. Raises PlanningError for other text
        and for a file that cannot be read."""
        files = [path.resolve() for path in (nodes, pods)]
        try:
            since_ns = BEGIN_NS if since is None else parse_time_ns(since)
        except TimeTextError as error:
            raise PlanningError(str(error)) from None
        digest = _hash([_read(file) for file in files])
        return cls(str(files[0]), str(files[1]), digest, since_ns)


WorkloadSource: TypeAlias = JournalPeriod | ScenarioText | OpenbTables


class LoadedWorkload(NamedTuple):
    """What a source contains."""

    trace: WorkloadTrace
    scheduler: SchedulerSettings
    """The recorded scheduler; for a source without one, that of the default configuration."""
    recorded: WorkloadRun | None
    """What happened; None unless the source is a journal."""
    baseline: str
    """The name of ``scheduler`` for the reader."""
    notes: tuple[str, ...] = ()


async def check_head(journal: JournalStore, head: Head, name: str) -> None:
    """Raises ForeignWorkerError unless the journal contains this batch."""
    if head.batch <= (await journal.archived()).batch:
        raise ForeignWorkerError(f"{name}: the records that were planned are archived here")
    async for sealed in journal.batches(head.batch - 1):
        if (sealed.batch.last_seq, sealed.batch.hash) == (head.seq, head.hash):
            return
        break
    raise ForeignWorkerError(
        f"{name} is another journal than the planned one: batch {head.batch} does not end with"
        f" record {head.seq} and hash {head.hash[:12]}"
    )


async def load_workload(
    source: WorkloadSource, scheduler_name: str, registry: PluginRegistry
) -> LoadedWorkload:
    """Reads a source; ``scheduler_name`` is the scheduler of pods that name none.

    Raises PlanningError, AuditError, ConfigFileError, ProfileError, JournalError.
    """
    match source:
        case JournalPeriod():
            return await _recorded(source, registry)
        case ScenarioText():
            trace = scenario_trace(source.text, source.name, scheduler_name)
        case OpenbTables():
            trace = _openb_trace(source, scheduler_name)
    return LoadedWorkload(trace, default_scheduler(registry), None, DEFAULTS)


def default_scheduler(registry: PluginRegistry) -> SchedulerSettings:
    """The scheduler without a configuration file."""
    defaults = parse("", "(defaults)", registry, empty_is_defaults=True)
    return scheduler_from_config(defaults, Latencies())


async def _recorded(source: JournalPeriod, registry: PluginRegistry) -> LoadedWorkload:
    async with open_journal(source.url, read_only=True) as journal:
        await check_head(journal, source.head, source.name)
        period = Period(source.since_ns, source.until_ns)
        history = await recorded_history(journal, registry.load, period)
    name = "recorded configuration"
    return LoadedWorkload(history.trace, history.scheduler, history.recorded, name, history.notes)


def _openb_trace(source: OpenbTables, scheduler_name: str) -> WorkloadTrace:
    content = [_read(Path(source.nodes)), _read(Path(source.pods))]
    if _hash(content) != source.sha256:
        raise ForeignWorkerError(
            f"{source.nodes} and {source.pods} are not those that were planned"
        )
    names = (source.nodes, source.pods)
    tables = [
        Table(name, text.decode(errors="replace").splitlines())
        for name, text in zip(names, content, strict=True)
    ]
    try:
        return read_openb(tables[0], tables[1], scheduler_name, source.since_ns)
    except TraceError as error:
        raise ConfigFileError([str(error)]) from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise PlanningError(f"{file} cannot be read: {error.strerror or error}") from None


def _hash(contents: list[bytes]) -> str:
    return sha256(b"".join(sha256(content).digest() for content in contents)).hexdigest()


MAX_CACHED: Final = 2
"""Workloads that a process keeps: a sweep has one, or one for each default scheduler name."""


class WorkloadCache:
    """The workloads that a worker used last. Threads of one process share it."""

    def __init__(self, most: int = MAX_CACHED) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[WorkloadSource, str], LoadedWorkload] = OrderedDict()
        self._lock = Lock()

    def get(self, source: WorkloadSource, scheduler_name: str) -> LoadedWorkload | None:
        with self._lock:
            found = self._kept.get((source, scheduler_name))
            if found is not None:
                self._kept.move_to_end((source, scheduler_name))
            return found

    def put(self, source: WorkloadSource, scheduler_name: str, workload: LoadedWorkload) -> None:
        with self._lock:
            self._kept[source, scheduler_name] = workload
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
