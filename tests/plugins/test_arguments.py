"""Plugin arguments: defaults of kube-scheduler 1.36, and errors that name the field."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import msgspec
import pytest

from asched.framework.interface import API_VERSION, ENTRY_POINT_GROUP, Plugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import parse_arguments
from asched.model.node import Node
from asched.model.pod import Pod
from asched.plugins.node_affinity import NodeAffinityPlugin
from asched.plugins.node_resources.balanced_allocation import NodeResourcesBalancedAllocation
from asched.plugins.node_resources.fit import NodeResourcesFit
from tests.plugins.single_plugin import build, scores, table_of

RATIO = "RequestedToCapacityRatio"


def strategy(**fields: Any) -> dict[str, Any]:
    return {"scoringStrategy": fields}


def shape(*points: tuple[int, int]) -> dict[str, Any]:
    return {"shape": [{"utilization": u, "score": s} for u, s in points]}


def added(kind: str, terms: Any) -> dict[str, Any]:
    return {"addedAffinity": {f"{kind}DuringSchedulingIgnoredDuringExecution": terms}}


def required(**requirement: Any) -> dict[str, Any]:
    return added("required", {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]})


@pytest.mark.parametrize(
    ("plugin", "arguments", "complaint"),
    [
        (NodeResourcesFit, {"ignored": []}, "unknown field `ignored`"),
        (NodeResourcesFit, {"ignoredResources": ["a b"]}, r"ignoredResources\[0\]"),
        (NodeResourcesFit, {"ignoredResourceGroups": ["x", "a/b"]}, r"Groups\[1\].*'/'"),
        (NodeResourcesFit, {"ignoredResourceGroups": ["-"]}, r"ignoredResourceGroups\[0\]"),
        (NodeResourcesFit, strategy(type="Best"), r"'Best'.*scoringStrategy.type"),
        (
            NodeResourcesFit,
            strategy(resources=[{"name": "cpu", "weight": 101}]),
            r"cpu is 101, not in the range 1 to 100.*resources\[0\]",
        ),
        (NodeResourcesFit, strategy(resources=[{"name": "cpu", "weight": -1}]), "-1"),
        (NodeResourcesFit, strategy(resources=[{"weight": 1}]), "name"),
        (NodeResourcesFit, strategy(type=RATIO), "requestedToCapacityRatio: required"),
        (NodeResourcesFit, strategy(requestedToCapacityRatio=shape()), "at least one point"),
        (
            NodeResourcesFit,
            strategy(requestedToCapacityRatio=shape((50, 1), (50, 2))),
            r"shape\[1\].utilization.*increasing",
        ),
        (
            NodeResourcesFit,
            strategy(requestedToCapacityRatio=shape((0, 1), (101, 2))),
            r"utilization: 101 is not in the range 0 to 100.*shape\[1\]",
        ),
        (NodeResourcesFit, strategy(requestedToCapacityRatio=shape((0, 11))), "0 to 10"),
        (
            NodeResourcesBalancedAllocation,
            {"resources": [{"name": "cpu", "weight": 2}]},
            r"resources\[0\].weight: must be 1",
        ),
        (
            NodeResourcesBalancedAllocation,
            {"resources": [{"name": "cpu"}, {"name": "cpu"}]},
            r"resources\[1\].name: cpu is named twice",
        ),
        (NodeAffinityPlugin, added("required", {"nodeSelectorTerms": []}), "at least one term"),
        (
            NodeAffinityPlugin,
            required(key="a b", operator="Exists"),
            r"key: 'a b' is not a label key",
        ),
        (
            NodeAffinityPlugin,
            required(key="a", operator="In"),
            r"Terms\[0\].matchExpressions\[0\].val",
        ),
        (
            NodeAffinityPlugin,
            required(key="a", operator="In", values=["-"]),
            "'-' is not a label value",
        ),
        (NodeAffinityPlugin, required(key="a", operator="Gt", values=["x"]), "exactly one integer"),
        (NodeAffinityPlugin, required(key="a", operator="Exists", values=["x"]), "takes none"),
        (
            NodeAffinityPlugin,
            required(key="a", operator="Like", values=["x"]),
            "'Like' is not one of",
        ),
        (
            NodeAffinityPlugin,
            added(
                "preferred",
                [{"weight": 1, "preference": {"matchFields": [{"key": "x", "operator": "In"}]}}],
            ),
            r"preferred.*\[0\].matchFields\[0\].key: 'x' is not metadata.name",
        ),
    ],
)
def test_invalid_arguments_are_rejected(
    plugin: type[Plugin], arguments: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        build(plugin, arguments)


@pytest.mark.parametrize(
    "plugin", [NodeResourcesFit, NodeResourcesBalancedAllocation, NodeAffinityPlugin]
)
def test_arguments_are_optional(plugin: type[Plugin]) -> None:
    assert parse_arguments(plugin, None) == parse_arguments(plugin, {})


def a_node(name: str, cpu: str) -> Node:
    status = {"allocatable": {"cpu": cpu, "memory": "1Gi", "pods": "10"}}
    return msgspec.convert({"metadata": {"name": name}, "status": status}, Node)


def a_pod(cpu: str) -> PodInfo:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "0"}}}
    raw = {"metadata": {"name": "p", "uid": "p"}, "spec": {"containers": [container]}}
    return PodInfo(msgspec.convert(raw, Pod))


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        # 10%, 50% and 100% used; the line is flat before the first and after the last point.
        ([(0, 0), (100, 10)], [10, 50, 100]),
        ([(0, 10), (100, 0)], [90, 50, 0]),
        ([(40, 3), (60, 8)], [30, 55, 80]),
        ([(70, 5)], [50, 50, 50]),
        # Falling lines round towards zero: 100 + -100*10/30 is 67, not 66.
        ([(0, 10), (30, 0)], [67, 0, 0]),
    ],
)
def test_requested_to_capacity_ratio_scores(
    points: list[tuple[int, int]], expected: list[int]
) -> None:
    table = table_of([a_node("a", "10"), a_node("b", "2"), a_node("c", "1")])
    arguments = strategy(
        type=RATIO,
        resources=[{"name": "cpu", "weight": 0}],
        requestedToCapacityRatio=shape(*points),
    )
    got = scores(build(NodeResourcesFit, arguments), a_pod("1"), table)
    assert got is not None
    assert got.raw == expected


def test_requested_to_capacity_ratio_ignores_zero_scores() -> None:
    table = table_of([a_node("a", "10")])
    arguments = strategy(
        type=RATIO,
        resources=[{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 9}],
        requestedToCapacityRatio=shape((0, 0), (100, 10)),
    )
    got = scores(build(NodeResourcesFit, arguments), a_pod("4"), table)
    assert got is not None
    assert got.raw == [40]


def test_entry_points_name_every_plugin() -> None:
    offered = [
        point
        for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
        if point.module.startswith("asched.plugins.")
    ]
    assert len(offered) >= 11
    for point in offered:
        plugin = point.load()
        assert plugin.name == point.name == plugin.__name__.removesuffix("Plugin")
        assert plugin.__dict__["api_version"] == API_VERSION
