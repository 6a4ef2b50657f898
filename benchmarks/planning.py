"""How planning scales: sweeps and replay on processes, and a model of larger clusters.

    python -m benchmarks.planning [--runs 3] [--pods 2000] [--replayed-pods 40000] [-o table|json]

The workloads are scenarios without rejections, so that their journals are small: a short one for
runs of a sweep, a long one for a replay, with as many checkpoints as a daemon keeps. One process
and two processes do the same work in turns. They are warm: each has imported the code and read the
workload before. For the overhead of a replay, two workers share a processor. The costs of an item
and of Dask's scheduler are measured here; the model computes from them how long 10,000 items take
on many workers.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from distributed import LocalCluster

from asched import planning
from asched.cli.simulation import JournalWriter
from asched.config.registry import PluginRegistry
from asched.journal.checkpoints import SPACING, write_checkpoints
from asched.journal.opening import open_journal
from asched.planning.execution import execute
from asched.planning.items import RunItem, RunSettings, SegmentItem, WorkAnswer, WorkItem
from asched.planning.verification import plan
from asched.planning.workloads import ScenarioText, default_scheduler
from asched.simulator.expansion import expand
from asched.simulator.loop import Simulation
from asched.simulator.scenario import read_scenario

WORKERS: Final = (1, 2, 10, 30, 100, 300, 1_000, 3_000)
ITEMS: Final = 10_000
LONG_ITEM_S: Final = 60.0
"""A day of a busy cluster, for the second column of the model."""
_CHECKPOINTS: Final = SPACING
_MAXRSS_BYTES: Final = 1 if sys.platform == "darwin" else 1024


class Size(NamedTuple):
    """The size of the workload."""

    nodes: int = 200
    pods: int = 2_000
    replayed_pods: int = 40_000
    seeds: int = 8
    """Runs of the sweep are twice as many."""


class Costs(NamedTuple):
    """What the model needs, in seconds."""

    items_s: Sequence[float]
    """CPU time of each item."""
    reading_s: float
    """A worker's first item: reading the workload."""
    dispatch_s: float
    """The scheduler's time for an item; it handles one at a time."""


def makespan_s(costs: Costs, workers: int) -> float:
    """When the last item ends on ``workers`` workers that take the next item when they are free,
    on a virtual clock."""
    free = [(0.0, True)] * workers
    scheduler_s = end_s = 0.0
    for item_s in costs.items_s:
        at_s, first = heapq.heappop(free)
        scheduler_s = max(scheduler_s, at_s) + costs.dispatch_s
        done_s = scheduler_s + item_s + (costs.reading_s if first else 0.0)
        end_s = max(end_s, done_s)
        heapq.heappush(free, (done_s, False))
    return end_s


class Speed(msgspec.Struct, frozen=True, rename="camel"):
    """The same items on one process and on two, in seconds; the shortest of the runs."""

    items: int
    one_s: float
    two_s: float
    cpu_s: Sequence[float]
    """CPU time of the worker and of the planning process, with one process, for each run."""
    work_cpu_s: Sequence[float]
    """What the work takes without items: of a sweep, its simulations; of a replay, the replay of
    the whole journal as one segment, in another worker on the same processor at the same time."""

    @property
    def speed_up(self) -> float:
        return self.one_s / self.two_s

    @property
    def overhead(self) -> float:
        """The part of the CPU time that the division into items costs: the median of the runs."""
        pairs = zip(self.work_cpu_s, self.cpu_s, strict=True)
        return statistics.median(1 - work / whole for work, whole in pairs)


class PlanningFigures(msgspec.Struct, frozen=True, rename="camel"):
    """The result."""

    records: int
    """Of the journal that is replayed."""
    sweep: Speed
    replay: Speed
    item_s: float
    reading_s: float
    empty_item_ms: float
    """CPU time of an item that fails at once: encoding, two processes, comparison of the code."""
    dask_dispatch_ms: float
    first_rss_mib: float
    """Highest memory of a worker after its first item."""
    last_rss_mib: float
    """After all items."""
    load_before: float

    def model(self, item_s: float) -> dict[int, float]:
        """Speed-ups by number of workers."""
        costs = Costs([item_s] * ITEMS, self.reading_s, self.dask_dispatch_ms / 1000)
        alone_s = makespan_s(costs, 1)
        return {workers: alone_s / makespan_s(costs, workers) for workers in WORKERS}


def dispatch_s(executor: Executor, calls: int = 500) -> float:
    """Time for one call that does nothing, of many at once."""

    def work() -> None:
        for future in [executor.submit(abs, -1) for _ in range(calls)]:
            future.result()

    work()
    began_s = time.perf_counter()
    work()
    return (time.perf_counter() - began_s) / calls


def highest_rss_mib() -> float:
    """Highest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES / (1 << 20)


async def write_journal(file: Path, nodes: int, pods: int) -> int:
    """Write the journal of a workload, with checkpoints. Returns the number of records."""
    requests = {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    scenario = {
        "apiVersion": "asched.dev/v1",
        "kind": "Scenario",
        "nodes": [
            {
                "name": "node",
                "count": nodes,
                "zones": ["a", "b", "c"],
                "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
            }
        ],
        "pods": [
            {
                "name": "job",
                "count": pods,
                "template": {"spec": {"containers": [{"name": "c", "image": "i", **requests}]}},
                "arrival": {"poisson": "1s"},
                # Half of the cores are in use on average.
                "lifetime": {"exponential": f"{nodes * 4}s"},
            }
        ],
    }
    registry = PluginRegistry.discover()
    trace = expand(read_scenario(scenario), "default-scheduler")
    async with open_journal(str(file)) as store:
        writer = await JournalWriter.claim(store, trace.begin_ns)
        for turn in Simulation(trace, default_scheduler(registry), registry.load).turns():
            await writer.add(turn)
        await writer.flush()
        records = (await store.head()).seq
        await write_checkpoints(store, registry.load, every=max(1, records // _CHECKPOINTS))
        return records


def measured(folder: Path, size: Size, runs: int) -> PlanningFigures:
    load_before = os.getloadavg()[0]
    short, long = folder / "short.db", folder / "long.db"
    asyncio.run(write_journal(short, size.nodes, size.pods))
    records = asyncio.run(write_journal(long, size.nodes, size.replayed_pods))
    history = planning.open(short)
    sweep = planning.sweep(history, seed=range(size.seeds), drop_nodes=["", "10%"]).items
    segments = plan(planning.open(long))
    with (
        planning.own_processes(1) as one,
        planning.own_processes(1) as other,
        planning.own_processes(2) as two,
    ):
        first = execute([sweep[0], segments[0]], one)[0]
        first_rss_mib = one.submit(highest_rss_mib).result()
        execute([*sweep[:2], *segments[:2]], two)
        empty = _timed(_empty_items(), one)
        # In turns, so that other load of the machine affects all of them.
        pairs = [(_timed(sweep, one), _timed(sweep, two)) for _ in range(runs)]
        found = [run for run, _ in pairs]
        replays = [(_timed(segments, one), _timed(segments, two)) for _ in range(runs)]
        execute([*sweep, *segments[:2]], other)  # as much as ``one`` did before
        last_rss_mib = one.submit(highest_rss_mib).result()
        shared = [_on_one_processor(segments, one, other) for _ in range(runs)]
    empty_s = empty.cpu_s / len(empty.answers)
    simulations_s = [
        sum(answer.cpu_s for answer in each.answers) - empty_s * len(sweep) for each in found
    ]
    return PlanningFigures(
        records=records,
        sweep=_speed(pairs, list(zip((run.cpu_s for run in found), simulations_s, strict=True))),
        replay=_speed(replays, shared),
        item_s=statistics.median(answer.cpu_s for answer in found[-1].answers),
        reading_s=first.cpu_s - first.run_cpu_s,
        empty_item_ms=empty_s * 1000,
        dask_dispatch_ms=_dask_dispatch_s() * 1000,
        first_rss_mib=first_rss_mib,
        last_rss_mib=last_rss_mib,
        load_before=load_before,
    )


class Timed(NamedTuple):
    """One execution of items."""

    elapsed_s: float
    cpu_s: float
    """Of this process and of one worker."""
    answers: Sequence[WorkAnswer]


def _timed(items: Sequence[WorkItem], executor: Executor) -> Timed:
    began_cpu_s = time.process_time() + executor.submit(time.process_time).result()
    began_s = time.perf_counter()
    answers = execute(items, executor)
    elapsed_s = time.perf_counter() - began_s
    cpu_s = time.process_time() + executor.submit(time.process_time).result() - began_cpu_s
    return Timed(elapsed_s, cpu_s, answers)


def _on_one_processor(
    segments: Sequence[SegmentItem], first: Executor, second: Executor
) -> tuple[float, float]:
    """CPU time of the segments with the planning process, and of one segment with all records.

    Two workers replay at the same time on one processor, which alternates between them every few
    milliseconds: what slows the machine down affects both equally. Then they change roles. One
    after the other, equal replays differ by more than the overhead.
    """
    processors = os.sched_getaffinity(0)
    for executor in (first, second):
        executor.submit(os.sched_setaffinity, 0, {min(processors)}).result()
    whole = [_whole(segments)]
    began_s = time.process_time()
    divided_s = whole_s = 0.0
    for one, other in ((first, second), (second, first)):
        before_s = [_worker_cpu_s(one), _worker_cpu_s(other)]
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(_succeed, (segments, whole), (one, other)))
        divided_s += _worker_cpu_s(one) - before_s[0]
        whole_s += _worker_cpu_s(other) - before_s[1]
    for executor in (first, second):
        executor.submit(os.sched_setaffinity, 0, processors).result()
    return divided_s + time.process_time() - began_s, whole_s


def _worker_cpu_s(executor: Executor) -> float:
    return executor.submit(time.process_time).result()


def _succeed(items: Sequence[WorkItem], executor: Executor) -> None:
    failed = [answer.error for answer in execute(items, executor)]
    assert not any(failed), next(filter(None, failed))


def _speed(
    pairs: Sequence[tuple[Timed, Timed]], cpu_and_work_s: Sequence[tuple[float, float]]
) -> Speed:
    failed = [answer.error for pair in pairs for run in pair for answer in run.answers]
    assert not any(failed), next(filter(None, failed))
    return Speed(
        items=len(pairs[0][0].answers),
        one_s=min(one.elapsed_s for one, _ in pairs),
        two_s=min(two.elapsed_s for _, two in pairs),
        cpu_s=[cpu_s for cpu_s, _ in cpu_and_work_s],
        work_cpu_s=[work_s for _, work_s in cpu_and_work_s],
    )


def _whole(items: Sequence[SegmentItem]) -> SegmentItem:
    """All segments as one."""
    last = items[-1].segment
    checkpoints = [seq for item in items for seq in item.segment.checkpoints]
    replace = msgspec.structs.replace
    return replace(
        items[0],
        segment=replace(last, after_seq=items[0].segment.after_seq, checkpoints=(*checkpoints,)),
        checkpoints=tuple(dict.fromkeys(pair for item in items for pair in item.checkpoints)),
    )


def _empty_items(count: int = 200) -> list[RunItem]:
    return [
        RunItem(ScenarioText("empty", ""), RunSettings(seed=seed), "namespace")
        for seed in range(count)
    ]


def _dask_dispatch_s() -> float:
    with (
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
        ) as cluster,
        planning.dask_executor(cluster.scheduler_address) as executor,
    ):
        return dispatch_s(executor)


def table(found: PlanningFigures) -> Iterator[str]:
    """The tables for ``docs/explanation/performance.md``, line by line."""
    yield "| figure | sweep | replay | asked |"
    yield "| --- | ---: | ---: | ---: |"
    both = found.sweep, found.replay
    yield _row("items", *(f"{one.items:,}" for one in both), "")
    yield _row("one process", *(f"{one.one_s:.1f} s" for one in both), "")
    yield _row("two processes", *(f"{one.two_s:.1f} s" for one in both), "")
    yield _row("speed-up", *(f"{one.speed_up:.2f}" for one in both), "at least 1.85")
    yield _row("overhead", *(f"{one.overhead:.1%}" for one in both), "below 5%")
    yield ""
    yield "| figure | |"
    yield "| --- | ---: |"
    yield f"| records of the journal that is replayed | {found.records:,} |"
    yield (
        "| CPU time of a run, of reading the workload |"
        f" {found.item_s:.2f} s, {found.reading_s:.2f} s |"
    )
    yield f"| CPU time of an item that fails at once | {found.empty_item_ms:.1f} ms |"
    yield f"| Dask's scheduler, for each item | {found.dask_dispatch_ms:.2f} ms |"
    yield (
        "| highest memory of a worker after its first item, after all |"
        f" {found.first_rss_mib:.0f} MiB, {found.last_rss_mib:.0f} MiB |"
    )
    yield f"| load before | {found.load_before:.2f} |"
    yield ""
    yield f"| workers | speed-up, items of {found.item_s:.2g} s | speed-up, items of 60 s |"
    yield "| ---: | ---: | ---: |"
    short, long = found.model(found.item_s), found.model(LONG_ITEM_S)
    for workers in WORKERS:
        yield f"| {workers:,} | {short[workers]:,.1f} | {long[workers]:,.1f} |"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="repetitions of each measurement")
    size = Size()
    parser.add_argument("--pods", type=int, default=size.pods, help="pods of a run")
    parser.add_argument(
        "--replayed-pods", type=int, default=size.replayed_pods, help="pods of the replayed journal"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = Size(pods=options.pods, replayed_pods=options.replayed_pods)
        found = measured(Path(folder), size, options.runs)
    if options.output == "json":
        print(json.dumps(msgspec.to_builtins(found), indent=1))
    else:
        print(*table(found), sep="\n")


if __name__ == "__main__":
    main()
