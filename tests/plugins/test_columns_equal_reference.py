"""Columnar plugins equal the reference per node, for all nodes and for subsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin, ScoreAllPlugin
from asched.framework.nodes import Nodes
from asched.framework.pod_info import PodInfo
from asched.model.meta import ObjectMeta
from asched.model.node import Node, NodeStatus
from asched.model.pod import Container, Pod, PodSpec, ResourceRequirements
from asched.model.quantity import QuantityText
from asched.plugins.image_locality import ImageLocality
from asched.plugins.node_affinity import NodeAffinityPlugin
from asched.plugins.node_filters import NodeName, NodePorts, NodeUnschedulable
from asched.plugins.node_resources.balanced_allocation import (
    NodeResourcesBalancedAllocation,
    NodeResourcesBalancedAllocationArgs,
)
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.plugins.taint_toleration import TaintToleration
from asched.state.cluster import ClusterState, ProfileHandle
from tests.plugins import reference
from tests.plugins.clusters import FPGA, GPU, ClusterAndPod, clusters
from tests.plugins.reference import NodeView, Refusal, quotient, view
from tests.plugins.single_plugin import build, pre_filter, rejections, rows_of, scores, table_of

OneNode = Callable[[PodInfo, NodeView], Refusal | None]

_RESOURCES = [{"name": "cpu", "weight": 3}, {"name": GPU, "weight": 5}, {"name": "memory"}]
_WEIGHTS = {"cpu": 3, GPU: 5, "memory": 1}


def _questions(drawn: ClusterAndPod) -> list[Nodes]:
    """All rows after a node was removed and added again, and a subset of rows."""
    table = table_of(drawn.nodes, drawn.bound)
    if len(drawn.nodes) > 1:
        table.remove_node(drawn.nodes[0].name)
        table.set_node(drawn.nodes[0])
    return [table, rows_of(table, drawn.choice)]


@pytest.mark.parametrize(
    ("plugin", "one_node"),
    [
        (NodeName, reference.node_name),
        (NodeUnschedulable, reference.node_unschedulable),
        (TaintToleration, reference.taint_toleration),
        (NodeAffinityPlugin, reference.node_affinity),
        (NodePorts, reference.node_ports),
        (NodeResourcesFit, reference.node_resources_fit),
    ],
)
def test_filters(plugin: type[FilterAllPlugin], one_node: OneNode) -> None:
    @given(drawn=clusters())
    def holds(drawn: ClusterAndPod) -> None:
        questions = _questions(drawn)
        built = build(plugin)
        for nodes in questions:
            answered = rejections(built, drawn.pod, nodes)
            got = {name: (s.code.title, s.reasons) for name, s in answered.items()}
            refusals = {
                name: one_node(drawn.pod, view(drawn.nodes, drawn.bound, name))
                for name in nodes.names
            }
            if pre_filter(built, CycleState(), drawn.pod, nodes).status.is_rejection:
                # PreFilter rejects the pod, so no node may pass.
                assert all(refusals.values())
            else:
                assert got == {name: refusal for name, refusal in refusals.items() if refusal}

    holds()


@given(drawn=clusters())
def test_ignored_resources_are_not_checked(drawn: ClusterAndPod) -> None:
    questions = _questions(drawn)
    plugin = build(
        NodeResourcesFit, {"ignoredResources": [GPU], "ignoredResourceGroups": ["other.io"]}
    )
    for nodes in questions:
        for name in nodes.names:
            here = view(drawn.nodes, drawn.bound, name)
            expected = reference.node_resources_fit(drawn.pod, here, frozenset({GPU, FPGA}))
            got = rejections(plugin, drawn.pod, nodes).get(name)
            assert (got and (got.code.title, got.reasons)) == expected


@given(drawn=clusters())
def test_taint_scores(drawn: ClusterAndPod) -> None:
    _check_scores(drawn, build(TaintToleration), reference.soft_taints, reverse=True)


@given(drawn=clusters())
def test_affinity_scores(drawn: ClusterAndPod) -> None:
    affinity = drawn.pod.pod.spec.affinity
    preferred = affinity.node_affinity.preferred if affinity and affinity.node_affinity else ()
    if all(reference.parses(p.preference) for p in preferred):
        plugin = build(NodeAffinityPlugin)
        expected = reference.preference if preferred else None
        _check_scores(drawn, plugin, expected, reverse=False)


@given(drawn=clusters())
def test_image_scores(drawn: ClusterAndPod) -> None:
    def one_node(pod: PodInfo, here: NodeView) -> int:
        return reference.image_locality(pod, here, drawn.nodes)

    _check_scores(drawn, build(ImageLocality), one_node)


@pytest.mark.parametrize("strategy", ["LeastAllocated", "MostAllocated"])
def test_fit_scores(strategy: str) -> None:
    arguments = {"scoringStrategy": {"type": strategy, "resources": _RESOURCES}}
    of_one = {
        "LeastAllocated": reference.least_allocated,
        "MostAllocated": reference.most_allocated,
    }[strategy]

    def one_node(pod: PodInfo, here: NodeView) -> int:
        counted = reference.scored(pod, here, _WEIGHTS, assume=True)
        total = sum(w * of_one(used + asked, offered) for used, asked, offered, w in counted)
        return quotient(total, sum(w for *_, w in counted) or 1)

    @given(drawn=clusters())
    def holds(drawn: ClusterAndPod) -> None:
        if not _sums_overflow(drawn):
            _check_scores(drawn, build(NodeResourcesFit, arguments), one_node)

    holds()


@given(drawn=clusters())
def test_balanced_allocation_scores(drawn: ClusterAndPod) -> None:
    resources = [{"name": name} for name in _WEIGHTS]
    plugin = build(NodeResourcesBalancedAllocation, {"resources": resources})
    asked = any(drawn.pod.shape.requests.get(name) for name in _WEIGHTS)

    def one_node(pod: PodInfo, here: NodeView) -> int:
        return reference.balanced_allocation(pod, here, _WEIGHTS)

    if not _sums_overflow(drawn):
        _check_scores(drawn, plugin, one_node if asked else None)


_AMOUNTS = st.sampled_from(("1", "2", "3"))


@given(changes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), _AMOUNTS, _AMOUNTS)))
def test_kept_balance_follows_changes(changes: list[tuple[int, int, str, str]]) -> None:
    cluster = ClusterState()
    table, handle = cluster.nodes, ProfileHandle(cluster, "default-scheduler")
    keeping = NodeResourcesBalancedAllocation(NodeResourcesBalancedAllocationArgs(), handle)
    pending, placed = _pod("pending", "1", "2"), dict[str, PodInfo]()
    for number, kind, cpu, memory in changes:
        name = f"n{number}"
        if kind == 0 and table.row_of(name) is not None:
            table.remove_node(name)
        elif kind == 1:
            allocatable: dict[str, QuantityText] = {"cpu": cpu, "memory": memory, "pods": "9"}
            status = NodeStatus(allocatable=allocatable)
            table.set_node(Node(metadata=ObjectMeta(name=name), status=status))
        elif name in placed:
            table.remove_pod(name, placed.pop(name))
        else:
            placed[name] = _pod(f"on-{name}", cpu, memory)
            table.add_pod(name, placed[name])
        keeps_nothing = build(NodeResourcesBalancedAllocation)  # its cluster is another one
        assert scores(keeping, pending, table) == scores(keeps_nothing, pending, table)


def _pod(name: str, cpu: str, memory: str) -> PodInfo:
    resources = ResourceRequirements(requests={"cpu": cpu, "memory": memory})
    spec = PodSpec(containers=(Container(name="c", resources=resources),))
    return PodInfo(Pod(metadata=ObjectMeta(name=name, uid=name), spec=spec))


def _sums_overflow(drawn: ClusterAndPod) -> bool:
    """Above 64 bits, sums wrap in kube-scheduler but not in asched."""
    pods = [PodInfo(pod) for pod in drawn.bound] + [drawn.pod]
    return any(
        sum(amounts.get(name, 0) for amounts in (p.shape.scoring_asks for p in pods)) >= 2**63
        for name in _WEIGHTS
    )


def _check_scores(
    drawn: ClusterAndPod, plugin: ScoreAllPlugin, one_node: Any, *, reverse: bool | None = None
) -> None:
    """``one_node`` None: the plugin must skip. ``reverse`` None: it must not normalize."""
    questions = _questions(drawn)
    for nodes in questions:
        got = scores(plugin, drawn.pod, nodes)
        if one_node is None:
            assert got is None
            continue
        raw = [one_node(drawn.pod, view(drawn.nodes, drawn.bound, name)) for name in nodes.names]
        assert got is not None
        assert got.raw == raw
        expected = raw if reverse is None else reference.normalized(raw, reverse=reverse)
        assert got.normalized == expected
