"""Kubernetes objects for tests.

Builders assemble the API's JSON and decode it as the daemon does. So an invalid quantity or a field
of the wrong type raises an error. ``spec`` takes the fields without a keyword, as in a manifest:

>>> pod("web", cpu="500m", labels={"app": "web"}, spec={"priority": 7}).spec.priority
7
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack

import msgspec
import yaml

from asched.model.custom import CustomObject, CustomResource
from asched.model.groups import PodGroup
from asched.model.meta import Object
from asched.model.node import ZONE_LABEL, Node, Taint
from asched.model.pod import DEFAULT_SCHEDULER_NAME, Pod, Toleration
from asched.model.quantity import QuantityText
from asched.model.resources import (
    AnyObject,
    DeclaredAnnotations,
    DecodeError,
    GroupResource,
    Resource,
    WatchedResource,
    custom_resource,
    decode,
)
from asched.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass

Json = Mapping[str, Any]
"""An object, or a part of one, in the API's JSON form."""

ObjectT = TypeVar("ObjectT")

_RESOURCES: dict[tuple[str, str], WatchedResource] = {
    (resource.value.group, resource.kind): resource
    for resources in (Resource, GroupResource)
    for resource in resources
}


def from_api(value: Json, *kinds: type[CustomResource]) -> AnyObject:
    """An object from the API's JSON with ``apiVersion`` and ``kind``.

    ``kinds`` are custom resources declared by plugins. A pod keeps all its annotations; a profile
    sees those that its plugins declare to read. Defaults: namespace ``default``, and the key as
    uid.

    Raises :class:`~asched.model.DecodeError` for an unknown kind or an invalid field.
    """
    version, kind = str(value.get("apiVersion", "")), str(value.get("kind", ""))
    group = version.rpartition("/")[0]
    resource = _RESOURCES.get((group, kind)) or _declared(group, kind, kinds)
    if resource is None:
        raise DecodeError(f"{version} {kind} is not a kind that scheduling reads")
    metadata = dict(value.get("metadata") or {})
    name = metadata.get("name", "")
    if resource.value.namespaced:
        metadata.setdefault("namespace", "default")
        metadata.setdefault("uid", f"{metadata['namespace']}/{name}")
    else:
        metadata.setdefault("uid", name)
    raw = msgspec.json.encode({**value, "metadata": metadata})
    found = decode(resource, raw)
    if isinstance(found, Pod) and metadata.get("annotations"):
        found = DeclaredAnnotations(metadata["annotations"]).add_to(found, raw)
    assert isinstance(found, AnyObject)
    return found


def _declared(
    group: str, kind: str, kinds: Iterable[type[CustomResource]]
) -> WatchedResource | None:
    for declared in kinds:
        if (declared.definition.group, declared.definition.kind) == (group, kind):
            return custom_resource(declared)
    return None


def from_yaml(text: str, *kinds: type[CustomResource]) -> tuple[AnyObject, ...]:
    """The objects of a manifest, as with :func:`from_api`.

    Raises :class:`~asched.model.DecodeError` and yaml.YAMLError.
    """
    documents = (value for value in yaml.safe_load_all(text) if value is not None)
    return tuple(from_api(value, *kinds) for value in documents)


def _made(kind: type[ObjectT], version: str, name: str, namespace: str, **parts: Any) -> ObjectT:
    """An object of a kind from its non-empty parts."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    metadata |= {part: parts.pop(part) for part in ("labels", "annotations") if parts.get(part)}
    given = {part: value for part, value in parts.items() if value not in ({}, "", None)}
    value = {"apiVersion": version, "kind": kind.__name__, "metadata": metadata, **given}
    found = from_api(value)
    assert isinstance(found, kind)
    return found


class PodOptions(TypedDict, total=False):
    """Keywords of :func:`pod`."""

    namespace: str
    cpu: QuantityText | None
    memory: QuantityText | None
    requests: Mapping[str, QuantityText] | None
    """Requests of other resources."""
    labels: Mapping[str, str] | None
    annotations: Mapping[str, str] | None
    node: str
    """The node of the pod; a pod without a node is pending."""
    priority: int
    node_selector: Mapping[str, str] | None
    affinity: Json | None
    tolerations: Sequence[Toleration | str]
    """Text forms: ``key``, ``key=value``, and either with ``:effect``."""
    claims: Sequence[str]
    """Names of PersistentVolumeClaims."""
    host_ports: Sequence[int]
    image: str
    group: str
    """Name of a PodGroup of Kubernetes."""
    scheduler_name: str
    spec: Json | None
    """Other fields of the spec."""


def pod(name: str = "pod", **options: Unpack[PodOptions]) -> Pod:
    """A pod with one container; :class:`PodOptions` lists the keywords."""
    _check_keywords(options, PodOptions)
    node, group = options.get("node"), options.get("group")
    volumes = [
        {"name": claim, "persistentVolumeClaim": {"claimName": claim}}
        for claim in options.get("claims", ())
    ]
    spec: dict[str, Any] = {
        "nodeName": node,
        "priority": options.get("priority"),
        "nodeSelector": dict(options.get("node_selector") or {}),
        "affinity": options.get("affinity"),
        "tolerations": [_toleration(given) for given in options.get("tolerations", ())],
        "volumes": volumes,
        "schedulingGroup": {"podGroupName": group} if group else None,
        "schedulerName": options.get("scheduler_name", DEFAULT_SCHEDULER_NAME),
        "containers": [_container(options)],
    }
    return _made(
        Pod,
        "v1",
        name,
        options.get("namespace", "default"),
        labels=options.get("labels"),
        annotations=options.get("annotations"),
        spec={
            **{field: value for field, value in spec.items() if value},
            **(options.get("spec") or {}),
        },
    )


def _container(options: PodOptions) -> dict[str, Any]:
    given = {"cpu": options.get("cpu"), "memory": options.get("memory")}
    requests = {
        **(options.get("requests") or {}),
        **{resource: amount for resource, amount in given.items() if amount is not None},
    }
    container: dict[str, Any] = {
        "name": "main",
        "image": options.get("image", "app"),
        "resources": {"requests": requests},
    }
    ports = options.get("host_ports", ())
    if ports:
        container["ports"] = [{"containerPort": port, "hostPort": port} for port in ports]
    return container


def pods(count: int, name: str = "pod", **options: Unpack[PodOptions]) -> tuple[Pod, ...]:
    """``count`` equal pods, named ``<name>-0`` and so on."""
    return tuple(pod(f"{name}-{number}", **options) for number in range(count))


class NodeOptions(TypedDict, total=False):
    """Keywords of :func:`node`."""

    cpu: QuantityText
    memory: QuantityText
    max_pods: int
    allocatable: Mapping[str, QuantityText] | None
    """Amounts of other resources, such as GPUs."""
    labels: Mapping[str, str] | None
    annotations: Mapping[str, str] | None
    zone: str
    taints: Sequence[Taint | str]
    """Text form as for ``kubectl taint``: ``key=value:NoSchedule``."""
    unschedulable: bool
    images: Mapping[str, int] | None
    """Images on the node, with their sizes in bytes."""


def node(name: str = "node", **options: Unpack[NodeOptions]) -> Node:
    """A ready node; :class:`NodeOptions` lists the keywords."""
    _check_keywords(options, NodeOptions)
    zone, taints = options.get("zone"), options.get("taints", ())
    allocatable = {
        "cpu": options.get("cpu", "8"),
        "memory": options.get("memory", "32Gi"),
        "pods": str(options.get("max_pods", 110)),
        **(options.get("allocatable") or {}),
    }
    labels = {
        "kubernetes.io/hostname": name,
        **({ZONE_LABEL: zone} if zone else {}),
        **(options.get("labels") or {}),
    }
    spec: dict[str, Any] = {"taints": [_taint(given) for given in taints]} if taints else {}
    if options.get("unschedulable"):
        spec["unschedulable"] = True
    status: dict[str, Any] = {
        "allocatable": allocatable,
        "capacity": allocatable,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    images = options.get("images")
    if images:
        status["images"] = [{"names": [image], "sizeBytes": size} for image, size in images.items()]
    annotations = options.get("annotations")
    return _made(
        Node, "v1", name, "", labels=labels, annotations=annotations, spec=spec, status=status
    )


def nodes(
    count: int, name: str = "node", *, zones: Sequence[str] = (), **options: Unpack[NodeOptions]
) -> tuple[Node, ...]:
    """``count`` equal nodes, named ``<name>-0`` and so on, in ``zones`` by turns."""
    made = []
    for number in range(count):
        if zones:
            options["zone"] = zones[number % len(zones)]
        made.append(node(f"{name}-{number}", **options))
    return tuple(made)


def _check_keywords(options: Mapping[str, Any], known: type) -> None:
    """Raises TypeError for an unknown keyword, as a function with these parameters would."""
    unknown = options.keys() - known.__annotations__.keys()
    if unknown:
        raise TypeError(f"unexpected keyword argument {sorted(unknown)[0]!r}")


def pod_group(name: str, min_count: int, *, namespace: str = "default") -> PodGroup:
    """A PodGroup of Kubernetes: at least ``min_count`` of its pods start together, or none.

    Pods join with ``group``. The plugin GangScheduling implements it.
    """
    spec = {"schedulingPolicy": {"gang": {"minCount": min_count}}}
    return _made(PodGroup, "scheduling.k8s.io/v1alpha3", name, namespace, spec=spec)


def claim(
    name: str,
    *,
    namespace: str = "default",
    storage: QuantityText = "1Gi",
    storage_class: str | None = None,
    volume: str = "",
    access_modes: Sequence[str] = ("ReadWriteOnce",),
) -> PersistentVolumeClaim:
    """A PersistentVolumeClaim, bound to ``volume`` if given."""
    spec: dict[str, Any] = {
        "accessModes": list(access_modes),
        "resources": {"requests": {"storage": storage}},
    }
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    annotations = {}
    if volume:
        spec["volumeName"] = volume
        annotations["pv.kubernetes.io/bind-completed"] = "yes"
    return _made(
        PersistentVolumeClaim,
        "v1",
        name,
        namespace,
        annotations=annotations,
        spec=spec,
        status={"phase": "Bound" if volume else "Pending"},
    )


def volume(
    name: str,
    *,
    storage: QuantityText = "1Gi",
    storage_class: str = "",
    zone: str = "",
    access_modes: Sequence[str] = ("ReadWriteOnce",),
    spec: Json | None = None,
) -> PersistentVolume:
    """An available PersistentVolume, accessible only from ``zone`` if given."""
    whole: dict[str, Any] = {
        "capacity": {"storage": storage},
        "accessModes": list(access_modes),
        "storageClassName": storage_class,
    }
    if zone:
        term = {"matchExpressions": [{"key": ZONE_LABEL, "operator": "In", "values": [zone]}]}
        whole["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    return _made(
        PersistentVolume,
        "v1",
        name,
        "",
        spec={**whole, **(spec or {})},
        status={"phase": "Available"},
    )


def storage_class(
    name: str, *, provisioner: str = "example.com/disks", wait: bool = True
) -> StorageClass:
    """A StorageClass; ``wait`` selects the binding mode ``WaitForFirstConsumer``."""
    mode = "WaitForFirstConsumer" if wait else "Immediate"
    return _made(
        StorageClass,
        "storage.k8s.io/v1",
        name,
        "",
        provisioner=provisioner,
        volumeBindingMode=mode,
    )


def _taint(given: Taint | str) -> Any:
    if isinstance(given, Taint):
        return given
    pair, colon, effect = given.rpartition(":")
    if not colon:
        raise ValueError(f"{given!r} is not a taint; write key:effect or key=value:effect")
    key, _, value = pair.partition("=")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def _toleration(given: Toleration | str) -> Any:
    if isinstance(given, Toleration):
        return given
    pair, _, effect = given.partition(":")
    key, equals, value = pair.partition("=")
    how = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {"key": key, **how, **({"effect": effect} if effect else {})}


def split(objects: Iterable[Object]) -> tuple[list[AnyObject], list[Pod]]:
    """The objects except pending pods (nodes first, pods on nodes last), and the pending pods.

    Raises TypeError for a value that is not an object of a known kind.
    """
    existing: list[AnyObject] = []
    all_pods: list[Pod] = []
    for item in objects:
        if isinstance(item, Pod):
            all_pods.append(item)
        elif isinstance(item, CustomResource):
            existing.append(CustomObject.of(item))
        elif isinstance(item, AnyObject):
            existing.append(item)
        else:
            raise TypeError(f"expected a Kubernetes object, got {item!r}")
    existing.sort(key=lambda item: not isinstance(item, Node))
    placed = [item for item in all_pods if item.spec.node_name]
    return [*existing, *placed], [item for item in all_pods if not item.spec.node_name]
