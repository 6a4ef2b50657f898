"""``python -m benchmarks.session``: CPU cost of a batch session.

Nodes have 32 cores, a job has equal pods and a gang of half of them, and queues have different
weights. Prints the median CPU time of several runs, or a profile with ``--profile``.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from asched.batch.registry import SessionRegistry
from asched.batch.session import run_session
from asched.framework.sessions import Compatibility, PluginOption, SessionOutcome, SessionSpec
from asched.model.groups import (
    CustomPodGroupSpec,
    CustomQueueSpec,
    VolcanoPodGroup,
    VolcanoQueue,
)
from asched.model.meta import Annotations, ObjectMeta
from asched.model.node import Node, NodeCondition, NodeStatus
from asched.model.pod import Container, Pod, PodSpec, PodStatus, ResourceRequirements
from asched.model.resources import AnyObject
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import EngineStarted, ObjectObserved
from asched.state.session_records import SessionsLoaded

SCHEDULER = "batch"
_START = datetime(2026, 1, 1, tzinfo=UTC)
_TIERS = (("priority", "gang", "conformance"), ("drf", "predicates", "proportion", "nodeorder"))
_ACTIONS = ("reclaim", "allocate", "backfill", "preempt")


class Size(NamedTuple):
    nodes: int
    jobs: int
    tasks: int
    """Tasks of each job."""
    queues: int
    full: bool = False
    """Whether running pods of the first queue occupy all nodes."""

    @property
    def pending(self) -> int:
        return self.jobs * self.tasks


def session_spec(compatibility: Compatibility) -> SessionSpec:
    tiers = tuple(tuple(PluginOption(name) for name in tier) for tier in _TIERS)
    return SessionSpec(SCHEDULER, _ACTIONS, tiers, compatibility=compatibility)


def cluster_of(size: Size) -> ClusterState:
    """A cluster of that size, with all jobs pending."""
    state = ClusterState()

    def no_plugin(name: str) -> type:
        raise LookupError(name)

    fold = Fold(state, no_plugin)
    fold.apply(EngineStarted("benchmark", 7))
    fold.apply(SessionsLoaded((session_spec(Compatibility.NONE),)))
    for index in range(size.nodes):
        fold.apply(ObjectObserved(_node(index)))
    for index in range(size.queues):
        queue = VolcanoQueue(
            metadata=ObjectMeta(name=f"q{index}"), spec=CustomQueueSpec(weight=1 + index % 3)
        )
        fold.apply(ObjectObserved(queue))
    if size.full:
        for obj in _job(-1, 4 * size.nodes, 0, cpu="8", running=True):
            fold.apply(ObjectObserved(obj))
    for index in range(size.jobs):
        cpu = f"{500 * (1 + index % 8)}m"
        for obj in _job(index, size.tasks, index % size.queues, cpu=cpu, running=False):
            fold.apply(ObjectObserved(obj))
    return state


def _node(index: int) -> Node:
    return Node(
        metadata=ObjectMeta(name=f"node-{index}", labels={"zone": f"z{index % 3}"}),
        status=NodeStatus(
            allocatable={"cpu": "32", "memory": "128Gi", "pods": "110"},
            conditions=(NodeCondition(type="Ready", status="True"),),
        ),
    )


def _job(number: int, tasks: int, queue: int, *, cpu: str, running: bool) -> list[AnyObject]:
    name = "running" if running else f"job-{number}"
    created = _START + timedelta(seconds=number)
    objects: list[AnyObject] = [
        VolcanoPodGroup(
            metadata=ObjectMeta(name=name, namespace="ns", creation_timestamp=created),
            spec=CustomPodGroupSpec(
                min_member=1 if running else max(1, tasks // 2), queue=f"q{queue}"
            ),
        )
    ]
    requests: dict[str, str | int | float] = {"cpu": cpu, "memory": "1Gi"}
    container = Container(name="main", resources=ResourceRequirements(requests=requests))
    for index in range(tasks):
        pod = Pod(
            metadata=ObjectMeta(
                name=f"{name}-{index}",
                namespace="ns",
                uid=f"{name}-{index}",
                creation_timestamp=created,
                annotations=Annotations(group_name=name),
            ),
            spec=PodSpec(
                scheduler_name=SCHEDULER,
                containers=(container,),
                node_name=f"node-{index // 4}" if running else "",
            ),
            status=PodStatus(phase="Running" if running else "Pending"),
        )
        objects.append(pod)
    return objects


def measure(size: Size, compatibility: Compatibility, runs: int) -> tuple[float, SessionOutcome]:
    """Returns (median CPU seconds of a session, its outcome)."""
    state = cluster_of(size)
    registry = SessionRegistry.discover()
    spec = session_spec(compatibility)
    outcome = run_session(state, spec, registry, 0)
    times_s = []
    for number in range(1, runs + 1):
        gc.collect()
        start = time.process_time()
        outcome = run_session(state, spec, registry, number)
        times_s.append(time.process_time() - start)
    return statistics.median(times_s), outcome


SIZES = (
    Size(5000, 50, 50, 10),
    Size(5000, 100, 50, 10),
    Size(5000, 200, 50, 10),
    Size(5000, 400, 50, 10),
    Size(1000, 200, 50, 10),
    Size(1000, 20, 50, 10, full=True),
    Size(5000, 200, 50, 10, full=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.session", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kube-batch", action="store_true", help="in compatibility mode")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    mode = Compatibility.KUBE_BATCH if options.kube_batch else Compatibility.NONE
    if options.profile:
        state, registry = cluster_of(SIZES[2]), SessionRegistry.discover()
        with cProfile.Profile() as profile:
            run_session(state, session_spec(mode), registry, 0)
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
        return
    print("nodes  jobs  pending  full   bound  evicted  CPU s  us/task")
    for size in SIZES:
        cpu_s, outcome = measure(size, mode, options.runs)
        print(
            f"{size.nodes:5}  {size.jobs:4}  {size.pending:7}  {size.full!s:5}"
            f" {len(outcome.binds):6}  {len(outcome.evictions):7}"
            f"  {cpu_s:5.2f}  {cpu_s / size.pending * 1e6:7.0f}"
        )


if __name__ == "__main__":
    main()
