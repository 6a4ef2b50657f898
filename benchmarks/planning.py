"""How planning scales: parallel replay and sweeps on processes, and a model of larger clusters.

    python -m benchmarks.planning JOURNAL [--runs 3]

The journal needs checkpoints (``asched checkpoint --every 20000``). Elapsed times are of warm
processes: each has imported the code and read the workload before.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

from distributed import LocalCluster

from asched import planning
from asched.planning.execution import execute
from asched.planning.items import WorkAnswer
from asched.planning.verification import plan

WORKERS = (1, 2, 10, 100, 300, 1000)


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


def elapsed_s(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def dispatch_s(executor: Executor, calls: int = 500) -> float:
    """Time for one call that does nothing, of many at once."""

    def work() -> None:
        for future in [executor.submit(abs, -1) for _ in range(calls)]:
            future.result()

    work()
    return elapsed_s(work) / calls


def measured(journal: Path, runs: int) -> dict[str, object]:
    history = planning.open(journal)
    sweep = planning.sweep(history, seed=range(16), drop_nodes=["", "10%"])
    segments = plan(history)
    found: dict[str, object] = {"items": len(sweep), "segments": len(segments)}
    answers: list[WorkAnswer] = []
    for processes in (1, 2):
        with planning.own_processes(processes) as executor:
            warm = planning.sweep(history, seed=range(processes)).items
            reading = [answer.cpu_s - answer.run_cpu_s for answer in execute(warm, executor)]
            sweeps, replays = [], []
            for _ in range(runs):
                sweeps.append(elapsed_s(lambda: answers.extend(execute(sweep.items, executor))))
                replays.append(elapsed_s(lambda: execute(segments, executor)))
            found[f"sweep_{processes}_s"] = round(statistics.median(sweeps), 2)
            found[f"replay_{processes}_s"] = round(statistics.median(replays), 2)
            items_s = [answer.cpu_s for answer in answers[-len(sweep) :]]
            busy_s = processes * statistics.median(sweeps)
            found[f"sweep_{processes}_overhead"] = round(1 - sum(items_s) / busy_s, 4)
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
        each_s = dispatch_s(executor)
    costs = Costs([statistics.median(items_s)] * 10_000, max(reading), each_s)
    alone_s = makespan_s(costs, 1)
    return found | {
        "item_s": round(statistics.median(items_s), 3),
        "reading_s": round(max(reading), 3),
        "dispatch_ms": round(each_s * 1000, 3),
        "model": {str(n): round(alone_s / makespan_s(costs, n), 1) for n in WORKERS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(json.dumps(measured(options.journal, options.runs), indent=1))


if __name__ == "__main__":
    main()
