"""Random small clusters with pod affinity and topology spread constraints, and changes to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st

from asched.framework.interface import Plugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import parse_arguments
from asched.model.meta import Object, ObjectMeta
from asched.model.node import Node, NodeSpec, Taint
from asched.model.pod import (
    Affinity,
    NodeAffinity,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    Toleration,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from asched.model.selectors import (
    LabelSelector,
    LabelSelectorRequirement,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)
from asched.model.workloads import Namespace
from asched.state.cluster import ClusterState, ProfileHandle

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
KEYS = (HOST, ZONE, "rack")
NODE_NAMES = tuple(f"n{i}" for i in range(6))
NAMESPACES = ("a", "b")

P = TypeVar("P", bound=Plugin)


class Happening(NamedTuple):
    """A pod is added to a node or removed, or a node is replaced."""

    pod: Pod | None
    node: Node | None


class World(NamedTuple):
    namespaces: list[Namespace]
    nodes: list[Node]
    bound: list[Pod]
    later: list[Happening]
    pod: PodInfo
    choice: list[str]
    """Some of the nodes, in any order."""
    changed_node: str
    """The node on which hypothetical pods are added and removed."""
    guests: list[Pod]
    """The hypothetical pods."""


labels = st.sampled_from(({"app": "x"}, {"app": "x"}, {"app": "y"}, {"app": "x", "tier": "y"}, {}))
requirements = st.builds(
    LabelSelectorRequirement,
    key=st.sampled_from(("app", "tier")),
    operator=st.sampled_from(("In", "NotIn")),
    values=st.lists(st.sampled_from(("x", "y")), min_size=1, max_size=2).map(tuple),
) | st.builds(
    LabelSelectorRequirement,
    key=st.sampled_from(("app", "tier")),
    operator=st.sampled_from(("Exists", "DoesNotExist")),
)
selectors = st.sampled_from(
    (LabelSelector(match_labels={"app": "x"}), LabelSelector(match_labels={"app": "y"}))
) | st.builds(
    LabelSelector,
    match_labels=st.sampled_from(({}, {"app": "x"})),
    match_expressions=st.lists(requirements, max_size=1).map(tuple),
)
terms = st.builds(
    PodAffinityTerm,
    label_selector=st.sampled_from((None, *[...] * 7)).flatmap(
        lambda drawn: selectors if drawn is ... else st.none()
    ),
    namespaces=st.sampled_from(((), (), ("a",), ("a", "b"))),
    namespace_selector=st.none() | st.none() | selectors,
    topology_key=st.sampled_from(KEYS),
)
weighted = st.builds(WeightedPodAffinityTerm, weight=st.integers(1, 100), pod_affinity_term=terms)
rules = st.builds(
    PodAffinity,
    required=st.lists(terms, max_size=2).map(tuple),
    preferred=st.lists(weighted, max_size=2).map(tuple),
)
node_affinity = st.none() | st.builds(
    NodeAffinity,
    required=st.builds(
        NodeSelector,
        node_selector_terms=st.lists(
            st.builds(
                NodeSelectorTerm,
                match_expressions=st.tuples(
                    st.builds(
                        NodeSelectorRequirement,
                        key=st.sampled_from(KEYS),
                        operator=st.just("In"),
                        values=st.sampled_from((("z1",), ("z1", "z2"), ("r1",))),
                    )
                ),
            ),
            max_size=2,
        ).map(tuple),
    ),
)
affinities = st.builds(
    Affinity,
    node_affinity=node_affinity,
    pod_affinity=st.none() | rules,
    pod_anti_affinity=st.none() | rules,
)
constraints = st.builds(
    TopologySpreadConstraint,
    max_skew=st.integers(1, 3),
    topology_key=st.sampled_from(KEYS),
    when_unsatisfiable=st.sampled_from(("DoNotSchedule", "ScheduleAnyway")),
    label_selector=st.none() | selectors,
    min_domains=st.none() | st.integers(1, 4),
    node_affinity_policy=st.sampled_from(("Honor", "Ignore")),
    node_taints_policy=st.sampled_from(("Honor", "Ignore")),
)
taints = st.lists(
    st.builds(
        Taint,
        key=st.sampled_from(("k", "l")),
        effect=st.sampled_from(("NoSchedule", "PreferNoSchedule", "NoExecute")),
    ),
    max_size=2,
).map(tuple)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    held: dict[str, str] = {}
    for key, values in ((HOST, (name, "shared")), (ZONE, ("z1", "z2", "")), ("rack", ("r1", "r2"))):
        value = draw(st.sampled_from((*values, *values, None)))
        if value is not None:
            held[key] = value
    return Node(
        metadata=ObjectMeta(name=name, uid=name, labels=held), spec=NodeSpec(taints=draw(taints))
    )


@st.composite
def pods(draw: st.DrawFn, uid: str, *, on: Iterable[str] = ()) -> Pod:
    leaving = datetime(2026, 1, 1, tzinfo=UTC) if draw(st.integers(0, 4)) == 4 else None
    return Pod(
        metadata=ObjectMeta(
            name=uid,
            namespace=draw(st.sampled_from(NAMESPACES)),
            uid=uid,
            labels=draw(labels),
            deletion_timestamp=leaving if on else None,
        ),
        spec=PodSpec(
            node_name=draw(st.sampled_from(tuple(on))) if on else "",
            node_selector=draw(st.none() | st.just({"rack": "r1"})),
            affinity=draw(affinities if draw(st.integers(0, 2)) else st.none()),
            tolerations=draw(st.sampled_from(((), (Toleration(key="k", operator="Exists"),)))),
            topology_spread_constraints=draw(st.lists(constraints, max_size=2).map(tuple)),
        ),
    )


@st.composite
def _happenings(draw: st.DrawFn, number: int, names: Sequence[str], bound: list[Pod]) -> Happening:
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return Happening(None, draw(nodes(draw(st.sampled_from(names)))))
    if kind == 1 and bound:
        return Happening(draw(st.sampled_from(bound)), None)
    return Happening(draw(pods(f"later-{number}", on=names)), None)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    names = NODE_NAMES[: draw(st.integers(1, len(NODE_NAMES)))]
    bound = [draw(pods(f"bound-{i}", on=names)) for i in range(draw(st.integers(0, 5)))]
    later = [draw(_happenings(i, names, bound)) for i in range(draw(st.integers(0, 4)))]
    known = draw(st.lists(st.sampled_from(NAMESPACES), unique=True))
    return World(
        namespaces=[Namespace(metadata=ObjectMeta(name=n, labels=draw(labels))) for n in known],
        nodes=[draw(nodes(name)) for name in names],
        bound=bound,
        later=later,
        pod=PodInfo(draw(pods("pending"))),
        choice=draw(st.lists(st.sampled_from(names), unique=True)),
        changed_node=draw(st.sampled_from(names)),
        guests=[draw(pods(f"guest-{i}")) for i in range(draw(st.integers(0, 2)))],
    )


class Stage:
    """A cluster as asched keeps it, and plain lists of its objects."""

    def __init__(self, objects: Iterable[Object] = ()) -> None:
        self.cluster = ClusterState()
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        for found in objects:
            self.keep(found)

    def keep(self, found: Object) -> None:
        self.cluster.object_store.put(found)

    @classmethod
    def of(cls, world: World) -> Stage:
        stage = cls(world.namespaces)
        for node in world.nodes:
            stage.happen(Happening(None, node))
        for pod in world.bound:
            stage.happen(Happening(pod, None))
        return stage

    def happen(self, happening: Happening) -> None:
        """Remove the pod if it is present; otherwise add it."""
        table, pod, node = self.cluster.nodes, happening.pod, happening.node
        if node is not None:
            self.nodes[node.name] = node
            table.set_node(node)
        if pod is not None:
            if self.pods.pop(pod.uid, None) is None:
                self.pods[pod.uid] = pod
                table.add_pod(pod.node_name, PodInfo(pod))
            else:
                table.remove_pod(pod.node_name, PodInfo(pod))

    def build(self, plugin: type[P], arguments: Mapping[str, Any] | None = None) -> P:
        handle = ProfileHandle(self.cluster, "default-scheduler")
        return plugin(parse_arguments(plugin, dict(arguments or {})), handle)

    def on(self, name: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.node_name == name]

    @property
    def namespaces(self) -> dict[str, dict[str, str]]:
        """Labels of the known namespaces."""
        return {n.name: n.labels for n in self.cluster.objects(Namespace).values()}
