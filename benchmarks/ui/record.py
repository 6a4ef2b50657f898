"""Records a large journal for the browser interface, with the scheduler core in virtual time.

Pods of some applications arrive, are placed, run and end. A few fit nowhere. Some nodes have
accelerators, which low-priority pods fill, so that later pods evict them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Annotated, Final

import anyio
import msgspec
import typer

from asched.apiserver.kubelet import ZONES, simulated_node
from asched.config.file import load
from asched.config.registry import PluginRegistry
from asched.core.inputs import Deleted, Outcome, Upserted
from asched.core.scheduler import SchedulerCore
from asched.journal.checkpoints import write_checkpoints
from asched.journal.opening import open_journal
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import AnyObject, Resource, decode
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import (
    AnyRecord,
    Assigned,
    Bound,
    EngineStarted,
    EvictionSucceeded,
    LeadershipGained,
    ProfilesLoaded,
    Rejected,
    TurnStarted,
)
from benchmarks.journal import BEGIN_NS, create, write
from benchmarks.kinds import Json

APPS: Final = 200
TURN_NS: Final = NS_PER_S // 2
PODS_PER_TURN: Final = 20
ACCELERATOR: Final = "example.com/accelerator"
ACCELERATED_NODES: Final = 50
NAMESPACES: Final = ("default", "shop", "search", "batch")
_UNSCHEDULABLE_EVERY: Final = 4000
_ACCELERATED_AT_ONCE: Final = 4 * ACCELERATED_NODES + 10
_PREEMPTOR_EVERY_TURNS: Final = 20
_MAX_UNSCHEDULABLE: Final = 20


def node_json(number: int) -> Json:
    """A node with 32 cores; the first :data:`ACCELERATED_NODES` have accelerators."""
    capacity = {"cpu": "32", "memory": "128Gi", "ephemeral-storage": "100Gi", "pods": "110"}
    if number < ACCELERATED_NODES:
        capacity[ACCELERATOR] = "4"
    labels = {"topology.kubernetes.io/zone": ZONES[number % len(ZONES)], "rack": f"r{number % 50}"}
    raw = simulated_node(f"node-{number:04d}", capacity=capacity, labels=labels, index=number)
    raw["metadata"]["uid"] = f"uid-node-{number}"
    return raw


def pod_json(number: int, app: int, requests: dict[str, str], priority: int = 0) -> Json:
    """A pod of a ReplicaSet that is not watched."""
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": f"app-{app}",
        "uid": f"uid-app-{app}",
        "controller": True,
    }
    container = {"name": "main", "image": f"example.com/app-{app}:1"}
    return {
        "metadata": {
            "name": f"app-{app}-{number}",
            "namespace": NAMESPACES[app % len(NAMESPACES)],
            "uid": f"uid-{number}",
            "labels": {"app": f"app-{app}"},
            "ownerReferences": [owner],
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "priority": priority,
            "containers": [{**container, "resources": {"requests": requests}}],
        },
        "status": {"phase": "Pending"},
    }


class Recorder:
    """A simulated cluster around the core."""

    def __init__(self, nodes: int, pods_at_once: int, pods_per_turn: int = PODS_PER_TURN) -> None:
        self._pods_per_turn = pods_per_turn
        registry = PluginRegistry.discover()
        self._core = SchedulerCore(Fold(ClusterState(), registry.load))
        self._profiles = load(None, registry).profiles
        self._nodes, self._pods_at_once = nodes, pods_at_once
        self._numbers = count()
        self._random = Random(4)
        self._now_ns = BEGIN_NS
        self._ordinary: deque[str] = deque()
        """Pods with a node, the oldest first."""
        self._accelerated: deque[str] = deque()
        self._unschedulable: deque[str] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._changes: deque[AnyObject] = deque()
        self._evicted: deque[Pod] = deque()

    def turns(self) -> Iterator[list[AnyRecord]]:
        """Endless. Each turn is one batch."""
        yield self._start()
        for turn in count(1):
            self._now_ns = BEGIN_NS + turn * TURN_NS
            self._core.begin_turn(self._now_ns)
            self._core.fire_timers(may_decide=True)
            self._observe()
            self._arrive(turn)
            self._end()
            self._decide()
            records = self._core.take_records()
            if records:
                yield records

    def _start(self) -> list[AnyRecord]:
        core = self._core
        core.begin_turn(self._now_ns)
        core.record_turn()
        core.apply(EngineStarted("benchmark", 4))
        core.apply(LeadershipGained(1))
        core.apply(ProfilesLoaded(self._profiles))
        for number in range(self._nodes):
            node = decode(Resource.NODES, msgspec.json.encode(node_json(number)))
            assert isinstance(node, Node)
            core.observe(Upserted(Resource.NODES, node))
        return core.take_records()

    def _observe(self) -> None:
        while self._changes:
            self._core.observe(Upserted(Resource.PODS, self._changes.popleft()))
        while self._outcomes:
            self._core.handle_outcome(self._outcomes.popleft())
        self._core.record_unconfirmed()
        while self._evicted:
            self._core.observe(Deleted(Resource.PODS, self._evicted.popleft()))

    def _arrive(self, turn: int) -> None:
        app = self._random.randrange(APPS)
        cpu = f"{250 + 250 * (app % 8)}m"
        for _ in range(self._pods_per_turn):
            number = next(self._numbers)
            if number % _UNSCHEDULABLE_EVERY == 17:
                self._unschedulable.append(self._create(number, app, {"cpu": "64"}))
            else:
                self._create(number, app, {"cpu": cpu, "memory": f"{256 * (1 + app % 4)}Mi"})
        wanted = {"cpu": "1", ACCELERATOR: "1"}
        if len(self._accelerated) < _ACCELERATED_AT_ONCE:
            self._accelerated.append(self._create(next(self._numbers), APPS, wanted))
        if turn % _PREEMPTOR_EVERY_TURNS == 0:
            key = self._create(next(self._numbers), APPS + 1, wanted, 1000)
            self._accelerated.append(key)

    def _create(self, number: int, app: int, requests: dict[str, str], priority: int = 0) -> str:
        raw = pod_json(number, app, requests, priority)
        pod = decode(Resource.PODS, msgspec.json.encode(raw))
        assert isinstance(pod, Pod)
        self._core.observe(Upserted(Resource.PODS, pod))
        return pod.key

    def _end(self) -> None:
        """Delete the oldest pods of each kind."""
        for pods, most in (
            (self._ordinary, self._pods_at_once),
            (self._accelerated, _ACCELERATED_AT_ONCE),
            (self._unschedulable, _MAX_UNSCHEDULABLE),
        ):
            while len(pods) > most:
                entry = self._core.state.pods.get(pods.popleft())
                if entry is not None:
                    self._core.observe(Deleted(Resource.PODS, entry.info.pod))

    def _decide(self) -> None:
        while decisions := self._core.propose():
            for decision in decisions:
                self._core.apply(decision)
                self._execute(decision)

    def _execute(self, decision: AnyRecord) -> None:
        state = self._core.state
        match decision:
            case Assigned():
                pod = state.pods[decision.key].info.pod
                replace = msgspec.structs.replace
                bound = replace(pod, spec=replace(pod.spec, node_name=decision.node))
                running = replace(bound, status=replace(bound.status, phase="Running"))
                self._outcomes.append(Bound(decision.key, decision.uid, decision.node))
                self._changes.append(running)
                if ACCELERATOR not in state.pods[decision.key].info.shape.requests:
                    self._ordinary.append(decision.key)
            case Rejected():
                for victim in decision.victims:
                    self._outcomes.append(EvictionSucceeded(victim.key, victim.uid))
                    self._evicted.append(state.pods[victim.key].info.pod)


def _dated(batches: Iterable[list[AnyRecord]]) -> Iterator[list[AnyRecord]]:
    """The batches that begin with the start of a turn: all of this recorder."""
    for batch in batches:
        assert isinstance(batch[0], TurnStarted), "a turn begins with its time"
        yield batch


async def _add_checkpoints(path: Path, every: int) -> None:
    async with open_journal(str(path)) as journal:
        await write_checkpoints(journal, PluginRegistry.discover().load, every=every)


def main(
    path: Annotated[Path, typer.Argument(help="The file to create.")],
    records: Annotated[int, typer.Option(help="Minimum number of records.")] = 1_000_000,
    nodes: Annotated[int, typer.Option(help="Nodes of the cluster.")] = 5_000,
    pods: Annotated[int, typer.Option(help="Pods running at the same time.")] = 40_000,
    checkpoint_every: Annotated[
        int, typer.Option(help="Records between checkpoints; a daemon takes nodes + pods.", min=1)
    ] = 50_000,
) -> None:
    """Write a large journal."""
    if path.exists():
        raise typer.BadParameter(f"{path} exists")
    anyio.run(create, path)
    write(path, _dated(Recorder(nodes, pods).turns()), records)
    anyio.run(_add_checkpoints, path, checkpoint_every)
    print(json.dumps({"path": str(path), "bytes": path.stat().st_size}, indent=2))


if __name__ == "__main__":
    typer.run(main)
