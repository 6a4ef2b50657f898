"""What the suite measures, what it should come to, and the file that keeps the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.checks import InterferenceFigures, StartFigures, SteadyFigures
from benchmarks.engine import Row
from benchmarks.measurement import Report


class EngineTarget(NamedTuple):
    """A workload for the engine alone."""

    kind: str
    nodes: int
    most_ms: float
    all_different: bool = False
    per_pod: bool = False
    """The target is for a pod with all its attempts, rather than for a decision."""
    rejected: bool = False
    """The target is for deciding that a pod fits nowhere."""


class HttpTarget(NamedTuple):
    """A workload of scheduler_perf."""

    file: str
    """The folder of its ``performance-config.yaml``; :data:`OWN` for one of ours."""
    workload: str
    most_ms: float | None
    """CPU of the scheduler, milliseconds a pod; None where nobody asks for one."""


OWN: Final = ""
_LIKE = 0.30
_SELECTED = 0.40

ENGINE_TARGETS: Final = (
    EngineTarget("basic", 5_000, 0.10),
    EngineTarget("basic", 5_000, 0.80, all_different=True),
    EngineTarget("anti-affinity", 5_000, _LIKE),
    EngineTarget("affinity", 5_000, _LIKE),
    EngineTarget("zone-affinity", 5_000, _LIKE),
    EngineTarget("preferred-affinity", 5_000, _LIKE),
    EngineTarget("preferred-anti-affinity", 5_000, _LIKE),
    EngineTarget("spread", 5_000, _LIKE),
    EngineTarget("preferred-spread", 5_000, _LIKE),
    EngineTarget("default-spread", 5_000, _LIKE),
    EngineTarget("ns-selector-anti-affinity", 5_000, _SELECTED),
    EngineTarget("ns-selector-affinity", 5_000, _SELECTED),
    EngineTarget("ns-selector-preferred-affinity", 5_000, _SELECTED),
    EngineTarget("ns-selector-preferred-anti-affinity", 5_000, _SELECTED),
    EngineTarget("unschedulable", 5_000, 0.10, rejected=True),
    EngineTarget("preemption", 1_000, 3.0, per_pod=True),
    EngineTarget("daemonset", 15_000, 0.15),
)
GROWTH_NODES: Final = (100, 1_000, 5_000, 15_000)
GROWTH_FROM: Final = 1_000
GROWTH_TO: Final = 15_000
GROWTH_AT_MOST: Final = 1.5
GROWTH_KINDS: Final = (
    "anti-affinity",
    "affinity",
    "zone-affinity",
    "preferred-affinity",
    "spread",
    "preferred-spread",
    "default-spread",
)
"""Beside plain pods, which are measured at every size."""
GROWTH: Final = (
    *(("basic", nodes) for nodes in GROWTH_NODES),
    *((kind, nodes) for kind in GROWTH_KINDS for nodes in (GROWTH_FROM, GROWTH_TO)),
)
SHAPES_KIND: Final = "basic"
SHAPES: Final = (1, 10, 100, 1_000, 10_000)

HTTP_TARGETS: Final = (
    HttpTarget("misc", "SchedulingBasic/5000Nodes_10000Pods", 0.60),
    HttpTarget(OWN, "SchedulingAllDifferent/5000Nodes_10000Pods", 1.4),
    HttpTarget("affinity", "SchedulingPodAntiAffinity/5000Nodes_2000Pods", 0.80),
    HttpTarget("affinity", "SchedulingPodAffinity/5000Nodes_5000Pods", 0.80),
    HttpTarget("affinity", "SchedulingPreferredPodAffinity/5000Nodes_5000Pods", 0.80),
    HttpTarget("affinity", "SchedulingPreferredPodAntiAffinity/5000Nodes_5000Pods", 0.80),
    HttpTarget("topology_spreading", "TopologySpreading/5000Nodes_5000Pods", 0.80),
    HttpTarget("topology_spreading", "PreferredTopologySpreading/5000Nodes_5000Pods", 0.80),
    HttpTarget("topology_spreading", "DefaultTopologySpreading/5000Nodes_10000Pods", 0.80),
    HttpTarget("affinity", "SchedulingRequiredPodAntiAffinityWithNSSelector/5000Nodes_2000Pods", 0.90),
    HttpTarget("affinity", "SchedulingRequiredPodAffinityWithNSSelector/5000Nodes_2000Pods", 0.90),
    HttpTarget("affinity", "SchedulingPreferredAffinityWithNSSelector/5000Nodes_5000Pods", 0.90),
    HttpTarget("affinity", "SchedulingPreferredAntiAffinityWithNSSelector/5000Nodes_2000Pods", 0.90),
    HttpTarget("misc", "Unschedulable/5kNodes/100Init/10kPods", None),
    HttpTarget("misc", "SchedulingWithMixedChurn/5000Nodes_10000Pods", None),
    HttpTarget("misc", "PreemptionBasic/1000Nodes", 4.0),
    HttpTarget("misc", "SchedulingDaemonset/15000Nodes", 0.65),
)  # fmt: skip


class Machine(msgspec.Struct, frozen=True):
    """Where and when the figures were taken."""

    date: str
    processor: str
    processors: int
    python: str
    load_before: float
    """Load average of the minute before: above 0 others were at work too."""


class EngineResult(msgspec.Struct):
    """One row of the engine's table."""

    row: Row
    most_ms: float
    measured_ms: float


class HttpResult(msgspec.Struct):
    """One row of the table of workloads."""

    report: Report
    most_ms: float | None


class Results(msgspec.Struct):
    """All figures. A part that was not measured is empty."""

    machine: dict[str, Machine] = {}
    """By the name of the part."""
    engine: list[EngineResult] = []
    growth: list[Row] = []
    shapes: list[Row] = []
    http: list[HttpResult] = []
    start: list[StartFigures] = []
    steady: list[SteadyFigures] = []
    interference: list[InterferenceFigures] = []


def load(path: Path) -> Results:
    """The figures so far; none where there is no file."""
    if not path.exists():
        return Results()
    return msgspec.json.decode(path.read_bytes(), type=Results)


def save(path: Path, results: Results) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
