"""The nodes of a sweep equal the columns after any changes of the table."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asched.framework.nodes import NodeInfo, Nodes
from asched.framework.pod_info import PodInfo
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import Resource, decode
from asched.state.node_table import NodeTable

RESOURCES = ("cpu", "memory", "example.com/gpu", "example.com/unknown")


def a_node(name: str, size: int) -> Node:
    text = (
        b'{"metadata":{"name":"%(name)s","labels":{"size":"%(size)d"}},"spec":{"unschedulable":%(odd)s,'
        b'"taints":[{"key":"k%(size)d","effect":"NoSchedule"}]},'
        b'"status":{"allocatable":{"cpu":"%(size)d","memory":"%(size)dGi","pods":"9"}}}'
    )
    odd = b"true" if size % 2 else b"false"
    node = decode(Resource.NODES, text % {b"name": name.encode(), b"size": size, b"odd": odd})
    assert isinstance(node, Node)
    return node


def a_pod(name: str, gpus: int) -> PodInfo:
    text = (
        b'{"metadata":{"name":"%(name)s","namespace":"d","uid":"%(name)s"},"spec":{"containers":'
        b'[{"resources":{"requests":{"cpu":"100m","example.com/gpu":"%(gpus)d"}}}]}}'
    )
    pod = decode(Resource.PODS, text % {b"name": name.encode(), b"gpus": gpus})
    assert isinstance(pod, Pod)
    return PodInfo(pod)


def values_of(info: NodeInfo) -> tuple[object, ...]:
    amounts = [(info.allocatable(r), info.requested(r), info.free(r)) for r in RESOURCES]
    pods = [pod.key for pod in info.pods]
    flags = (info.unschedulable, info.pod_count, info.allowed_pods)
    scoring = (info.scoring_cpu_milli, info.scoring_memory_bytes)
    return (info.name, info.node, info.labels, info.taints, *flags, *scoring, amounts, pods)


def check(nodes: Nodes) -> None:
    infos = nodes.infos()
    assert len(infos) == nodes.size
    for row in np.flatnonzero(nodes.alive).tolist():
        assert values_of(infos[row]) == values_of(NodeInfo(nodes, row))


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["node", "gone", "pod", "left"]), st.integers(0, 4), st.integers(1, 9)
    ),
    max_size=30,
)


@given(CHANGES)
def test_sweep_equals_columns(changes: list[tuple[str, int, int]]) -> None:
    table, placed = NodeTable(), dict[str, tuple[str, PodInfo]]()
    for number, (what, which, size) in enumerate(changes):
        name = f"n{which}"
        match what:
            case "node":
                table.set_node(a_node(name, size))
            case "gone":
                table.remove_node(name)
            case "pod":
                pod = a_pod(f"p{number}", size)
                placed[pod.uid] = (name, pod)
                table.add_pod(name, pod)
            case _ if placed:
                uid = sorted(placed)[size % len(placed)]
                table.remove_pod(*placed.pop(uid))
        check(table)
        check(table.take(np.flatnonzero(table.alive)[::-1]))


def test_sweeps_of_hypothetical_rows_and_fork_are_independent() -> None:
    table = NodeTable()
    table.set_node(a_node("n0", 4))
    supposed, twin = table.take(np.array([0], np.intp)), table.fork()
    check(table)
    supposed.add_pod(0, a_pod("p", 1))
    twin.add_pod("n0", a_pod("q", 2))
    for nodes, cpu in ((table, 4000), (supposed, 3900), (twin, 3900)):
        check(nodes)
        assert nodes.infos()[0].free("cpu") == cpu
