"""Kubernetes objects in a line each, for tests.

What is given in keywords is put together as the API's JSON and decoded as the daemon decodes it, so a
test has no object that the scheduler could not have, and a slip (a quantity that is none, a field of the
wrong type) is told. What no keyword is there for goes into ``spec``, written as in a manifest:

>>> pod("web", cpu="500m", labels={"app": "web"}, spec={"priority": 7}).spec.priority
7
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import yaml

from asched.model.custom import CustomObject, CustomResource
from asched.model.declared_annotations import DeclaredAnnotations
from asched.model.groups import PodGroup
from asched.model.meta import Object
from asched.model.node import ZONE_LABEL, Node, Taint
from asched.model.pod import DEFAULT_SCHEDULER_NAME, Pod, Toleration
from asched.model.quantity import QuantityText
from asched.model.resources import (
    AnyObject,
    DecodeError,
    GroupResource,
    Resource,
    WatchedResource,
    custom_resource,
    decode,
)
from asched.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass

Json = Mapping[str, Any]
"""An object, or a part of one, as the API's JSON has it."""

ObjectT = TypeVar("ObjectT")

_RESOURCES: dict[tuple[str, str], WatchedResource] = {
    (resource.value.group, resource.kind): resource
    for resources in (Resource, GroupResource)
    for resource in resources
}


def from_api(value: Json, *kinds: type[CustomResource]) -> AnyObject:
    """Any object that scheduling reads, from the API's JSON with ``apiVersion`` and ``kind``.

    ``kinds`` are custom resources that plugins declare. A pod keeps all its annotations, of which a
    profile sees those that its plugins declare to read. One without a uid gets its key for one; one of
    a namespaced kind without a namespace is in ``default``. Raises :class:`~asched.model.DecodeError` for a kind that is not read, or a wrong field.
    """
    version, kind = str(value.get("apiVersion", "")), str(value.get("kind", ""))
    group = version.rpartition("/")[0]
    resource = _RESOURCES.get((group, kind)) or _declared(group, kind, kinds)
    if resource is None:
        raise DecodeError(f"{version} {kind} is no kind of object that scheduling reads")
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
        found = DeclaredAnnotations(metadata["annotations"]).kept(found, raw)
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
    """As :func:`from_api`, for every document of a manifest.

    Raises :class:`~asched.model.DecodeError`, and yaml.YAMLError for what is no YAML.
    """
    documents = (value for value in yaml.safe_load_all(text) if value is not None)
    return tuple(from_api(value, *kinds) for value in documents)


def _made(kind: type[ObjectT], version: str, name: str, namespace: str, **parts: Any) -> ObjectT:
    """An object of a kind, from those parts that say something."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    metadata |= {part: parts.pop(part) for part in ("labels", "annotations") if parts.get(part)}
    given = {part: value for part, value in parts.items() if value not in ({}, "", None)}
    value = {"apiVersion": version, "kind": kind.__name__, "metadata": metadata, **given}
    found = from_api(value)
    assert isinstance(found, kind)
    return found


def pod(
    name: str = "pod",
    *,
    namespace: str = "default",
    cpu: QuantityText | None = None,
    memory: QuantityText | None = None,
    requests: Mapping[str, QuantityText] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    node: str = "",
    priority: int = 0,
    node_selector: Mapping[str, str] | None = None,
    affinity: Json | None = None,
    tolerations: Sequence[Toleration | str] = (),
    claims: Sequence[str] = (),
    host_ports: Sequence[int] = (),
    image: str = "app",
    group: str = "",
    scheduler_name: str = DEFAULT_SCHEDULER_NAME,
    spec: Json | None = None,
) -> Pod:
    """A pod with one container; with a ``node`` it is on that node already, else pending.

    ``requests`` are further resources beside ``cpu`` and ``memory``; ``tolerations`` may be written as
    ``key``, ``key=value`` or either with ``:effect``; ``claims`` name PersistentVolumeClaims;
    ``group`` names a PodGroup of Kubernetes' own; ``spec`` is for everything else.
    """
    asked: dict[str, QuantityText] = {**(requests or {})}
    asked |= {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    container: dict[str, Any] = {"name": "main", "image": image, "resources": {"requests": asked}}
    if host_ports:
        container["ports"] = [{"containerPort": port, "hostPort": port} for port in host_ports]
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    optional: dict[str, Any] = {
        "nodeName": node,
        "priority": priority,
        "nodeSelector": dict(node_selector) if node_selector else None,
        "affinity": affinity,
        "tolerations": [_toleration(given) for given in tolerations],
        "volumes": volumes,
        "schedulingGroup": {"podGroupName": group} if group else None,
    }
    whole = {"schedulerName": scheduler_name, "containers": [container]}
    whole |= {field: value for field, value in optional.items() if value}
    whole |= spec or {}
    return _made(
        Pod, "v1", name, namespace, labels=labels, annotations=annotations, spec=whole
    )  # fmt: skip


def pods(count: int, name: str = "pod", **like: Any) -> tuple[Pod, ...]:
    """So many pods alike, named ``<name>-0`` and so on; ``like`` is what :func:`pod` takes."""
    return tuple(pod(f"{name}-{number}", **like) for number in range(count))


def node(
    name: str = "node",
    *,
    cpu: QuantityText = "8",
    memory: QuantityText = "32Gi",
    max_pods: int = 110,
    allocatable: Mapping[str, QuantityText] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    zone: str = "",
    taints: Sequence[Taint | str] = (),
    unschedulable: bool = False,
    images: Mapping[str, int] | None = None,
) -> Node:
    """A node that is ready.

    ``allocatable`` are further resources, such as GPUs; ``taints`` may be written as for ``kubectl
    taint``: ``key=value:NoSchedule``; ``images`` are those it holds, with their sizes in bytes.
    """
    offered = {"cpu": cpu, "memory": memory, "pods": str(max_pods), **(allocatable or {})}
    own = {"kubernetes.io/hostname": name, **({ZONE_LABEL: zone} if zone else {}), **(labels or {})}
    spec: dict[str, Any] = {"taints": [_taint(given) for given in taints]} if taints else {}
    if unschedulable:
        spec["unschedulable"] = True
    status: dict[str, Any] = {
        "allocatable": offered,
        "capacity": offered,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    if images:
        status["images"] = [{"names": [image], "sizeBytes": size} for image, size in images.items()]
    return _made(
        Node, "v1", name, "", labels=own, annotations=annotations, spec=spec, status=status
    )  # fmt: skip


def nodes(
    count: int, name: str = "node", *, zones: Sequence[str] = (), **like: Any
) -> tuple[Node, ...]:
    """So many nodes alike, named ``<name>-0`` and so on, which take ``zones`` in turn; ``like`` is
    what :func:`node` takes."""
    return tuple(
        node(f"{name}-{number}", zone=zones[number % len(zones)] if zones else "", **like)
        for number in range(count)
    )


def pod_group(name: str, min_count: int, *, namespace: str = "default") -> PodGroup:
    """A gang of Kubernetes' own kind: so many of its pods start together, or none. Pods belong to it
    by ``group``, and profiles heed it with the plugin GangScheduling."""
    spec = {"schedulingPolicy": {"gang": {"minCount": min_count}}}
    return _made(PodGroup, "scheduling.k8s.io/v1alpha2", name, namespace, spec=spec)


def claim(
    name: str,
    *,
    namespace: str = "default",
    storage: QuantityText = "1Gi",
    storage_class: str | None = None,
    volume: str = "",
    access_modes: Sequence[str] = ("ReadWriteOnce",),
) -> PersistentVolumeClaim:
    """A PersistentVolumeClaim; with a ``volume`` it is bound to it."""
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
        PersistentVolumeClaim, "v1", name, namespace, annotations=annotations, spec=spec,
        status={"phase": "Bound" if volume else "Pending"},
    )  # fmt: skip


def volume(
    name: str,
    *,
    storage: QuantityText = "1Gi",
    storage_class: str = "",
    zone: str = "",
    access_modes: Sequence[str] = ("ReadWriteOnce",),
    spec: Json | None = None,
) -> PersistentVolume:
    """A PersistentVolume that is free; with a ``zone`` it can be reached from there alone."""
    whole: dict[str, Any] = {
        "capacity": {"storage": storage},
        "accessModes": list(access_modes),
        "storageClassName": storage_class,
    }
    if zone:
        term = {"matchExpressions": [{"key": ZONE_LABEL, "operator": "In", "values": [zone]}]}
        whole["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    return _made(
        PersistentVolume, "v1", name, "", spec={**whole, **(spec or {})},
        status={"phase": "Available"},
    )  # fmt: skip


def storage_class(
    name: str, *, provisioner: str = "example.com/disks", wait: bool = True
) -> StorageClass:
    """A StorageClass; with ``wait`` volumes are made only when a pod has a node
    (``WaitForFirstConsumer``)."""
    mode = "WaitForFirstConsumer" if wait else "Immediate"
    return _made(
        StorageClass, "storage.k8s.io/v1", name, "", provisioner=provisioner,
        volumeBindingMode=mode,
    )  # fmt: skip


def _taint(given: Taint | str) -> Any:
    if isinstance(given, Taint):
        return given
    pair, colon, effect = given.rpartition(":")
    if not colon:
        raise ValueError(f"{given!r} is no taint; write key:effect or key=value:effect")
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
    """What is there besides pending pods (nodes first, pods on nodes last), and the pending pods.

    Raises TypeError for what is no object of a kind that scheduling reads.
    """
    there: list[AnyObject] = []
    all_pods: list[Pod] = []
    for item in objects:
        if isinstance(item, Pod):
            all_pods.append(item)
        elif isinstance(item, CustomResource):
            there.append(CustomObject.of(item))
        elif isinstance(item, AnyObject):
            there.append(item)
        else:
            raise TypeError(f"a cluster consists of objects, and {item!r} is none")
    there.sort(key=lambda item: not isinstance(item, Node))
    placed = [item for item in all_pods if item.spec.node_name]
    return [*there, *placed], [item for item in all_pods if not item.spec.node_name]
