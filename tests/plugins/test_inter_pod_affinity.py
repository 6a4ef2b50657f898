"""InterPodAffinity against a simple reference, and its rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import event, given
from msgspec.structs import replace

from asched.framework.cycle_state import CycleState
from asched.framework.events import ActionType, ClusterEvent, EventResource, QueueingHint
from asched.framework.interface import PreFilterResult
from asched.framework.nodes import Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.model.meta import Object, ObjectMeta
from asched.model.node import Node
from asched.model.pod import Pod, PodAffinity, PodAffinityTerm
from asched.model.workloads import Namespace
from asched.plugins.inter_pod_affinity.plugin import InterPodAffinity
from tests.plugins.affinity_clusters import HOST, ZONE, Happening, Stage, World, worlds
from tests.plugins.single_plugin import rows_of, scores

AFFINITY = ("UnschedulableAndUnresolvable", "node(s) didn't match pod affinity rules")
ANTI = ("Unschedulable", "node(s) didn't match pod anti-affinity rules")
EXISTING = ("Unschedulable", "node(s) didn't satisfy existing pods anti-affinity rules")

Pair = tuple[str, str]
"""A topology key and a value of it."""


class Placed(NamedTuple):
    """A pod added to a node; with -1, removed from it."""

    pod: Pod
    node: Node
    sign: int = 1


# -- the reference: pod by pod, node by node ------------------------------------------------------


class Reference:
    """The documented rules on the API objects."""

    def __init__(self, stage: Stage, pod: Pod, changes: Sequence[Placed] = ()) -> None:
        self.pod = pod
        self.namespaces = stage.namespaces
        here = [Placed(other, stage.nodes[other.node_name]) for other in stage.pods.values()]
        self.placed = [*here, *changes]

    def means(self, owner: Pod, term: PodAffinityTerm, other: Pod) -> bool:
        """Whether a term of ``owner`` selects ``other``."""
        selector = term.namespace_selector
        named = set(term.namespaces)
        if not named and selector is None:
            named = {owner.namespace}
        selected = selector is not None and selector.matches(
            self.namespaces.get(other.namespace, {})
        )
        if (
            owner is self.pod
            and other.namespace not in self.namespaces
            and selector is not None
            and (selector.match_labels or selector.match_expressions)
        ):
            # For the incoming pod, a selector is resolved to the namespaces that match now.
            selected = False
        return (
            (other.namespace in named or selected)
            and term.label_selector is not None
            and term.label_selector.matches(other.labels)
        )

    def means_all(self, terms: Sequence[PodAffinityTerm], other: Pod) -> bool:
        return bool(terms) and all(self.means(self.pod, term, other) for term in terms)

    def refusal(self, node: Node) -> tuple[str, str] | None:
        near, apart, existing = self._pairs()
        terms = required(self.pod, "pod_affinity")
        if any(term.topology_key not in node.labels for term in terms):
            return AFFINITY
        lonely = any(near[k, node.labels[k]] <= 0 for k in {t.topology_key for t in terms})
        first = not any(near.values()) and self.means_all(terms, self.pod)
        if lonely and not first:
            return AFFINITY
        if any(apart[pair] > 0 for pair in node.labels.items()):
            return ANTI
        if any(existing[pair] > 0 for pair in node.labels.items()):
            return EXISTING
        return None

    def skips_filter(self) -> bool:
        existing = self._pairs()[2]
        terms = (*required(self.pod, "pod_affinity"), *required(self.pod, "pod_anti_affinity"))
        return not terms and not any(existing.values())

    def _pairs(self) -> tuple[Counter[Pair], Counter[Pair], Counter[Pair]]:
        near: Counter[Pair] = Counter()
        apart: Counter[Pair] = Counter()
        existing: Counter[Pair] = Counter()
        wants = required(self.pod, "pod_affinity")
        for other, node, sign in self.placed:
            if self.means_all(wants, other):
                for key in {term.topology_key for term in wants} & node.labels.keys():
                    near[key, node.labels[key]] += sign
            for term in required(self.pod, "pod_anti_affinity"):
                if term.topology_key in node.labels and self.means(self.pod, term, other):
                    apart[term.topology_key, node.labels[term.topology_key]] += sign
            for term in required(other, "pod_anti_affinity"):
                if term.topology_key in node.labels and self.means(other, term, self.pod):
                    existing[term.topology_key, node.labels[term.topology_key]] += sign
        return near, apart, existing

    def worth(self, hard_weight: int) -> Counter[Pair] | None:
        """Score by topology pair; None if no term counts."""
        points: Counter[Pair] = Counter()
        for other, node, _ in self.placed:
            given = [
                *((t, w, self.means(self.pod, t, other)) for t, w in preferred(self.pod)),
                *((t, w, self.means(other, t, self.pod)) for t, w in preferred(other)),
            ]
            if hard_weight:
                given += [
                    (t, hard_weight, self.means(other, t, self.pod))
                    for t in required(other, "pod_affinity")
                ]
            for term, weight, hit in given:
                if hit and term.topology_key in node.labels:
                    points[term.topology_key, node.labels[term.topology_key]] += weight
        return points or None


def rules_of(pod: Pod, which: str) -> PodAffinity:
    affinity = pod.spec.affinity
    found: PodAffinity | None = None if affinity is None else getattr(affinity, which)
    return found or PodAffinity()


def required(pod: Pod, which: str) -> tuple[PodAffinityTerm, ...]:
    return rules_of(pod, which).required


def preferred(pod: Pod) -> list[tuple[PodAffinityTerm, int]]:
    return [
        (entry.pod_affinity_term, sign * entry.weight)
        for which, sign in (("pod_affinity", 1), ("pod_anti_affinity", -1))
        for entry in rules_of(pod, which).preferred
    ]


# -- the plugin equals the reference --------------------------------------------------------------


def refusals(
    plugin: InterPodAffinity, state: CycleState, pod: PodInfo, nodes: Nodes
) -> dict[str, tuple[str, str] | None]:
    result = plugin.filter_all(state, pod, nodes)
    assert result.codes.dtype == np.int16
    return {name: _plain(result.status(row)) for row, name in enumerate(nodes.names) if name}


def _plain(status: Status | None) -> tuple[str, str] | None:
    return None if status is None else (status.code.title, *status.reasons)  # type: ignore[return-value]


@given(world=worlds())
def test_filter_matches_reference(world: World) -> None:
    stage = Stage.of(world)
    plugin = stage.build(InterPodAffinity)
    _check_filter(stage, plugin, world)
    for happening in world.later:
        stage.happen(happening)
        _check_filter(stage, plugin, world)


def like(pod: PodInfo) -> list[PodInfo]:
    """The pod, and pods with other labels that the same terms may select."""
    others: list[dict[str, str]] = [{"app": "z"}, {"app": "w"}, {"app": "x"}, {"size": "1"}]
    metadata = pod.pod.metadata
    return [
        pod,
        *(
            PodInfo(replace(pod.pod, metadata=replace(metadata, labels=labels)))
            for labels in others
        ),
    ]


def _check_filter(stage: Stage, plugin: InterPodAffinity, world: World) -> None:
    for pod in like(world.pod):
        _check_filter_of(pod, stage, plugin, world)


def _check_filter_of(pod: PodInfo, stage: Stage, plugin: InterPodAffinity, world: World) -> None:
    table = stage.cluster.nodes
    reference = Reference(stage, pod.pod)
    state = CycleState()
    result = plugin.pre_filter(state, pod, table)
    assert result.status.is_skip == reference.skips_filter()
    expected = {name: reference.refusal(node) for name, node in stage.nodes.items()}
    if result.status.is_skip:
        assert not any(expected.values())
        return
    event(f"refused for {sorted({r[1] for r in expected.values() if r})}")
    assert refusals(plugin, state, pod, table) == expected
    chosen = rows_of(table, world.choice)
    assert refusals(plugin, state, pod, chosen) == {n: expected[n] for n in world.choice}
    _check_suppositions(pod, stage, plugin, state, world)
    assert refusals(plugin, state, pod, table) == expected, "a clone must not change the original"


def _check_suppositions(
    pod: PodInfo, stage: Stage, plugin: InterPodAffinity, state: CycleState, world: World
) -> None:
    """Pods removed from and added to one node, as for preemption and nominated pods."""
    node = stage.nodes[world.changed_node]
    rows = rows_of(stage.cluster.nodes, [node.name])
    clone = state.clone()
    changes: list[Placed] = []
    for other in (*stage.on(node.name), *world.guests):
        here = other.uid in stage.pods
        method = plugin.remove_pod if here else plugin.add_pod
        assert method(clone, pod, PodInfo(other), rows.info(0)).is_success
        changes.append(Placed(other, node, -1 if here else 1))
        expected = Reference(stage, pod.pod, changes).refusal(node)
        assert refusals(plugin, clone, pod, rows) == {node.name: expected}


@pytest.mark.parametrize(("arguments", "hard_weight"), [({}, 1), ({"hardPodAffinityWeight": 0}, 0)])
def test_score_matches_reference(arguments: dict[str, Any], hard_weight: int) -> None:
    @given(world=worlds())
    def holds(world: World) -> None:
        stage = Stage.of(world)
        plugin = stage.build(InterPodAffinity, arguments)
        _check_score(stage, plugin, world, hard_weight)
        for happening in world.later:
            stage.happen(happening)
            _check_score(stage, plugin, world, hard_weight)

    holds()


def _check_score(stage: Stage, plugin: InterPodAffinity, world: World, hard_weight: int) -> None:
    for pod in like(world.pod):
        points = Reference(stage, pod.pod).worth(hard_weight)
        for names in (list(stage.nodes), world.choice):
            got = scores(plugin, pod, rows_of(stage.cluster.nodes, names))
            if points is None:
                assert got is None
                continue
            raw = [sum(points[pair] for pair in stage.nodes[name].labels.items()) for name in names]
            assert got is not None
            assert got.raw == raw
            span = max(raw) - min(raw) if raw else 0
            assert got.normalized == [
                int(100 * ((score - min(raw)) / span)) if span else 0 for score in raw
            ]
            assert all(0 <= score <= 100 for score in got.normalized)


# -- cases by hand --------------------------------------------------------------------------------


def a_node(name: str, **labels: str) -> Node:
    held = {HOST: name, **({ZONE: labels["zone"]} if "zone" in labels else {})}
    return Node(metadata=ObjectMeta(name=name, uid=name, labels=held))


def a_pod(uid: str, app: str = "", *, node: str = "", ns: str = "d", **affinity: Any) -> Pod:
    raw = {
        "metadata": {
            "name": uid,
            "namespace": ns,
            "uid": uid,
            "labels": {"app": app} if app else {},
        },
        "spec": {"nodeName": node, "affinity": affinity or None},
    }
    return msgspec.convert(raw, Pod)


def near(app: str, key: str = ZONE, **more: Any) -> dict[str, Any]:
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **more}
        ]
    }


def preferring(app: str, weight: int, key: str = ZONE) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    return {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": weight, "podAffinityTerm": term}
        ]
    }


def staged(*found: Node | Pod | Namespace) -> Stage:
    stage = Stage(o for o in found if isinstance(o, Namespace))
    for node in found:
        if isinstance(node, Node):
            stage.nodes[node.name] = node
            stage.cluster.nodes.set_node(node)
    for pod in found:
        if isinstance(pod, Pod):
            stage.pods[pod.uid] = pod
            stage.cluster.nodes.add_pod(pod.node_name, PodInfo(pod))
    return stage


def refused(stage: Stage, pod: Pod) -> dict[str, tuple[str, str]]:
    plugin, state, info = stage.build(InterPodAffinity), CycleState(), PodInfo(pod)
    result: PreFilterResult = plugin.pre_filter(state, info, stage.cluster.nodes)
    if result.status.is_skip:
        return {}
    found = refusals(plugin, state, info, stage.cluster.nodes)
    return {name: refusal for name, refusal in found.items() if refusal is not None}


def test_first_of_group_fits_wherever_the_key_exists() -> None:
    stage = staged(a_node("n1", zone="z1"), a_node("n2"))
    pod = a_pod("p", "web", podAffinity=near("web"))
    assert refused(stage, pod) == {"n2": AFFINITY}
    stage.happen(Happening(a_pod("q", "web", node="n1"), None))
    assert refused(stage, pod) == {"n2": AFFINITY}
    other = a_pod("r", "db", podAffinity=near("cache"))
    assert refused(stage, other) == {"n1": AFFINITY, "n2": AFFINITY}


def test_pod_is_first_of_group_after_last_match_is_removed() -> None:
    friend = a_pod("friend", "web", node="n1")
    stage = staged(a_node("n1", zone="z1"), a_node("n2", zone="z2"), friend)
    plugin, table = stage.build(InterPodAffinity), stage.cluster.nodes
    pod, state = PodInfo(a_pod("p", "web", podAffinity=near("web"))), CycleState()
    plugin.pre_filter(state, pod, table)
    assert refusals(plugin, state, pod, table) == {"n1": None, "n2": AFFINITY}
    without = state.clone()
    plugin.remove_pod(without, pod, PodInfo(friend), table.info(0))
    assert refusals(plugin, without, pod, table) == {"n1": None, "n2": None}
    elsewhere = without.clone()
    plugin.add_pod(elsewhere, pod, PodInfo(friend), table.info(1))
    assert refusals(plugin, elsewhere, pod, table) == {"n1": AFFINITY, "n2": None}


def test_anti_affinity_works_in_both_directions() -> None:
    guard = a_pod("guard", "db", node="n1", podAntiAffinity=near("web"))
    stage = staged(a_node("n1", zone="z1"), a_node("n2", zone="z1"), a_node("n3"), guard)
    assert refused(stage, a_pod("p", "web")) == {"n1": EXISTING, "n2": EXISTING}
    assert refused(stage, a_pod("p", "db")) == {}
    assert refused(stage, a_pod("p", podAntiAffinity=near("db", HOST))) == {"n1": ANTI}


def test_empty_namespace_selector_selects_unknown_namespaces() -> None:
    stage = staged(a_node("n1"), a_pod("q", "web", node="n1", ns="unheard-of"))
    everywhere = near("web", HOST, namespaceSelector={})
    assert refused(stage, a_pod("p", podAntiAffinity=everywhere)) == {"n1": ANTI}
    labelled = near("web", HOST, namespaceSelector={"matchLabels": {"team": "x"}})
    picky = a_pod("p", podAntiAffinity=labelled)
    assert refused(stage, picky) == {}


def test_namespace_with_new_label_is_selected() -> None:
    stage = staged(a_node("n1"), a_pod("q", "web", node="n1", ns="other"))
    selector = {"matchLabels": {"team": "x"}}
    pod = PodInfo(a_pod("p", podAntiAffinity=near("web", HOST, namespaceSelector=selector)))
    plugin, table = stage.build(InterPodAffinity), stage.cluster.nodes

    def answer() -> tuple[str, str] | None:
        state = CycleState()
        plugin.pre_filter(state, pod, table)
        return refusals(plugin, state, pod, table)["n1"]

    assert answer() is None
    stage.keep(Namespace(metadata=ObjectMeta(name="other", labels={"team": "x"})))
    assert answer() == ANTI
    stage.keep(Namespace(metadata=ObjectMeta(name="other")))
    assert answer() is None


def test_preferred_terms_of_existing_pods_can_be_ignored() -> None:
    friend = a_pod("friend", "db", node="n1", podAffinity=preferring("web", 10))
    stage = staged(a_node("n1", zone="z1"), a_node("n2", zone="z2"), friend)
    table = stage.cluster.nodes
    plain, choosy = a_pod("p", "web"), a_pod("p", "web", podAffinity=preferring("db", 5))
    heeding = stage.build(InterPodAffinity)
    ignoring = stage.build(InterPodAffinity, {"ignorePreferredTermsOfExistingPods": True})
    assert scores(heeding, PodInfo(plain), table) == ([10, 0], [100, 0])
    assert scores(ignoring, PodInfo(plain), table) is None
    assert scores(ignoring, PodInfo(choosy), table) == ([15, 0], [100, 0])


@pytest.mark.parametrize("weight", [-1, 101])
def test_hard_weight_out_of_range_is_rejected(weight: int) -> None:
    with pytest.raises(ValueError, match=r"hardPodAffinityWeight: .*not in valid range \[0, 100\]"):
        Stage().build(InterPodAffinity, {"hardPodAffinityWeight": weight})


# -- queueing hints -------------------------------------------------------------------------------


def wakes(
    waiting: Pod,
    resource: EventResource,
    action: ActionType,
    old: Object | None,
    new: Object | None,
    stage: Stage | None = None,
) -> bool:
    plugin = (stage or Stage()).build(InterPodAffinity)
    happened = ClusterEvent(resource, action)
    return any(
        entry.hint is None or entry.hint(waiting, old, new) is QueueingHint.QUEUE
        for entry in plugin.events_to_register()
        if entry.event.covers(happened)
    )


ADD, DELETE = ActionType.ADD, ActionType.DELETE
ASSIGNED, NODE = EventResource.ASSIGNED_POD, EventResource.NODE
WANTS_WEB = a_pod("w", podAffinity=near("web"))
SHUNS_WEB = a_pod("w", "db", podAntiAffinity=near("web"))
WEB, DB = a_pod("o", "web", node="n"), a_pod("o", "db", node="n")


@pytest.mark.parametrize(
    ("expected", "waiting", "action", "old", "new"),
    [
        (True, WANTS_WEB, ADD, None, WEB),
        (False, WANTS_WEB, ADD, None, DB),
        (False, WANTS_WEB, ADD, None, a_pod("o", "web")),
        (True, WANTS_WEB, ActionType.UPDATE_POD_LABEL, DB, WEB),
        (False, WANTS_WEB, ActionType.UPDATE_POD_LABEL, WEB, DB),
        (False, WANTS_WEB, DELETE, WEB, None),
        (True, SHUNS_WEB, DELETE, WEB, None),
        (False, SHUNS_WEB, DELETE, DB, None),
        (True, SHUNS_WEB, ActionType.UPDATE_POD_LABEL, WEB, DB),
        (False, SHUNS_WEB, ADD, None, WEB),
        # A pod with anti-affinity is deleted.
        (True, a_pod("w", "db"), DELETE, a_pod("o", node="n", podAntiAffinity=near("db")), None),
        (False, a_pod("w", "x"), DELETE, a_pod("o", node="n", podAntiAffinity=near("db")), None),
        (False, WANTS_WEB, ActionType.UPDATE_POD_SCALE_DOWN, DB, WEB),
    ],
)
def test_pod_event_queues_the_pod(
    expected: bool, waiting: Pod, action: ActionType, old: Pod | None, new: Pod | None
) -> None:
    assert wakes(waiting, ASSIGNED, action, old, new) is expected


LABEL = ActionType.UPDATE_NODE_LABEL
IN_Z1, IN_Z2, NOWHERE = a_node("n", zone="z1"), a_node("n", zone="z2"), a_node("n")


@pytest.mark.parametrize(
    ("expected", "waiting", "old", "new"),
    [
        (True, WANTS_WEB, None, IN_Z1),
        (False, WANTS_WEB, None, NOWHERE),
        (True, SHUNS_WEB, None, NOWHERE),
        (True, WANTS_WEB, NOWHERE, IN_Z1),
        (True, WANTS_WEB, IN_Z1, IN_Z2),
        (True, SHUNS_WEB, IN_Z1, NOWHERE),
        (False, WANTS_WEB, IN_Z1, IN_Z1),
        (False, a_pod("w", "db"), IN_Z1, IN_Z2),
    ],
)
def test_node_event_queues_the_pod(
    expected: bool, waiting: Pod, old: Node | None, new: Node
) -> None:
    assert wakes(waiting, NODE, ADD if old is None else LABEL, old, new) is expected


def test_node_that_leaves_domain_of_existing_anti_affinity_queues_the_pod() -> None:
    guard = a_pod("guard", node="n", podAntiAffinity=near("db"))
    stage = staged(IN_Z1, guard)
    assert wakes(a_pod("w", "db"), NODE, LABEL, IN_Z1, IN_Z2, stage)
    assert not wakes(a_pod("w", "web"), NODE, LABEL, IN_Z1, IN_Z2, stage)


def test_unrelated_events_queue_no_pod() -> None:
    for resource in (EventResource.SERVICE, EventResource.NAMESPACE, EventResource.CSI_NODE):
        assert not wakes(WANTS_WEB, resource, ADD, None, IN_Z1)
    for action in (ActionType.UPDATE_NODE_ALLOCATABLE, ActionType.UPDATE_NODE_CONDITION, DELETE):
        assert not wakes(WANTS_WEB, NODE, action, IN_Z1, IN_Z2)
