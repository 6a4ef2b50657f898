"""Nodes of another shape, and nodes that vanish."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.audit.lookup import AuditError
from asched.capacity.node_counts import initial_nodes, node_changes
from asched.capacity.node_mix import NodeMix, with_node_mix
from asched.capacity.spot_nodes import SpotNodes, with_spot_nodes
from asched.model.node import Node
from asched.planning.workloads import default_scheduler
from asched.simulator.expansion import expand
from asched.simulator.loop import simulate
from asched.simulator.scenario import read_scenario
from asched.simulator.trace import (
    EndReason,
    NodeDrained,
    ObjectRemoved,
    ObjectSet,
    WorkloadRun,
    WorkloadTrace,
)
from tests.audit.recording import REGISTRY, Recording, node, pod
from tests.audit.whatif.histories import history_of
from tests.planning.journals import SCENARIO
from tests.run_size import examples

TRACE = expand(read_scenario(SCENARIO), "default-scheduler")


def run(trace: WorkloadTrace) -> WorkloadRun:
    return simulate(trace, default_scheduler(REGISTRY), REGISTRY.load)


def forms(trace: WorkloadTrace) -> dict[str, Node]:
    return {
        event.object.name: event.object
        for event in trace.events
        if isinstance(event, ObjectSet) and isinstance(event.object, Node)
    }


def test_nodes_of_a_given_shape() -> None:
    mix = NodeMix(
        name="wide",
        replace="small-0,small-1",
        each=1.5,
        allocatable={"cpu": "32"},
        labels={"node.kubernetes.io/instance-type": "wide"},
    )
    trace = with_node_mix(TRACE, mix, 0).trace
    assert initial_nodes(trace) == sorted(
        [*(f"large-{i}" for i in range(4)), *(f"wide-{i}" for i in range(3))],
        key=lambda name: (name.startswith("large"), name),
    )
    wide = forms(trace)["wide-0"]
    assert wide.status.allocatable == {"cpu": "32", "pods": "110"}
    assert wide.metadata.labels["kubernetes.io/hostname"] == "wide-0"
    assert wide.metadata.labels["node.kubernetes.io/instance-type"] == "wide"
    bound = {p.node for pod in run(trace).pods for p in pod.placements}
    assert bound & {"wide-0", "wide-1", "wide-2"}
    assert not bound & {"small-0", "small-1"}


def test_nodes_like_another_one() -> None:
    trace = with_node_mix(TRACE, NodeMix(name="l", replace="50%", like="large-1"), 0).trace
    assert len(initial_nodes(trace)) == 6
    added = [name for name in initial_nodes(trace) if name.startswith("large-1-added-")]
    assert len(added) == 3
    assert with_node_mix(TRACE, NodeMix(), 0).trace is TRACE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"replace": 1}, "expected a name"),
        ({"replace": 1, "name": "a"}, "exactly one of like and allocatable"),
        ({"replace": 1, "name": "a", "like": "n", "labels": {"a": "b"}}, "labels need allocatable"),
        ({"replace": 1, "name": "a", "allocatable": {"cpu": "many"}}, "allocatable: "),
    ],
)
def test_invalid_mixes(text: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(text, NodeMix)


def test_unknown_and_taken_nodes() -> None:
    with pytest.raises(AuditError, match='nodeMixes: the workload has no node "huge-0"'):
        with_node_mix(TRACE, NodeMix(name="a", replace="huge-0", like="large-0"), 0)
    with pytest.raises(AuditError, match="nodeMixes: 9 of 6 nodes"):
        with_node_mix(TRACE, NodeMix(name="a", replace=9, like="large-0"), 0)
    with pytest.raises(AuditError, match="has a node large-0; choose another name"):
        with_node_mix(TRACE, NodeMix(name="large", replace=1, allocatable={"cpu": "1"}), 0)
    with pytest.raises(AuditError, match='spotNodes: the workload has no node "x"'):
        with_spot_nodes(TRACE, SpotNodes("x", 1.0), 0)


@given(st.integers(0, 50), st.floats(0.1, 20), st.booleans(), st.booleans())
@settings(max_examples=examples(40))
def test_presence_of_spot_nodes(seed: int, per_hour: float, returns: bool, notice: bool) -> None:
    """A node is removed only while it is present, and comes back only while it is absent, with
    another uid; without a return it vanishes once."""
    spot = SpotNodes(
        "50%",
        per_hour,
        timedelta(minutes=2 if notice else 0),
        timedelta(minutes=5) if returns else None,
        {"capacity": "spot"},
    )
    changed = with_spot_nodes(TRACE, spot, seed)
    present: set[str] = set()
    uids: dict[str, set[str]] = {}
    vanished = 0
    for event in changed.trace.events:
        match event:
            case ObjectSet(object=Node() as node):
                if node.name not in present:
                    assert node.uid not in uids.setdefault(node.name, set())
                    uids[node.name].add(node.uid)
                present.add(node.name)
            case ObjectRemoved(kind="Node", key=name):
                assert name in present
                present.discard(name)
                vanished += 1
            case NodeDrained(node=name):
                assert name in present
    assert changed.notes == (f"3 spot nodes vanish {vanished} times",)
    if not returns:
        assert vanished <= 3
        assert all(len(found) == 1 for found in uids.values())
    marked = {n.name for n in forms(changed.trace).values() if "capacity" in n.metadata.labels}
    assert len(marked) == 3


def test_pods_of_a_node_that_vanished_run_elsewhere() -> None:
    spot = SpotNodes("large-0,large-1", 6.0, returns_after=timedelta(minutes=3))
    changed = with_spot_nodes(TRACE, spot, 1)
    found = run(changed.trace)
    moved = [pod for pod in found.pods for p in pod.placements if p.end is EndReason.NODE_GONE]
    assert moved
    assert all(pod.end is EndReason.FINISHED for pod in moved)
    spans = [span for span in found.nodes if span.node.name == "large-0"]
    assert len({span.node.uid for span in spans}) > 1
    noticed = with_spot_nodes(TRACE, msgspec.structs.replace(spot, notice=timedelta(minutes=1)), 1)
    reasons = {p.end for pod in run(noticed.trace).pods for p in pod.placements}
    assert EndReason.DRAINED in reasons


def test_other_nodes_do_not_change_when_one_vanishes() -> None:
    def times(nodes: str) -> list[int]:
        changed = with_spot_nodes(TRACE, SpotNodes(nodes, 3.0), 4)
        return [
            event.at_ns
            for event in changed.trace.events
            if isinstance(event, ObjectRemoved) and event.key == "large-2"
        ]

    assert times("large-2") == times("large-2,small-0,large-3")


async def test_nodes_that_a_daemon_lists_are_there_from_the_beginning() -> None:
    """It starts with a turn of its own, and lists nodes in the next one."""
    recording = Recording()
    recording.turn(0.1)
    recording.see(node("n0"), node("n1"))
    recording.turn(0.2)
    recording.see(pod("p"))
    recording.bind(recording.decide())
    recording.turn(1)
    recording.see(node("later"))
    recording.turn(2)
    history = await history_of(recording)
    assert initial_nodes(history.trace) == ["n0", "n1"]
    assert [*node_changes(history.trace, "", "50%", 0).removed] in (["n0"], ["n1"])


@pytest.mark.parametrize("number", ["10%", "3"])
def test_no_node_at_the_beginning(number: str) -> None:
    empty = WorkloadTrace((), 0)
    with pytest.raises(AuditError, match="drop_nodes: the workload has no nodes at its beginning"):
        node_changes(empty, "", number, 0)
    with pytest.raises(AuditError, match="add_nodes: the workload has no nodes at its beginning"):
        node_changes(empty, number, "", 0)
