"""PodTopologySpread against a simple reference, and its rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import event, given

from asched.framework.cycle_state import CycleState
from asched.framework.events import ActionType, ClusterEvent, EventResource, QueueingHint
from asched.framework.nodes import Nodes
from asched.framework.pod_info import PodInfo
from asched.model.meta import Object, ObjectMeta, OwnerReference
from asched.model.node import Node
from asched.model.pod import Pod, TopologySpreadConstraint
from asched.model.selectors import LabelSelector
from asched.model.workloads import (
    ReplicaSet,
    ReplicationController,
    ReplicationControllerSpec,
    SelectorSpec,
    Service,
    ServiceSpec,
    StatefulSet,
)
from asched.plugins.pod_topology_spread.plugin import PodTopologySpread
from tests.plugins.affinity_clusters import HOST, ZONE, Happening, Stage, World, worlds
from tests.plugins.single_plugin import Scores, rows_of, scores

TEXT = "node(s) didn't match pod topology spread constraints"
UNEVEN = ("Unschedulable", TEXT)
MISSING = ("UnschedulableAndUnresolvable", f"{TEXT} (missing required label)")

Change = tuple[Pod, str, int]
"""A pod added to the named node (1) or removed from it (-1)."""


# -- the reference: pod by pod, node by node ------------------------------------------------------


class Reference:
    """The documented rules on the API objects."""

    def __init__(self, stage: Stage, pod: Pod, when: str, changes: Sequence[Change] = ()) -> None:
        self.stage, self.pod, self.changes = stage, pod, changes
        self.constraints = [
            c for c in pod.spec.topology_spread_constraints if c.when_unsatisfiable == when
        ]

    def complete(self, node: Node) -> bool:
        return all(c.topology_key in node.labels for c in self.constraints)

    def included(self, constraint: TopologySpreadConstraint, node: Node) -> bool:
        spec = self.pod.spec
        if constraint.node_affinity_policy == "Honor":
            wanted = spec.node_selector or {}
            if any(node.labels.get(key) != value for key, value in wanted.items()):
                return False
            affinity = spec.affinity.node_affinity if spec.affinity else None
            required = affinity.required if affinity else None
            if required is not None and not required.matches(node.labels, node.name):
                return False
        if constraint.node_taints_policy == "Honor":
            for taint in node.spec.taints:
                tolerated = any(t.tolerates(taint) for t in spec.tolerations)
                if taint.effect != "PreferNoSchedule" and not tolerated:
                    return False
        return True

    def matches(self, constraint: TopologySpreadConstraint, other: Pod) -> bool:
        selector = constraint.label_selector
        same = other.namespace == self.pod.namespace
        return same and selector is not None and selector.matches(other.labels)

    def held(self, constraint: TopologySpreadConstraint, name: str) -> int:
        """Matching pods on a node: no terminating pods, and none for an empty selector."""
        selector = constraint.label_selector
        if selector is None or not (selector.match_labels or selector.match_expressions):
            return 0
        here = [p for p in self.stage.on(name) if not p.terminating]
        return sum(self.matches(constraint, p) for p in here)

    def domains(self, constraint: TopologySpreadConstraint) -> dict[str, int]:
        counts: dict[str, int] = {}
        for name, node in self.stage.nodes.items():
            if self.complete(node) and self.included(constraint, node):
                domain = node.labels[constraint.topology_key]
                shifts = [
                    sign
                    for other, at, sign in self.changes
                    if at == name and self.matches(constraint, other)
                ]
                counts[domain] = counts.get(domain, 0) + self.held(constraint, name) + sum(shifts)
        return counts

    def refusal(self, node: Node) -> tuple[str, str] | None:
        for constraint in self.constraints:
            if constraint.topology_key not in node.labels:
                return MISSING
            counts = self.domains(constraint)
            lowest = min(counts.values(), default=0)
            if len(counts) < (constraint.min_domains or 1):
                lowest = 0
            there = counts.get(node.labels[constraint.topology_key], 0)
            if there + self.matches(constraint, self.pod) - lowest > constraint.max_skew:
                return UNEVEN
        return None

    def scores(self, names: Sequence[str]) -> Scores:
        nodes = self.stage.nodes
        counting = [name for name in names if self.complete(nodes[name])]
        raw = dict.fromkeys(names, 0)
        for name in counting:
            total = 0.0
            for c in self.constraints:
                if c.topology_key == HOST:
                    size, count = len(counting), self.held(c, name)
                else:
                    size = len({nodes[n].labels[c.topology_key] for n in counting})
                    count = self.domains(c).get(nodes[name].labels[c.topology_key], 0)
                total += count * math.log(size + 2) + (c.max_skew - 1)
            raw[name] = math.floor(total + 0.5)
        low = min((raw[name] for name in counting), default=0)
        high = max((raw[name] for name in counting), default=0)
        normalized = {n: 100 * (high + low - raw[n]) // high if high else 100 for n in counting}
        return Scores([raw[n] for n in names], [normalized.get(n, 0) for n in names])


# -- the plugin equals the reference --------------------------------------------------------------


def refusals(
    plugin: PodTopologySpread, state: CycleState, pod: PodInfo, nodes: Nodes
) -> dict[str, tuple[str, str] | None]:
    result = plugin.filter_all(state, pod, nodes)
    assert result.codes.dtype == np.int16
    found = {name: result.status(row) for row, name in enumerate(nodes.names) if name}
    return {n: None if s is None else (s.code.title, s.message) for n, s in found.items()}


@given(world=worlds())
def test_filter_matches_reference(world: World) -> None:
    stage = Stage.of(world)
    plugin = stage.build(PodTopologySpread)
    _check_filter(stage, plugin, world)
    for happening in world.later:
        stage.happen(happening)
        _check_filter(stage, plugin, world)


def _check_filter(stage: Stage, plugin: PodTopologySpread, world: World) -> None:
    table, pod, state = stage.cluster.nodes, world.pod, CycleState()
    reference = Reference(stage, pod.pod, "DoNotSchedule")
    result = plugin.pre_filter(state, pod, table)
    assert result.status.is_skip == (not reference.constraints)
    if result.status.is_skip:
        return
    expected = {name: reference.refusal(node) for name, node in stage.nodes.items()}
    event(f"refused: {sorted({r[0] for r in expected.values() if r})}")
    assert refusals(plugin, state, pod, table) == expected
    chosen = rows_of(table, world.choice)
    assert refusals(plugin, state, pod, chosen) == {n: expected[n] for n in world.choice}
    clone, changes = state.clone(), list[Change]()
    rows = rows_of(table, [world.changed_node])
    for other in (*stage.on(world.changed_node), *world.guests):
        here = other.uid in stage.pods
        (plugin.remove_pod if here else plugin.add_pod)(clone, pod, PodInfo(other), rows.info(0))
        changes.append((other, world.changed_node, -1 if here else 1))
        hypothesis = Reference(stage, pod.pod, "DoNotSchedule", changes)
        wanted = {world.changed_node: hypothesis.refusal(stage.nodes[world.changed_node])}
        assert refusals(plugin, clone, pod, rows) == wanted
    assert refusals(plugin, state, pod, table) == expected, "a clone must not change the original"


@given(world=worlds())
def test_score_matches_reference(world: World) -> None:
    stage = Stage.of(world)
    plugin = stage.build(PodTopologySpread)
    for happening in (*world.later, None):
        reference = Reference(stage, world.pod.pod, "ScheduleAnyway")
        for names in (list(stage.nodes), world.choice):
            got = scores(plugin, world.pod, rows_of(stage.cluster.nodes, names))
            assert got == (reference.scores(names) if reference.constraints else None)
            assert got is None or all(0 <= score <= 100 for score in got.normalized)
        if happening is not None:
            stage.happen(happening)


def test_added_pod_in_smallest_domain_raises_the_minimum() -> None:
    constraint = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
    }
    stage = three_nodes(a_pod("q", node="n2"))
    plugin, table, state = stage.build(PodTopologySpread), stage.cluster.nodes, CycleState()
    pod = PodInfo(a_pod("p", topologySpreadConstraints=[constraint]))
    plugin.pre_filter(state, pod, table)
    assert refusals(plugin, state, pod, table) == {"n1": None, "n2": UNEVEN, "n3": MISSING}
    clone = state.clone()
    plugin.add_pod(clone, pod, PodInfo(a_pod("guest")), table.info(0))
    assert refusals(plugin, clone, pod, table) == {"n1": None, "n2": None, "n3": MISSING}
    plugin.add_pod(clone, pod, PodInfo(a_pod("second")), table.info(0))
    assert refusals(plugin, clone, pod, table) == {"n1": UNEVEN, "n2": None, "n3": MISSING}


# -- defaults -------------------------------------------------------------------------------------


def a_node(name: str, zone: str | None = None) -> Node:
    held = {HOST: name} if zone is None else {HOST: name, ZONE: zone}
    return Node(metadata=ObjectMeta(name=name, uid=name, labels=held))


def a_pod(uid: str, app: str = "x", *, node: str = "", ns: str = "d", **spec: Any) -> Pod:
    meta = {"name": uid, "namespace": ns, "uid": uid, "labels": {"app": app}}
    return msgspec.convert({"metadata": meta, "spec": {"nodeName": node, **spec}}, Pod)


def owned(pod: Pod, kind: str, api_version: str = "apps/v1") -> Pod:
    owner = OwnerReference(kind=kind, name="o", uid="o", api_version=api_version, controller=True)
    meta = msgspec.structs.replace(pod.metadata, owner_references=(owner,))
    return msgspec.structs.replace(pod, metadata=meta)


def three_nodes(*pods: Pod) -> Stage:
    stage = Stage()
    for node in (a_node("n1", "z1"), a_node("n2", "z2"), a_node("n3")):
        stage.happen(Happening(None, node))
    for pod in pods:
        stage.happen(Happening(pod, None))
    return stage


IN_D = ObjectMeta(name="o", namespace="d")
APP_X = {"app": "x"}
OF_X = SelectorSpec(selector=LabelSelector(match_labels=APP_X))


@pytest.mark.parametrize(
    ("found", "pod"),
    [
        (Service(metadata=IN_D, spec=ServiceSpec(selector=APP_X)), a_pod("p")),
        (ReplicaSet(metadata=IN_D, spec=OF_X), owned(a_pod("p"), "ReplicaSet")),
        (StatefulSet(metadata=IN_D, spec=OF_X), owned(a_pod("p"), "StatefulSet")),
        (
            ReplicationController(metadata=IN_D, spec=ReplicationControllerSpec(selector=APP_X)),
            owned(a_pod("p"), "ReplicationController", "v1"),
        ),
    ],
)
def test_pods_of_workloads_are_spread_by_default(found: Object, pod: Pod) -> None:
    stage = three_nodes(a_pod("q", node="n1"), a_pod("r", "y", node="n2"))
    plugin, table = stage.build(PodTopologySpread), stage.cluster.nodes
    assert scores(plugin, PodInfo(pod), table) is None
    stage.keep(found)
    # 1 pod x ln(3 nodes + 2) + 2, and 1 pod x ln(3 zones, one of them none, + 2) + 4; n3 has no
    # zone, so only the host counts.
    assert scores(plugin, PodInfo(pod), table) == ([9, 6, 2], [22, 55, 100])
    assert scores(plugin, PodInfo(a_pod("p", "z")), table) is None
    stage.cluster.object_store.remove(type(found), found.key)
    assert scores(plugin, PodInfo(pod), table) is None


def test_default_constraints_of_a_list_may_be_hard() -> None:
    constraint = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    stage = three_nodes(a_pod("q", node="n1"))
    stage.keep(Service(metadata=IN_D, spec=ServiceSpec(selector=APP_X)))
    arguments = {"defaultingType": "List", "defaultConstraints": [constraint]}
    plugin, table = stage.build(PodTopologySpread, arguments), stage.cluster.nodes
    state, pod = CycleState(), PodInfo(a_pod("p"))
    assert plugin.pre_filter(state, pod, table).status.is_success
    assert refusals(plugin, state, pod, table) == {"n1": UNEVEN, "n2": None, "n3": MISSING}
    assert scores(plugin, pod, table) is None
    none = stage.build(PodTopologySpread, {"defaultingType": "List"})
    assert none.pre_filter(CycleState(), pod, table).status.is_skip
    assert scores(none, pod, table) is None


def defaults(**constraint: Any) -> dict[str, Any]:
    whole = {"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "ScheduleAnyway", **constraint}
    return {"defaultingType": "List", "defaultConstraints": [whole]}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (defaults(maxSkew=0), r"defaultConstraints\[0\].maxSkew: Invalid value: 0: not in valid"),
        (defaults(topologyKey=""), r"\[0\].topologyKey: Required value: can not be empty"),
        (defaults(topologyKey="a b"), r"\[0\].topologyKey: Invalid value"),
        (defaults(whenUnsatisfiable=""), r"\[0\].whenUnsatisfiable: Required value"),
        (defaults(whenUnsatisfiable="No"), r"Unsupported value: \"No\": supported values: \"DoNot"),
        (defaults(labelSelector={}), r"\[0\].labelSelector: Forbidden: constraint must not define"),
        (
            {**defaults(), "defaultConstraints": defaults()["defaultConstraints"] * 2},
            r'defaultConstraints\[1\]: Duplicate value: "{k, ScheduleAnyway}"',
        ),
        ({**defaults(), "defaultingType": "System"}, 'defaultingType: Invalid value: "System"'),
        ({"defaultingType": "None"}, "Invalid enum value 'None'"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Stage().build(PodTopologySpread, arguments)


# -- queueing hints -------------------------------------------------------------------------------

HARD = {
    "maxSkew": 1,
    "topologyKey": ZONE,
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": APP_X},
    "nodeTaintsPolicy": "Honor",
}
WAITING = a_pod("w", topologySpreadConstraints=[HARD])
ASSIGNED, NODE, TARGET = EventResource.ASSIGNED_POD, EventResource.NODE, EventResource.TARGET_POD
ADD, DELETE, LABEL = ActionType.ADD, ActionType.DELETE, ActionType.UPDATE_POD_LABEL
TOLERANT = a_pod(
    "w", topologySpreadConstraints=[HARD], tolerations=[{"key": "k", "operator": "Exists"}]
)


def wakes(resource: EventResource, action: ActionType, old: Any, new: Any) -> bool:
    happened = ClusterEvent(resource, action)
    return any(
        entry.hint is None or entry.hint(WAITING, old, new) is QueueingHint.QUEUE
        for entry in Stage().build(PodTopologySpread).events_to_register()
        if entry.event.covers(happened)
    )


@pytest.mark.parametrize(
    ("expected", "resource", "action", "old", "new"),
    [
        (True, ASSIGNED, ADD, None, a_pod("o", node="n")),
        (False, ASSIGNED, ADD, None, a_pod("o", "y", node="n")),
        (False, ASSIGNED, ADD, None, a_pod("o", node="n", ns="e")),
        (False, EventResource.UNSCHEDULED_POD, ADD, None, a_pod("o")),
        (True, ASSIGNED, DELETE, a_pod("o", node="n"), None),
        (False, ASSIGNED, DELETE, a_pod("o", "y", node="n"), None),
        (True, ASSIGNED, LABEL, a_pod("o", node="n"), a_pod("o", "y", node="n")),
        (False, ASSIGNED, LABEL, a_pod("o", "z", node="n"), a_pod("o", "y", node="n")),
        (True, TARGET, LABEL, WAITING, a_pod("w", "y")),
        (True, TARGET, ActionType.UPDATE_POD_TOLERATION, WAITING, TOLERANT),
        (False, TARGET, ActionType.UPDATE_POD_TOLERATION, WAITING, WAITING),
        (True, NODE, ADD, None, a_node("n", "z1")),
        (False, NODE, ADD, None, a_node("n")),
        (True, NODE, DELETE, a_node("n", "z1"), None),
        (False, NODE, DELETE, a_node("n"), None),
        (True, NODE, ActionType.UPDATE_NODE_LABEL, a_node("n", "z1"), a_node("n", "z2")),
        (True, NODE, ActionType.UPDATE_NODE_LABEL, a_node("n", "z1"), a_node("n")),
        (False, NODE, ActionType.UPDATE_NODE_LABEL, a_node("n", "z1"), a_node("n", "z1")),
        (False, NODE, ActionType.UPDATE_NODE_ALLOCATABLE, a_node("n", "z1"), a_node("n", "z2")),
        (False, EventResource.SERVICE, ADD, None, a_node("n", "z1")),
    ],
)
def test_event_queues_the_pod(
    expected: bool, resource: EventResource, action: ActionType, old: Any, new: Any
) -> None:
    assert wakes(resource, action, old, new) is expected
