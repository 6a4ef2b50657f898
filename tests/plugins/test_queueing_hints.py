"""Hints queue a pod for events that may make it schedulable, and for no others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from asched.framework.events import ActionType, ClusterEvent, EventResource, QueueingHint
from asched.framework.interface import EnqueueExtensions, Plugin
from asched.framework.pod_info import PodInfo
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.plugins.node_affinity import NodeAffinityPlugin
from asched.plugins.node_filters import NodeName, NodePorts, NodeUnschedulable
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.plugins.queue_and_bind import SchedulingGates
from asched.plugins.taint_toleration import TaintToleration
from tests.plugins.single_plugin import build

NODE, ASSIGNED = EventResource.NODE, EventResource.ASSIGNED_POD
TARGET, UNSCHEDULED = EventResource.TARGET_POD, EventResource.UNSCHEDULED_POD


def a_pod(uid: str = "waiting", *, status: Any = None, **spec: Any) -> Pod:
    raw = {"metadata": {"name": uid, "namespace": "d", "uid": uid}, "spec": spec}
    return msgspec.convert({**raw, "status": status or {}}, Pod)


def a_node(
    name: str = "n", *, labels: dict[str, str] | None = None, offers: Any = None, **spec: Any
) -> Node:
    raw = {
        "metadata": {"name": name, "uid": name, "labels": labels or {}},
        "spec": spec,
        "status": {"allocatable": {"pods": "10", "cpu": "2", "memory": "4Gi", **(offers or {})}},
    }
    return msgspec.convert(raw, Node)


def wakes(
    plugin: type[Plugin],
    waiting: Pod,
    resource: EventResource,
    action: ActionType,
    old: Object | None,
    new: Object | None,
    arguments: dict[str, Any] | None = None,
) -> bool:
    """Whether any hint of the plugin returns QUEUE for the event."""
    built = build(plugin, arguments)
    assert isinstance(built, EnqueueExtensions)
    happened = ClusterEvent(resource, action)
    return any(
        entry.hint is None or entry.hint(waiting, old, new) is QueueingHint.QUEUE
        for entry in built.events_to_register()
        if entry.event.covers(happened)
    )


def cpu(amount: str) -> dict[str, Any]:
    return {"containers": [{"name": "c", "resources": {"requests": {"cpu": amount}}}]}


def port(number: int, ip: str = "") -> dict[str, Any]:
    return {"containers": [{"name": "c", "ports": [{"hostPort": number, "hostIP": ip}]}]}


TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}
SOFT_TAINT = {**TAINT, "effect": "PreferNoSchedule"}
REQUIRES_SSD: dict[str, Any] = {
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
                ]
            }
        }
    }
}
GATES_GONE = ActionType.UPDATE_POD_SCHEDULING_GATES_ELIMINATED
ALLOCATABLE = ActionType.UPDATE_NODE_ALLOCATABLE
SCALE_DOWN = ActionType.UPDATE_POD_SCALE_DOWN


@pytest.mark.parametrize(
    ("expected", "waiting", "resource", "action", "old", "new"),
    [
        pytest.param(True, cpu("1"), NODE, ActionType.ADD, None, a_node(), id="fitting node"),
        pytest.param(False, cpu("3"), NODE, ActionType.ADD, None, a_node(), id="node too small"),
        pytest.param(
            False, cpu("1"), NODE, ActionType.ADD, None, a_node(offers={"pods": "0"}),
            id="node for no pods",
        ),
        pytest.param(
            True, cpu("3"), NODE, ALLOCATABLE, a_node(), a_node(offers={"cpu": "4"}),
            id="cpu grew enough",
        ),
        pytest.param(
            False, cpu("5"), NODE, ALLOCATABLE, a_node(), a_node(offers={"cpu": "4"}),
            id="cpu did not grow enough",
        ),
        pytest.param(
            False, cpu("1"), NODE, ALLOCATABLE, a_node(), a_node(offers={"memory": "8Gi"}),
            id="something else grew",
        ),
        pytest.param(
            True, cpu("1"), NODE, ALLOCATABLE, a_node(), a_node(offers={"pods": "11"}),
            id="room for more pods",
        ),
        pytest.param(
            False, cpu("1"), NODE, ActionType.UPDATE_NODE_LABEL, a_node(), a_node(),
            id="labels do not matter",
        ),
        pytest.param(
            True, cpu("1"), ASSIGNED, ActionType.DELETE, a_pod("o", nodeName="n"), None,
            id="assigned pod went",
        ),
        pytest.param(
            False, cpu("1"), UNSCHEDULED, ActionType.DELETE, a_pod("o"), None,
            id="pending pod went",
        ),
        pytest.param(
            True, cpu("1"), ASSIGNED, SCALE_DOWN, a_pod("o", nodeName="n", **cpu("2")),
            a_pod("o", nodeName="n", **cpu("1")), id="other pod asks for less cpu",
        ),
        pytest.param(
            False, cpu("1"), ASSIGNED, SCALE_DOWN, a_pod("o", nodeName="n", **cpu("1")),
            a_pod("o", nodeName="n", **cpu("1")), id="other pod asks for less of nothing wanted",
        ),
        pytest.param(
            False, cpu("1"), UNSCHEDULED, SCALE_DOWN, a_pod("o", **cpu("2")),
            a_pod("o", **cpu("1")), id="pending pod asks for less",
        ),
        pytest.param(
            True, cpu("1"), TARGET, SCALE_DOWN, a_pod(**cpu("9")), a_pod(**cpu("1")),
            id="the pod itself asks for less",
        ),
    ],
)  # fmt: skip
def test_hints_of_node_resources_fit(
    expected: bool,
    waiting: dict[str, Any],
    resource: EventResource,
    action: ActionType,
    old: Object | None,
    new: Object | None,
) -> None:
    assert wakes(NodeResourcesFit, a_pod(**waiting), resource, action, old, new) is expected


@pytest.mark.parametrize(
    ("expected", "old", "new"),
    [
        (True, None, a_node()),
        (False, None, a_node(taints=[TAINT])),
        (True, a_node(taints=[TAINT]), a_node()),
        (True, a_node(taints=[TAINT]), a_node(taints=[SOFT_TAINT])),
        (False, a_node(), a_node(taints=[SOFT_TAINT])),
        (False, a_node(taints=[TAINT]), a_node(taints=[{**TAINT, "value": "w"}])),
    ],
)
def test_hints_of_taint_toleration(expected: bool, old: Node | None, new: Node) -> None:
    action = ActionType.ADD if old is None else ActionType.UPDATE_NODE_TAINT
    assert wakes(TaintToleration, a_pod(), NODE, action, old, new) is expected


@pytest.mark.parametrize("plugin", [TaintToleration, NodeUnschedulable])
def test_new_toleration_queues_the_pod(plugin: type[Plugin]) -> None:
    tolerant = a_pod(tolerations=[{"operator": "Exists"}])
    stranger = a_pod("other", tolerations=[{"operator": "Exists"}])
    action = ActionType.UPDATE_POD_TOLERATION
    assert wakes(plugin, a_pod(), TARGET, action, a_pod(), tolerant)
    assert not wakes(plugin, a_pod(), UNSCHEDULED, action, a_pod("other"), stranger)
    assert not wakes(plugin, a_pod(), TARGET, action, a_pod(), stranger)


@pytest.mark.parametrize(
    ("expected", "old", "new"),
    [
        (True, None, a_node()),
        (False, None, a_node(unschedulable=True)),
        (True, a_node(unschedulable=True), a_node()),
        (False, a_node(), a_node()),
        (False, a_node(), a_node(unschedulable=True)),
    ],
)
def test_hints_of_node_unschedulable(expected: bool, old: Node | None, new: Node) -> None:
    action = ActionType.ADD if old is None else ActionType.UPDATE_NODE_TAINT
    assert wakes(NodeUnschedulable, a_pod(), NODE, action, old, new) is expected


@pytest.mark.parametrize(
    ("expected", "old", "new"),
    [
        (True, None, a_node(labels={"disk": "ssd"})),
        (False, None, a_node(labels={"disk": "hdd"})),
        (True, a_node(labels={"disk": "hdd"}), a_node(labels={"disk": "ssd"})),
        (False, a_node(labels={"disk": "ssd"}), a_node(labels={"disk": "ssd", "x": "y"})),
        (False, a_node(labels={"disk": "ssd"}), a_node()),
    ],
)
def test_hints_of_node_affinity(expected: bool, old: Node | None, new: Node) -> None:
    action = ActionType.ADD if old is None else ActionType.UPDATE_NODE_LABEL
    by_affinity, by_selector = a_pod(**REQUIRES_SSD), a_pod(nodeSelector={"disk": "ssd"})
    assert wakes(NodeAffinityPlugin, by_affinity, NODE, action, old, new) is expected
    assert wakes(NodeAffinityPlugin, by_selector, NODE, action, old, new) is expected
    added = {"addedAffinity": REQUIRES_SSD["affinity"]["nodeAffinity"]}
    assert wakes(NodeAffinityPlugin, a_pod(), NODE, action, old, new, added) is expected


@pytest.mark.parametrize(
    ("expected", "wanted", "freed"),
    [
        (True, port(80), port(80)),
        (True, port(80, "10.0.0.1"), port(80)),
        (False, port(80, "10.0.0.1"), port(80, "10.0.0.2")),
        (False, port(80), port(81)),
        (False, port(80), {}),
    ],
)
def test_hints_of_node_ports(expected: bool, wanted: dict[str, Any], freed: dict[str, Any]) -> None:
    waiting = a_pod(**wanted)
    gone = a_pod("o", nodeName="n", **freed)
    assert wakes(NodePorts, waiting, ASSIGNED, ActionType.DELETE, gone, None) is expected
    never_placed = a_pod("o", **freed)
    assert not wakes(NodePorts, waiting, UNSCHEDULED, ActionType.DELETE, never_placed, None)
    assert wakes(NodePorts, waiting, NODE, ActionType.ADD, None, a_node())


def test_node_name_queues_for_its_node() -> None:
    waiting = a_pod(nodeName="mine")
    assert wakes(NodeName, waiting, NODE, ActionType.ADD, None, a_node("mine"))
    assert not wakes(NodeName, waiting, NODE, ActionType.ADD, None, a_node("other"))


def test_scheduling_gates_queue_for_own_gates() -> None:
    gated = a_pod(schedulingGates=[{"name": "a"}, {"name": "b"}])
    plugin = build(SchedulingGates)
    assert plugin.pre_enqueue(PodInfo(gated)).message == "waiting for scheduling gates: [a b]"
    assert plugin.pre_enqueue(PodInfo(a_pod())).is_success
    assert wakes(SchedulingGates, gated, TARGET, GATES_GONE, gated, a_pod())
    assert not wakes(SchedulingGates, gated, TARGET, GATES_GONE, gated, a_pod("other"))
    assert not wakes(SchedulingGates, gated, NODE, ActionType.ADD, None, a_node())


@pytest.mark.parametrize(
    "plugin",
    [
        NodeAffinityPlugin,
        NodeName,
        NodePorts,
        NodeResourcesFit,
        NodeUnschedulable,
        SchedulingGates,
        TaintToleration,
    ],
)
def test_unrelated_events_queue_no_pod(plugin: type[Plugin]) -> None:
    waiting = a_pod(nodeName="mine", **cpu("1"))
    for resource in (EventResource.SERVICE, EventResource.NAMESPACE, EventResource.CSI_NODE):
        assert not wakes(plugin, waiting, resource, ActionType.ADD, None, a_node())
    for action in (ActionType.UPDATE_NODE_CONDITION, ActionType.UPDATE_NODE_ANNOTATION):
        assert not wakes(plugin, waiting, NODE, action, a_node(), a_node())
    assert not wakes(plugin, waiting, ASSIGNED, ActionType.ADD, None, a_pod("o", nodeName="n"))
    assert not wakes(plugin, waiting, ASSIGNED, ActionType.UPDATE_POD_LABEL, a_pod("o"), a_pod("o"))
