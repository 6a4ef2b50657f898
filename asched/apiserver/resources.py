"""Which resources the simulated API server serves, and how each one behaves.

CustomResourceDefinitions: creating one makes its resource served, deleting it ends that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asched.apiserver.errors import qualified

if TYPE_CHECKING:
    from asched.apiserver.api import ObjectApi


@dataclass(frozen=True, slots=True)
class ServedResource:
    """One served resource: a row of API discovery plus the rules of its REST strategy."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    singular: str = ""
    status: bool = False
    """Whether there is a status subresource (then the main resource ignores ``status``)."""
    generation: bool = False
    """Whether ``metadata.generation`` counts changes of anything but metadata and status."""
    returns_deleted: bool = False
    """Whether DELETE answers with the object instead of a Status."""
    unconditional_update: bool = True
    """Whether PUT may leave out ``metadata.resourceVersion``."""
    custom: bool = False
    """Defined by a CustomResourceDefinition."""
    storage: str = ""
    """Key of the storage; two resources with one key are views of the same objects."""
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


def _core(plural: str, kind: str, short: str = "", **rules: object) -> ServedResource:
    return _type("", "v1", plural, kind, short, **rules)


def _type(
    group: str, version: str, plural: str, kind: str, short: str = "", **rules: object
) -> ServedResource:
    namespaced = bool(rules.pop("namespaced", True))
    short_names = tuple(short.split())
    return ServedResource(
        group,
        version,
        plural,
        kind,
        namespaced,
        short_names,
        **rules,  # type: ignore[arg-type]
    )


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
    _type("events.k8s.io", "v1", "events", "Event", "ev", storage="events"),
    _type("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False),
    _type("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", "pdb", status=True,
          generation=True),
    _type("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", "pc", namespaced=False,
          generation=True),
    _type("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup", status=True),
    _type("scheduling.k8s.io", "v1alpha2", "workloads", "Workload"),
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


class ResourceRegistry:
    """The resources served now: the built-in ones and those that CRDs added."""

    def __init__(self) -> None:
        self._by_path: dict[tuple[str, str, str], ServedResource] = {}
        self._by_name: dict[str, ServedResource] = {}
        self.revision = 0
        """Grows with every change, so that discovery documents can be cached."""
        for resource in BUILT_IN:
            self.add(resource)

    def add(self, resource: ServedResource) -> None:
        self._by_path[(resource.group, resource.version, resource.plural)] = resource
        self._by_name.setdefault(resource.qualified, resource)
        self._by_name.setdefault(resource.plural, resource)
        self.revision += 1

    def remove(self, resource: ServedResource) -> None:
        self._by_path.pop((resource.group, resource.version, resource.plural), None)
        for name, known in list(self._by_name.items()):
            if known == resource:
                del self._by_name[name]
        self.revision += 1

    def find(self, group: str, version: str, plural: str) -> ServedResource | None:
        return self._by_path.get((group, version, plural))

    def named(self, name: str) -> ServedResource:
        """The resource called ``pods`` or, with its group, ``leases.coordination.k8s.io``.

        Raises KeyError for a name that is not served.
        """
        return self._by_name[name]

    def has_group_version(self, group: str, version: str) -> bool:
        return any(g == group and v == version for g, v, _ in self._by_path)

    def group_versions(self) -> list[tuple[str, str]]:
        """Every (group, version) served, in order of first appearance."""
        return list(dict.fromkeys((group, version) for group, version, _ in self._by_path))

    def in_group_version(self, group: str, version: str) -> list[ServedResource]:
        found = [r for (g, v, _), r in self._by_path.items() if g == group and v == version]
        return sorted(found, key=lambda resource: resource.plural)

    def __iter__(self) -> Iterator[ServedResource]:
        return iter(self._by_path.values())


Object = dict[str, Any]


def resources_of(definition: Object) -> list[ServedResource]:
    """The resource in each version that the definition serves."""
    spec = definition["spec"]
    names, group = spec["names"], spec["group"]
    return [
        ServedResource(
            group,
            version["name"],
            names["plural"],
            names["kind"],
            spec.get("scope") == "Namespaced",
            tuple(names.get("shortNames") or ()),
            tuple(names.get("categories") or ()),
            singular=names.get("singular") or names["kind"].lower(),
            status="status" in (version.get("subresources") or {}),
            generation=True,
            unconditional_update=False,
            custom=True,
            list_kind=names.get("listKind") or f"{names['kind']}List",
        )
        for version in spec.get("versions") or ()
        if version.get("served")
    ]


def establish(api: ObjectApi, definition: Object) -> None:
    """Serve the new resource and say so in the definition's conditions.

    The conditions are written as a later revision, as the API server's controllers do it.
    """
    for resource in resources_of(definition):
        api.registry.add(resource)
    definitions = api.registry.named("customresourcedefinitions")
    now = api.now_text()
    accepted = definition["spec"]["names"]
    conditions = [
        _condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
        _condition("Established", "InitialNamesAccepted", "the initial names have been accepted",
                   now),
    ]  # fmt: skip

    def with_conditions(current: Object) -> Object:
        status = {**current["status"], "acceptedNames": accepted, "conditions": conditions}
        return {**current, "status": status}

    name = definition["metadata"]["name"]
    api.update(definitions, "", name, with_conditions, subresource="status")


def _condition(kind: str, reason: str, message: str, now: str) -> Object:
    return {
        "type": kind,
        "status": "True",
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    }


def withdraw(api: ObjectApi, definition: Object) -> None:
    """Delete all objects of the resource and stop serving it."""
    for resource in resources_of(definition):
        storage = api.storage(resource)
        for stored in storage.ordered():
            storage.remove(stored.key)
        api.registry.remove(resource)
