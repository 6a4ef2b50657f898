"""The experiment of the FGD paper, with asched's simulator and the installed plugins.

Pods of the openb trace arrive one by one and stay: all of them in random order, then random
samples, until the requests reach 130 % of the cluster's cards. The result is the share of allocated
cards when arrivals reach 100 % and 130 %. As in the authors' simulator (``workloadTuning``), the
seed determines the order of pods, the samples and the order of nodes.

    python benchmarks/gpu_experiment.py run --nodes NODES.csv --pods PODS.csv --results FILE
    python benchmarks/gpu_experiment.py table --results FILE --readme README.md

from the folder of the distribution. Only nodes with cards take part. Each simulation's outcome is a
line of the results, and one that is there already is not run again.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import msgspec
from asched_gpu.demand import GPU_MILLI
from asched_gpu.expected import expected_workload
from asched_gpu.gpu_share import PolicyName
from asched_gpu.workload import TaskClass

from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.framework.runtime.profile import ProfileSpec
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.quantity import value
from asched.simulator.loop import SchedulerSettings, Simulation
from asched.simulator.openb import BEGIN_NS, Table, read_openb
from asched.simulator.trace import ObjectSet, PodCreated, TraceEvent, WorkloadTrace
from asched.state.records import Assigned

SCHEDULER: str = "gpu"
INFLATION = 1.3
MARKS = (100, 130)
"""Arrivals at which results are taken, in percent of the cluster's cards."""
_PACE_NS = 1_000_000
"""Interval between pods. Affects only the times of records."""

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
"""Results of the authors' simulator for the default trace, mean of ten seeds."""


class Trace(NamedTuple):
    """The nodes and pods of the trace."""

    name: str
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    workload: tuple[TaskClass, ...]

    @property
    def gpu_milli(self) -> int:
        return sum(value(node.status.allocatable[GPU_MILLI]) for node in self.nodes)


def read_trace(nodes: Path, pods: Path) -> Trace:
    """Nodes with cards, and all pods. Raises TraceError, OSError."""
    tables = [Table(path.name, path.read_text().splitlines()) for path in (nodes, pods)]
    events = read_openb(tables[0], tables[1], SCHEDULER).events
    found = (event.object for event in events if isinstance(event, ObjectSet))
    with_cards = [n for n in found if isinstance(n, Node) and GPU_MILLI in n.status.allocatable]
    created = [event.pod for event in events if isinstance(event, PodCreated)]
    rows = csv.DictReader(pods.read_text().splitlines())
    by_name = sorted(created, key=lambda pod: pod.name)
    name = pods.name.removesuffix(".csv").removeprefix("openb_pod_list_")
    return Trace(name, tuple(with_cards), tuple(by_name), expected_workload(rows))


def gpu_milli_of(pod: Pod) -> int:
    requests = pod.spec.containers[0].resources.requests
    return value(requests[GPU_MILLI]) if GPU_MILLI in requests else 0


def inflated(trace: Trace, seed: int) -> tuple[list[Node], list[Pod]]:
    """Nodes in order, and pods in order of arrival."""
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


def history(nodes: Iterable[Node], pods: Iterable[Pod]) -> WorkloadTrace:
    events: list[TraceEvent] = [ObjectSet(BEGIN_NS, node) for node in nodes]
    events += (
        PodCreated(BEGIN_NS + (number + 1) * _PACE_NS, _renamed(pod, number))
        for number, pod in enumerate(pods)
    )
    return WorkloadTrace(tuple(events), BEGIN_NS)


def _renamed(pod: Pod, number: int) -> Pod:
    replace, name = msgspec.structs.replace, f"task-{number:05}"
    return replace(pod, metadata=replace(pod.metadata, name=name, uid=name))


def profile(
    policy: PolicyName, workload: Sequence[TaskClass], registry: PluginRegistry
) -> ProfileSpec:
    """A profile with only the plugins of the experiment."""
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


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one simulation."""

    pods: str
    """File name of the pod table."""
    policy: PolicyName
    seed: int
    allocated: tuple[float, ...]
    """Percentage of allocated cards at each of :data:`MARKS`."""
    cpu_s: float


def run(trace: Trace, policy: PolicyName, seed: int) -> Outcome:
    """Run one simulation."""
    began_s = time.process_time()
    nodes, pods = inflated(trace, seed)
    registry = PluginRegistry.discover()
    scheduler = SchedulerSettings((profile(policy, trace.workload, registry),), seed=seed)
    simulation = Simulation(history(nodes, pods), scheduler, registry.load)
    placed = {
        record.key: record.node
        for turn in simulation.turns()
        for record in turn.records
        if isinstance(record, Assigned)
    }
    allocated = tuple(_given(pods, placed.keys(), trace.gpu_milli))
    rounded = tuple(round(percent, 4) for percent in allocated)
    cpu_s = round(time.process_time() - began_s, 2)
    return Outcome(trace.name, policy, seed, rounded, cpu_s)


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


class Results:
    """Outcomes in a file, one per line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.outcomes = [msgspec.json.decode(line, type=Outcome) for line in lines]

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(outcome) + b"\n")

    def has(self, pods: str, policy: PolicyName, seed: int) -> bool:
        return any((o.pods, o.policy, o.seed) == (pods, policy, seed) for o in self.outcomes)

    def of(self, pods: str, policy: PolicyName) -> list[Outcome]:
        return [o for o in self.outcomes if o.pods == pods and o.policy is policy]


def mean(outcomes: Sequence[Outcome], mark: int) -> float:
    return sum(outcome.allocated[mark] for outcome in outcomes) / len(outcomes)


def default_table(results: Results) -> list[str]:
    """In Markdown: every policy on the default trace, with the results of the paper's simulator."""
    lines = ["| policy | seeds | 100 % | 130 % | paper's simulator |", "|---|---|---|---|---|"]
    for policy, title in TITLES.items():
        outcomes = results.of("default", policy)
        if not outcomes:
            continue
        reached = " | ".join(f"{mean(outcomes, mark):.2f}" for mark in range(len(MARKS)))
        reference = " / ".join(map(str, PAPER[policy])) if policy in PAPER else ""
        lines.append(f"| {title} | {len(outcomes)} | {reached} | {reference} |")
    return lines


def mixes_table(results: Results) -> list[str]:
    """In Markdown: FGD and fgd-aligned on the other mixes, for the seeds of both."""
    lines = ["| mix | seeds | FGD | fgd-aligned |", "|---|---|---|---|"]
    for mix in sorted({o.pods for o in results.outcomes} - {"default"}):
        fgd, ours = (results.of(mix, p) for p in (PolicyName.FGD, PolicyName.FGD_ALIGNED))
        seeds = {o.seed for o in fgd} & {o.seed for o in ours}
        if seeds:
            both = ([o for o in found if o.seed in seeds] for found in (fgd, ours))
            cells = (f"{mean(found, 0):.2f} / {mean(found, 1):.2f}" for found in both)
            lines.append(f"| {mix} | {len(seeds)} | {' | '.join(cells)} |")
    return lines


_BEGIN, _END = "<!-- table: {} -->", "<!-- end: {} -->"


def written(text: str, name: str, lines: Sequence[str]) -> str:
    """The text with the table between its marks replaced. Raises ValueError without marks."""
    begin, end = _BEGIN.format(name), _END.format(name)
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    block = "\n".join([begin, "", *lines, "", end])
    changed, found = between.subn(lambda _: block, text)
    if found != 1:
        raise ValueError(f"expected one {begin} ... {end}")
    return changed


def run_all(options: argparse.Namespace) -> None:
    """The missing combinations of policy and seed, by seed."""
    trace, results = read_trace(options.nodes, options.pods), Results(options.results)
    missing = [
        (policy, seed)
        for seed in options.seeds
        for policy in map(PolicyName, options.policies)
        if not results.has(trace.name, policy, seed)
    ]
    for outcome in _outcomes(trace, missing, options.workers):
        results.add(outcome)
        print(msgspec.json.encode(outcome).decode(), flush=True)


def _outcomes(
    trace: Trace, which: Sequence[tuple[PolicyName, int]], workers: int
) -> Iterator[Outcome]:
    if workers == 1:
        yield from (run(trace, *policy_and_seed) for policy_and_seed in which)
        return
    with ProcessPoolExecutor(workers) as pool:
        for task in as_completed(pool.submit(run, trace, *one) for one in which):
            yield task.result()


def write_tables(options: argparse.Namespace) -> None:
    results, text = Results(options.results), options.readme.read_text()
    text = written(text, "default", default_table(results))
    options.readme.write_text(written(text, "mixes", mixes_table(results)))


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="simulate what is missing")
    running.add_argument("--nodes", type=Path, required=True)
    running.add_argument("--pods", type=Path, required=True)
    running.add_argument("--seeds", type=_seeds, default=range(42, 52), help="such as 42-51")
    running.add_argument("--policies", nargs="*", default=[name.value for name in PolicyName])
    running.add_argument("--workers", type=int, default=1)
    running.set_defaults(does=run_all)
    tables = commands.add_parser("table", help="write the means into a README")
    tables.add_argument("--readme", type=Path, required=True)
    tables.set_defaults(does=write_tables)
    for command in (running, tables):
        command.add_argument("--results", type=Path, required=True)
    options = parser.parse_args(arguments)
    options.does(options)


if __name__ == "__main__":
    main()
