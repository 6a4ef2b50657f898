"""The objects of a manifest as an API server would store them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from asched.apiserver.cluster import (
    SYSTEM_NAMESPACES,
    SYSTEM_PRIORITY_CLASSES,
    EmbeddedCluster,
)
from asched.apiserver.errors import StatusError
from asched.apiserver.group_forms import KubernetesVersion
from asched.apiserver.resources import ServedResource
from asched.apiserver.schemas import check_fields
from asched.fit.manifest import ManifestObject
from asched.model.groups import CUSTOM_POD_GROUPS, CUSTOM_QUEUES
from asched.model.node import NO_EXECUTE, NO_SCHEDULE, Node
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resource_claims import ResourceClaim
from asched.model.resources import (
    AnyObject,
    DecodeError,
    GroupResource,
    Resource,
    WatchedResource,
    decode,
)
from asched.model.workloads import PriorityClass
from asched.state.cluster import ClusterState

Raw = dict[str, Any]

_CUSTOM: Final = (*CUSTOM_POD_GROUPS, *CUSTOM_QUEUES)


def resource_of(kind: str, api_version: str) -> WatchedResource | None:
    """The resource that scheduling reads; None for any other kind."""
    resources: list[WatchedResource] = [*Resource, *GroupResource]
    for resource in resources:
        found = resource.value
        older = [found.of_version(other).api_version for other in found.other_versions]
        if kind == found.kind and api_version in (found.api_version, *older):
            return resource
    return None


class Admission:
    """Defaults, admission and validation on a recorded state."""

    def __init__(self, state: ClusterState, default_scheduler: str = "") -> None:
        """``default_scheduler``: of pods that name none; empty for that of the API server."""
        now_s = state.date_ns / NS_PER_S
        both = KubernetesVersion.BOTH
        self._cluster = EmbeddedCluster(clock=lambda: now_s, seed=0, version=both)
        self._namespaces = set(SYSTEM_NAMESPACES)
        self._default_scheduler = default_scheduler
        for found in state.objects(PriorityClass).values():
            if found.name not in SYSTEM_PRIORITY_CLASSES:
                self._cluster.create("priorityclasses", _priority_class(found))

    def object(self, found: ManifestObject, raw: Raw | None = None) -> AnyObject:
        """An object that is no pod; ``raw`` if a controller creates it from ``found``.

        Raises :class:`~asched.fit.manifest.ManifestError`.
        """
        raw = found.value if raw is None else raw
        resource = resource_of(str(raw.get("kind")), str(raw.get("apiVersion")))
        assert resource is not None, "the caller has asked resource_of"
        if resource.type in _CUSTOM or resource.type.__name__ in ("ReplicaSet", "StatefulSet"):
            # Only the metadata and the selector of a controller are read.
            return self._decoded(found, resource, _identified(resource, raw))
        return self._decoded(found, resource, self._created(found, raw))

    def claim_template(self, found: ManifestObject) -> ResourceClaim:
        """The claim that a ResourceClaimTemplate describes, with the name of the template.

        Raises :class:`~asched.fit.manifest.ManifestError`.
        """
        metadata = found.mapping("metadata")
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": metadata.get("name"), "namespace": metadata.get("namespace")},
            "spec": found.mapping("spec", "spec", required=True),
        }
        return cast(ResourceClaim, self.object(found, claim))

    def pod(self, found: ManifestObject, raw: Raw) -> Pod:
        """A pod that ``found`` creates. Raises :class:`~asched.fit.manifest.ManifestError`."""
        spec = raw["spec"]
        if self._default_scheduler and "schedulerName" not in spec:
            spec = {**spec, "schedulerName": self._default_scheduler}
        self._add_priority_class(spec)
        stored = self._created(found, {**raw, "spec": spec})
        pod = self._decoded(found, Resource.PODS, stored)
        assert isinstance(pod, Pod), "decoded as a pod"
        # The uids of another embedded API server, as of a simulation, may be the same.
        metadata = msgspec.structs.replace(pod.metadata, uid=f"fit-{pod.key}")
        return msgspec.structs.replace(pod, metadata=metadata)

    def _add_priority_class(self, spec: Raw) -> None:
        """A class that the journal does not hold has the priority in the manifest."""
        name, priority = spec.get("priorityClassName"), spec.get("priority")
        if isinstance(name, str) and name and isinstance(priority, int):
            known = {each["metadata"]["name"] for each in self._cluster.list("priorityclasses")}
            if name not in known:
                created = {"metadata": {"name": name}, "value": priority}
                self._cluster.create("priorityclasses", created)

    def _served(self, raw: Raw) -> ServedResource:
        group, _, version = str(raw.get("apiVersion")).rpartition("/")
        registry, kind = self._cluster.api.registry, raw.get("kind")
        served = registry.in_group_version(group, version)
        return next(resource for resource in served if resource.kind == kind)

    def _created(self, found: ManifestObject, raw: Raw) -> Raw:
        try:
            served = self._served(raw)
            namespace = str((raw.get("metadata") or {}).get("namespace") or "default")
            if not served.namespaced:
                namespace = ""
            elif namespace not in self._namespaces:
                self._cluster.create("namespaces", {"metadata": {"name": namespace}})
                self._namespaces.add(namespace)
            check_fields(served, raw, "Strict")
            copy = msgspec.json.decode(msgspec.json.encode(raw))
            stored = self._cluster.api.create(served, namespace, copy).obj
        except StatusError as error:
            what = "the pod" if raw.get("kind") == "Pod" else f"the {raw.get('kind')}"
            reason = f"the API server would reject {what}: {_line(error)}"
            raise found.error(f"{found.title}: {reason}") from None
        shown: Raw = stored if served.view is None else served.view(stored)
        return shown

    def _decoded(self, found: ManifestObject, resource: WatchedResource, raw: Raw) -> AnyObject:
        try:
            return cast(AnyObject, decode(resource, msgspec.json.encode(raw)))
        except DecodeError as error:
            reason = f"{raw.get('kind')} cannot be read: {_line(error)}"
            raise found.error(f"{found.title}: {reason}") from None


def daemon_may_run(pod: Pod, nodes: Mapping[str, Node], name: str) -> bool:
    """Whether the controller of a DaemonSet creates a pod for the node: node selector, required
    node affinity and taints allow it (``NodeShouldRunDaemonPod``)."""
    node, spec = nodes[name], pod.spec
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in (spec.node_selector or {}).items()):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = None
    if affinity is not None:
        required = affinity.required
    if required is not None and not required.matches(labels, name):
        return False
    taints = (t for t in node.spec.taints if t.effect in (NO_SCHEDULE, NO_EXECUTE))
    return all(any(each.tolerates(taint) for each in spec.tolerations) for taint in taints)


def uses_unknown_claims(pod: Pod, templates: Iterable[ResourceClaim]) -> str:
    """The first ResourceClaimTemplate of the pod that is not in the manifest; else empty."""
    known = {template.key for template in templates}
    for reference in pod.spec.resource_claims:
        name = reference.resource_claim_template_name
        if name and f"{pod.namespace}/{name}" not in known:
            return name
    return ""


def _priority_class(found: PriorityClass) -> Raw:
    return {
        "metadata": {"name": found.name},
        "value": found.value,
        "globalDefault": found.global_default,
        "preemptionPolicy": found.preemption_policy,
    }


def _identified(resource: WatchedResource, raw: Raw) -> Raw:
    """The stored form of an object that is not validated."""
    metadata = raw.get("metadata") or {}
    namespaced = resource.value.namespaced
    namespace = {"namespace": metadata.get("namespace") or "default"} if namespaced else {}
    name = metadata.get("name") or f"{metadata.get('generateName')}fit"
    uid = f"fit-{str(raw.get('kind')).lower()}-{name}"
    own = {"name": name, "uid": uid, **namespace}
    return {**raw, "metadata": {**metadata, **own}}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
