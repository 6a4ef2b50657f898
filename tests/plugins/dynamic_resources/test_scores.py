"""Scores of extended resources that devices provide."""

from __future__ import annotations

from typing import Any

import pytest

from asched.framework.interface import Plugin
from asched.framework.runtime.profile import parse_arguments
from asched.plugins.node_resources import NodeResourcesBalancedAllocation, NodeResourcesFit
from asched.testing.harness import scores
from tests.plugins.dynamic_resources.objects import (
    DRIVER,
    a_claim,
    a_class,
    a_device_node,
    a_pod,
    a_slice,
    an_allocation,
)

GPU = "example.com/gpu"
FIT: dict[str, Any] = {
    "scoringStrategy": {"type": "LeastAllocated", "resources": [{"name": GPU, "weight": 1}]}
}
BALANCED: dict[str, Any] = {"resources": [{"name": "cpu", "weight": 1}, {"name": GPU, "weight": 1}]}


def cluster() -> list[Any]:
    """n0 has one of two devices in use, n1 none of four; n2 has a device plugin."""
    nodes = [a_device_node(f"n{k}", allocatable={"cpu": "8", "pods": "9"}) for k in range(2)]
    plugin = a_device_node("n2", allocatable={"cpu": "8", "pods": "9", GPU: "10"})
    return [
        *nodes,
        plugin,
        a_class(extendedResourceName=GPU),
        a_slice("n0", "gpu-0", "gpu-1"),
        a_slice("n1", "gpu-0", "gpu-1", "gpu-2", "gpu-3"),
        a_claim("held", allocation=an_allocation("n0", "gpu-0")),
    ]


@pytest.mark.parametrize(
    ("plugin", "arguments", "expected"),
    [
        # Free after the pod: 0 of 2, 3 of 4, 9 of 10.
        (NodeResourcesFit, FIT, {"n0": 0, "n1": 75, "n2": 90}),
        (NodeResourcesFit, {}, {"n0": 87, "n1": 87, "n2": 87}),
    ],
)
def test_devices_count_in_scores(
    plugin: type[Plugin], arguments: dict[str, Any], expected: dict[str, int]
) -> None:
    pod = a_pod("p", resources=[{GPU: "1", "cpu": "1"}])
    found = scores(plugin, pod, cluster(), args=parse_arguments(plugin, arguments))
    assert found == expected


def test_balance_includes_devices() -> None:
    pod = a_pod("p", resources=[{GPU: "2", "cpu": "4"}])
    arguments = parse_arguments(NodeResourcesBalancedAllocation, BALANCED)
    found = scores(NodeResourcesBalancedAllocation, pod, cluster(), args=arguments)
    assert found["n1"] == 75  # half of the cpu and half of the devices
    assert found["n2"] < found["n1"]


def scores_on_n1(*objects: Any) -> int:
    node = a_device_node("n1", allocatable={"cpu": "8", "pods": "9"})
    pod = a_pod("p", resources=[{GPU: "1", "cpu": "1"}])
    arguments = parse_arguments(NodeResourcesFit, FIT)
    return scores(NodeResourcesFit, pod, [node, *objects], args=arguments)["n1"]


def test_devices_of_incomplete_pools_count() -> None:
    gpus = a_class(extendedResourceName=GPU)
    slices = (a_slice("n1", "gpu-0", name="a"), a_slice("n1", "gpu-1", name="b"))
    assert scores_on_n1(gpus, *slices) == 50


def test_node_with_a_device_for_which_the_class_has_an_error_has_none() -> None:
    fast = a_class("gpu", f'device.attributes["{DRIVER}"].fast', extendedResourceName=GPU)
    known: dict[str, Any] = {"attributes": {"fast": {"bool": True}}}
    devices = [{"name": "gpu-0", **known}, {"name": "gpu-1", **known}]
    assert scores_on_n1(fast, a_slice("n1", *devices)) == 50
    assert scores_on_n1(fast, a_slice("n1", *devices, "unknown")) == 0
