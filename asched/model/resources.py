"""The watched API resources, and decoding of their objects.

Objects are decoded from bytes directly to structs. Go encodes empty lists and maps as null, so an
object that does not decode is decoded again without its nulls before it is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from asched.model import (
    claim_limits,
    group_versions,
    groups,
    limits,
    resource_claims,
    storage,
    workloads,
)
from asched.model.custom import CustomObject, CustomResource
from asched.model.meta import Object
from asched.model.nesting import decode_any_depth, prune_nesting
from asched.model.node import Node
from asched.model.pod import (
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    Volume,
    statuses_repeat_template,
)
from asched.model.quantity import QuantityError, milli_value, value
from asched.model.slice_decoding import SliceDecoder

AnyObject = (
    Pod
    | Node
    | workloads.Namespace
    | workloads.Service
    | workloads.ReplicationController
    | workloads.ReplicaSet
    | workloads.StatefulSet
    | workloads.PodDisruptionBudget
    | workloads.PriorityClass
    | storage.PersistentVolume
    | storage.PersistentVolumeClaim
    | storage.StorageClass
    | storage.CSINode
    | storage.CSIDriver
    | storage.CSIStorageCapacity
    | storage.VolumeAttachment
    | resource_claims.DeviceClass
    | resource_claims.ResourceSlice
    | resource_claims.ResourceClaim
    | groups.PodGroup
    | groups.CompositePodGroup
    | groups.Workload
    | groups.IncubatorPodGroup
    | groups.IncubatorQueue
    | groups.SigsPodGroup
    | groups.SigsQueue
    | groups.VolcanoPodGroup
    | groups.VolcanoQueue
    | CustomObject
)
"""Every kind of object in the cluster state, with the tag ``kind``.

The tag is the name of the struct. It equals the API's kind except for PodGroups and Queues of
custom resources, which have the same kind in several API groups.
"""

ObjectType = type[Object]
ObjectT = TypeVar("ObjectT", bound=Object)


class ResourceType(NamedTuple):
    """An API resource."""

    kind: str
    api_version: str
    """``group/version``, or just the version for the core group."""
    plural: str
    type: ObjectType
    wire: ObjectType | None = None
    """The struct that its JSON decodes to, if not ``type``: a base without the tag."""
    namespaced: bool = True
    other_versions: tuple[str, ...] = ()
    """Versions of the group to use instead if an API server does not serve this one, in order."""

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    @property
    def path(self) -> str:
        """Path of the collection in all namespaces, without a host."""
        root = "/apis" if self.group else "/api"
        return f"{root}/{self.api_version}/{self.plural}"

    def of_version(self, version: str) -> ResourceType:
        """The resource in another version of its group."""
        return self._replace(api_version=f"{self.group}/{version}")


def _builtin(
    object_type: ObjectType, api_version: str, plural: str, *, namespaced: bool = True
) -> ResourceType:
    kind = object_type.__name__
    return ResourceType(kind, api_version, plural, object_type, namespaced=namespaced)


def _queues(object_type: ObjectType, api_version: str) -> ResourceType:
    return ResourceType(
        "Queue", api_version, "queues", object_type, groups.CustomQueue, namespaced=False
    )


def _pod_groups(object_type: ObjectType, api_version: str) -> ResourceType:
    return ResourceType("PodGroup", api_version, "podgroups", object_type, groups.CustomPodGroup)


def _versioned(
    object_type: ObjectType, wire: ObjectType, plural: str, *versions: str
) -> ResourceType:
    newest, *others = versions
    return ResourceType(
        object_type.__name__,
        f"{_SCHEDULING}/{newest}",
        plural,
        object_type,
        wire,
        other_versions=tuple(others),
    )


_SCHEDULING = "scheduling.k8s.io"
_STORAGE = "storage.k8s.io/v1"
_DYNAMIC_RESOURCES = "resource.k8s.io/v1"


class WatchedResource(Enum):
    """Base of the enumerations of watched resources."""

    _value_: ResourceType

    @property
    def kind(self) -> str:
        return self.value.kind

    @property
    def path(self) -> str:
        return self.value.path

    @property
    def plural(self) -> str:
        return self.value.plural

    @property
    def label(self) -> str:
        """A unique name for logs and metrics."""
        return self.plural

    @property
    def type(self) -> ObjectType:
        return self.value.type


class Resource(WatchedResource):
    """The resources that kube-scheduler 1.36 watches, readable for ``system:kube-scheduler``.

    Pods are listed after all others, so that the objects that they refer to are known before.
    """

    NAMESPACES = _builtin(workloads.Namespace, "v1", "namespaces", namespaced=False)
    NODES = _builtin(Node, "v1", "nodes", namespaced=False)
    PRIORITY_CLASSES = _builtin(
        workloads.PriorityClass, "scheduling.k8s.io/v1", "priorityclasses", namespaced=False
    )
    STORAGE_CLASSES = _builtin(storage.StorageClass, _STORAGE, "storageclasses", namespaced=False)
    CSI_NODES = _builtin(storage.CSINode, _STORAGE, "csinodes", namespaced=False)
    CSI_DRIVERS = _builtin(storage.CSIDriver, _STORAGE, "csidrivers", namespaced=False)
    CSI_STORAGE_CAPACITIES = _builtin(storage.CSIStorageCapacity, _STORAGE, "csistoragecapacities")
    VOLUME_ATTACHMENTS = _builtin(
        storage.VolumeAttachment, _STORAGE, "volumeattachments", namespaced=False
    )
    PERSISTENT_VOLUMES = _builtin(
        storage.PersistentVolume, "v1", "persistentvolumes", namespaced=False
    )
    PERSISTENT_VOLUME_CLAIMS = _builtin(
        storage.PersistentVolumeClaim, "v1", "persistentvolumeclaims"
    )
    DEVICE_CLASSES = _builtin(
        resource_claims.DeviceClass, _DYNAMIC_RESOURCES, "deviceclasses", namespaced=False
    )
    RESOURCE_SLICES = _builtin(
        resource_claims.ResourceSlice, _DYNAMIC_RESOURCES, "resourceslices", namespaced=False
    )
    RESOURCE_CLAIMS = _builtin(resource_claims.ResourceClaim, _DYNAMIC_RESOURCES, "resourceclaims")
    SERVICES = _builtin(workloads.Service, "v1", "services")
    REPLICATION_CONTROLLERS = _builtin(
        workloads.ReplicationController, "v1", "replicationcontrollers"
    )
    REPLICA_SETS = _builtin(workloads.ReplicaSet, "apps/v1", "replicasets")
    STATEFUL_SETS = _builtin(workloads.StatefulSet, "apps/v1", "statefulsets")
    POD_DISRUPTION_BUDGETS = _builtin(
        workloads.PodDisruptionBudget, "policy/v1", "poddisruptionbudgets"
    )
    PODS = _builtin(Pod, "v1", "pods")


class GroupResource(WatchedResource):
    """PodGroups, Queues and Workloads: watched if the configuration uses them. Not every API server
    serves them."""

    @property
    def label(self) -> str:
        return f"{self.plural}.{self.value.group}"

    WORKLOADS = _versioned(
        groups.Workload,
        group_versions.ServedWorkload,
        "workloads",
        "v1beta1",
        "v1alpha3",
        "v1alpha2",
    )
    COMPOSITE_POD_GROUPS = _versioned(
        groups.CompositePodGroup,
        group_versions.ServedCompositePodGroup,
        "compositepodgroups",
        "v1alpha3",
    )
    POD_GROUPS = _versioned(
        groups.PodGroup,
        group_versions.ServedPodGroup,
        "podgroups",
        "v1beta1",
        "v1alpha3",
        "v1alpha2",
    )
    INCUBATOR_QUEUES = _queues(groups.IncubatorQueue, "scheduling.incubator.k8s.io/v1alpha1")
    INCUBATOR_POD_GROUPS = _pod_groups(
        groups.IncubatorPodGroup, "scheduling.incubator.k8s.io/v1alpha1"
    )
    SIGS_QUEUES = _queues(groups.SigsQueue, "scheduling.sigs.dev/v1alpha2")
    SIGS_POD_GROUPS = _pod_groups(groups.SigsPodGroup, "scheduling.sigs.dev/v1alpha2")
    VOLCANO_QUEUES = _queues(groups.VolcanoQueue, "scheduling.volcano.sh/v1beta1")
    VOLCANO_POD_GROUPS = _pod_groups(groups.VolcanoPodGroup, "scheduling.volcano.sh/v1beta1")


class CustomWatched(WatchedResource):
    """Base of the enumerations that are created for custom resources of plugins."""

    @property
    def label(self) -> str:
        return self.name


def in_order_of_listing(
    groups: Collection[GroupResource], custom: Collection[WatchedResource] = ()
) -> tuple[WatchedResource, ...]:
    """All resources to watch, given the groups and custom resources in use. Pods are last."""
    others = (resource for resource in Resource if resource is not Resource.PODS)
    used = (group for group in GroupResource if group in groups)
    return (*others, *used, *custom, Resource.PODS)


@cache
def custom_resource(kind: type[CustomResource]) -> WatchedResource:
    """The watched resource of a custom resource: the same member for each call."""
    defined = kind.definition
    resource = ResourceType(
        kind=defined.kind,
        api_version=f"{defined.group}/{defined.version}",
        plural=defined.plural,
        type=CustomObject,
        wire=kind,
        namespaced=defined.namespaced,
    )
    # The functional form of Enum, which mypy does not support for subclasses.
    members = cast("type[WatchedResource]", _custom_enumeration("Custom", {defined.name: resource}))
    return members[defined.name]


_custom_enumeration = cast("Callable[..., object]", CustomWatched)


class DecodeError(ValueError):
    """An object from the API server is invalid."""


@cache
def _decoder(object_type: type[ObjectT]) -> msgspec.json.Decoder[ObjectT]:
    return msgspec.json.Decoder(object_type)


_pods = msgspec.json.Decoder(Pod)


def decode(resource: WatchedResource, raw: bytes | msgspec.Raw) -> Object:
    """Decode one object of ``resource`` from JSON.

    Raises :class:`DecodeError`, with the field, for malformed JSON, a field of the wrong type, a
    missing name, an invalid quantity, or an object above its limit. A pod, node or ResourceClaim
    above a limit is reduced (:mod:`asched.model.limits`).
    """
    # Most objects are pods: they take the shortest way.
    if resource is Resource.PODS:
        return _decode_pod(raw)
    if resource is Resource.RESOURCE_SLICES:
        return _slices.decode(raw)
    return _decode(resource, raw)


def _decode_pod(raw: bytes | msgspec.Raw) -> Pod:
    try:
        pod = _pods.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pod = _decode_as(Pod, raw)
    return checked_pod(pod, len(raw))


def checked_pod(pod: Pod, raw_bytes: int, *, checked_spec: bool = False) -> Pod:
    """The pod that was decoded from so many bytes as :func:`decode` returns it.

    ``checked_spec``: its ``spec`` is that of a pod that this function returned. Raises
    :class:`DecodeError`.
    """
    if not pod.metadata.name:
        raise DecodeError("Pod without metadata.name")
    if not checked_spec and pod.spec.volumes:
        spec = without_irrelevant_volumes(pod.spec)
        if spec is not pod.spec:
            pod = msgspec.structs.replace(pod, spec=spec)
    try:
        pod = limits.limited_pod(pod, raw_bytes)
    except QuantityError as error:
        raise DecodeError(f"{pod.key}: spec.containers: {error}") from None
    if not (checked_spec and _has_only_checked_quantities(pod)):
        _check_pod(pod)
    return pod


def _decode(resource: WatchedResource, raw: bytes | msgspec.Raw) -> Object:
    object_type, wire = resource.value.type, resource.value.wire
    decoded = _decode_as(wire or object_type, raw)
    if isinstance(decoded, CustomResource):
        decoded = CustomObject.of(decoded)
    elif isinstance(decoded, group_versions.ServedGroup):
        decoded = decoded.internal()
    elif wire is not None:
        decoded = object_type(**msgspec.structs.asdict(decoded))
    if not decoded.metadata.name:
        raise DecodeError(f"{resource.kind} without metadata.name")
    if isinstance(decoded, Node):
        _check_quantities(decoded.key, "status.allocatable", decoded.status.allocatable)
        return limits.limited_node(decoded, len(raw))
    _check_other(decoded)
    if isinstance(decoded, resource_claims.ResourceClaim):
        decoded = claim_limits.limited_claim(decoded, len(raw))
        excess = claim_limits.excess_of_stub(decoded, len(raw))
    else:
        excess = limits.excess_of_other(decoded, len(raw))
    if excess:
        raise DecodeError(f"{resource.kind} {decoded.key} is too large: {excess}")
    return decoded


def _decode_slice(raw: bytes | msgspec.Raw) -> resource_claims.ResourceSlice:
    decoded = _decode(Resource.RESOURCE_SLICES, raw)
    assert isinstance(decoded, resource_claims.ResourceSlice)
    return decoded


_slices = SliceDecoder(_decode_slice)


def _decode_as(object_type: type[ObjectT], raw: bytes | msgspec.Raw) -> ObjectT:
    try:
        decoder = cast("msgspec.json.Decoder[ObjectT]", _decoder(object_type))
        return decode_any_depth(decoder, raw)
    except msgspec.DecodeError:
        pass
    try:
        return _decode_slowly(object_type, raw)
    except (ValueError, OverflowError, RecursionError) as error:
        raise DecodeError(f"{object_type.__name__} does not decode: {error}") from None


def _decode_slowly(object_type: type[ObjectT], raw: bytes | msgspec.Raw) -> ObjectT:
    """The object without its nulls."""
    try:
        without = _without_nulls(decode_any_depth(_any_decoder, raw))
        return msgspec.convert(without, object_type)
    except RecursionError:  # more levels than the decoder allows here
        pruned = prune_nesting(bytes(raw))
        without = _without_nulls(decode_any_depth(_any_decoder, pruned))
        return msgspec.convert(without, object_type)


_any_decoder = msgspec.json.Decoder()


def _without_nulls(json_value: Any) -> Any:
    if isinstance(json_value, dict):
        return {k: _without_nulls(v) for k, v in json_value.items() if v is not None}
    if isinstance(json_value, list):
        return [_without_nulls(v) for v in json_value if v is not None]
    return json_value


def _check_pod(pod: Pod) -> None:
    """Raises DecodeError for an invalid quantity. Nothing is named before one is found."""
    spec = pod.spec
    try:
        for container in spec.containers:
            _read_quantities(container.resources.requests)
        for container in spec.init_containers:
            _read_quantities(container.resources.requests)
        if _has_only_checked_quantities(pod):
            return
    except QuantityError:
        pass
    _check_each_quantity(pod)


def _has_only_checked_quantities(pod: Pod) -> bool:
    """Whether all quantities are those of containers. Statuses usually repeat them."""
    spec, status = pod.spec, pod.status
    at_pod_level = (spec.resources, spec.overhead, status.resources, status.allocated_resources)
    return not any(at_pod_level) and statuses_repeat_template(pod)


def _read_quantities(quantities: dict[str, str | int | float]) -> None:
    for name, quantity in quantities.items():
        milli_value(quantity) if name == "cpu" else value(quantity)


def _check_each_quantity(pod: Pod) -> None:
    spec = pod.spec
    for containers, field in (
        (spec.containers, "spec.containers"),
        (spec.init_containers, "spec.initContainers"),
    ):
        for index, container in enumerate(containers):
            if container.resources.requests:
                where = f"{field}[{index}].resources.requests"
                _check_quantities(pod.key, where, container.resources.requests)
    status = pod.status
    for statuses, field in (
        (status.container_statuses, "status.containerStatuses"),
        (status.init_container_statuses, "status.initContainerStatuses"),
    ):
        for index, container_status in enumerate(statuses):
            _check_reported(pod.key, f"{field}[{index}]", container_status)
    _check_reported(pod.key, "status", status)
    if spec.resources is not None:
        _check_quantities(pod.key, "spec.resources.requests", spec.resources.requests)
    if spec.overhead:
        _check_quantities(pod.key, "spec.overhead", spec.overhead)


def _check_reported(key: str, where: str, status: ContainerStatus | PodStatus) -> None:
    if status.resources is not None:
        _check_quantities(key, f"{where}.resources.requests", status.resources.requests)
    if status.allocated_resources:
        _check_quantities(key, f"{where}.allocatedResources", status.allocated_resources)


def without_irrelevant_volumes(spec: PodSpec) -> PodSpec:
    """The specification without volumes of irrelevant types.

    The API server adds a token volume with a random name to each pod. With it, pods of one template
    would all differ.
    """
    relevant = tuple([volume for volume in spec.volumes if volume != Volume(name=volume.name)])
    if len(relevant) == len(spec.volumes):
        return spec
    return msgspec.structs.replace(spec, volumes=relevant)


def _check_other(decoded: Object) -> None:
    if isinstance(decoded, storage.PersistentVolume):
        _check_quantities(decoded.key, "spec.capacity", decoded.spec.capacity)
    elif isinstance(decoded, storage.PersistentVolumeClaim):
        requests = decoded.spec.resources.requests
        _check_quantities(decoded.key, "spec.resources.requests", requests)
    elif isinstance(decoded, storage.CSIStorageCapacity):
        sizes = {"capacity": decoded.capacity, "maximumVolumeSize": decoded.maximum_volume_size}
        given = {field: size for field, size in sizes.items() if size is not None}
        _check_quantities(decoded.key, "CSIStorageCapacity", given)
    elif isinstance(decoded, resource_claims.ResourceClaim | resource_claims.ResourceSlice):
        invalid = claim_limits.invalid_quantity(decoded)
        if invalid:
            raise DecodeError(f"{decoded.key}: {invalid}")
        if isinstance(decoded, resource_claims.ResourceSlice):
            excess = claim_limits.excess_of_slice(decoded)
            if excess:
                raise DecodeError(f"ResourceSlice {decoded.key} is too large: {excess}")
    elif isinstance(decoded, groups.CustomPodGroup):
        _check_quantities(decoded.key, "spec.minResources", decoded.spec.min_resources)
    elif isinstance(decoded, groups.CustomQueue):
        _check_quantities(decoded.key, "spec.capability", decoded.spec.capability)


def _check_quantities(key: str, where: str, quantities: dict[str, str | int | float]) -> None:
    """Reject invalid quantities here, because an exception in the fold would stop the daemon."""
    for name, quantity in quantities.items():
        try:
            milli_value(quantity) if name == "cpu" else value(quantity)
        except QuantityError as error:
            raise DecodeError(f"{key}: {where}.{name}: {error}") from None


KINDS: dict[str, type[Object]] = {
    resource.type.__name__: resource.type
    for resources in (Resource, GroupResource)
    for resource in resources
} | {CustomObject.__name__: CustomObject}
"""The struct of each kind in the cluster state, by its name in records."""


class DeclaredAnnotations:
    """Decodes the pod annotations that plugins declare to read; all others are dropped.

    Most pods have none of them. A search for their names in the raw bytes detects this cheaply.
    """

    def __init__(self, keys: Collection[str]) -> None:
        names = sorted(set(keys))
        self._needles = [key.encode() for key in names]
        fields = [
            (f"f{number}", str | None, msgspec.field(default=None, name=key))
            for number, key in enumerate(names)
        ]
        kept = msgspec.defstruct("Kept", fields, omit_defaults=True, gc=False)
        meta = msgspec.defstruct("Meta", [("annotations", kept | None, None)], gc=False)
        pod = msgspec.defstruct("PodWithMeta", [("metadata", meta | None, None)], gc=False)
        self._decoder = msgspec.json.Decoder(pod)

    def add_to(self, pod: Pod, raw: bytes | msgspec.Raw) -> Pod:
        """``pod``, which was decoded from ``raw``, with its declared annotations.

        Raises :class:`DecodeError` if one of them is not a string.
        """
        text = bytes(raw)
        if pod.spec.oversized:
            return pod
        if not any(needle in text for needle in self._needles):
            return pod
        try:
            found = msgspec.to_builtins(decode_any_depth(self._decoder, text))
        except msgspec.DecodeError as error:
            raise DecodeError(f"{pod.key}: {error}") from None
        annotations: dict[str, str] = (found["metadata"] or {}).get("annotations") or {}
        if not annotations:
            return pod
        metadata = msgspec.structs.replace(pod.metadata, declared_annotations=annotations)
        return limits.limited_annotations(msgspec.structs.replace(pod, metadata=metadata))
