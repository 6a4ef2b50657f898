"""Measures what objects of a hostile tenant cost the scheduler in a large cluster.

    python -m benchmarks.hostile --nodes 5000 --pods 50000 --objects 1000

For each class of :mod:`tests.security.hostile_objects` a forked process observes the objects, at
first a few every second while it places pods of another namespace, and then all. Those of
:mod:`tests.security.hostile_groups` are pod groups with their members, and those of
:mod:`tests.security.hostile_series` objects that cost together only. Prints the longest
step of the loop, the growth of memory, and the rate at which the other pods were placed. The rate
is compared with that of a second process, which places the same pods without the objects. Both run
in turns of a fraction of a second, so that caches, clock rates and other processes affect them
equally. All times are CPU time of the loop. The exit status is 1 if a class is above a limit. Linux
only.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from asched.config.kube_scheduler import KubeSchedulerConfiguration
from asched.config.registry import PluginRegistry
from asched.config.resolve import resolve
from asched.core.heap import freeze_gc, tune_gc
from asched.core.inputs import Upserted
from asched.core.scheduler import Budget, SchedulerCore
from asched.daemon.step_time import measured_step_ns
from asched.journal.codec import CODEC
from asched.model.resources import DecodeError, Resource, WatchedResource, decode
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import Assigned, EngineStarted, ProfilesLoaded
from tests.security.hostile_groups import GROUP_CLASSES, RACK, HostileGroup, profiles
from tests.security.hostile_objects import (
    ALLOWED_CLASSES,
    CLAIM_CLASSES,
    OTHER_CLASSES,
    POD_CLASSES,
    HostileClass,
    Json,
    a_claim,
    a_device_class,
    a_pod,
    a_pod_with_claims,
    a_slice,
)
from tests.security.hostile_series import SERIES_CLASSES, HostileSeries

HOLD_LIMIT_S = 1.0
MEMORY_LIMIT_MB = 1024
RATE_LIMIT = 0.8

_START_NS = 1_790_000_000_000_000_000
_BACKLOG = 400
"""Pods of the other namespace that wait at the begin of a turn: more than it can place, because
yielding pods are attempted as soon as none of them waits."""
_ARRIVALS_PER_S = 5
_MEMBERS_PER_S = 20
"""Of groups and series: their members are pods like others, and many together are the attack."""
_SLICE_NS = 20_000_000
_TURN_S = 0.5
"""How long the processes that are compared run in turns."""
_PLACEHOLDER = 7_777_777

AnyClass = HostileClass | HostileGroup | HostileSeries

Raw = tuple[WatchedResource, bytes]
"""An object as a watch shows it."""


class Result(NamedTuple):
    """The cost of one class of objects."""

    name: str
    hold_s: float
    """The longest step: one object decoded and observed, or one round of decisions."""
    grown_mb: int
    journal_kb: float
    """Size of the records of one object, with the decisions about it."""
    arriving: float
    """The rate of other pods while objects arrive, as a share of the rate without objects."""
    present: float
    """The same when all objects are there."""

    @property
    def passed(self) -> bool:
        return (
            self.hold_s <= HOLD_LIMIT_S
            and self.grown_mb <= MEMORY_LIMIT_MB
            and min(self.arriving, self.present) >= RATE_LIMIT
        )


class Loop:
    """The turns of an engine, without a journal and without an API server."""

    def __init__(self, nodes: int, pods: int) -> None:
        registry = PluginRegistry.discover()
        self._core = SchedulerCore(
            Fold(ClusterState(), registry.load), monotonic_ns=time.thread_time_ns
        )
        self._began_ns = time.thread_time_ns()
        self._number = 0
        self.hold_s = 0.0
        self.placed = 0
        self.hostile_bytes = 0
        self._bound: list[Assigned] = []
        """Pods that were placed in the last turn."""
        self._begin()
        self._core.apply(EngineStarted("hostile", 0, step_ns=measured_step_ns()))
        self._core.apply(ProfilesLoaded(resolve(_configuration(), registry)))
        for name in ("innocent", "evil"):
            self.observe(Resource.NAMESPACES, _bytes({"metadata": {"name": name, "uid": name}}))
        self.observe(Resource.DEVICE_CLASSES, _bytes(a_device_class()))
        for number in range(nodes):
            self.observe(Resource.NODES, _bytes(_node(number)))
            self.observe(Resource.RESOURCE_SLICES, _bytes(a_slice(number, f"n{number}")))
        for number in range(pods):
            self.observe(Resource.PODS, self._new_innocent(nodeName=f"n{number % nodes}"))
        self._core.take_records()
        self.hold_s = 0.0

    def observe(self, resource: WatchedResource, raw: bytes) -> None:
        """What a watch does with a line, and the engine with the change."""
        began_s = time.thread_time()
        try:
            found = decode(resource, raw)
        except DecodeError:
            found = None
        if found is not None:
            # Every resource's type is in AnyObject, which mypy cannot infer.
            self._core.observe(Upserted(resource, found))  # type: ignore[arg-type]
        self.hold_s = max(self.hold_s, time.thread_time() - began_s)

    def restart_clock(self) -> None:
        """In a forked process, which has used no CPU time yet."""
        self._began_ns = time.thread_time_ns() - (self._core.now_ns - _START_NS)

    def turn(self) -> None:
        """One turn: the watch shows the bindings of the last one and new pods, then a time slice of
        decisions."""
        self._begin()
        for bound in self._bound:
            if bound.key.startswith("innocent/innocent-"):
                number = int(bound.key.rpartition("-")[2])
                self.observe(Resource.PODS, _innocent(number, nodeName=bound.node))
            elif (entry := self._core.state.pods.get(bound.key)) is not None:
                # The bytes of a hostile pod are not kept.
                pod = entry.info.pod
                spec = msgspec.structs.replace(pod.spec, node_name=bound.node)
                shown = msgspec.structs.replace(pod, spec=spec)
                self._core.observe(Upserted(Resource.PODS, shown))
        self._bound.clear()
        for _ in range(_BACKLOG - self._waiting()):
            self.observe(Resource.PODS, self._new_innocent())
        ends_ns = time.thread_time_ns() + _SLICE_NS
        while time.thread_time_ns() < ends_ns:
            began_s = time.thread_time()
            decisions = self._core.decide(Budget(1))
            self.hold_s = max(self.hold_s, time.thread_time() - began_s)
            if not decisions:
                break
            for decision in decisions:
                if isinstance(decision, Assigned):
                    self._bound.append(decision)
                    self.placed += decision.key.startswith("innocent/innocent-")
        self._take()

    def node_of(self, key: str) -> str:
        """Where the pod was placed."""
        return self._core.state.pods[key].node

    def _waiting(self) -> int:
        return sum(1 for key in self._core.state.queue.active if key.startswith("innocent/"))

    def _take(self) -> None:
        for record in self._core.take_records():
            stored = CODEC.encode(record)
            if stored.subject.startswith("pod/evil/"):
                self.hostile_bytes += len(stored.payload)

    def _begin(self) -> None:
        self._core.begin_turn(_START_NS + time.thread_time_ns() - self._began_ns)
        self._core.record_turn()

    def _new_innocent(self, **spec: str) -> bytes:
        self._number += 1
        return _innocent(self._number, **spec)


def _innocent(number: int, **spec: str) -> bytes:
    pod = a_pod("innocent", number, meta={"labels": {"app": f"a{number % 200}"}})
    pod["metadata"]["namespace"] = "innocent"
    pod["spec"].update(spec)
    return _bytes(pod)


def _bytes(made: Json) -> bytes:
    return json.dumps(made).encode()


def _configuration() -> KubeSchedulerConfiguration:
    named = [{"schedulerName": "default-scheduler"}, *profiles()]
    return msgspec.convert({"profiles": named}, KubeSchedulerConfiguration)


def _node(number: int) -> Json:
    labels = {
        "kubernetes.io/hostname": f"n{number}",
        "topology.kubernetes.io/zone": f"z{number % 10}",
        RACK: f"r{number % 50}",
    }
    return {
        "metadata": {"name": f"n{number}", "uid": f"u{number}", "labels": labels},
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "250"}},
    }


class Measured(NamedTuple):
    """A slice of one phase."""

    placed: int
    """Other pods."""
    cpu_s: float


def _place(loop: Loop, seconds: float) -> Measured:
    """Place other pods for this time."""
    before, began_s = loop.placed, time.thread_time()
    while time.thread_time() - began_s < seconds:
        loop.turn()
    return Measured(loop.placed - before, time.thread_time() - began_s)


def _objects(of: HostileClass) -> Iterator[list[Raw]]:
    """Distinct objects, created from one: a generator would take longer than the scheduler. Each
    claim has a pod that names it."""
    template, number = of.raw(_PLACEHOLDER), 0
    while True:
        number += 1
        made: list[Raw] = [(of.resource, template.replace(b"7777777", b"%07d" % number))]
        if of.resource is Resource.RESOURCE_CLAIMS:
            pod = a_pod_with_claims("claims", number, [f"claim-{number:07}"])
            made.append((Resource.PODS, _bytes(pod)))
        yield made


def _groups(of: HostileGroup | HostileSeries) -> Iterator[list[Raw]]:
    number = 0
    while True:
        number += 1
        yield [*of.raw(number)]


class Phase(NamedTuple):
    """The rates of other pods, with the hostile objects and without."""

    hostile: float
    usual: float

    @property
    def share(self) -> float:
        return self.hostile / self.usual


def _compare(seconds: float, hostile: Callable[[float], Measured], usual: Usual) -> Phase:
    """Run both in turns, each for this time."""
    slices = max(1, round(seconds / _TURN_S))
    placed, placed_usually = [], []
    for _ in range(slices):
        placed.append(hostile(seconds / slices))
        placed_usually.append(usual.place(seconds / slices))
    return Phase(_rate(placed), _rate(placed_usually))


def _rate(slices: Sequence[Measured]) -> float:
    return sum(each.placed for each in slices) / sum(each.cpu_s for each in slices)


class Usual:
    """A process without hostile objects, which runs only when it is asked to."""

    def __init__(self, loop: Loop) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()

        def run() -> None:
            self._connection.close()
            loop.restart_clock()
            while (seconds := theirs.recv()) > 0:
                theirs.send(_place(loop, seconds))

        self._process = context.Process(target=run)
        self._process.start()
        theirs.close()

    def place(self, seconds: float) -> Measured:
        """Place pods for this time."""
        self._connection.send(seconds)
        found: Measured = self._connection.recv()
        return found

    def stop(self) -> None:
        self._connection.send(0)
        self._process.join()


class _Arrivals:
    """Observes objects of a class at a constant rate, while other pods are placed."""

    def __init__(self, loop: Loop, of: AnyClass, objects: int) -> None:
        self._loop = loop
        if not isinstance(of, HostileClass):
            self._made, self._per_s = _groups(of), _MEMBERS_PER_S / of.members
            self.objects = max(1, objects // of.members)
        else:
            self._made, self._per_s = _objects(of), _ARRIVALS_PER_S
            self.objects = objects
        self._passed_s = 0.0
        self._ready: deque[list[Raw]] = deque()
        self.observed = 0

    def observe(self) -> None:
        """Observe the next object."""
        for resource, raw in self._ready.popleft() if self._ready else next(self._made):
            self._loop.observe(resource, raw)
        self.observed += 1

    def place(self, seconds: float) -> Measured:
        """Like :func:`_place`, with the objects of this time."""
        # The CPU time of their creation is not that of the scheduler.
        while len(self._ready) <= seconds * self._per_s:
            self._ready.append(next(self._made))
        before, began_s = self._loop.placed, time.thread_time()
        while (passed_s := time.thread_time() - began_s) < seconds:
            if self.observed < (self._passed_s + passed_s) * self._per_s:
                self.observe()
            self._loop.turn()
        passed_s = time.thread_time() - began_s
        self._passed_s += passed_s
        return Measured(self._loop.placed - before, passed_s)


def measure(loop: Loop, of: AnyClass, objects: int, seconds: float) -> Result:
    """Run in a forked process: the loop cannot be reset."""
    usual = Usual(loop)
    loop.restart_clock()
    rss_mb = highest_mb = _rss_mb()
    loop.hold_s = 0.0
    arrivals = _Arrivals(loop, of, objects)
    arriving = _compare(seconds, arrivals.place, usual)
    while arrivals.observed < arrivals.objects:
        arrivals.observe()
        if arrivals.observed % 20 == 0 or not isinstance(of, HostileClass):
            loop.turn()
            highest_mb = max(highest_mb, _rss_mb())
    present = _compare(seconds, lambda for_s: _place(loop, for_s), usual)
    usual.stop()
    return Result(
        of.name,
        loop.hold_s,
        max(highest_mb, _rss_mb()) - rss_mb,
        loop.hostile_bytes / 1024 / arrivals.observed,
        arriving.share,
        present.share,
    )


def _warm(loop: Loop) -> None:
    """Place a pod with a claim, as there are in any cluster with devices."""
    claim, pod = a_claim("warm", 0), a_pod_with_claims("warm", 0, ["warm-0"])
    for made in (claim, pod):
        made["metadata"]["namespace"] = "innocent"
    loop.observe(Resource.RESOURCE_CLAIMS, _bytes(claim))
    loop.observe(Resource.PODS, _bytes(pod))
    loop.turn()
    pod["spec"]["nodeName"] = loop.node_of("innocent/warm-0")
    loop.observe(Resource.PODS, _bytes(pod))
    loop.turn()


def _rss_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") // 1024**2


def _select(names: Sequence[str]) -> list[AnyClass]:
    every = (
        *CLAIM_CLASSES,
        *POD_CLASSES,
        *ALLOWED_CLASSES,
        *OTHER_CLASSES,
        *GROUP_CLASSES,
        *SERIES_CLASSES,
    )
    return [of for of in every if not names or of.name in names]


def main(
    nodes: Annotated[int, typer.Option(help="Nodes of the cluster.")] = 5000,
    pods: Annotated[int, typer.Option(help="Pods on these nodes.")] = 50_000,
    objects: Annotated[int, typer.Option(help="Objects of each class.")] = 1000,
    seconds: Annotated[float, typer.Option(help="Length of each measurement of the rate.")] = 10,
    only: Annotated[list[str] | None, typer.Option(help="Name of a class.")] = None,
) -> None:
    """Measure every class of hostile objects."""
    tune_gc()
    loop = Loop(nodes, pods)
    freeze_gc()
    context = multiprocessing.get_context("fork")
    _place(loop, 2)
    _warm(loop)
    print(
        "hold: longest step; memory: growth; journal: of one object; arriving, present: rate of"
        " other pods, compared with a process without objects that ran in turns. CPU time."
    )
    print(f"{'class':30}{'hold':>9}{'memory':>10}{'journal':>11}{'arriving':>10}{'present':>9}")
    failed = False
    for of in _select(only or ()):
        receive, send = context.Pipe(duplex=False)

        def run(of: AnyClass = of, send: object = send) -> None:
            send.send(measure(loop, of, objects, seconds))  # type: ignore[attr-defined]

        child = context.Process(target=run)
        child.start()
        send.close()
        try:
            result: Result = receive.recv()
        except EOFError:
            print(f"{of.name:30} the process ended without a result")
            failed = True
            continue
        finally:
            child.join()
        failed = failed or not result.passed
        print(
            f"{result.name:30}{result.hold_s * 1000:6.0f} ms{result.grown_mb:7d} MB"
            f"{result.journal_kb:8.1f} KiB{result.arriving:9.0%}{result.present:9.0%}"
            f"{'' if result.passed else '  ABOVE A LIMIT'}",
            flush=True,
        )
    sys.exit(failed)


if __name__ == "__main__":
    typer.run(main)
