"""CPU cost of a plugin that is called for each node or once for all nodes.

    python -m benchmarks.plugin_forms

Adds a Filter and a Score to kube-scheduler's default profile, and schedules equal pods on equal
nodes. Prints CPU milliseconds per decision, and the difference from the profile without the plugin:
medians over the pods, then over the runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Annotated, ClassVar

import numpy as np
import typer

from asched.cycle.decide import Decider
from asched.framework import (
    MAX_NODE_SCORE,
    SUCCESS,
    CycleState,
    FilterAllPlugin,
    FilterPlugin,
    FilterResult,
    Int64Column,
    NodeInfo,
    Nodes,
    Plugin,
    PodInfo,
    Scope,
    ScoreAllPlugin,
    ScorePlugin,
    Status,
)
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import (
    Assigned,
    EngineStarted,
    ObjectObserved,
    ProfilesLoaded,
    TurnStarted,
)
from asched.testing import node, pod, profile

_WARM_UP = 5
"""Decisions before the measurement, which fill caches."""


class PerNodePlugin(FilterPlugin, ScorePlugin):
    """A Filter and a Score that are called for each node."""

    name: ClassVar[str] = "PerNodePlugin"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if node.free("cpu") < pod.shape.requests.get("cpu", 0):
            return Status.unschedulable("too little cpu")
        if node.labels.get("team", "") not in ("", pod.labels.get("team")):
            return Status.unschedulable("another team's node")
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return 100 * node.free("memory") // node.allocatable("memory")


class AllNodesPlugin(FilterAllPlugin, ScoreAllPlugin):
    """The same plugin, called once for all nodes."""

    name: ClassVar[str] = "AllNodesPlugin"
    api_version: ClassVar[int] = 1

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        free = nodes.allocatable("cpu") - nodes.requested("cpu")
        team = nodes.label("team")
        too_small = free < pod.shape.requests.get("cpu", 0)
        other_team = team.present & ~team.is_in([pod.labels.get("team", "")])
        statuses = (Status.unschedulable("too little cpu"), Status.unschedulable("another team's"))
        return FilterResult(np.where(too_small, 1, other_team * 2).astype(np.int16), statuses)

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        offered = nodes.allocatable("memory")
        free = offered - nodes.requested("memory")
        return free * MAX_NODE_SCORE // np.maximum(offered, 1)


class NodeScopedPlugin(PerNodePlugin):
    """The first plugin, declared to read only the pod and its node."""

    name: ClassVar[str] = "NodeScopedPlugin"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE


def decision_ms(plugins: Sequence[type[Plugin]], nodes: int, pods: int) -> float:
    """Median CPU milliseconds of a decision with these plugins."""
    setup = profile(*plugins)
    fold = Fold(ClusterState(), setup.registry.load)
    fold.apply(EngineStarted("benchmark", 1))
    fold.apply(ProfilesLoaded(setup.profiles))
    fold.apply(TurnStarted(1_790_000_000_000_000_000))
    for number in range(nodes):
        fold.apply(ObjectObserved(node(f"node-{number}", cpu="16", memory="64Gi")))
    decider, costs_ns = Decider(fold.state), list[int]()
    for number in range(_WARM_UP + pods):
        fold.apply(ObjectObserved(pod(f"pod-{number}", cpu="500m", memory="1Gi")))
        began_ns = time.process_time_ns()
        (decision,) = decider.next()
        costs_ns.append(time.process_time_ns() - began_ns)
        if not isinstance(decision, Assigned):
            raise RuntimeError(f"unexpected decision: {decision}")
        fold.apply(decision)
    return median(costs_ns[_WARM_UP:]) / 1e6


def main(
    nodes: Annotated[int, typer.Option(help="Nodes of the cluster.", min=2)] = 5000,
    pods: Annotated[int, typer.Option(help="Pods to schedule in each run.", min=1)] = 40,
    runs: Annotated[int, typer.Option(help="Runs of each; the median is reported.", min=1)] = 5,
) -> None:
    """Measure the CPU cost of a Filter and a Score in each form."""
    forms: tuple[type[Plugin], ...] = (PerNodePlugin, NodeScopedPlugin, AllNodesPlugin)
    default_ms, *plugin_ms = (
        median(decision_ms(plugins, nodes, pods) for _ in range(runs))
        for plugins in ((), *((form,) for form in forms))
    )
    print(f"{nodes} nodes, CPU ms per decision: default profile {default_ms:.3f}")
    for form, total_ms in zip(forms, plugin_ms, strict=True):
        print(f"{form.name:16} {total_ms:.3f}, plugin {total_ms - default_ms:.3f}")


if __name__ == "__main__":
    typer.run(main)
