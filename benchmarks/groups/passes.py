"""Measures one pass over pending gangs in a large cluster.

    python -m benchmarks.groups.passes --nodes 5000 --pods 50000 --runs 3

Prints the CPU time of the decisions, with all default plugins and all records folded: the median
and the lowest of the runs. A run is a forked process, because a pass cannot be undone.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator
from statistics import median
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer

from asched.config.kube_scheduler import KubeSchedulerConfiguration
from asched.config.registry import PluginRegistry
from asched.config.resolve import resolve
from asched.core.heap import freeze_gc, tune_gc
from asched.core.inputs import Upserted
from asched.core.scheduler import Budget, SchedulerCore
from asched.model.resources import GroupResource, Resource, WatchedResource, decode
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.group_records import PodGroupAttempted
from asched.state.records import EngineStarted, ProfilesLoaded

RACK: Final = "example.com/rack"
_RACKS: Final = 10
_START_NS: Final = 1_790_000_000_000_000_000
_PLUGINS: Final = (
    "GangScheduling",
    "TopologyPlacementGenerator",
    "PodGroupPodsCount",
    "PlacementBestFit",
)

_EACH: Final = Budget(1)

Json = dict[str, Any]


class Gangs(NamedTuple):
    """Pending gangs of like pods."""

    name: str
    gangs: int
    members: int
    cpu: str
    """Of each member; nodes have 64 cores, half of them in use."""
    rack: bool = False
    """Each gang requires one of 10 racks."""

    def objects(self) -> Iterator[tuple[WatchedResource, Json]]:
        """The PodGroups and their pods."""
        for number in range(self.gangs):
            name = f"gang-{number}"
            spec: Json = {"schedulingPolicy": {"gang": {"minCount": self.members}}}
            if self.rack:
                spec["schedulingConstraints"] = {"topology": [{"key": RACK}]}
            yield GroupResource.POD_GROUPS, {"metadata": _metadata(name), "spec": spec}
            for index in range(self.members):
                pod = _pod(f"{name}-{index}", self.cpu)
                pod["spec"]["schedulingGroup"] = {"podGroupName": name}
                yield Resource.PODS, pod


WORKLOADS: Final = (
    Gangs("a gang of 1,000 like pods", 1, 1_000, "1"),
    Gangs("the same, required to be in one of 10 racks", 1, 1_000, "1", rack=True),
    Gangs("500 gangs of 20 pods that do not fit", 500, 20, "40"),
    Gangs("500 gangs of 20 pods that fit in none of 10 racks", 500, 20, "40", rack=True),
)


def _metadata(name: str) -> Json:
    return {"name": name, "namespace": "default", "uid": name}


def _pod(name: str, cpu: str) -> Json:
    requests = {"cpu": cpu, "memory": "1Gi"}
    containers = [{"name": "c", "image": "i", "resources": {"requests": requests}}]
    return {"metadata": _metadata(name), "spec": {"containers": containers}}


def _node(number: int) -> Json:
    labels = {"kubernetes.io/hostname": f"n{number}", RACK: f"r{number % _RACKS}"}
    return {
        "metadata": {"name": f"n{number}", "uid": f"u{number}", "labels": labels},
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "250"}},
    }


class Pass:
    """A scheduler with a cluster with half the cores in use."""

    def __init__(self, nodes: int, pods: int) -> None:
        registry = PluginRegistry.discover()
        self._core = SchedulerCore(
            Fold(ClusterState(), registry.load), monotonic_ns=time.thread_time_ns
        )
        self._core.begin_turn(_START_NS)
        self._core.record_turn()
        self._core.apply(EngineStarted("gangs", 0))
        self._core.apply(ProfilesLoaded(resolve(_configuration(), registry)))
        self._observe(Resource.NAMESPACES, {"metadata": {"name": "default", "uid": "default"}})
        for number in range(nodes):
            self._observe(Resource.NODES, _node(number))
        cpu = f"{32_000 * nodes // max(pods, 1)}m"
        for number in range(pods):
            pod = _pod(f"p{number}", cpu)
            pod["spec"]["nodeName"] = f"n{number % nodes}"
            self._observe(Resource.PODS, pod)

    def _observe(self, resource: WatchedResource, made: Json) -> None:
        # Every resource's type is in AnyObject, which mypy cannot infer.
        found = decode(resource, json.dumps(made).encode())
        self._core.observe(Upserted(resource, found))  # type: ignore[arg-type]

    def measure(self, gangs: Gangs) -> float:
        """The CPU time of one attempt of each gang."""
        for resource, made in gangs.objects():
            self._observe(resource, made)
        self._core.take_records()
        freeze_gc()
        began_s = time.thread_time()
        attempts = 0
        while decisions := self._core.decide(_EACH):
            attempts += sum(isinstance(one, PodGroupAttempted) for one in decisions)
        cpu_s = time.thread_time() - began_s
        assert attempts == gangs.gangs
        return cpu_s


def _configuration() -> KubeSchedulerConfiguration:
    profile = {
        "schedulerName": "default-scheduler",
        "plugins": {"multiPoint": {"enabled": [{"name": plugin} for plugin in _PLUGINS]}},
        "pluginConfig": [{"name": "GangScheduling", "args": {"groupCycle": True}}],
    }
    return msgspec.convert({"profiles": [profile]}, KubeSchedulerConfiguration)


def _in_fork(cluster: Pass, gangs: Gangs) -> float:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=lambda: theirs.send(cluster.measure(gangs)))
    process.start()
    theirs.close()
    cpu_s: float = ours.recv()
    process.join()
    return cpu_s


def main(
    nodes: Annotated[int, typer.Option(min=_RACKS)] = 5_000,
    pods: Annotated[int, typer.Option(min=0)] = 50_000,
    runs: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Measure one pass over pending gangs in a large cluster."""
    tune_gc()
    cluster = Pass(nodes, pods)
    print("| | CPU | lowest |\n|---|---|---|")
    for gangs in WORKLOADS:
        cpu_s = [_in_fork(cluster, gangs) for _ in range(runs)]
        print(f"| {gangs.name} | {median(cpu_s):.2f} s | {min(cpu_s):.2f} s |", flush=True)


if __name__ == "__main__":
    typer.run(main)
