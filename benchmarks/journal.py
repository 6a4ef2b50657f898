"""How fast a large journal is verified, replayed and searched.

``make`` writes a journal of any length, as a daemon would: pods arrive, real decisions place them,
some fit nowhere, and all are deleted later. ``measure`` runs ``asched`` commands on it, each in a
new process, and prints the best time of several runs as JSON.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Annotated, Final

import anyio
import msgspec
import typer

from asched.apiserver.kubelet import ZONES, simulated_node
from asched.config.file import load
from asched.config.registry import PluginRegistry
from asched.cycle.decide import Decider
from asched.journal.chain import GENESIS, next_writer, seal
from asched.journal.checkpoints import write_checkpoints
from asched.journal.codec import CODEC
from asched.journal.opening import open_journal
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import Resource, decode
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.observe import observe_object
from asched.state.records import (
    AnyRecord,
    Assigned,
    Bound,
    EngineStarted,
    LeadershipGained,
    ObjectDeleted,
    ObjectObserved,
    ProfilesLoaded,
    TurnStarted,
)
from benchmarks.kinds import Json

BEGIN_NS: Final = 1_767_225_600 * NS_PER_S
TURN_S: Final = 0.25
PODS_PER_TURN: Final = 12
APPS: Final = 40
INSERTS_PER_COMMIT: Final = 20_000

app = typer.Typer(help="Benchmarks of large journals.", no_args_is_help=True)


def _node(number: int) -> Node:
    capacity = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "100Gi", "pods": "110"}
    labels = {"topology.kubernetes.io/zone": ZONES[number % len(ZONES)]}
    raw = simulated_node(f"node-{number:04d}", capacity=capacity, labels=labels, index=number)
    raw["metadata"]["uid"] = f"uid-node-{number}"
    found = decode(Resource.NODES, msgspec.json.encode(raw))
    assert isinstance(found, Node)
    return found


def _pod(number: int, app_number: int) -> Pod:
    requests = {"cpu": f"{100 + 25 * (app_number % 12)}m", "memory": "256Mi"}
    if number % 5000 == 17:
        requests["cpu"] = "64"  # fits nowhere
    container = {"name": "main", "image": f"example.com/app-{app_number}:1"}
    raw: Json = {
        "metadata": {
            "name": f"app-{app_number}-{number}",
            "namespace": "default",
            "uid": f"uid-{number}",
            "labels": {"app": f"app-{app_number}"},
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [{**container, "resources": {"requests": requests}}],
        },
        "status": {"phase": "Pending"},
    }
    found = decode(Resource.PODS, msgspec.json.encode(raw))
    assert isinstance(found, Pod)
    return found


class _History:
    """Generates the records of a daemon, turn by turn."""

    def __init__(self, nodes: int, pods_at_once: int) -> None:
        registry = PluginRegistry.discover()
        self._fold = Fold(ClusterState(), registry.load)
        self._decider = Decider(self._fold.state)
        self._running: deque[Pod] = deque()
        self._pods_at_once = pods_at_once
        self._numbers = count()
        self._random = Random(4)
        self._nodes = nodes
        self._profiles = load(None, registry).profiles

    def records(self) -> Iterator[AnyRecord]:
        """An infinite iterator. A turn begins with :class:`TurnStarted`."""
        yield from self._begin()
        for turn in count(1):
            yield self._folded(TurnStarted(BEGIN_NS + round(turn * TURN_S * NS_PER_S)))
            yield from self._arrivals()
            placed: list[Assigned] = []
            while decisions := self._decider.next():
                placed += [d for d in decisions if isinstance(d, Assigned)]
                yield from map(self._folded, decisions)
            for decision in placed:
                yield from self._bound(decision)
            while len(self._running) > self._pods_at_once:
                oldest = self._running.popleft()
                yield self._folded(ObjectDeleted("Pod", oldest.key, oldest.uid))

    def _begin(self) -> Iterator[AnyRecord]:
        yield self._folded(TurnStarted(BEGIN_NS))
        yield self._folded(EngineStarted("benchmark", 4))
        yield self._folded(LeadershipGained(1))
        yield self._folded(ProfilesLoaded(self._profiles))
        for number in range(self._nodes):
            yield self._folded(ObjectObserved(_node(number)))

    def _folded(self, record: AnyRecord) -> AnyRecord:
        self._fold.apply(record)
        return record

    def _observed(self, pod: Pod) -> Iterator[AnyRecord]:
        record = observe_object(self._fold.state, pod)
        if record is not None:
            yield self._folded(record)

    def _arrivals(self) -> Iterator[AnyRecord]:
        app_number = self._random.randrange(APPS)
        for _ in range(PODS_PER_TURN):
            yield from self._observed(_pod(next(self._numbers), app_number))

    def _bound(self, decision: Assigned) -> Iterator[AnyRecord]:
        pod = self._fold.state.pods[decision.key].info.pod
        replace = msgspec.structs.replace
        yield self._folded(Bound(decision.key, decision.uid, decision.node))
        bound = replace(pod, spec=replace(pod.spec, node_name=decision.node))
        yield from self._observed(bound)
        running = replace(bound, status=replace(bound.status, phase="Running"))
        yield from self._observed(running)
        self._running.append(running)


def _turns(records: Iterable[AnyRecord]) -> Iterator[list[AnyRecord]]:
    turn: list[AnyRecord] = []
    for record in records:
        if isinstance(record, TurnStarted) and turn:
            yield turn
            turn = []
        turn.append(record)


def _batches(records: Iterator[AnyRecord], size: int) -> Iterator[list[AnyRecord]]:
    while batch := [*islice(records, size)]:
        yield batch


def write(path: Path, batches: Iterable[Sequence[AnyRecord]], records: int) -> None:
    """Insert batches into the journal until it contains ``records`` records.

    A transaction contains many batches, unlike in a daemon: only reading is measured.
    """
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    writer = next_writer(None, "benchmark", BEGIN_NS)
    connection.execute("INSERT INTO journal_writer VALUES (?, ?, ?, ?)", writer)
    head, now_ns, began_s, pending = GENESIS, BEGIN_NS, time.monotonic(), 0
    for batch in batches:
        if isinstance(batch[0], TurnStarted):
            now_ns = batch[0].now_ns
        sealed = seal(head, [*map(CODEC.encode, batch)], 1, now_ns)
        connection.execute("INSERT INTO journal_batch VALUES (?, ?, ?, ?, ?, ?, ?)", sealed.batch)
        connection.executemany("INSERT INTO journal_record VALUES (?, ?, ?, ?, ?, ?)", sealed.rows)
        head, pending = sealed.head, pending + len(batch)
        if pending >= INSERTS_PER_COMMIT:
            connection.commit()
            pending = 0
            print(f"{head.seq} records, {time.monotonic() - began_s:.0f} s", file=sys.stderr)
        if head.seq >= records:
            break
    connection.commit()
    connection.close()


async def create(path: Path) -> None:
    async with open_journal(str(path)):
        pass


@app.command()
def make(
    path: Annotated[Path, typer.Argument(help="The file to create.")],
    records: Annotated[int, typer.Option(help="Minimum number of records.")] = 1_000_000,
    nodes: Annotated[int, typer.Option(help="Nodes of the cluster.")] = 1000,
    pods: Annotated[int, typer.Option(help="Pods running at the same time.")] = 10_000,
    batch: Annotated[
        int, typer.Option(help="Records in a batch; 0: one batch for a turn.", min=0)
    ] = 0,
    checkpoint_every: Annotated[
        int, typer.Option(help="Records between checkpoints, as in journal.checkpointEvery.")
    ] = 50_000,
) -> None:
    """Write a large journal."""
    if path.exists():
        raise typer.BadParameter(f"{path} exists")
    anyio.run(create, path)
    history = _History(nodes, pods).records()
    write(path, _batches(history, batch) if batch else _turns(history), records)

    async def add_checkpoints() -> None:
        async with open_journal(str(path)) as journal:
            await write_checkpoints(journal, PluginRegistry.discover().load, every=checkpoint_every)

    if checkpoint_every:
        anyio.run(add_checkpoints)
    size = path.stat().st_size
    print(json.dumps({"path": str(path), "bytes": size}, indent=2))


@app.command()
def measure(
    path: Annotated[Path, typer.Argument(help="A journal written by the make command.")],
    runs: Annotated[
        int, typer.Option(help="Runs of each command; the fastest is reported.", min=1)
    ] = 3,
    replayed: Annotated[
        int, typer.Option(help="Records to replay, from the middle of the journal.")
    ] = 100_000,
) -> None:
    """Time the commands on a journal."""
    with sqlite3.connect(path) as connection:
        (last,) = connection.execute("SELECT max(seq) FROM journal_record").fetchone()
        (batches,) = connection.execute("SELECT max(batch) FROM journal_batch").fetchone()
        subjects = [
            connection.execute(
                "SELECT subject FROM journal_record WHERE kind = 'Assigned' AND seq > ?",
                (int(last * part),),
            ).fetchone()[0]
            for part in (0.0, 0.5, 0.9)
        ]
    connection.close()
    middle = last // 2
    commands: dict[str, tuple[str, ...]] = {
        "verify": ("journal", "verify"),
        **{
            f"explain {part}": ("explain", subject.removeprefix("pod/"))
            for part, subject in zip(("first", "middle", "late"), subjects, strict=True)
        },
        "explain by name alone": ("explain", subjects[1].rpartition("/")[2]),
        "history of a pod": ("history", subjects[1].removeprefix("pod/")),
        "history of rejected pods, last minute": (
            *("history", "--unschedulable", "--since", _minute_before_end(last)),
        ),
        "open in the middle": _replay(middle, middle),
        "replay": _replay(middle, middle + replayed - 1),
    }
    figures: dict[str, object] = {"records": last, "batches": batches}
    for name, arguments in commands.items():
        wall_s, cpu_s = min(_timed(*arguments, "--journal", str(path)) for _ in range(runs))
        figures[name] = {"wall_s": round(wall_s, 2), "cpu_s": round(cpu_s, 2)}
        print(name, figures[name], file=sys.stderr)
    print(json.dumps(figures, indent=2))


def _replay(first: int, last: int) -> tuple[str, ...]:
    return ("replay", "--verify", "--from", str(first), "--to", str(last))


def _minute_before_end(last: int) -> str:
    """One minute before the last record, from the average number of records in a turn."""
    turns = last / (5.97 * PODS_PER_TURN + 1)
    at_s = BEGIN_NS / NS_PER_S + turns * TURN_S - 60
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


def _timed(*arguments: str) -> tuple[float, float]:
    """Run a command; returns (elapsed seconds, CPU seconds)."""
    command = [sys.executable, "-m", "asched", *arguments]
    began_s, before = time.monotonic(), os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    cpu_s = after.children_user + after.children_system
    cpu_s -= before.children_user + before.children_system
    return time.monotonic() - began_s, cpu_s


if __name__ == "__main__":
    app()
