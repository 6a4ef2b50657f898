"""Random small clusters and pods with narrow value ranges, so that values coincide often."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from asched.framework.pod_info import PodInfo
from asched.model.meta import ObjectMeta
from asched.model.node import ContainerImage, Node, NodeSpec, NodeStatus, Taint
from asched.model.pod import (
    Affinity,
    Container,
    ContainerPort,
    NodeAffinity,
    Pod,
    PodSpec,
    ResourceRequirements,
    Toleration,
)
from asched.model.selectors import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PreferredSchedulingTerm,
)

KEYS = ("zone", "gen", "disk")
VALUES = ("a", "b", "3", "10", "-7", "")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
NODE_NAMES = tuple(f"n{i}" for i in range(6))
IMAGES = ("app:v1", "app", "db:latest")
GPU = "example.com/gpu"
FPGA = "other.io/fpga"


class ClusterAndPod(NamedTuple):
    nodes: list[Node]
    bound: list[Pod]
    pod: PodInfo
    choice: list[str]
    """Some of the nodes, in any order."""


labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=3)
taints = st.lists(
    st.builds(
        Taint,
        key=st.sampled_from((*KEYS, "node.kubernetes.io/unschedulable")),
        value=st.sampled_from(VALUES),
        effect=st.sampled_from(EFFECTS),
    ),
    max_size=3,
).map(tuple)
tolerations = st.lists(
    st.builds(
        Toleration,
        key=st.sampled_from(("", *KEYS, "node.kubernetes.io/unschedulable")),
        operator=st.sampled_from(("", "Equal", "Exists", "Gt")),
        value=st.sampled_from(VALUES),
        effect=st.sampled_from(("", *EFFECTS)),
    ),
    max_size=3,
).map(tuple)
quantities = st.sampled_from(("0", "1", "3", "250m", "1500m", "64Mi", "1Gi", "9", "2Ei", "8Ei"))
resource_lists = st.dictionaries(
    st.sampled_from(("cpu", "memory", "ephemeral-storage", GPU, FPGA)), quantities, max_size=4
)
label_requirements = st.builds(
    NodeSelectorRequirement,
    key=st.sampled_from(KEYS),
    operator=st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Like")),
    values=st.lists(st.sampled_from((*VALUES, "not a value")), max_size=2).map(tuple),
)
field_requirements = st.builds(
    NodeSelectorRequirement,
    key=st.sampled_from(("metadata.name", "metadata.name", "metadata.uid")),
    operator=st.sampled_from(("In", "NotIn", "Exists")),
    values=st.lists(st.sampled_from((*NODE_NAMES, "gone")), max_size=2).map(tuple),
)
terms = st.builds(
    NodeSelectorTerm,
    match_expressions=st.lists(label_requirements, max_size=2).map(tuple),
    match_fields=st.lists(field_requirements, max_size=2).map(tuple),
)
selectors = st.lists(terms, max_size=3).map(lambda t: NodeSelector(node_selector_terms=tuple(t)))
preferences = st.lists(
    st.builds(PreferredSchedulingTerm, weight=st.integers(0, 100), preference=terms), max_size=3
).map(tuple)
affinities = st.builds(
    Affinity,
    node_affinity=st.none()
    | st.builds(NodeAffinity, required=st.none() | selectors, preferred=preferences),
)
ports = st.lists(
    st.builds(
        ContainerPort,
        host_port=st.sampled_from((0, 80, 81)),
        protocol=st.sampled_from(("TCP", "UDP")),
        host_ip=st.sampled_from(("", "0.0.0.0", "10.0.0.1", "10.0.0.2")),
    ),
    max_size=2,
).map(tuple)
containers = st.builds(
    Container,
    name=st.just("c"),
    image=st.sampled_from(IMAGES),
    resources=st.builds(ResourceRequirements, requests=resource_lists),
    ports=ports,
)
images = st.lists(
    st.builds(
        ContainerImage,
        names=st.lists(st.sampled_from(("app:v1", "app:latest", "db:latest")), max_size=2).map(
            tuple
        ),
        size_bytes=st.sampled_from((0, 30_000_000, 700_000_000, 5_000_000_000)),
    ),
    max_size=3,
).map(tuple)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    allocatable: dict[str, str | int | float] = {**draw(resource_lists)}
    allocatable["pods"] = draw(st.sampled_from(("0", "1", "110")))
    return Node(
        metadata=ObjectMeta(name=name, uid=name, labels=draw(labels)),
        spec=NodeSpec(unschedulable=draw(st.booleans()), taints=draw(taints)),
        status=NodeStatus(allocatable=allocatable, images=draw(images)),
    )


@st.composite
def pods(draw: st.DrawFn, uid: str) -> Pod:
    spec = PodSpec(
        node_name=draw(st.sampled_from(("", *NODE_NAMES))),
        containers=tuple(draw(st.lists(containers, min_size=1, max_size=2))),
        node_selector=draw(st.none() | labels),
        affinity=draw(st.none() | affinities),
        tolerations=draw(tolerations),
    )
    return Pod(metadata=ObjectMeta(name=uid, namespace="default", uid=uid), spec=spec)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterAndPod:
    """Up to six nodes, a few pods on them or on missing nodes, and a pending pod."""
    names = NODE_NAMES[: draw(st.integers(1, len(NODE_NAMES)))]
    return ClusterAndPod(
        nodes=[draw(nodes(name)) for name in names],
        bound=[draw(pods(f"bound-{i}")) for i in range(draw(st.integers(0, 4)))],
        pod=PodInfo(draw(pods("pending"))),
        choice=draw(st.lists(st.sampled_from(names), unique=True)),
    )
