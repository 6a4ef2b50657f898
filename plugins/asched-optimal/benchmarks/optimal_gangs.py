"""Measures the action ``optimal`` against ``allocate``, and prints the table of README.md.

    python plugins/asched-optimal/benchmarks/optimal_gangs.py

Each case is a session on a cluster with random load, repeated with several seeds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from gangs import gang, placed

from asched.model.resources import AnyObject
from asched.testing.builders import node, pod

ZONE: Final = "topology.kubernetes.io/zone"
HOST: Final = "kubernetes.io/hostname"
SEEDS: Final = range(10)
NODES: Final = 40
ZONES: Final = 4
GANGS: Final = 8

Members = Callable[[Random, str], Sequence[Mapping[str, Any]]]


class GangCase(NamedTuple):
    """Gangs of one form."""

    label: str
    members: Members
    topology: str = ""


class GangFigures(NamedTuple):
    """Means over the seeds."""

    gangs: float
    """Gangs that start."""
    zones: float
    """Zones of a gang that starts."""
    nodes: float
    """Nodes of a gang that starts."""
    cpu_s: float


def _sizes(random: Random, _: str) -> Sequence[Mapping[str, Any]]:
    return [{"cpu": str(random.choice((1, 2, 4, 6)))} for _ in range(6)]


def _apart(random: Random, name: str) -> Sequence[Mapping[str, Any]]:
    required = _required("podAntiAffinity", HOST, name)
    return [{**each, "affinity": required} for each in _sizes(random, name)]


def _together(random: Random, name: str) -> Sequence[Mapping[str, Any]]:
    required = _required("podAffinity", ZONE, name)
    return [{**each, "affinity": required} for each in _sizes(random, name)]


def _required(kind: str, key: str, name: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"gang": name}}, "topologyKey": key}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


CASES: Final = (
    GangCase("mixed sizes", _sizes),
    GangCase("preferred topology: zone", _sizes, ZONE),
    GangCase("anti-affinity by host", _apart),
    GangCase("affinity by zone", _together),
)


def cluster(case: GangCase, seed: int) -> list[AnyObject]:
    """Nodes with 8 CPUs that are partly used, and pending gangs."""
    random = Random(seed)
    objects: list[AnyObject] = []
    for number in range(NODES):
        name = f"n{number}"
        objects.append(node(name, cpu="8", zone=f"z{number % ZONES}"))
        used = random.randrange(9)
        if used:
            objects.append(pod(f"used-{number}", cpu=str(used), node=name))
    for number in range(GANGS):
        name = f"g{number}"
        objects += gang(name, case.members(random, name), topology=case.topology)
    return objects


def measure(case: GangCase, *actions: str) -> GangFigures:
    """The figures of one case."""
    gangs = zones = nodes = 0
    began_s = time.process_time()
    for seed in SEEDS:
        by_gang: dict[str, set[str]] = {}
        for name, place in placed(cluster(case, seed), *actions, seed=seed).items():
            by_gang.setdefault(name.partition("-")[0], set()).add(place)
        gangs += len(by_gang)
        zones += sum(len({int(p[1:]) % ZONES for p in places}) for places in by_gang.values())
        nodes += sum(map(len, by_gang.values()))
    spent_s = (time.process_time() - began_s) / len(SEEDS)
    return GangFigures(gangs / len(SEEDS), zones / (gangs or 1), nodes / (gangs or 1), spent_s)


def main() -> None:
    """Print the table."""
    print("| gangs | action | start | zones each | nodes each | CPU of a session |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        for actions in (("allocate",), ("optimal", "allocate")):
            found = measure(case, *actions)
            print(
                f"| {case.label} | {', '.join(actions)} | {found.gangs:.1f} of {GANGS}"
                f" | {found.zones:.2f} | {found.nodes:.2f} | {found.cpu_s:.2f} s |"
            )


if __name__ == "__main__":
    main()
