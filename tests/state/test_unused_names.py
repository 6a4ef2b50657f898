"""Names of resources, label values and taints take memory only while something uses them."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np

from asched.framework.pod_info import PodInfo
from asched.model.node import Taint
from asched.state.cluster import ClusterState
from asched.state.node_table import NodeTable
from asched.state.stored_form import run
from tests.core.hostile import HostileCore
from tests.security.hostile_objects import POD_CLASSES, names_at_limit
from tests.state.objects import a_node, a_pod

NODES = 2000


def a_table(nodes: int = NODES) -> NodeTable:
    table = NodeTable()
    for number in range(nodes):
        table.set_node(a_node(f"n{number}", labels={"name": f"n{number}"}))
    return table


def test_request_of_zero_leaves_no_name() -> None:
    table = a_table(3)
    table.add_pod("n0", PodInfo(a_pod("p", {f"x.io/r{i}": "0" for i in range(50)})))
    assert [*table.resources] == ["cpu", "memory", "pods"]
    assert table.requested("x.io/r0").tolist() == [0, 0, 0]


def test_unoffered_resource_takes_no_column() -> None:
    table = a_table()
    pods = [PodInfo(a_pod(f"p{j}", {f"x{j}.io/r{i}": "1" for i in range(50)})) for j in range(20)]
    tracemalloc.start()
    for pod in pods:
        table.add_pod("n0", pod)
    grown_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A column for each of the 1,000 names would be 16 MB.
    assert grown_bytes < 1_000_000
    assert table.requested("x3.io/r7")[0] == 1
    assert len([*table.resources]) == 1003
    for pod in pods:
        table.remove_pod("n0", pod)
    assert [*table.resources] == ["cpu", "memory", "pods"]


def test_resource_that_nodes_offer_for_a_time() -> None:
    table = a_table(3)
    gpu = {"cpu": "4", "example.com/gpu": "8"}
    pods = [PodInfo(a_pod(f"p{i}", {"example.com/gpu": "2"})) for i in range(3)]
    table.add_pod("n0", pods[0])
    assert table.requested_on(0, "example.com/gpu") == 2
    before = table.utilization_id(0)
    for name in ("n0", "n1"):
        table.set_node(a_node(name, gpu))
    table.add_pod("n1", pods[1])
    assert table.requested("example.com/gpu").tolist() == [2, 2, 0]
    assert table.allocatable("example.com/gpu").tolist() == [8, 8, 0]
    table.set_node(a_node("n1"))
    table.add_pod("n1", pods[2])
    assert table.requested("example.com/gpu").tolist() == [2, 4, 0]
    table.remove_node("n0")
    assert table.requested_on(1, "example.com/gpu") == 4
    assert table.allocatable("example.com/gpu").tolist() == [0, 0, 0]
    table.remove_pod("n0", pods[0])
    table.remove_pod("n1", pods[1])
    table.set_node(a_node("n0", gpu))
    assert table.requested("example.com/gpu").tolist() == [0, 2, 0]
    assert table.utilization_id(0) != before
    table.remove_pod("n1", pods[2])
    table.remove_node("n0")
    assert [*table.resources] == ["cpu", "memory", "pods"]


def test_utilization_counts_unoffered_requests() -> None:
    table = a_table(2)
    assert table.utilization_id(0) == table.utilization_id(1)
    pods = [PodInfo(a_pod(name, {resource: "1"})) for name, resource in (("p", "x"), ("q", "y"))]
    table.add_pod("n0", pods[0])
    table.add_pod("n1", pods[1])
    assert table.utilization_id(0) != table.utilization_id(1)


def test_order_of_names_survives_a_checkpoint() -> None:
    table = a_table(2)
    for name, resource in (("p", "z.io/r"), ("q", "a.io/r"), ("r", "m.io/r")):
        table.add_pod("n1" if name == "p" else "n0", PodInfo(a_pod(name, {resource: "1"})))
    table.set_node(a_node("n1", {"cpu": "1", "m.io/r": "1"}))
    restored = NodeTable()
    restored.restore(run(table.snapshot()), {n: table.node(i) for i, n in enumerate(table.names)})
    assert [*restored.resources] == [*table.resources]
    assert run(restored.snapshot()) == run(table.snapshot())


def test_label_values_are_dropped() -> None:
    table = a_table(10)
    for value in range(20_000):
        table.set_node(a_node(f"n{value % 10}", labels={"clock": f"v{value}"}))
    assert len(table.label_index.vocabulary.words) <= 2**13
    assert table.label("clock").values() == [f"v{19_990 + row}" for row in range(10)]
    assert not table.label("name").present.any()
    assert [*table.label_index.columns] == ["clock"]


def test_taints_are_dropped() -> None:
    table = a_table(10)
    for value in range(2_000):
        taints = (Taint(key="clock", value=f"v{value}"),)
        table.set_node(a_node(f"n{value % 10}", taints=taints))
    column = table.taints
    assert len(column.sets) <= 2**9
    found = [column.sets[number] for number in column.ids.tolist()]
    assert found == [table.node(row).spec.taints for row in range(10)]


def test_names_of_pods_leave_the_state_and_its_checkpoints() -> None:
    core = HostileCore()
    hostile = next(c for c in POD_CLASSES if c.name == "requests of 0")
    core.see(hostile.resource, hostile.raw(1))
    made = [json.dumps(names_at_limit(number, 0)).encode() for number in range(20)]
    for raw in made:
        core.see(hostile.resource, raw)
    assert _names(core.state) == 3 + 20 * 63
    core.verify_replay()
    for raw in made:
        core.delete(hostile.resource, raw)
    assert _names(core.state) == 3
    core.verify_replay()


def _names(state: ClusterState) -> int:
    snapshot = run(state.nodes.snapshot())
    assert len(snapshot.allocatable) == len(state.nodes.columns.allocatable)
    assert np.all([len(c) < 100 for c in state.nodes.columns.requested.values()])
    return len(snapshot.allocatable) + len(snapshot.unoffered)
