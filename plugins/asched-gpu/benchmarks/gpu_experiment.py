"""The experiment of the FGD paper, by asched's simulation and the plugins as they are installed.

Pods of the openb trace arrive one after the other and stay: all of them in a random order, then ones
drawn from them at random, until what has arrived asks for 130 % of the cluster's cards. A policy is
judged by how much of the cards is given out when arrivals reach 100 % and 130 %. As in the authors'
simulator (``workloadTuning``) a seed stands for the order, the draws and the order of nodes.

    python benchmarks/gpu_experiment.py --nodes NODES.csv --pods PODS.csv [--seeds 42-51] [--readme README.md]

from the folder of the distribution. Only nodes with cards take part.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
from asched_gpu.demand import GPU_MILLI
from asched_gpu.expected import expected_workload
from asched_gpu.gpu_share import PolicyName
from asched_gpu.workload import TaskClass

from asched.daemon.config_file import parse
from asched.framework.profile import ProfileSpec
from asched.framework.registry import Registry
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.quantity import value
from asched.sim.virtual.exogenous import Event, Exogenous, ObjectSet, PodCreated
from asched.sim.virtual.loop import Scheduler, Simulation
from asched.sim.virtual.openb import BEGIN_NS, Table, history_of
from asched.state.records import Assigned

SCHEDULER: str = "gpu"
INFLATION = 1.3
MARKS = (100, 130)
"""Arrivals at which it is looked, in percent of the cluster's cards."""
_PACE_NS = 1_000_000
"""From one pod to the next. Nothing depends on it but the times of records."""

TITLES = {
    PolicyName.RANDOM: "Random",
    PolicyName.DOT_PRODUCT: "DotProd",
    PolicyName.CLUSTERING: "GpuClustering",
    PolicyName.PACKING: "GpuPacking",
    PolicyName.BEST_FIT: "BestFit",
    PolicyName.FGD: "FGD",
    PolicyName.FGD_ALIGNED: "fgd-aligned",
}
PAPER = {
    PolicyName.RANDOM: (86.3, 87.5),
    PolicyName.DOT_PRODUCT: (90.6, 90.9),
    PolicyName.CLUSTERING: (91.7, 91.9),
    PolicyName.PACKING: (91.8, 92.0),
    PolicyName.BEST_FIT: (92.9, 93.1),
    PolicyName.FGD: (95.2, 95.4),
}
"""What the authors' simulator gives for the default trace, mean of ten seeds."""


class Trace(NamedTuple):
    """The cluster and the pods that workloads are made of."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    workload: tuple[TaskClass, ...]

    @property
    def gpu_milli(self) -> int:
        return sum(value(node.status.allocatable[GPU_MILLI]) for node in self.nodes)


def read_trace(nodes: Path, pods: Path) -> Trace:
    """Nodes with cards, and all pods. Raises TraceError, OSError."""
    tables = (Table(path.name, path.read_text().splitlines()) for path in (nodes, pods))
    events = history_of(*tables, SCHEDULER).events
    found = (event.object for event in events if isinstance(event, ObjectSet))
    with_cards = [n for n in found if isinstance(n, Node) and GPU_MILLI in n.status.allocatable]
    created = [event.pod for event in events if isinstance(event, PodCreated)]
    rows = csv.DictReader(pods.read_text().splitlines())
    by_name = sorted(created, key=lambda pod: pod.name)
    return Trace(tuple(with_cards), tuple(by_name), expected_workload(rows))


def gpu_milli_of(pod: Pod) -> int:
    requests = pod.spec.containers[0].resources.requests
    return value(requests[GPU_MILLI]) if GPU_MILLI in requests else 0


def inflated(trace: Trace, seed: int) -> tuple[list[Node], list[Pod]]:
    """Nodes in their order, and pods as they arrive."""
    chance = random.Random(seed)
    target = INFLATION * trace.gpu_milli
    pods = [*trace.pods]
    chance.shuffle(pods)
    asked = sum(map(gpu_milli_of, pods))
    while asked > target:
        asked -= gpu_milli_of(pods.pop(chance.randrange(len(pods))))
    while asked <= target:
        drawn = chance.choice(trace.pods)
        asked += gpu_milli_of(drawn)
        if asked <= target:
            pods.append(drawn)
    nodes = [*trace.nodes]
    chance.shuffle(nodes)
    return nodes, pods


def history(nodes: Iterable[Node], pods: Iterable[Pod]) -> Exogenous:
    events: list[Event] = [ObjectSet(BEGIN_NS, node) for node in nodes]
    events += (
        PodCreated(BEGIN_NS + (number + 1) * _PACE_NS, _renamed(pod, number))
        for number, pod in enumerate(pods)
    )
    return Exogenous(tuple(events), BEGIN_NS)


def _renamed(pod: Pod, number: int) -> Pod:
    replace, name = msgspec.structs.replace, f"task-{number:05}"
    return replace(pod, metadata=replace(pod.metadata, name=name, uid=name))


def profile(policy: PolicyName, workload: Sequence[TaskClass], registry: Registry) -> ProfileSpec:
    """A profile of just what the experiment needs: room, the model of card, and the cards."""
    args: dict[str, object] = {"policy": policy.value}
    if policy in (PolicyName.FGD, PolicyName.FGD_ALIGNED):
        args["workload"] = msgspec.to_builtins(workload)

    def only(*names: str) -> dict[str, object]:
        return {"disabled": [{"name": "*"}], "enabled": [{"name": name} for name in names]}

    plugins = {
        "multiPoint": only("PrioritySort", "DefaultBinder"),
        "preFilter": only("NodeResourcesFit", "NodeAffinity", "GpuShare"),
        "filter": only("NodeResourcesFit", "NodeAffinity", "GpuShare"),
        "score": only("GpuShare"),
        "reserve": only("GpuShare"),
        "preBind": only("GpuShare"),
    }
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            {
                "schedulerName": SCHEDULER,
                "plugins": plugins,
                "pluginConfig": [{"name": "GpuShare", "args": args}],
            }
        ],
    }
    text = msgspec.yaml.encode(document).decode()
    [spec] = parse(text, "experiment", registry).profiles
    return spec


class Outcome(NamedTuple):
    """Percent of the cards given out at each of :data:`MARKS`."""

    allocated: tuple[float, ...]
    cpu_s: float


def run(trace: Trace, policy: PolicyName, seed: int) -> Outcome:
    """One simulation."""
    began_s = time.process_time()
    nodes, pods = inflated(trace, seed)
    registry = Registry.discover()
    scheduler = Scheduler((profile(policy, trace.workload, registry),), seed=seed)
    simulation = Simulation(history(nodes, pods), scheduler, registry.load)
    placed = {
        record.key: record.node
        for turn in simulation.turns()
        for record in turn.records
        if isinstance(record, Assigned)
    }
    allocated = tuple(_given(pods, placed.keys(), trace.gpu_milli))
    return Outcome(allocated, time.process_time() - began_s)


def _given(pods: Sequence[Pod], placed: Iterable[str], whole: int) -> Iterator[float]:
    keys, arrived, given = frozenset(placed), 0, 0
    marks = [*MARKS]
    for number, pod in enumerate(pods):
        milli = gpu_milli_of(pod)
        arrived += milli
        if f"{pod.namespace}/task-{number:05}" in keys:
            given += milli
        if marks and arrived * 100 >= marks[0] * whole:
            marks.pop(0)
            yield given * 100 / whole
    # The last mark is never quite reached: the pod that would is not there.
    yield from (given * 100 / whole for _ in marks)


def mean(outcomes: Sequence[Outcome], mark: int) -> float:
    return sum(outcome.allocated[mark] for outcome in outcomes) / len(outcomes)


_BEGIN, _END = "<!-- table: {} -->", "<!-- end: {} -->"


def written(text: str, name: str, lines: Sequence[str]) -> str:
    """The text with these lines between the marks of that name. Raises ValueError without them."""
    begin, end = _BEGIN.format(name), _END.format(name)
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    block = "\n".join([begin, *lines, end])
    changed, found = between.subn(lambda _: block, text)
    if found != 1:
        raise ValueError(f"expected one {begin} ... {end}")
    return changed


def table(found: dict[PolicyName, Sequence[Outcome]], paper: bool) -> list[str]:
    """In Markdown, the best last."""
    lines = ["| policy | 100 % | 130 % |" + (" paper's simulator |" if paper else "")]
    lines.append("|---|---|---|" + ("---|" if paper else ""))
    for policy, outcomes in found.items():
        cells = [TITLES[policy], *(f"{mean(outcomes, m):.1f}" for m in range(len(MARKS)))]
        if paper:
            cells.append(" / ".join(map(str, PAPER[policy])) if policy in PAPER else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    options.add_argument("--nodes", type=Path, required=True)
    options.add_argument("--pods", type=Path, required=True)
    options.add_argument("--seeds", type=_seeds, default=range(42, 52), help="such as 42-51")
    options.add_argument("--policies", nargs="*", default=[name.value for name in PolicyName])
    options.add_argument("--readme", type=Path, help="write the table there")
    options.add_argument("--table", default="default", help="under this name")
    options.add_argument("--workers", type=int, default=1)
    given = options.parse_args()
    trace = read_trace(given.nodes, given.pods)
    policies, found = [PolicyName(name) for name in given.policies], {}
    with ProcessPoolExecutor(given.workers) as pool:
        tasks = {p: [pool.submit(run, trace, p, seed) for seed in given.seeds] for p in policies}
        for policy, waiting in tasks.items():
            found[policy] = [task.result() for task in waiting]
            figures = ", ".join(f"{mean(found[policy], m):.2f}" for m in range(len(MARKS)))
            cpu_s = sum(outcome.cpu_s for outcome in found[policy]) / len(found[policy])
            print(f"{policy.value}: {figures} ({cpu_s:.1f} s of CPU a run)", file=sys.stderr)
    lines = table(found, paper=given.table == "default")
    print("\n".join(lines))
    if given.readme is not None:
        given.readme.write_text(written(given.readme.read_text(), given.table, lines))


_Plain = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    main()
