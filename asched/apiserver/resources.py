"""The served resources and their REST strategies, including those of CustomResourceDefinitions.

core/v1 and events.k8s.io/v1 Events are two views of the same stored objects; conversion follows
pkg/apis/events/v1/conversion.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asched.apiserver import group_forms
from asched.apiserver.errors import Object, qualified
from asched.apiserver.group_forms import KubernetesVersion

if TYPE_CHECKING:
    from asched.apiserver.api import ObjectApi


_TO_CORE_EVENT = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_FROM_CORE_EVENT = {core: field for field, core in _TO_CORE_EVENT.items()}


def to_core_event(event: Object) -> Object:
    """The stored form of an Event: core/v1, with the fields that are always present."""
    if event["apiVersion"] != "v1":
        event = {_TO_CORE_EVENT.get(key, key): value for key, value in event.items()}
    always: Object = {
        "involvedObject": {},
        "source": {},
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": None,
        "reportingComponent": "",
        "reportingInstance": "",
    }
    missing = {key: value for key, value in always.items() if key not in event}
    return {**event, "apiVersion": "v1", **missing}


def _from_core_event(event: Object) -> Object:
    renamed = {_FROM_CORE_EVENT.get(key, key): value for key, value in event.items()}
    return {**renamed, "apiVersion": "events.k8s.io/v1"}


@dataclass(frozen=True, slots=True)
class ServedResource:
    """One served resource: its entry in API discovery and its REST strategy."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    singular: str = ""
    status: bool = False
    """There is a status subresource, and the main resource ignores ``status``."""
    generation: bool = False
    """``metadata.generation`` counts changes outside metadata and status."""
    returns_deleted: bool = False
    """DELETE returns the object instead of a Status."""
    unconditional_update: bool = True
    """PUT may omit ``metadata.resourceVersion``."""
    custom: bool = False
    """Defined by a CustomResourceDefinition."""
    storage: str = ""
    """Key of the storage; resources with the same key are views of the same objects."""
    view: Callable[[Object], Object] | None = None
    """Converts a stored object to this resource; None if it is stored in this form."""
    list_kind: str = ""

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def storage_key(self) -> str:
        return self.storage or qualified(self.plural, self.group)

    @property
    def qualified(self) -> str:
        return qualified(self.plural, self.group)

    @property
    def singular_name(self) -> str:
        return self.singular or self.kind.lower()

    @property
    def kind_of_list(self) -> str:
        return self.list_kind or f"{self.kind}List"


def _core(plural: str, kind: str, short: str = "", **rules: Any) -> ServedResource:
    return _type("", "v1", plural, kind, short, **rules)


def _type(
    group: str, version: str, plural: str, kind: str, short: str = "", **rules: Any
) -> ServedResource:
    namespaced = rules.pop("namespaced", True)
    short_names = tuple(short.split())
    return ServedResource(group, version, plural, kind, namespaced, short_names, **rules)


_ALL = ("all",)

BUILT_IN: tuple[ServedResource, ...] = (
    _core("configmaps", "ConfigMap", "cm"),
    _core("endpoints", "Endpoints", "ep", singular="endpoints"),
    _core("events", "Event", "ev"),
    _core("limitranges", "LimitRange", "limits"),
    _core("namespaces", "Namespace", "ns", namespaced=False, status=True),
    _core("nodes", "Node", "no", namespaced=False, status=True),
    _core("persistentvolumeclaims", "PersistentVolumeClaim", "pvc", status=True,
          returns_deleted=True),
    _core("persistentvolumes", "PersistentVolume", "pv", namespaced=False, status=True,
          returns_deleted=True),
    _core("pods", "Pod", "po", status=True, generation=True, returns_deleted=True,
          categories=_ALL),
    _core("podtemplates", "PodTemplate", returns_deleted=True),
    _core("replicationcontrollers", "ReplicationController", "rc", status=True, generation=True,
          categories=_ALL),
    _core("resourcequotas", "ResourceQuota", "quota", status=True, returns_deleted=True),
    _core("secrets", "Secret"),
    _core("serviceaccounts", "ServiceAccount", "sa", returns_deleted=True),
    _core("services", "Service", "svc", status=True, returns_deleted=True, categories=_ALL),
    _type("apps", "v1", "controllerrevisions", "ControllerRevision"),
    _type("apps", "v1", "daemonsets", "DaemonSet", "ds", status=True, generation=True,
          categories=_ALL),
    _type("apps", "v1", "deployments", "Deployment", "deploy", status=True, generation=True,
          categories=_ALL),
    _type("apps", "v1", "replicasets", "ReplicaSet", "rs", status=True, generation=True,
          categories=_ALL),
    _type("apps", "v1", "statefulsets", "StatefulSet", "sts", status=True, generation=True,
          categories=_ALL),
    _type("batch", "v1", "jobs", "Job", status=True, generation=True, categories=_ALL),
    _type("coordination.k8s.io", "v1", "leases", "Lease", unconditional_update=False),
    _type("events.k8s.io", "v1", "events", "Event", "ev", storage="events",
          view=_from_core_event),
    _type("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False),
    _type("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", "pdb", status=True,
          generation=True),
    _type("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False,
          generation=True, returns_deleted=True),
    _type("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", status=True,
          returns_deleted=True),
    _type("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate",
          returns_deleted=True),
    _type("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False,
          generation=True, returns_deleted=True),
    _type("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", "pc", namespaced=False,
          generation=True),
    _type("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False,
          returns_deleted=True),
    _type("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False,
          returns_deleted=True),
    _type("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity"),
    _type("storage.k8s.io", "v1", "storageclasses", "StorageClass", "sc", namespaced=False,
          returns_deleted=True),
    _type("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", namespaced=False,
          status=True),
    _type("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
          "crd crds", namespaced=False, status=True, generation=True,
          categories=("api-extensions",)),
)  # fmt: skip


def _groups(version: str, plural: str, kind: str, **rules: Any) -> ServedResource:
    return _type(
        group_forms.GROUP, version, plural, kind, view=group_forms.view_of(version), **rules
    )


_OF_1_36 = (
    _groups("v1alpha2", "podgroups", "PodGroup", status=True),
    _groups("v1alpha2", "workloads", "Workload"),
)
_OF_1_37 = (
    _groups("v1beta1", "podgroups", "PodGroup", status=True),
    _groups("v1beta1", "workloads", "Workload"),
    _groups("v1alpha3", "compositepodgroups", "CompositePodGroup", status=True),
    _groups("v1alpha3", "podgroups", "PodGroup", status=True),
    _groups("v1alpha3", "workloads", "Workload"),
)
_WORKLOAD_API = {
    KubernetesVersion.V1_36: _OF_1_36,
    KubernetesVersion.V1_37: _OF_1_37,
    KubernetesVersion.BOTH: (*_OF_1_37, *_OF_1_36),
}


class ResourceRegistry:
    """The currently served resources: built-in ones and those of CRDs."""

    def __init__(self) -> None:
        self._by_path: dict[tuple[str, str, str], ServedResource] = {}
        self._by_name: dict[str, ServedResource] = {}
        for resource in BUILT_IN:
            self.add(resource)
        self.serve_version(KubernetesVersion.V1_36)

    def serve_version(self, version: KubernetesVersion) -> None:
        """Serve Workloads and PodGroups as this version does, and in no other version."""
        for resource in _WORKLOAD_API[KubernetesVersion.BOTH]:
            self.remove(resource)
        for resource in _WORKLOAD_API[version]:
            self.add(resource)

    def add(self, resource: ServedResource) -> None:
        self._by_path[(resource.group, resource.version, resource.plural)] = resource
        self._by_name.setdefault(resource.qualified, resource)
        self._by_name.setdefault(resource.plural, resource)

    def remove(self, resource: ServedResource) -> None:
        self._by_path.pop((resource.group, resource.version, resource.plural), None)
        for name, known in list(self._by_name.items()):
            if known == resource:
                del self._by_name[name]

    def find(self, group: str, version: str, plural: str) -> ServedResource | None:
        return self._by_path.get((group, version, plural))

    def named(self, name: str) -> ServedResource:
        """``pods`` or, with its group, ``leases.coordination.k8s.io``. Raises KeyError."""
        return self._by_name[name]

    def has_group_version(self, group: str, version: str) -> bool:
        return any(g == group and v == version for g, v, _ in self._by_path)

    def group_versions(self) -> list[tuple[str, str]]:
        """Every served (group, version), in order of registration."""
        return list(dict.fromkeys((group, version) for group, version, _ in self._by_path))

    def in_group_version(self, group: str, version: str) -> list[ServedResource]:
        found = [r for (g, v, _), r in self._by_path.items() if g == group and v == version]
        return sorted(found, key=lambda resource: resource.plural)


def _resources_of(definition: Object) -> list[ServedResource]:
    """The resource in each served version of the definition."""
    spec = definition["spec"]
    names, group = spec["names"], spec["group"]
    return [
        ServedResource(
            group=group,
            version=version["name"],
            plural=names["plural"],
            kind=names["kind"],
            namespaced=spec.get("scope") == "Namespaced",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            singular=names.get("singular") or "",
            status="status" in (version.get("subresources") or {}),
            generation=True,
            unconditional_update=False,
            custom=True,
            list_kind=names.get("listKind") or "",
        )
        for version in spec.get("versions") or ()
        if version.get("served")
    ]


def serve_definition(api: ObjectApi, definition: Object) -> None:
    """Serve the new resource; its conditions are a later revision, as in kube-apiserver."""
    for resource in _resources_of(definition):
        api.registry.add(resource)
    definitions = api.registry.named("customresourcedefinitions")
    now = api.now_text()
    accepted = definition["spec"]["names"]
    conditions = [
        {
            "type": kind,
            "status": "True",
            "lastTransitionTime": now,
            "reason": reason,
            "message": message,
        }
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]

    def with_conditions(current: Object) -> Object:
        status = {**current["status"], "acceptedNames": accepted, "conditions": conditions}
        return {**current, "status": status}

    name = definition["metadata"]["name"]
    api.update(definitions, "", name, with_conditions, subresource="status")


def remove_definition(api: ObjectApi, definition: Object) -> None:
    """Delete all objects of the resource and stop serving it."""
    for resource in _resources_of(definition):
        storage = api.storage(resource)
        for stored in storage.ordered():
            storage.remove(stored.key)
        api.registry.remove(resource)
