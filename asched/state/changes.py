"""What kind of change an update is, in the vocabulary of cluster events."""

from __future__ import annotations

from asched.framework.events import ActionType, ClusterEvent, EventResource
from asched.framework.pod_info import PodInfo
from asched.model.custom import CustomObject
from asched.model.groups import CUSTOM_POD_GROUPS, PodGroup
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from asched.model.workloads import Namespace, PodDisruptionBudget, Service

EVENT_RESOURCES: dict[type[Object], EventResource] = {
    Node: EventResource.NODE,
    Namespace: EventResource.NAMESPACE,
    Service: EventResource.SERVICE,
    PersistentVolume: EventResource.PERSISTENT_VOLUME,
    PersistentVolumeClaim: EventResource.PERSISTENT_VOLUME_CLAIM,
    StorageClass: EventResource.STORAGE_CLASS,
    CSINode: EventResource.CSI_NODE,
    CSIDriver: EventResource.CSI_DRIVER,
    CSIStorageCapacity: EventResource.CSI_STORAGE_CAPACITY,
    VolumeAttachment: EventResource.VOLUME_ATTACHMENT,
    PodDisruptionBudget: EventResource.POD_DISRUPTION_BUDGET,
    PodGroup: EventResource.POD_GROUP,
    CustomObject: EventResource.CUSTOM,
    **dict.fromkeys(CUSTOM_POD_GROUPS, EventResource.POD_GROUP),
}
"""Kinds whose changes can wake a pod."""


def node_changes(old: Node, new: Node) -> list[ClusterEvent]:
    """One event for each scheduling property of a node that differs."""
    actions = []
    if old.status.allocatable != new.status.allocatable:
        actions.append(ActionType.UPDATE_NODE_ALLOCATABLE)
    if old.metadata.labels != new.metadata.labels:
        actions.append(ActionType.UPDATE_NODE_LABEL)
    if old.spec != new.spec:
        actions.append(ActionType.UPDATE_NODE_TAINT)
    if old.status.conditions != new.status.conditions:
        actions.append(ActionType.UPDATE_NODE_CONDITION)
    if old.status.declared_features != new.status.declared_features:
        actions.append(ActionType.UPDATE_NODE_DECLARED_FEATURE)
    return [ClusterEvent(EventResource.NODE, action) for action in actions]


def pod_changes(old: PodInfo, new: PodInfo, resource: EventResource) -> list[ClusterEvent]:
    """One event for each scheduling property of a pod that differs, or one general update."""
    actions = []
    if old.pod.metadata.labels != new.pod.metadata.labels:
        actions.append(ActionType.UPDATE_POD_LABEL)
    if old.shape is not new.shape and _scaled_down(old, new):
        actions.append(ActionType.UPDATE_POD_SCALE_DOWN)
    if old.pod.spec.tolerations != new.pod.spec.tolerations:
        actions.append(ActionType.UPDATE_POD_TOLERATION)
    if old.pod.spec.scheduling_gates and not new.pod.spec.scheduling_gates:
        actions.append(ActionType.UPDATE_POD_SCHEDULING_GATES_ELIMINATED)
    return [ClusterEvent(resource, action) for action in actions or [ActionType.UPDATE_OTHER]]


def _scaled_down(old: PodInfo, new: PodInfo) -> bool:
    after = new.shape.requests
    return any(number > after.get(name, 0) for name, number in old.shape.requests.items())
