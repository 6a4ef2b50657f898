"""Targets of the suite, and the file with the figures."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import msgspec

from benchmarks.checks import InterferenceFigures, StartFigures, SteadyFigures
from benchmarks.engine import Row
from benchmarks.latency import LatencyResult
from benchmarks.measurement import Report
from benchmarks.scale.figures import ScaleFigures


class EngineTarget(NamedTuple):
    """A workload for the engine without I/O."""

    kind: str
    nodes: int
    limit_ms: float
    all_different: bool = False
    per_pod: bool = False
    """The limit applies to a pod with all its attempts, not to a decision."""
    rejected: bool = False
    """The limit applies to decisions that reject a pod."""


class HttpTarget(NamedTuple):
    """A workload of scheduler_perf."""

    file: str
    """The folder of ``performance-config.yaml``; :data:`OWN` for a workload of this repository."""
    workload: str
    limit_ms: float | None
    """Limit of the scheduler's CPU milliseconds per pod; None for no limit."""


OWN: Final = ""
_EQUAL_PODS_MS = 0.30
_NS_SELECTOR_MS = 0.40

ENGINE_TARGETS: Final = (
    EngineTarget("basic", 5_000, 0.10),
    EngineTarget("basic", 5_000, 0.80, all_different=True),
    EngineTarget("anti-affinity", 5_000, _EQUAL_PODS_MS),
    EngineTarget("affinity", 5_000, _EQUAL_PODS_MS),
    EngineTarget("zone-affinity", 5_000, _EQUAL_PODS_MS),
    EngineTarget("preferred-affinity", 5_000, _EQUAL_PODS_MS),
    EngineTarget("preferred-anti-affinity", 5_000, _EQUAL_PODS_MS),
    EngineTarget("spread", 5_000, _EQUAL_PODS_MS),
    EngineTarget("preferred-spread", 5_000, _EQUAL_PODS_MS),
    EngineTarget("default-spread", 5_000, _EQUAL_PODS_MS),
    EngineTarget("ns-selector-anti-affinity", 5_000, _NS_SELECTOR_MS),
    EngineTarget("ns-selector-affinity", 5_000, _NS_SELECTOR_MS),
    EngineTarget("ns-selector-preferred-affinity", 5_000, _NS_SELECTOR_MS),
    EngineTarget("ns-selector-preferred-anti-affinity", 5_000, _NS_SELECTOR_MS),
    EngineTarget("unschedulable", 5_000, 0.10, rejected=True),
    EngineTarget("preemption", 1_000, 3.0, per_pod=True),
    EngineTarget("daemonset", 15_000, 0.15),
)
GROWTH_NODES: Final = (100, 1_000, 5_000, 15_000)
GROWTH_FROM: Final = 1_000
GROWTH_TO: Final = 15_000
GROWTH_LIMIT: Final = 1.5
GROWTH_KINDS: Final = (
    "anti-affinity",
    "affinity",
    "zone-affinity",
    "preferred-affinity",
    "spread",
    "preferred-spread",
    "default-spread",
)
"""Kinds measured at two sizes; plain pods are measured at all sizes."""
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
    *(
        HttpTarget("affinity", workload, 0.90)
        for workload in (
            "SchedulingRequiredPodAntiAffinityWithNSSelector/5000Nodes_2000Pods",
            "SchedulingRequiredPodAffinityWithNSSelector/5000Nodes_2000Pods",
            "SchedulingPreferredAffinityWithNSSelector/5000Nodes_5000Pods",
            "SchedulingPreferredAntiAffinityWithNSSelector/5000Nodes_2000Pods",
        )
    ),
    HttpTarget("misc", "Unschedulable/5kNodes/100Init/10kPods", None),
    HttpTarget("misc", "SchedulingWithMixedChurn/5000Nodes_10000Pods", None),
    HttpTarget("misc", "PreemptionBasic/1000Nodes", 4.0),
    HttpTarget("misc", "SchedulingDaemonset/15000Nodes", 0.65),
)


class ComparedWorkload(NamedTuple):
    """A workload that asched and kube-scheduler execute in turns."""

    file: str
    """As in :class:`HttpTarget`."""
    workload: str
    label: str
    """For a chart."""


DEVICES: Final = "dra"
"""A folder of this repository: the cases of scheduler_perf's ``dra`` that 1.36 runs by default."""

COMPARED: Final = (
    ComparedWorkload("misc", "SchedulingBasic/5000Nodes_10000Pods", "plain pods"),
    ComparedWorkload("misc", "SchedulingDaemonset/15000Nodes", "daemonset, 15,000 nodes"),
    ComparedWorkload("affinity", "SchedulingPodAntiAffinity/5000Nodes_2000Pods", "anti-affinity"),
    ComparedWorkload("affinity", "SchedulingPodAffinity/5000Nodes_5000Pods", "zone affinity"),
    ComparedWorkload(
        "affinity", "SchedulingPreferredPodAffinity/5000Nodes_5000Pods", "preferred affinity"
    ),
    ComparedWorkload(
        "topology_spreading", "TopologySpreading/5000Nodes_5000Pods", "topology spread"
    ),
    ComparedWorkload("misc", "PreemptionBasic/1000Nodes", "preemption, 1,000 nodes"),
    ComparedWorkload(
        DEVICES, "SchedulingWithResourceClaimTemplate/4000pods_500nodes", "claims, 500 nodes"
    ),
    ComparedWorkload(
        DEVICES, "SteadyStateClusterResourceClaimTemplate/empty_500nodes", "claims, steady state"
    ),
    ComparedWorkload(
        DEVICES, "SteadyStateClusterResourceClaimTemplate/half_500nodes", "claims, half full"
    ),
    ComparedWorkload(
        DEVICES, "SteadyStateClusterResourceClaimTemplate/full_500nodes", "claims, full"
    ),
    ComparedWorkload(DEVICES, "SchedulingWithResourceClaim/5000pods_500nodes", "shared claims"),
    ComparedWorkload(DEVICES, "ExtendedResource/500pods_500nodes", "extended resources"),
    ComparedWorkload(
        DEVICES, "ExtendedResource_25Classes/4000pods_500nodes", "extended resources, 25 classes"
    ),
)


class Machine(msgspec.Struct, frozen=True):
    """Where and when the figures were measured."""

    date: str
    processor: str
    processors: int
    python: str
    load_before: float
    """One-minute load average before the measurement."""


class EngineResult(msgspec.Struct):
    """One row of the engine table."""

    row: Row
    limit_ms: float
    measured_ms: float


class HttpResult(msgspec.Struct):
    """One row of the workload table."""

    report: Report
    limit_ms: float | None


class Elapsed(NamedTuple):
    """Seconds from the creation of the first measured pod to a binding."""

    first_s: float
    last_s: float


class ComparisonResult(msgspec.Struct):
    """CPU milliseconds per pod, one for each run; both schedulers run in turns."""

    workload: str
    label: str
    asched_ms: list[float] = []
    kube_scheduler_ms: list[float] = []

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return median(self.asched_ms) / median(self.kube_scheduler_ms)


class ElapsedResult(msgspec.Struct):
    """Elapsed times of a compared workload, one for each run."""

    workload: str
    asched: list[Elapsed] = []
    kube_scheduler: list[Elapsed] = []


class Results(msgspec.Struct):
    """All figures. Parts that were not measured are empty."""

    machine: dict[str, Machine] = {}
    """By the name of the part."""
    engine: list[EngineResult] = []
    growth: list[Row] = []
    shapes: list[Row] = []
    http: list[HttpResult] = []
    start: list[StartFigures] = []
    steady: list[SteadyFigures] = []
    interference: list[InterferenceFigures] = []
    comparison: list[ComparisonResult] = []
    scale: list[ScaleFigures] = []
    elapsed: list[ElapsedResult] = []
    latency: list[LatencyResult] = []


def load(path: Path) -> Results:
    """Read the figures; empty if the file does not exist."""
    if not path.exists():
        return Results()
    return msgspec.json.decode(path.read_bytes(), type=Results)


def save(path: Path, results: Results) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
