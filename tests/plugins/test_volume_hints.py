"""Hints of the volume plugins queue pods for helpful events only."""

from __future__ import annotations

from typing import Any

import pytest

from asched.framework.events import ActionType, ClusterEvent, EventResource, QueueingHint
from asched.framework.interface import EnqueueExtensions, Plugin
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.node_declared_features import NodeDeclaredFeatures
from asched.plugins.node_volume_limits import NodeVolumeLimits
from asched.plugins.volume_binding.plugin import VolumeBinding
from asched.plugins.volume_restrictions import VolumeRestrictions
from asched.plugins.volume_zone import VolumeZone
from tests.plugins.volume_clusters import (
    a_claim,
    a_node,
    a_pod,
    a_volume,
    api,
    build,
    claim_volume,
    cluster_of,
)

K, ADD, DELETE = EventResource, ActionType.ADD, ActionType.DELETE
OTHER, LABEL = ActionType.UPDATE_OTHER, ActionType.UPDATE_NODE_LABEL
GENERATED_CLAIM = ActionType.UPDATE_POD_GENERATED_RESOURCE_CLAIM
ZONE = "topology.kubernetes.io/zone"
DISK = {"gcePersistentDisk": {"pdName": "disk"}}
WAITING = a_pod("waiting", claim_volume("c"), DISK, {"csi": {"driver": "d"}})
EBS_POD = a_pod("ebs", {"awsElasticBlockStore": {"volumeID": "v"}})
PLAIN = a_pod("plain", {"emptyDir": {}})


def a_class(*topologies: Any, mode: str = "WaitForFirstConsumer") -> Object:
    return api(
        "StorageClass", "s", provisioner="x", volumeBindingMode=mode, allowedTopologies=topologies
    )


def csi_node(count: int | None, migrated: str = "") -> Object:
    allocatable = {"allocatable": {"count": count}} if count is not None else {}
    annotations = {"storage.alpha.kubernetes.io/migrated-plugins": migrated} if migrated else {}
    spec = {"drivers": [{"name": "d", **allocatable}]}
    return api("CSINode", "n", annotations=annotations, spec=spec)


def driver(storage_capacity: bool, name: str = "d") -> Object:
    return api("CSIDriver", name, spec={"storageCapacity": storage_capacity})


def pool(capacity: str | None, largest: str | None = None) -> Object:
    return api(
        "CSIStorageCapacity", "p", "s", storageClassName="s", capacity=capacity,
        maximumVolumeSize=largest,
    )  # fmt: skip


def attachment(attacher: str) -> Object:
    spec = {"attacher": attacher, "nodeName": "n", "source": {"persistentVolumeName": "v"}}
    return api("VolumeAttachment", "a", spec=spec)


def restarting(action: str = "RestartAllContainers") -> dict[str, Any]:
    return {"containers": [{"name": "c", "restartPolicyRules": [{"action": action}]}]}


def features(*names: str) -> Object:
    return a_node("n", declaredFeatures=names)


SOME_TOPOLOGY = {"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}

Happening = tuple[type[Plugin], Pod, EventResource, ActionType, Object | None, Object | None]

WAKES: list[Happening] = [
    (VolumeRestrictions, WAITING, K.ASSIGNED_POD, DELETE, a_pod("o", DISK, node="n"), None),
    (VolumeRestrictions, WAITING, K.ASSIGNED_POD, DELETE, a_pod("o", claim_volume("c")), None),
    (VolumeRestrictions, WAITING, K.PERSISTENT_VOLUME_CLAIM, ADD, None, a_claim("c")),
    (VolumeRestrictions, WAITING, K.NODE, ADD, None, a_node("n")),
    (NodeVolumeLimits, WAITING, K.CSI_NODE, ADD, None, csi_node(1)),
    (NodeVolumeLimits, WAITING, K.CSI_NODE, OTHER, csi_node(1), csi_node(2)),
    (NodeVolumeLimits, WAITING, K.ASSIGNED_POD, DELETE, a_pod("o", DISK, node="n"), None),
    (NodeVolumeLimits, WAITING, K.PERSISTENT_VOLUME_CLAIM, ADD, None, a_claim("c")),
    (NodeVolumeLimits, WAITING, K.VOLUME_ATTACHMENT, DELETE, attachment("any"), None),
    (NodeVolumeLimits, EBS_POD, K.VOLUME_ATTACHMENT, DELETE, attachment("ebs.csi.aws.com"), None),
    (VolumeBinding, WAITING, K.STORAGE_CLASS, ADD, None, a_class()),
    (VolumeBinding, WAITING, K.STORAGE_CLASS, OTHER, a_class(), a_class(SOME_TOPOLOGY)),
    (VolumeBinding, WAITING, K.PERSISTENT_VOLUME_CLAIM, OTHER, a_claim("c"), a_claim("c", "2Gi")),
    (VolumeBinding, WAITING, K.PERSISTENT_VOLUME, OTHER, a_volume("v"), a_volume("v")),
    (VolumeBinding, WAITING, K.NODE, LABEL, a_node("n"), a_node("n", {"a": "b"})),
    (VolumeBinding, WAITING, K.CSI_NODE, ADD, None, csi_node(1)),
    (VolumeBinding, WAITING, K.CSI_NODE, OTHER, csi_node(1), csi_node(1, "kubernetes.io/aws-ebs")),
    (VolumeBinding, WAITING, K.CSI_DRIVER, OTHER, driver(True), driver(False)),
    (VolumeBinding, WAITING, K.CSI_STORAGE_CAPACITY, ADD, None, pool("1Gi")),
    (VolumeBinding, WAITING, K.CSI_STORAGE_CAPACITY, OTHER, pool("1Gi"), pool("2Gi")),
    (VolumeBinding, WAITING, K.CSI_STORAGE_CAPACITY, OTHER, pool(None), pool(None, "1Gi")),
    (VolumeZone, WAITING, K.STORAGE_CLASS, ADD, None, a_class()),
    (VolumeZone, WAITING, K.NODE, LABEL, a_node("n"), a_node("n", {ZONE: "a"})),
    (VolumeZone, WAITING, K.PERSISTENT_VOLUME_CLAIM, ADD, None, a_claim("c")),
    (VolumeZone, WAITING, K.PERSISTENT_VOLUME, ADD, None, a_volume("v")),
    (
        VolumeZone, WAITING, K.PERSISTENT_VOLUME, OTHER,
        a_volume("v"), a_volume("v", labels={ZONE: "a"}),
    ),
    (NodeDeclaredFeatures, PLAIN, K.NODE, ADD, None, features("F")),
    (
        NodeDeclaredFeatures, PLAIN, K.NODE, ActionType.UPDATE_NODE_DECLARED_FEATURE,
        features(), features("F"),
    ),
    (NodeDeclaredFeatures, PLAIN, K.TARGET_POD, OTHER, a_pod("p", **restarting()), a_pod("p")),
    (DynamicResources, PLAIN, K.TARGET_POD, GENERATED_CLAIM, PLAIN, PLAIN),
]  # fmt: skip

LEAVES_ASLEEP: list[Happening] = [
    (VolumeRestrictions, WAITING, K.ASSIGNED_POD, DELETE, a_pod("o", claim_volume("x")), None),
    (VolumeRestrictions, PLAIN, K.ASSIGNED_POD, DELETE, a_pod("o", DISK), None),
    (VolumeRestrictions, WAITING, K.ASSIGNED_POD, ADD, None, a_pod("o", DISK)),
    (VolumeRestrictions, WAITING, K.PERSISTENT_VOLUME_CLAIM, ADD, None, a_claim("x")),
    (NodeVolumeLimits, WAITING, K.CSI_NODE, OTHER, csi_node(2), csi_node(1)),
    (NodeVolumeLimits, WAITING, K.CSI_NODE, OTHER, csi_node(2), csi_node(None)),
    (
        NodeVolumeLimits, WAITING, K.ASSIGNED_POD, DELETE,
        a_pod("o", {"emptyDir": {}}, node="n"), None,
    ),
    (NodeVolumeLimits, WAITING, K.ASSIGNED_POD, DELETE, a_pod("o", DISK), None),
    (NodeVolumeLimits, WAITING, K.PERSISTENT_VOLUME_CLAIM, ADD, None, a_claim("x")),
    (NodeVolumeLimits, EBS_POD, K.VOLUME_ATTACHMENT, DELETE, attachment("other"), None),
    (VolumeBinding, WAITING, K.STORAGE_CLASS, OTHER, a_class(), a_class()),
    (VolumeBinding, WAITING, K.PERSISTENT_VOLUME_CLAIM, ADD, None, a_claim("x")),
    (VolumeBinding, WAITING, K.NODE, ActionType.UPDATE_NODE_TAINT, a_node("n"), a_node("n")),
    (VolumeBinding, WAITING, K.CSI_NODE, OTHER, csi_node(1), csi_node(2)),
    (VolumeBinding, WAITING, K.CSI_DRIVER, OTHER, driver(False), driver(True)),
    (VolumeBinding, WAITING, K.CSI_DRIVER, OTHER, driver(True, "x"), driver(False, "x")),
    (VolumeBinding, WAITING, K.CSI_STORAGE_CAPACITY, OTHER, pool("2Gi"), pool("1Gi")),
    (VolumeBinding, WAITING, K.CSI_STORAGE_CAPACITY, OTHER, pool("1Gi"), pool(None)),
    (VolumeBinding, WAITING, K.ASSIGNED_POD, DELETE, a_pod("o", claim_volume("c")), None),
    (VolumeZone, WAITING, K.STORAGE_CLASS, ADD, None, a_class(mode="Immediate")),
    (VolumeZone, WAITING, K.PERSISTENT_VOLUME_CLAIM, ADD, None, a_claim("x")),
    (VolumeZone, WAITING, K.PERSISTENT_VOLUME, OTHER, a_volume("v"), a_volume("v", "2Gi")),
    (NodeDeclaredFeatures, PLAIN, K.NODE, LABEL, features(), features("F")),
    (
        NodeDeclaredFeatures, PLAIN, K.NODE, ActionType.UPDATE_NODE_DECLARED_FEATURE,
        features("F"), features("F"),
    ),
    (NodeDeclaredFeatures, PLAIN, K.TARGET_POD, OTHER, a_pod("p"), a_pod("p", DISK)),
    (DynamicResources, PLAIN, K.NODE, DELETE, a_node("n"), None),
    (DynamicResources, PLAIN, K.TARGET_POD, OTHER, PLAIN, PLAIN),
]  # fmt: skip


def wakes(happening: Happening) -> bool:
    kind, waiting, resource, action, old, new = happening
    plugin = build(kind, cluster_of())
    assert isinstance(plugin, EnqueueExtensions)
    happened = ClusterEvent(resource, action)
    return any(
        entry.hint is None or entry.hint(waiting, old, new) is QueueingHint.QUEUE
        for entry in plugin.events_to_register()
        if entry.event.covers(happened)
    )


def named(happening: Happening) -> str:
    return f"{happening[0].__name__}-{ClusterEvent(happening[2], happening[3]).label}"


@pytest.mark.parametrize("happening", WAKES, ids=named)
def test_event_queues_the_pod(happening: Happening) -> None:
    assert wakes(happening)


@pytest.mark.parametrize("happening", LEAVES_ASLEEP, ids=named)
def test_event_does_not_queue_the_pod(happening: Happening) -> None:
    assert not wakes(happening)
