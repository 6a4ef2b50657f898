"""Recorded scheduling documents: a small cluster, pending pods, and kube-scheduler's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import AnyObject, Resource, decode
from tests.conformance.defaulting import (
    ApiObject,
    default_namespace,
    default_node,
    default_pod,
    default_replication_controller,
    default_resource_claim,
)


class Case(NamedTuple):
    """One pending pod and its recorded answer."""

    pod: Pod
    expect: dict[str, Any]


class DocumentError(ValueError):
    """The file is not a recorded document."""


def read_document(path: Path) -> dict[str, Any]:
    """The content of a recorded file. Raises :class:`DocumentError`."""
    try:
        recorded = msgspec.json.decode(path.read_bytes())
    except ValueError as error:
        raise DocumentError(f"{path.name} is no recorded document: {error!r}") from None
    if not isinstance(recorded, dict):
        raise DocumentError(f"{path.name} is no recorded document: it is no object")
    return recorded


class Document:
    """One recorded file, with objects as the API server returns them."""

    def __init__(self, path: Path) -> None:
        """Raises :class:`DocumentError` for an invalid file."""
        recorded = read_document(path)
        try:
            self.topic: str = recorded["topic"]
            self._objects: dict[str, list[ApiObject]] = recorded["objects"]
            self._cases: list[dict[str, Any]] = recorded["cases"]
            self.config: dict[str, Any] | None = recorded.get("config")
        except (KeyError, TypeError, AttributeError) as error:
            raise DocumentError(f"{path.name} is no recorded document: {error!r}") from None
        self.name = path.stem
        classes = self._objects.get("priorityClasses", [])
        self._default_pod = partial(default_pod, priority_classes=classes)

    @property
    def nodes(self) -> list[Node]:
        return [node for node in self.objects(Resource.NODES) if isinstance(node, Node)]

    @property
    def pods(self) -> list[Pod]:
        return [pod for pod in self.objects(Resource.PODS) if isinstance(pod, Pod)]

    def objects(self, resource: Resource) -> list[AnyObject]:
        """All objects of one resource."""
        default = self._defaulting(resource)
        field = _FIELDS.get(resource, resource.plural)
        return [_decode(resource, default(raw)) for raw in self._objects.get(field, ())]

    @property
    def has_devices(self) -> bool:
        """Whether it is about ResourceClaims."""
        return self.topic.startswith("dra-")

    def raw(self, resource: Resource) -> list[ApiObject]:
        """All objects of one resource as JSON, after defaulting."""
        default = self._defaulting(resource)
        return [default(raw) for raw in self._objects.get(_FIELDS.get(resource, ""), ())]

    @property
    def cases(self) -> Iterator[Case]:
        for case in self._cases:
            pod = _decode(Resource.PODS, self._default_pod(case["pod"]))
            assert isinstance(pod, Pod)
            yield Case(pod, case["expect"])

    def plugin_arguments(self, plugin: str) -> dict[str, Any]:
        """``args`` of a plugin in the recorded configuration."""
        for entry in self._profile.get("pluginConfig") or ():
            if entry["name"] == plugin:
                arguments: dict[str, Any] = entry["args"]
                return {k: v for k, v in arguments.items() if k not in ("apiVersion", "kind")}
        return {}

    def disabled(self, point: str) -> frozenset[str]:
        """Plugins that the configuration disables at an extension point or completely."""
        plugins = self._profile.get("plugins") or {}
        return frozenset(
            entry["name"]
            for at in (point, "multiPoint")
            for entry in (plugins.get(at) or {}).get("disabled") or ()
        )

    @property
    def _profile(self) -> dict[str, Any]:
        profiles = (self.config or {}).get("profiles") or [{}]
        profile: dict[str, Any] = profiles[0]
        return profile

    def _defaulting(self, resource: Resource) -> Callable[[ApiObject], ApiObject]:
        match resource:
            case Resource.PODS:
                return self._default_pod
            case _:
                return _DEFAULTING.get(resource, lambda raw: raw)


def decode_objects(
    objects: dict[str, list[ApiObject]],
) -> Iterator[AnyObject]:
    """All recorded objects, as the API server returns them."""
    for resource in Resource:
        for raw in objects.get(_FIELDS.get(resource, resource.plural), ()):
            yield decode_object(resource, raw)


def decode_object(resource: Resource, raw: ApiObject) -> AnyObject:
    """A recorded object, as the API server returns it."""
    default = _DEFAULTING.get(resource)
    return _decode(resource, raw if default is None else default(raw))


_DEFAULTING: dict[Resource, Callable[[ApiObject], ApiObject]] = {
    Resource.PODS: default_pod,
    Resource.NODES: default_node,
    Resource.NAMESPACES: default_namespace,
    Resource.REPLICATION_CONTROLLERS: default_replication_controller,
    Resource.RESOURCE_CLAIMS: default_resource_claim,
}

_FIELDS = {
    Resource.PRIORITY_CLASSES: "priorityClasses",
    Resource.REPLICATION_CONTROLLERS: "replicationControllers",
    Resource.REPLICA_SETS: "replicaSets",
    Resource.STATEFUL_SETS: "statefulSets",
    Resource.POD_DISRUPTION_BUDGETS: "podDisruptionBudgets",
    Resource.PERSISTENT_VOLUMES: "persistentVolumes",
    Resource.PERSISTENT_VOLUME_CLAIMS: "persistentVolumeClaims",
    Resource.STORAGE_CLASSES: "storageClasses",
    Resource.CSI_NODES: "csiNodes",
    Resource.CSI_DRIVERS: "csiDrivers",
    Resource.CSI_STORAGE_CAPACITIES: "csiStorageCapacities",
    Resource.VOLUME_ATTACHMENTS: "volumeAttachments",
    Resource.DEVICE_CLASSES: "deviceClasses",
    Resource.RESOURCE_SLICES: "resourceSlices",
    Resource.RESOURCE_CLAIMS: "resourceClaims",
}


def _decode(resource: Resource, raw: ApiObject) -> AnyObject:
    decoded = decode(resource, msgspec.json.encode(raw))
    return cast(AnyObject, decoded)


def documents(directory: Path, topics: Sequence[str]) -> list[Path]:
    """The files of these topics, sorted by topic and number."""
    return sorted(
        (path for topic in topics for path in (directory / topic).glob("*.json")),
        key=lambda path: (path.parent.name, len(path.stem), path.stem),
    )
