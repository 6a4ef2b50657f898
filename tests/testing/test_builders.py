"""Builders of Kubernetes objects: results, and errors for invalid input."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest

from asched.framework import SUCCESS, CycleState, FilterPlugin, NodeInfo, PodInfo, Status
from asched.model import (
    CustomDefinition,
    CustomPodGroup,
    CustomResource,
    DecodeError,
    Node,
    Object,
    ObjectMeta,
    PersistentVolumeClaim,
    Taint,
    Toleration,
)
from asched.testing import (
    claim,
    from_api,
    from_yaml,
    node,
    nodes,
    pod,
    pod_group,
    pods,
    profile,
    run_filter,
    schedule,
    storage_class,
    volume,
)


def test_pod_has_given_fields() -> None:
    made = pod(
        "web", namespace="shop", cpu="500m", memory="1Gi", requests={"example.com/gpu": 2},
        labels={"app": "web"}, priority=5, node_selector={"disk": "ssd"}, host_ports=[80],
        tolerations=["a", "b=c", "d=e:NoSchedule", Toleration(key="f", operator="Exists")],
        claims=["data"], group="g", spec={"hostNetwork": True},
    )  # fmt: skip
    shape = PodInfo(made).shape
    assert shape.requests == {"cpu": 500, "memory": 1 << 30, "example.com/gpu": 2}
    assert [(port.port, port.protocol) for port in shape.ports] == [(80, "TCP")]
    assert (made.key, made.uid, made.labels) == ("shop/web", "shop/web", {"app": "web"})
    spec = made.spec
    assert (spec.priority, spec.node_selector, spec.host_network) == (5, {"disk": "ssd"}, True)
    assert [(t.key, t.operator, t.value, t.effect) for t in spec.tolerations] == [
        ("a", "Exists", "", ""), ("b", "Equal", "c", ""), ("d", "Equal", "e", "NoSchedule"),
        ("f", "Exists", "", ""),
    ]  # fmt: skip
    assert spec.volumes[0].persistent_volume_claim is not None
    assert spec.scheduling_group is not None
    assert [each.name for each in pods(2, "w", namespace="shop")] == ["w-0", "w-1"]


def test_node_has_given_fields() -> None:
    made = node(
        "n", cpu="4", memory="8Gi", max_pods=5, allocatable={"example.com/gpu": "1"}, zone="a",
        taints=["k=v:NoSchedule", "l:NoExecute", Taint(key="m", effect="PreferNoSchedule")],
        unschedulable=True, images={"app": 70},
    )  # fmt: skip
    assert made.status.allocatable == {
        "cpu": "4", "memory": "8Gi", "pods": "5", "example.com/gpu": "1",
    }  # fmt: skip
    assert [(t.key, t.value, t.effect) for t in made.spec.taints] == [
        ("k", "v", "NoSchedule"), ("l", "", "NoExecute"), ("m", "", "PreferNoSchedule"),
    ]  # fmt: skip
    assert made.spec.unschedulable
    assert made.status.images[0].size_bytes == 70
    zones = [n.labels["topology.kubernetes.io/zone"] for n in nodes(3, zones=["a", "b"])]
    assert zones == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pod(cpu="lots"), "requests.cpu"),
        (lambda: node(cpu="-x"), "allocatable.cpu"),
        (lambda: pod(spec={"priority": "high"}), "priority"),
        (lambda: from_api({"apiVersion": "v1", "kind": "Secret"}), "v1 Secret is not a kind"),
        (lambda: from_api({"apiVersion": "v1", "kind": "Pod"}), "without metadata.name"),
    ],
)
def test_invalid_objects_are_rejected(build: Callable[[], object], message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        build()
    with pytest.raises(ValueError, match="'gpu' is not a taint"):
        node(taints=["gpu"])
    with pytest.raises(TypeError, match="unexpected keyword argument 'cpus'"):
        node(cpus="4")  # type: ignore[call-arg]


def test_schedule_places_pod_in_zone_of_its_volume() -> None:
    cluster = [
        *nodes(2, zones=["a", "b"]), storage_class("disks"), claim("data", storage_class="disks"),
        volume("v", storage_class="disks", zone="b"),
    ]  # fmt: skip
    assert schedule(profile(), cluster, [pod("p", claims=["data"])]).nodes == {"p": "node-1"}
    bound = claim("data", volume="v")
    assert bound.spec.volume_name == "v"
    assert isinstance(bound, PersistentVolumeClaim)


class Card(CustomResource, frozen=True):
    """A custom resource, named after its node."""

    definition: ClassVar[CustomDefinition] = CustomDefinition("example.com", "v1", "cards", "Card")
    free: int = 0


class ByCard(FilterPlugin):
    """Requires as many cards as the pod's annotation says."""

    name: ClassVar[str] = "ByCard"
    api_version: ClassVar[int] = 1
    custom_resources: ClassVar[tuple[type[CustomResource], ...]] = (Card,)
    reads_annotations: ClassVar[tuple[str, ...]] = ("example.com/cards",)

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        assert pod.shape.annotations.keys() == {"example.com/cards"}
        card = self.handle.cluster.objects(Card).get(node.name, Card())
        wanted = int(pod.shape.annotations["example.com/cards"])
        return SUCCESS if card.free >= wanted else Status.unschedulable("too few cards")


def test_declared_resources_and_annotations_are_available() -> None:
    card = {
        "apiVersion": "example.com/v1",
        "kind": "Card",
        "metadata": {"name": "node-1"},
        "free": 2,
    }
    given: list[Object] = [Card(metadata=ObjectMeta(name="node-0"), free=1), from_api(card, Card)]
    cluster = [*nodes(3), *given]
    asks = pod("p", annotations={"example.com/cards": "2", "example.com/secret": "x"})
    passed = [
        name for name, status in run_filter(ByCard, asks, cluster).items() if not status.reasons
    ]
    assert passed == ["node-1"]
    assert schedule(ByCard, cluster, [asks]).nodes == {"p": "node-1"}


def test_from_yaml_decodes_manifests() -> None:
    found = from_yaml(
        """
apiVersion: v1
kind: Node
metadata: {name: n}
status: {allocatable: {cpu: 2, pods: 9}}
---
apiVersion: scheduling.incubator.k8s.io/v1alpha1
kind: PodGroup
metadata: {name: g}
spec: {minMember: 2}
---
"""
    )
    assert isinstance(found[0], Node)
    assert isinstance(found[1], CustomPodGroup)
    assert (found[1].key, found[1].spec.min_member) == ("default/g", 2)
    assert pod_group("g", 3).min_count == 3
