"""Normalized scores of the default profile are between 0 and 100 on random clusters."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.cycle.inspect import AttemptOutcome, Inspection, inspect
from asched.framework.interface import ExtensionPoint
from asched.framework.nodes import MAX_NODE_SCORE
from asched.framework.pod_info import PodInfo
from asched.model.meta import ObjectMeta
from asched.model.node import Node
from asched.model.pod import (
    DEFAULT_SCHEDULER_NAME,
    Affinity,
    NodeAffinity,
    Pod,
    ResourceRequirements,
)
from asched.model.selectors import (
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PreferredSchedulingTerm,
)
from asched.model.workloads import Service, ServiceSpec
from asched.state.records import ObjectObserved
from tests.cycle.default_profile import default_fold, default_profiles
from tests.plugins import affinity_clusters, clusters
from tests.run_size import examples

_replace = msgspec.structs.replace


def _node(by_resources: Node, by_domains: Node) -> Node:
    """Combine resources, images and taints of one node with the topology of the other."""
    labels = {**by_resources.metadata.labels, **by_domains.metadata.labels}
    metadata = _replace(by_resources.metadata, labels=labels)
    return _replace(by_resources, metadata=metadata)


_preferences = st.lists(
    st.builds(
        PreferredSchedulingTerm,
        weight=st.integers(1, 100),
        preference=st.builds(
            NodeSelectorTerm,
            match_expressions=st.tuples(
                st.builds(
                    NodeSelectorRequirement,
                    key=st.just(affinity_clusters.ZONE),
                    operator=st.just("In"),
                    values=st.sampled_from((("z1",), ("z2",), ("z1", "z2"))),
                )
            ),
        ),
    ),
    max_size=3,
).map(tuple)


def _pod(by_resources: Pod, by_neighbours: Pod) -> Pod:
    own, near = by_resources.spec, by_neighbours.spec
    affinity = Affinity(
        pod_affinity=near.affinity.pod_affinity if near.affinity else None,
        pod_anti_affinity=near.affinity.pod_anti_affinity if near.affinity else None,
    )
    spec = _replace(
        own,
        affinity=affinity,
        topology_spread_constraints=near.topology_spread_constraints,
        scheduler_name=DEFAULT_SCHEDULER_NAME,
    )
    metadata = _replace(by_resources.metadata, labels=by_neighbours.labels,
                        namespace=by_neighbours.namespace)  # fmt: skip
    return _replace(by_resources, metadata=metadata, spec=spec)


class Drawn(msgspec.Struct, frozen=True):
    nodes: list[Node]
    pods: list[Pod]
    pod: Pod


@st.composite
def drawn_clusters(draw: st.DrawFn) -> Drawn:
    names = clusters.NODE_NAMES[: draw(st.integers(2, len(clusters.NODE_NAMES)))]
    nodes = [_node(draw(clusters.nodes(n)), draw(affinity_clusters.nodes(n))) for n in names]
    # Without these, hardly any node would be feasible.
    roomy = {"ephemeral-storage": "64Gi", "pods": "110"}
    open_nodes = [
        _replace(
            node,
            spec=_replace(
                node.spec,
                unschedulable=False,
                taints=tuple(t for t in node.spec.taints if t.effect == "PreferNoSchedule"),
            ),
            status=_replace(
                node.status,
                allocatable={
                    **node.status.allocatable,
                    "cpu": draw(st.sampled_from(("8", "64"))),
                    "memory": draw(st.sampled_from(("16Gi", "64Gi"))),
                    **roomy,
                },
            ),
        )
        for node in nodes
    ]
    kept = draw(st.integers(0, len(names)))
    pods = [
        _pod(draw(clusters.pods(f"p{i}")), draw(affinity_clusters.pods(f"p{i}")))
        for i in range(draw(st.integers(0, 6)))
    ]
    pending = _pod(draw(clusters.pods("pending")), draw(affinity_clusters.pods("pending")))
    affinity = _replace(
        pending.spec.affinity or Affinity(),
        node_affinity=NodeAffinity(preferred=draw(_preferences)),
    )
    asked: dict[str, str | int | float] = {
        "cpu": draw(st.sampled_from(("100m", "4"))),
        "memory": "1Gi",
    }
    container = _replace(pending.spec.containers[0], resources=ResourceRequirements(requests=asked))
    spec = _replace(
        pending.spec,
        node_name="",
        node_selector=None,
        affinity=affinity,
        containers=(container,),
    )
    free = _replace(pending, spec=spec)
    return Drawn(open_nodes[kept:] + nodes[:kept], pods, free)


def _inspection(drawn: Drawn) -> Inspection:
    fold = default_fold()
    for namespace in affinity_clusters.NAMESPACES:
        metadata = ObjectMeta(name="all", namespace=namespace, uid=f"all-{namespace}")
        # Default constraints apply to its pods.
        fold.apply(
            ObjectObserved(Service(metadata=metadata, spec=ServiceSpec(selector={"app": "x"})))
        )
    for node in drawn.nodes:
        fold.apply(ObjectObserved(node))
    for pod in drawn.pods:
        fold.apply(ObjectObserved(pod))
    profile = fold.state.profiles[DEFAULT_SCHEDULER_NAME]
    return inspect(fold.state, profile, PodInfo(drawn.pod))


@given(drawn=drawn_clusters())
def test_normalized_scores_are_in_range(drawn: Drawn) -> None:
    inspection = _inspection(drawn)
    if inspection.outcome is AttemptOutcome.ERROR:
        # An invalid selector fails the attempt; a score must not.
        assert "score" not in inspection.message
    totals = [0] * len(inspection.feasible)
    for plugin, scoring in inspection.scores.items():
        assert len(scoring.normalized) == len(inspection.feasible)
        assert all(0 <= score <= MAX_NODE_SCORE for score in scoring.normalized), plugin
        totals = [t + scoring.weight * s for t, s in zip(totals, scoring.normalized, strict=True)]
    assert tuple(totals) == inspection.total


def test_every_scorer_distinguishes_nodes_in_drawn_clusters() -> None:
    told_apart: set[str] = set()

    @settings(max_examples=examples(120), derandomize=True, database=None)
    @given(drawn=drawn_clusters())
    def look(drawn: Drawn) -> None:
        for plugin, scoring in _inspection(drawn).scores.items():
            if len(set(scoring.normalized)) > 1:
                told_apart.add(plugin)

    look()
    scorers = {plugin.name for plugin in default_profiles()[0].plugins_at(ExtensionPoint.SCORE)}
    # These two score claims and volumes, which the pods do not have.
    assert told_apart == scorers - {"DynamicResources", "VolumeBinding"}
