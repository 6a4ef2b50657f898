"""The pods and objects that the controllers of Kubernetes create from a manifest.

Sources: the controllers in pkg/controller of Kubernetes 1.36 (deployment, statefulset, job,
daemon), for names, labels, owners and the fields that they add to the pod template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from asched.apiserver.controllers.daemon_sets import DAEMON_TOLERATIONS
from asched.fit.manifest import ManifestObject
from asched.model.node import NO_SCHEDULE, Node

Raw = dict[str, Any]

_HASH_LABEL: Final = "pod-template-hash"
_HASH: Final = "fit"


@dataclass(frozen=True, kw_only=True)
class PodSet:
    """The pods that one object of a manifest creates."""

    origin: ManifestObject
    template: Raw
    """``metadata`` and ``spec``."""
    count: int
    """How many pods the object asks for."""
    base: str
    """Start of the pods' names."""
    single: bool = False
    """A Pod of the manifest, which keeps its name."""
    owner: Raw | None = None
    """The owner reference of the pods."""
    index_label: str = ""
    """The label with the number of the pod."""
    claim_templates: tuple[Raw, ...] = ()
    """``volumeClaimTemplates`` of a StatefulSet."""
    nodes: tuple[str, ...] = ()
    """Of a DaemonSet: the node of each pod."""
    objects: tuple[Raw, ...] = ()
    """What the controller creates besides pods."""
    notes: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        return str(self.origin.mapping("metadata").get("namespace") or "default")

    def pod(self, index: int) -> Raw:
        """The pod with this number, from 0. Numbers beyond :attr:`count` are further copies."""
        metadata = dict(self.template.get("metadata") or {})
        name = self.base if self.single and index == 0 else f"{self.base}-{index}"
        kept = ("labels", "annotations", "ownerReferences")
        own = {key: metadata[key] for key in kept if metadata.get(key)}
        if self.owner is not None:
            own["ownerReferences"] = [self.owner]
        if self.index_label:
            own["labels"] = {**(own.get("labels") or {}), self.index_label: str(index)}
        spec = dict(self.template.get("spec") or {})
        if self.claim_templates:
            spec["volumes"] = [*self._other_volumes(spec), *self._claim_volumes(name)]
        if self.nodes:
            _pin(spec, self.nodes[index])
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**own, "name": name, "namespace": self.namespace},
            "spec": spec,
        }

    def claims(self, index: int) -> list[Raw]:
        """The PersistentVolumeClaims of the pod with this number."""
        name = f"{self.base}-{index}"
        return [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {
                    **(template.get("metadata") or {}),
                    "name": f"{_name_of(template)}-{name}",
                    "namespace": self.namespace,
                },
                "spec": template.get("spec") or {},
            }
            for template in self.claim_templates
        ]

    def _other_volumes(self, spec: Raw) -> list[Any]:
        names = {_name_of(template) for template in self.claim_templates}
        volumes = spec.get("volumes") or []
        return [v for v in volumes if not (isinstance(v, dict) and v.get("name") in names)]

    def _claim_volumes(self, name: str) -> list[Raw]:
        names = [_name_of(template) for template in self.claim_templates]
        return [
            {"name": each, "persistentVolumeClaim": {"claimName": f"{each}-{name}"}}
            for each in names
        ]


def _name_of(template: Raw) -> str:
    return str((template.get("metadata") or {}).get("name") or "")


WORKLOAD_KINDS: Final = {
    "Pod": "v1",
    "ReplicationController": "v1",
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
}
"""The kinds that create pods, with their API versions."""


def pod_set(found: ManifestObject, nodes: Mapping[str, Node]) -> PodSet:
    """The pods of an object of :data:`WORKLOAD_KINDS`. Raises :class:`ManifestError`."""
    match found.kind:
        case "Pod":
            return _of_pod(found)
        case "Deployment":
            return _of_deployment(found)
        case "StatefulSet":
            return _of_stateful_set(found)
        case "DaemonSet":
            return _of_daemon_set(found, nodes)
        case "Job":
            return _of_job(found, ("spec",))
        case "CronJob":
            return _of_job(found, ("spec", "jobTemplate", "spec"))
        case _:
            return _of_replica_set(found)


def _of_pod(found: ManifestObject) -> PodSet:
    metadata = found.mapping("metadata")
    base = str(metadata.get("name") or f"{metadata['generateName']}fit")
    spec = found.mapping("spec", required=True)
    notes = ("spec.nodeName is ignored",) if spec.get("nodeName") else ()
    spec = {key: value for key, value in spec.items() if key != "nodeName"}
    template = {"metadata": metadata, "spec": spec}
    return PodSet(origin=found, template=template, count=1, base=base, single=True, notes=notes)


def _of_replica_set(found: ManifestObject) -> PodSet:
    return PodSet(
        origin=found,
        template=_template(found, ("spec",)),
        count=found.number("spec", "replicas", default=1) or 0,
        base=_name(found),
        owner=_owner(found.kind, _name(found), found.api_version),
        objects=(found.value,),
    )


def _of_deployment(found: ManifestObject) -> PodSet:
    name = f"{_name(found)}-{_HASH}"
    template = _template(found, ("spec",))
    metadata = template.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), _HASH_LABEL: _HASH}
    selector = found.mapping("spec", "selector")
    matched = {**(selector.get("matchLabels") or {}), _HASH_LABEL: _HASH}
    replica_set = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": found.mapping("metadata").get("namespace")},
        "spec": {"selector": {**selector, "matchLabels": matched}},
    }
    return PodSet(
        origin=found,
        template={**template, "metadata": {**metadata, "labels": labels}},
        count=found.number("spec", "replicas", default=1) or 0,
        base=name,
        owner=_owner("ReplicaSet", name, "apps/v1"),
        objects=(replica_set,),
    )


def _of_stateful_set(found: ManifestObject) -> PodSet:
    templates = found.mapping("spec", required=True).get("volumeClaimTemplates") or []
    if not isinstance(templates, list) or not all(isinstance(each, dict) for each in templates):
        where = ("spec", "volumeClaimTemplates")
        raise found.error(f"{found.title}: {'.'.join(where)} must be a list of objects", where)
    return PodSet(
        origin=found,
        template=_template(found, ("spec",)),
        count=found.number("spec", "replicas", default=1) or 0,
        base=_name(found),
        owner=_owner("StatefulSet", _name(found), "apps/v1"),
        index_label="apps.kubernetes.io/pod-index",
        claim_templates=tuple(templates),
        objects=(found.value,),
    )


def _of_job(found: ManifestObject, path: tuple[str, ...]) -> PodSet:
    spec = found.mapping(*path, required=True)
    parallelism = found.number(*path, "parallelism", default=1) or 0
    completions = found.number(*path, "completions", default=None)
    template = _template(found, path)
    metadata = template.get("metadata") or {}
    name = _name(found) if found.kind == "Job" else f"{_name(found)}-{_HASH}"
    own = {"batch.kubernetes.io/job-name": name, "job-name": name}
    notes = []
    if spec.get("suspend"):
        notes.append(f"{found.title} is suspended; the answer is for the time when it is resumed")
    if found.kind == "CronJob":
        notes.append(f"the answer is for one run of {found.title}")
    indexed = spec.get("completionMode") == "Indexed"
    return PodSet(
        origin=found,
        template={
            **template,
            "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **own}},
        },
        count=parallelism if completions is None else min(parallelism, completions),
        base=name,
        owner=_owner("Job", name, "batch/v1"),
        index_label="batch.kubernetes.io/job-completion-index" if indexed else "",
        notes=tuple(notes),
    )


def _of_daemon_set(found: ManifestObject, nodes: Mapping[str, Node]) -> PodSet:
    template = _template(found, ("spec",))
    spec = dict(template.get("spec") or {})
    added = [
        {"key": key, "operator": "Exists", "effect": effect} for key, effect in DAEMON_TOLERATIONS
    ]
    if spec.get("hostNetwork"):
        key = "node.kubernetes.io/network-unavailable"
        added.append({"key": key, "operator": "Exists", "effect": NO_SCHEDULE})
    spec["tolerations"] = [*(spec.get("tolerations") or []), *added]
    return PodSet(
        origin=found,
        template={**template, "spec": spec},
        count=len(nodes),
        base=_name(found),
        owner=_owner("DaemonSet", _name(found), "apps/v1"),
        nodes=tuple(sorted(nodes)),
    )


def _pin(spec: Raw, node: str) -> None:
    """Require a node by name in each term, as ``util.ReplaceDaemonSetPodNodeNameNodeAffinity``,
    but keep the terms, so that the filters decide whether the node is eligible."""
    affinity = dict(spec.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    required = dict(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
    named = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms: Iterable[Raw] = required.get("nodeSelectorTerms") or [{}]
    pinned = [{**term, "matchFields": [*(term.get("matchFields") or []), named]} for term in terms]
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": pinned}
    spec["affinity"] = {**affinity, "nodeAffinity": node_affinity}


def _template(found: ManifestObject, path: tuple[str, ...]) -> Raw:
    template = found.mapping(*path, "template", required=True)
    found.mapping(*path, "template", "spec", required=True)
    metadata = found.mapping(*path, "template", "metadata")
    found.mapping(*path, "template", "metadata", "labels")
    return {**template, "metadata": metadata}


def _name(found: ManifestObject) -> str:
    metadata = found.mapping("metadata")
    return str(metadata.get("name") or f"{metadata['generateName']}{_HASH}")


def _owner(kind: str, name: str, api_version: str) -> Raw:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": f"fit-{kind.lower()}-{name}",
        "controller": True,
    }
