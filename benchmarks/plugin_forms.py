"""What a plugin costs by the form it is written in: one node at a time, or all nodes at once.

    python -m benchmarks.plugin_forms

A Filter and a Score are added to kube-scheduler's default profile, and like pods are decided one after
the other on a cluster of equal nodes. Told are CPU milliseconds per decision, and what of that is the
pair's: the difference from the profile without it. Medians over the pods, and then of the runs.
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
    Int64Column,
    NodeInfo,
    Nodes,
    Plugin,
    PodInfo,
    Scope,
    ScoreAllPlugin,
    ScorePlugin,
    Status,
    Verdicts,
)
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import Assigned, EngineStarted, ObjectSeen, ProfilesLoaded, TurnStarted
from asched.testing import node, pod, profile

_WARM_UP = 5
"""Decisions that are not counted: caches fill."""


class OneByOne(FilterPlugin, ScorePlugin):
    """A Filter and a Score as one writes them first."""

    name: ClassVar[str] = "OneByOne"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if node.free("cpu") < pod.shape.requests.get("cpu", 0):
            return Status.unschedulable("too little cpu")
        if node.labels.get("team", "") not in ("", pod.labels.get("team")):
            return Status.unschedulable("another team's node")
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return 100 * node.free("memory") // node.allocatable("memory")


class AllAtOnce(FilterAllPlugin, ScoreAllPlugin):
    """The same for all nodes at once."""

    name: ClassVar[str] = "AllAtOnce"
    api_version: ClassVar[int] = 1

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Verdicts:
        free = nodes.allocatable("cpu") - nodes.requested("cpu")
        team = nodes.label("team")
        full = free < pod.shape.requests.get("cpu", 0)
        theirs = team.present & ~team.is_in([pod.labels.get("team", "")])
        statuses = (Status.unschedulable("too little cpu"), Status.unschedulable("another team's"))
        return Verdicts(np.where(full, 1, theirs * 2).astype(np.int16), statuses)

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        offered = nodes.allocatable("memory")
        free = offered - nodes.requested("memory")
        return free * MAX_NODE_SCORE // np.maximum(offered, 1)


class OneByOneOfNode(OneByOne):
    """The first, and it says that it looks at nothing but its node."""

    name: ClassVar[str] = "OneByOneOfNode"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE


def decision_ms(plugins: Sequence[type[Plugin]], nodes: int, pods: int) -> float:
    """CPU milliseconds that a decision takes with these plugins, the median over the pods."""
    setup = profile(*plugins)
    fold = Fold(ClusterState(), setup.registry.load)
    fold.apply(EngineStarted("benchmark", 1))
    fold.apply(ProfilesLoaded(setup.profiles))
    fold.apply(TurnStarted(1_790_000_000_000_000_000))
    for number in range(nodes):
        fold.apply(ObjectSeen(node(f"node-{number}", cpu="16", memory="64Gi")))
    decider, costs_ns = Decider(fold.state), list[int]()
    for number in range(_WARM_UP + pods):
        fold.apply(ObjectSeen(pod(f"pod-{number}", cpu="500m", memory="1Gi")))
        began_ns = time.process_time_ns()
        (decision,) = decider.next()
        costs_ns.append(time.process_time_ns() - began_ns)
        if not isinstance(decision, Assigned):
            raise RuntimeError(f"not expected here: {decision}")
        fold.apply(decision)
    return median(costs_ns[_WARM_UP:]) / 1e6


def main(
    nodes: Annotated[int, typer.Option(help="Nodes of the cluster.", min=2)] = 5000,
    pods: Annotated[int, typer.Option(help="Pods to decide for in each run.", min=1)] = 40,
    runs: Annotated[int, typer.Option(help="Runs of each, of which the median counts.", min=1)] = 5,
) -> None:
    """Measure what a Filter and a Score cost in each form."""
    forms: tuple[type[Plugin], ...] = (OneByOne, OneByOneOfNode, AllAtOnce)
    bare, *with_each = (
        median(decision_ms(plugins, nodes, pods) for _ in range(runs))
        for plugins in ((), *((form,) for form in forms))
    )
    print(f"{nodes} nodes, CPU ms per decision: default profile {bare:.3f}")
    for form, with_it in zip(forms, with_each, strict=True):
        print(f"{form.name:16} {with_it:.3f}, the pair {with_it - bare:.3f}")


if __name__ == "__main__":
    typer.run(main)
