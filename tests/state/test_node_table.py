"""Columns that are updated row by row equal columns built from scratch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from asched.framework.nodes import Nodes
from asched.framework.pod_info import HostPort, PodInfo, PodShape
from asched.model.node import ContainerImage, Node, NodeStatus, Taint
from asched.model.pod import ContainerPort
from asched.model.quantity import MAX_INT64
from asched.state.node_table import NodeTable
from tests.state.objects import a_node, a_pod, labelled

NAMES = ("n0", "n1", "n2", "n3", "n4")
UIDS = tuple(f"p{i}" for i in range(7))
RESOURCES = ("cpu", "memory", "example.com/gpu")
LABELS = ("zone", "disk")
IMAGES = ("app:v1", "db:v2")
PORTS = (
    HostPort("TCP", 80, "0.0.0.0"),
    HostPort("TCP", 80, "10.0.0.1"),
    HostPort("TCP", 80, "10.0.0.2"),
    HostPort("UDP", 80, "10.0.0.1"),
    HostPort("TCP", 81, "0.0.0.0"),
)

quantities = st.sampled_from(("0", "1", "250m", "1Gi", "7", "4Ei", "8Ei", "9e30", "-3", "-9e30"))
requests = st.dictionaries(st.sampled_from(RESOURCES), quantities, max_size=3)
nodes = st.builds(
    a_node,
    st.sampled_from(NAMES),
    st.dictionaries(st.sampled_from((*RESOURCES, "pods")), quantities, max_size=4),
    labels=st.dictionaries(st.sampled_from(LABELS), st.sampled_from(("a", "b")), max_size=2),
    taints=st.lists(st.builds(Taint, key=st.sampled_from(("x", "y"))), max_size=2).map(tuple),
    unschedulable=st.booleans(),
    images=st.dictionaries(st.sampled_from(IMAGES), st.sampled_from((0, 10, 2000)), max_size=2),
)
host_ports = st.lists(
    st.builds(
        ContainerPort,
        host_port=st.sampled_from((0, 80, 81)),
        protocol=st.sampled_from(("TCP", "UDP")),
        host_ip=st.sampled_from(("", "10.0.0.1", "10.0.0.2")),
    ),
    max_size=2,
).map(tuple)


def pod_infos(uids: st.SearchStrategy[str]) -> st.SearchStrategy[PodInfo]:
    return uids.flatmap(
        lambda uid: st.builds(a_pod, st.just(uid), requests, uid=st.just(uid), ports=host_ports)
    ).map(PodInfo)


class Row(NamedTuple):
    """The values of all columns for one node."""

    allocatable: list[int]
    requested: list[int]
    scoring: tuple[int, int]
    pod_count: int
    allowed_pods: int
    unschedulable: bool
    labels: list[str | None]
    taints: tuple[Taint, ...]
    conflicts: list[bool]
    images: list[tuple[int, int]]
    node: Node
    pods: dict[str, tuple[PodShape, dict[str, str]]]
    """The parts of pods that a node-scope plugin may read."""


def rows_by_number(nodes: Nodes) -> dict[int, Row]:
    """The column values of every row with a node."""
    taints = nodes.taints
    allocatable = [nodes.allocatable(name).tolist() for name in RESOURCES]
    requested = [nodes.requested(name).tolist() for name in RESOURCES]
    scoring = (nodes.scoring_cpu_milli.tolist(), nodes.scoring_memory_bytes.tolist())
    pod_count, allowed_pods = nodes.pod_count.tolist(), nodes.allowed_pods.tolist()
    unschedulable, taint_ids = nodes.unschedulable.tolist(), taints.ids.tolist()
    labels = [nodes.label(key).values() for key in LABELS]
    conflicts = [nodes.port_conflicts((port,)).tolist() for port in PORTS]
    images = [nodes.image_size_bytes(image) for image in IMAGES]
    sizes = [(column.tolist(), holders) for column, holders in images]
    return {
        row: Row(
            [column[row] for column in allocatable],
            [column[row] for column in requested],
            (scoring[0][row], scoring[1][row]),
            pod_count[row],
            allowed_pods[row],
            unschedulable[row],
            [column[row] for column in labels],
            taints.sets[taint_ids[row]],
            [column[row] for column in conflicts],
            [(column[row], holders) for column, holders in sizes],
            nodes.node(row),
            {pod.uid: (pod.shape, pod.labels) for pod in nodes.pods(row)},
        )
        for row in np.flatnonzero(nodes.alive).tolist()
    }


def rows_by_name(nodes: Nodes) -> dict[str, Row]:
    return {nodes.names[number]: row for number, row in rows_by_number(nodes).items()}


class NodeTableMachine(RuleBasedStateMachine):
    """A table, and the operations to build an equal one from scratch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = NodeTable()
        self.nodes: dict[str, Node] = {}
        self.placed: dict[str, tuple[str, PodInfo]] = {}
        # A reader's copy of every row, by row number.
        self.known: dict[int, Row] = {}
        self.cursor = 0
        self.layout = -1

    @initialize(filler=st.sampled_from((0, 62, 64)))
    def fill(self, filler: int) -> None:
        """Fill the first capacity, so that columns with contents grow."""
        for number in range(filler):
            name = f"filler-{number}"
            self.nodes[name] = a_node(name, {})
            self.table.set_node(self.nodes[name])

    @rule(node=nodes)
    def set_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.table.set_node(node)

    @rule(name=st.sampled_from(NAMES))
    def remove_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.table.remove_node(name)

    @rule(pod=pod_infos(st.sampled_from(UIDS)), name=st.sampled_from((*NAMES, "unknown")))
    def add_pod(self, pod: PodInfo, name: str) -> None:
        if pod.uid in self.placed:
            with pytest.raises(ValueError, match="already"):
                self.table.add_pod(self.placed[pod.uid][0], pod)
            return
        self.table.add_pod(name, pod)
        self.placed[pod.uid] = (name, pod)

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def remove_pod(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.placed)))
        self.table.remove_pod(*self.placed.pop(uid))

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def replace_pod(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.placed)))
        name, old = self.placed[uid]
        relabelled = PodInfo(labelled(old.pod, app="new"))
        new = data.draw(st.just(relabelled) | pod_infos(st.just(uid)))
        row = self.table.row_of(name)
        order = [] if row is None else [pod.uid for pod in self.table.pods(row)]
        self.table.replace_pod(name, new)
        self.placed[uid] = (name, new)
        assert row is None or [pod.uid for pod in self.table.pods(row)] == order

    @rule()
    def read_changes(self) -> None:
        """A reader that updates only changed rows, or all rows after a layout change."""
        changed = self.table.changed_since(self.cursor)
        assert changed is not None
        assert changed == sorted(set(changed))
        now = rows_by_number(self.table)
        if self.layout != self.table.layout:
            self.known = now
        else:
            self.known.update({row: now[row] for row in changed})
        self.cursor, self.layout = self.table.cursor, self.table.layout
        assert self.known == now

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), guest=pod_infos(st.just("guest")))
    def suppose(self, data: st.DataObject, guest: PodInfo) -> None:
        """Hypothetical pods equal real ones on a copy, and do not change the table."""
        before = rows_by_name(self.table)
        names = data.draw(
            st.lists(st.sampled_from(sorted(self.nodes)), unique=True, min_size=1, max_size=3)
        )
        taken = self.table.take(np.array([self.table.row_of(name) for name in names], np.intp))
        assert rows_by_name(taken) == {name: before[name] for name in names}
        copy = self.rebuilt()
        target = len(names) - 1
        taken.add_pod(target, guest)
        copy.add_pod(names[target], guest)
        assert rows_by_name(taken)[names[target]] == rows_by_name(copy)[names[target]]
        for pod in list(taken.pods(target)):
            taken.remove_pod(target, pod)
            copy.remove_pod(names[target], pod)
            assert rows_by_name(taken)[names[target]] == rows_by_name(copy)[names[target]]
        assert rows_by_name(self.table) == before

    def rebuilt(self) -> NodeTable:
        fresh = NodeTable()
        # The lowest row determines the size of an image, so nodes are added in row order.
        for name in self.table.names:
            if name:
                fresh.set_node(self.nodes[name])
        for name, pod in self.placed.values():
            fresh.add_pod(name, pod)
        return fresh

    @invariant()
    def equals_a_rebuild(self) -> None:
        fresh = self.rebuilt()
        assert {name for name in self.table.names if name} == self.nodes.keys()
        assert self.table.cluster_size == len(self.nodes)
        assert rows_by_name(self.table) == rows_by_name(fresh)
        assert {*self.table.resources} == {*fresh.resources}
        assert {*self.table.label_index.columns} == {*fresh.label_index.columns}
        self.empty_rows_hold_nothing()

    @invariant()
    def one_entry_stands_for_all_only_where_they_are_alike(self) -> None:
        for name in RESOURCES:
            column, capacity = self.table.allocatable(name), self.table.capacity(name)
            assert capacity.tolist() == (
                [column[0]] if len({*column.tolist()}) == 1 else column.tolist()
            )

    def empty_rows_hold_nothing(self) -> None:
        for row in np.flatnonzero(~self.table.alive).tolist():
            assert self.table.names[row] == ""
            assert not list(self.table.pods(row))
            assert self.table.pod_count[row] == self.table.allowed_pods[row] == 0
            assert self.table.taints.ids[row] == 0
            assert not any(self.table.requested(name)[row] for name in RESOURCES)
            assert not any(self.table.allocatable(name)[row] for name in RESOURCES)
            assert [self.table.label(key).values()[row] for key in LABELS] == [None, None]
            assert not any(self.table.port_conflicts((port,))[row] for port in PORTS)


NodeTableMachine.TestCase.settings = settings(stateful_step_count=30, deadline=None)
TestNodeTable = NodeTableMachine.TestCase


def test_log_reports_reader_that_fell_behind() -> None:
    table = NodeTable()
    table.set_node(a_node("n0"))
    cursor = table.cursor
    pod = PodInfo(a_pod("p"))
    for _ in range(1 << 16):
        table.add_pod("n0", pod)
        table.remove_pod("n0", pod)
    assert table.changed_since(cursor) is None
    assert table.changed_since(table.cursor) == []


def test_saturated_requests_are_exact_again_after_removal() -> None:
    table = NodeTable()
    table.set_node(a_node("n0"))
    huge = [PodInfo(a_pod(f"p{i}", {"memory": "8Ei"})) for i in range(2)]
    for pod in huge:
        table.add_pod("n0", pod)
    assert table.requested("memory")[0] == MAX_INT64
    assert table.scoring_memory_bytes[0] == MAX_INT64
    table.remove_pod("n0", huge[0])
    table.remove_pod("n0", huge[1])
    assert table.requested("memory")[0] == 0
    assert table.scoring_memory_bytes[0] == 0


def test_pods_of_deleted_node_count_again_after_it_returns() -> None:
    table = NodeTable()
    pod = PodInfo(a_pod("p", {"cpu": "2"}))
    table.add_pod("late", pod)
    table.set_node(a_node("late"))
    assert table.requested("cpu").tolist() == [2000]
    table.remove_node("late")
    table.set_node(a_node("other"))
    assert table.requested("cpu").tolist() == [0]
    table.set_node(a_node("late"))
    assert table.requested("cpu").tolist() == [0, 2000]
    table.remove_pod("late", pod)
    assert table.requested("cpu").tolist() == [0, 0]


def test_new_node_takes_lowest_free_row() -> None:
    table = NodeTable()
    for name in NAMES:
        table.set_node(a_node(name))
    table.remove_node("n3")
    table.remove_node("n1")
    table.set_node(a_node("new"))
    assert table.row_of("new") == 1
    assert table.names == ["n0", "new", "n2", "", "n4"]
    with pytest.raises(IndexError):
        table.node(3)


def test_new_node_changes_the_stamps_of_all_rows_if_there_are_images() -> None:
    table = NodeTable()
    table.set_node(a_node("n0", images={"app:v1": 5}))
    table.set_node(a_node("n1"))
    before = table.stamps.copy()
    table.set_node(a_node("n2"))
    fork = table.fork()
    assert (table.stamps[:2] > before).all()
    assert fork.stamps.tolist() == table.stamps.tolist()


def test_changed_images_change_the_layout() -> None:
    table = NodeTable()
    table.set_node(a_node("n0"))
    layout = table.layout
    table.set_node(a_node("n0", labels={"zone": "a"}))
    assert table.layout == layout
    node = a_node("n0")
    status = NodeStatus(images=(ContainerImage(names=("app:v1",), size_bytes=5),))
    table.set_node(Node(metadata=node.metadata, spec=node.spec, status=status))
    assert table.layout > layout


def test_capacities_of_fork_and_table_are_independent() -> None:
    table = NodeTable()
    table.set_node(a_node("n0", {"cpu": "4"}))
    table.set_node(a_node("n1", {"cpu": "4"}))
    assert table.capacity("cpu").tolist() == [4000]
    twin = table.fork()
    table.set_node(a_node("n1", {"cpu": "8"}))
    assert twin.capacity("cpu").tolist() == [4000]
    assert table.capacity("cpu").tolist() == [4000, 8000]
