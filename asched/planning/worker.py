"""Executes a work item. The same function runs in the planning process, in another process, and on
a worker of a cluster."""

from __future__ import annotations

import os
import platform
import time
from functools import cache
from hashlib import sha256
from typing import Final, NamedTuple

import anyio
import msgspec

from asched.audit.lookup import AuditError
from asched.audit.replay import ReplayReport, replay_segment
from asched.audit.whatif.candidate import (
    CandidateConfig,
    candidate_scheduler,
    check_scheduler_names,
    parse_changes,
    simulate_trace,
)
from asched.audit.whatif.comparison import WaitPercentiles
from asched.audit.whatif.measures import measured, to_place
from asched.audit.whatif.node_changes import ChangedTrace, with_node_changes
from asched.audit.whatif.occupancy import workload_of
from asched.audit.whatif.scenarios import first_scheduler_name
from asched.capacity.load import with_load
from asched.capacity.node_counts import node_changes
from asched.capacity.node_mix import with_node_mix
from asched.capacity.spot_nodes import with_spot_nodes
from asched.config.file import ConfigFileError, parse
from asched.config.registry import PluginRegistry
from asched.core.heap import infrequent_gc
from asched.framework.runtime.profile import ProfileError
from asched.journal.errors import JournalError
from asched.journal.opening import open_journal, redacted
from asched.journal.store import JournalStore
from asched.model.quantity import NS_PER_S
from asched.planning.errors import ForeignWorkerError, PlanningError
from asched.planning.items import (
    ItemResult,
    QualityItem,
    RunFigures,
    RunItem,
    RunSettings,
    SegmentItem,
    WorkAnswer,
    WorkItem,
    WorkRequest,
)
from asched.planning.job_classes import class_figures
from asched.planning.provenance import own_provenance
from asched.planning.quality import quality_over_time
from asched.planning.workloads import (
    LoadedWorkload,
    WorkloadCache,
    WorkloadSource,
    check_head,
    default_scheduler,
    load_workload,
)
from asched.simulator.loop import (
    Latencies,
    SchedulerSettings,
    SimulationStuckError,
    scheduler_from_config,
)
from asched.simulator.trace import WorkloadRun, WorkloadTrace

_NS_PER_HOUR: Final = 3600 * NS_PER_S
_EXPECTED_ERRORS: Final = (
    AuditError,
    ConfigFileError,
    JournalError,
    PlanningError,
    ProfileError,
    SimulationStuckError,
)

_workloads: Final = WorkloadCache()


@cache
def _registry() -> PluginRegistry:
    """The installed plugins. A process keeps its code, and finding entry points takes longer than
    the rest of a short item."""
    return PluginRegistry.discover()


def perform(request: bytes) -> bytes:
    """The encoded :class:`WorkAnswer` to an encoded :class:`WorkRequest`.

    Raises nothing for errors that a user can act on: they are answers. A bug raises.
    """
    with infrequent_gc():
        return msgspec.json.encode(_answer(msgspec.json.decode(request, type=WorkRequest)))


def _answer(request: WorkRequest) -> WorkAnswer:
    worker = f"{platform.node()}/{os.getpid()}"
    differences = request.provenance.differences(own_provenance(), f"worker {worker}")
    if differences:
        return WorkAnswer(error=differences, foreign=True, worker=worker)
    return answer_to(request.item)


def answer_to(item: WorkItem) -> WorkAnswer:
    """The answer to an item for the code of this process."""
    worker = f"{platform.node()}/{os.getpid()}"
    began_s = time.thread_time()
    try:
        done = _perform(item)
    except ForeignWorkerError as error:
        return WorkAnswer(error=f"worker {worker}: {error}", foreign=True, worker=worker)
    except _EXPECTED_ERRORS as error:
        return WorkAnswer(error=" ".join(str(error).split()), worker=worker)
    except MemoryError:
        return WorkAnswer(error="it needs more memory than a worker may use", worker=worker)
    cpu_s = time.thread_time() - began_s
    return WorkAnswer(
        result=msgspec.Raw(msgspec.json.encode(done.result)),
        cpu_s=cpu_s,
        run_cpu_s=cpu_s - done.reading_cpu_s,
        worker=worker,
    )


class _Done(NamedTuple):
    result: ItemResult
    reading_cpu_s: float = 0.0


def _perform(item: WorkItem) -> _Done:
    match item:
        case RunItem():
            return _run(item)
        case QualityItem():
            return _quality(item)
        case SegmentItem():
            return _Done(anyio.run(_replay, item))


async def _replay(item: SegmentItem) -> ReplayReport:
    async with open_journal(item.url, read_only=True) as journal:
        await check_head(journal, item.head, redacted(item.url))
        await _check_checkpoints(journal, item)
        return await replay_segment(journal, _registry(), item.segment)


async def _check_checkpoints(journal: JournalStore, item: SegmentItem) -> None:
    segment = item.segment
    found = await journal.checkpoint_digests(segment.after_seq, segment.last_seq)
    stored = {one.seq: one.sha256 for one in found}
    for seq, digest in item.checkpoints:
        if stored.get(seq) != digest:
            raise PlanningError(
                f"the checkpoint at record {seq} was deleted or replaced meanwhile; start again"
            )


def _run(item: RunItem) -> _Done:
    simulated = _simulated(item)
    return _Done(_figures(item, simulated), simulated.reading_cpu_s)


def _quality(item: QualityItem) -> _Done:
    simulated = _simulated(item.run)
    found = quality_over_time(simulated.run, item.moments, item.limit_s, item.run.prices)
    return _Done(found, simulated.reading_cpu_s)


class _Simulated(NamedTuple):
    workload: LoadedWorkload
    run: WorkloadRun
    notes: tuple[str, ...]
    reading_cpu_s: float


def _simulated(item: RunItem) -> _Simulated:
    registry = _registry()
    given = _given_scheduler(item.settings, registry)
    default_name = first_scheduler_name(given or default_scheduler(registry))
    began_s = time.thread_time()
    workload = _workload(item.workload, default_name, registry)
    reading_cpu_s = time.thread_time() - began_s
    settings = item.settings
    seed = workload.scheduler.seed if settings.seed is None else settings.seed
    changed = _changed(workload.trace, settings, seed)
    candidate = CandidateConfig(
        name=workload.baseline if settings.config is None else settings.config.name,
        registry=registry,
        scheduler=given,
        changes=parse_changes(settings.plugins) if settings.plugins else (),
    )
    scheduler = candidate_scheduler(workload.scheduler, candidate)
    scheduler = msgspec.structs.replace(scheduler, seed=seed)
    if workload.recorded is not None:
        check_scheduler_names(workload.recorded, scheduler, candidate.name)
    run = simulate_trace(changed.trace, scheduler, registry.load, ("", lambda _: None))
    return _Simulated(workload, run, changed.notes, reading_cpu_s)


def _changed(trace: WorkloadTrace, settings: RunSettings, seed: int) -> ChangedTrace:
    """The workload with the load and the nodes of the settings, in this order."""
    loaded = with_load(trace, settings.load, seed)
    nodes = node_changes(loaded.trace, settings.add_nodes, settings.drop_nodes, seed)
    counted = with_node_changes(loaded.trace, nodes)
    mixed = with_node_mix(counted.trace, settings.node_mix, seed)
    final = with_spot_nodes(mixed.trace, settings.spot_nodes, seed)
    steps = (loaded, counted, mixed, final)
    return ChangedTrace(final.trace, tuple(note for step in steps for note in step.notes))


def _given_scheduler(settings: RunSettings, registry: PluginRegistry) -> SchedulerSettings | None:
    if settings.config is None:
        return None
    configuration = parse(settings.config.text, settings.config.name, registry)
    return scheduler_from_config(configuration, Latencies())


def _workload(
    source: WorkloadSource, scheduler_name: str, registry: PluginRegistry
) -> LoadedWorkload:
    found = _workloads.get(source, scheduler_name)
    if found is None:
        found = anyio.run(load_workload, source, scheduler_name, registry)
        _workloads.put(source, scheduler_name, found)
    return found


def _figures(item: RunItem, simulated: _Simulated) -> RunFigures:
    workload, run = simulated.workload, simulated.run
    # Fragmentation is comparable only if it refers to the same pods.
    pods = run.pods if workload.recorded is None else workload.recorded.pods
    measures = measured(run, workload_of(pods), item.prices)
    ends_ns = ((run.end_ns if span.to_ns is None else span.to_ns, span) for span in run.nodes)
    return RunFigures(
        nodes=len({span.node.name for span in run.nodes}),
        span_s=(run.end_ns - run.begin_ns) / NS_PER_S,
        node_hours=sum(end_ns - span.from_ns for end_ns, span in ends_ns) / _NS_PER_HOUR,
        figures=measures.figures,
        waits=WaitPercentiles.of(measures.to_bind_ns),
        classes=class_figures(to_place(run), item.job_class),
        sha256=sha256(msgspec.msgpack.encode(run)).hexdigest(),
        notes=(*workload.notes, *simulated.notes),
    )
