"""Which API resources are watched, what they decode to, and the decoding itself.

Decoding goes straight from bytes to structs. Null is how Go writes an empty list or map, so an
object that does not decode is tried once more with its nulls left out before it is refused.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import msgspec

from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.quantity import QuantityError, milli_value, value
from asched.model.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from asched.model.workloads import (
    Namespace,
    PodDisruptionBudget,
    PriorityClass,
    ReplicaSet,
    ReplicationController,
    Service,
    StatefulSet,
)

AnyObject = (
    Pod
    | Node
    | Namespace
    | Service
    | ReplicationController
    | ReplicaSet
    | StatefulSet
    | PodDisruptionBudget
    | PriorityClass
    | PersistentVolume
    | PersistentVolumeClaim
    | StorageClass
    | CSINode
    | CSIDriver
    | CSIStorageCapacity
    | VolumeAttachment
)
"""Every kind of object the fold keeps, told apart by the tag ``kind``."""


class ResourceType(NamedTuple):
    """One watched API resource."""

    kind: str
    group: str
    version: str
    plural: str
    namespaced: bool
    type: type[Object]

    @property
    def path(self) -> str:
        """The collection's path over all namespaces, without a host."""
        root = f"/apis/{self.group}" if self.group else "/api"
        return f"{root}/{self.version}/{self.plural}"


class Resource(Enum):
    """The resources that kube-scheduler 1.36 watches; ``system:kube-scheduler`` may read them all.

    The order is the order in which a start lists them: what pods refer to comes before pods.
    """

    NAMESPACES = ResourceType("Namespace", "", "v1", "namespaces", False, Namespace)
    NODES = ResourceType("Node", "", "v1", "nodes", False, Node)
    PRIORITY_CLASSES = ResourceType(
        "PriorityClass", "scheduling.k8s.io", "v1", "priorityclasses", False, PriorityClass
    )
    STORAGE_CLASSES = ResourceType(
        "StorageClass", "storage.k8s.io", "v1", "storageclasses", False, StorageClass
    )
    CSI_NODES = ResourceType("CSINode", "storage.k8s.io", "v1", "csinodes", False, CSINode)
    CSI_DRIVERS = ResourceType("CSIDriver", "storage.k8s.io", "v1", "csidrivers", False, CSIDriver)
    CSI_STORAGE_CAPACITIES = ResourceType(
        "CSIStorageCapacity", "storage.k8s.io", "v1", "csistoragecapacities", True,
        CSIStorageCapacity,
    )  # fmt: skip
    VOLUME_ATTACHMENTS = ResourceType(
        "VolumeAttachment", "storage.k8s.io", "v1", "volumeattachments", False, VolumeAttachment
    )
    PERSISTENT_VOLUMES = ResourceType(
        "PersistentVolume", "", "v1", "persistentvolumes", False, PersistentVolume
    )
    PERSISTENT_VOLUME_CLAIMS = ResourceType(
        "PersistentVolumeClaim", "", "v1", "persistentvolumeclaims", True, PersistentVolumeClaim
    )
    SERVICES = ResourceType("Service", "", "v1", "services", True, Service)
    REPLICATION_CONTROLLERS = ResourceType(
        "ReplicationController", "", "v1", "replicationcontrollers", True, ReplicationController
    )
    REPLICA_SETS = ResourceType("ReplicaSet", "apps", "v1", "replicasets", True, ReplicaSet)
    STATEFUL_SETS = ResourceType("StatefulSet", "apps", "v1", "statefulsets", True, StatefulSet)
    POD_DISRUPTION_BUDGETS = ResourceType(
        "PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets", True, PodDisruptionBudget
    )
    PODS = ResourceType("Pod", "", "v1", "pods", True, Pod)

    @property
    def kind(self) -> str:
        return self.value.kind

    @property
    def path(self) -> str:
        return self.value.path

    @property
    def plural(self) -> str:
        return self.value.plural


class DecodeError(ValueError):
    """An object that the API sent does not have the form that scheduling needs."""


@cache
def _decoder(object_type: type[Object]) -> msgspec.json.Decoder[Object]:
    return msgspec.json.Decoder(object_type)


def decode(resource: Resource, raw: bytes | msgspec.Raw) -> Object:
    """Decode one object of ``resource`` from its JSON.

    Raises :class:`DecodeError` naming the field: malformed JSON, a field of the wrong type, no
    name, or a quantity outside the grammar.
    """
    object_type = resource.value.type
    try:
        decoded = _decoder(object_type).decode(raw)
    except msgspec.DecodeError:
        decoded = _decode_without_nulls(object_type, raw)
    if not decoded.metadata.name:
        raise DecodeError(f"{resource.kind} without metadata.name")
    if isinstance(decoded, Node):
        _check_quantities(decoded.key, "status.allocatable", decoded.status.allocatable)
    elif isinstance(decoded, Pod):
        _check_pod(decoded)
    else:
        _check_storage(decoded)
    return decoded


def _decode_without_nulls(object_type: type[Object], raw: bytes | msgspec.Raw) -> Object:
    try:
        return msgspec.convert(_without_nulls(msgspec.json.decode(raw)), object_type)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise DecodeError(f"{object_type.__name__} does not decode: {error}") from None


def _without_nulls(json_value: Any) -> Any:
    if isinstance(json_value, dict):
        return {k: _without_nulls(v) for k, v in json_value.items() if v is not None}
    if isinstance(json_value, list):
        return [_without_nulls(v) for v in json_value if v is not None]
    return json_value


def _check_pod(pod: Pod) -> None:
    spec = pod.spec
    for containers, field in (
        (spec.containers, "spec.containers"),
        (spec.init_containers, "spec.initContainers"),
    ):
        for index, container in enumerate(containers):
            if container.resources.requests:
                where = f"{field}[{index}].resources.requests"
                _check_quantities(pod.key, where, container.resources.requests)
    for statuses, field in (
        (pod.status.container_statuses, "status.containerStatuses"),
        (pod.status.init_container_statuses, "status.initContainerStatuses"),
    ):
        for index, status in enumerate(statuses):
            where = f"{field}[{index}]"
            if status.resources is not None:
                actual = status.resources.requests
                _check_quantities(pod.key, f"{where}.resources.requests", actual)
            if status.allocated_resources:
                allocated = status.allocated_resources
                _check_quantities(pod.key, f"{where}.allocatedResources", allocated)
    if spec.resources is not None:
        _check_quantities(pod.key, "spec.resources.requests", spec.resources.requests)
    if spec.overhead:
        _check_quantities(pod.key, "spec.overhead", spec.overhead)


def _check_storage(decoded: Object) -> None:
    if isinstance(decoded, PersistentVolume):
        _check_quantities(decoded.key, "spec.capacity", decoded.spec.capacity)
    elif isinstance(decoded, PersistentVolumeClaim):
        requests = decoded.spec.resources.requests
        _check_quantities(decoded.key, "spec.resources.requests", requests)
    elif isinstance(decoded, CSIStorageCapacity):
        sizes = {"capacity": decoded.capacity, "maximumVolumeSize": decoded.maximum_volume_size}
        given = {field: size for field, size in sizes.items() if size is not None}
        _check_quantities(decoded.key, "CSIStorageCapacity", given)


def _check_quantities(key: str, where: str, quantities: dict[str, str | int | float]) -> None:
    """Refuse at the door what would otherwise fail in the middle of a fold."""
    for name, quantity in quantities.items():
        try:
            milli_value(quantity) if name == "cpu" else value(quantity)
        except QuantityError as error:
            raise DecodeError(f"{key}: {where}.{name}: {error}") from None


KINDS: dict[str, type[Object]] = {resource.kind: resource.value.type for resource in Resource}
"""The struct of each watched kind."""
