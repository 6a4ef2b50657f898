"""Simulation of small traces with checks of the state after each turn and of the result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from asched.framework.interface import Plugin
from asched.framework.runtime.profile import ProfileSpec
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.requests import amounts, pod_requests
from asched.model.resources import Resource, decode
from asched.simulator.loop import Latencies, SchedulerSettings, Simulation
from asched.simulator.trace import (
    ObjectSet,
    PodCreated,
    PodPlacement,
    PodRun,
    TraceEvent,
    WorkloadRun,
    WorkloadTrace,
)
from asched.state.records import AnyRecord, QueueSettings
from asched.testing.invariants import check
from tests.cycle.default_profile import default_profiles, installed
from tests.state.profiles import loader, profile_of

BEGIN_NS = 1_767_225_600 * NS_PER_S
"""2026-01-01."""


def at(seconds: float) -> int:
    return BEGIN_NS + round(seconds * NS_PER_S)


def node(name: str, cpu: str = "4", **labels: str) -> Node:
    raw = {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
        "status": {"allocatable": {"cpu": cpu, "memory": "16Gi", "pods": "110"}},
    }
    decoded = decode(Resource.NODES, msgspec.json.encode(raw))
    assert isinstance(decoded, Node)
    return decoded


def pod(name: str, cpu: str = "1", *, owner: str = "", grace_s: int = 30, **spec: Any) -> Pod:
    owners = [{"kind": owner, "name": "own", "uid": "o", "controller": True}] if owner else []
    raw = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "ownerReferences": owners,
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "terminationGracePeriodSeconds": grace_s,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            **spec,
        },
    }
    decoded = decode(Resource.PODS, msgspec.json.encode(raw))
    assert isinstance(decoded, Pod)
    return decoded


def has(*nodes: Node, seconds: float = 0) -> list[TraceEvent]:
    """Events that add the nodes."""
    return [ObjectSet(at(seconds), item) for item in nodes]


def comes(
    created: Pod, seconds: float = 0, runs_s: float | None = None, *, recreated: bool = True
) -> PodCreated:
    run_ns = None if runs_s is None else round(runs_s * NS_PER_S)
    return PodCreated(at(seconds), created, run_ns, recreated)


class Simulated(NamedTuple):
    """A run and its records."""

    run: WorkloadRun
    records: list[AnyRecord]

    def pod(self, name: str, number: int = 0) -> PodRun:
        """The pod with this name; ``number`` selects one of several."""
        return [found for found in self.run.pods if found.pod.name == name][number]

    def placements(self, name: str, number: int = 0) -> list[tuple[str, float, float | None, str]]:
        """Node, start and end in seconds, and end reason of each placement."""
        return [
            (
                placement.node,
                seconds(placement.assigned_ns),
                None if placement.ended_ns is None else seconds(placement.ended_ns),
                "" if placement.end is None else placement.end.value,
            )
            for placement in self.pod(name, number).placements
        ]


def seconds(at_ns: int) -> float:
    return (at_ns - BEGIN_NS) / NS_PER_S


def simulated(
    events: Iterable[TraceEvent],
    *plugins: type[Plugin],
    profiles: Sequence[ProfileSpec] = (),
    latencies: Latencies | None = None,
    queue: QueueSettings | None = None,
    end_s: float | None = None,
    seed: int = 0,
) -> Simulated:
    """Simulate the default profile, or a profile of these plugins."""
    chosen = profiles or ((profile_of(*plugins),) if plugins else default_profiles())
    load = loader(*plugins) if plugins else installed().load
    history = WorkloadTrace(
        tuple(sorted(events, key=lambda e: e.at_ns)), BEGIN_NS, None if end_s is None else at(end_s)
    )
    scheduler = SchedulerSettings(
        tuple(chosen), queue or QueueSettings(), seed, latencies or Latencies()
    )
    simulation = Simulation(history, scheduler, load)
    records: list[AnyRecord] = []
    for turn in simulation.turns():
        records += turn.records
        check(simulation.cluster)
    result = Simulated(simulation.result(), records)
    account(result.run)
    return result


def account(run: WorkloadRun) -> None:
    """Check that all pods are accounted for and no node is overcommitted."""
    for found in run.pods:
        _account_for(found, run)
    changes: dict[str, list[tuple[int, int, int]]] = {}
    for found in run.pods:
        if not found.pod.spec.node_name:
            asked = pod_requests(found.pod).get("cpu", 0)
            for placement in found.placements:
                changes.setdefault(placement.node, []).extend(_of_stint(placement, asked))
    offered: dict[str, int] = {}
    for span in run.nodes:
        name, cpu = span.node.name, amounts(span.node.status.allocatable)["cpu"]
        offered[name] = max(cpu, offered.get(name, 0))
    for name, of_node in changes.items():
        _check_room(name, of_node, offered[name])


def _account_for(found: PodRun, run: WorkloadRun) -> None:
    assert run.begin_ns <= found.created_ns <= run.end_ns
    assert (found.end is None) == (found.ended_ns is None)
    since_ns = found.created_ns
    for number, placement in enumerate(found.placements, 1):
        assert (placement.end is None) == (placement.ended_ns is None)
        assert placement.assigned_ns >= since_ns
        assert placement.bound_ns is None or placement.bound_ns >= placement.assigned_ns
        if placement.ended_ns is None:
            assert number == len(found.placements)
            assert found.ended_ns is None
        else:
            assert placement.ended_ns >= max(placement.assigned_ns, placement.bound_ns or 0)
            since_ns = placement.ended_ns
    if found.ended_ns is not None:
        assert since_ns <= found.ended_ns <= run.end_ns
        assert not found.message
    if not found.pod.spec.node_name:
        assert found.attempts >= len(found.placements)
        assert found.rejections <= found.attempts


def _check_room(name: str, changes: list[tuple[int, int, int]], offered: int) -> None:
    """Check that our placements never exceed the capacity of the node."""
    taken = 0
    # Of what happens at the same time, pods go first.
    for _, _, change in sorted(changes):
        taken += change
        assert taken <= offered, f"{name} gives {taken} of {offered}"


def _of_stint(placement: PodPlacement, asked: int) -> Iterable[tuple[int, int, int]]:
    yield (placement.assigned_ns, 1, asked)
    if placement.ended_ns is not None:
        yield (placement.ended_ns, 0, -asked)
