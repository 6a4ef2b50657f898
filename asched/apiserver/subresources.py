"""The pod subresources binding, eviction and resize, and the subresource scale of workloads.

Rules and messages: pkg/registry/core/pod/storage (``assignPod``, ``podResizeStrategy``) and the
recorded exchanges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asched.apiserver.admission import TOPOLOGY_LABELS, check_disruption_budgets
from asched.apiserver.errors import (
    MODIFIED,
    Object,
    StatusError,
    conflict,
    invalid,
    invalid_value,
    uid_conflict,
)
from asched.apiserver.resources import ServedResource
from asched.apiserver.storage import StoredObject

if TYPE_CHECKING:
    from asched.apiserver.api import DeleteOptions, ObjectApi


def bind(
    api: ObjectApi, pods: ServedResource, namespace: str, name: str, binding: Object
) -> StoredObject:
    """Assign a pod to a node, which need not exist. Raises StatusError 404, 409 or 500."""
    node_name = (binding.get("target") or {}).get("name") or ""
    if not node_name:
        raise StatusError(500, "", "target.name: Required value")
    old = api.get(pods, namespace, name)
    pod = old.obj
    metadata = binding.get("metadata") or {}
    uid = metadata.get("uid")
    if uid and uid != pod["metadata"]["uid"]:
        raise uid_conflict(pods.plural, old.key, pod["metadata"], uid)
    problem = _binding_problem(pod)
    if problem:
        raise conflict("pods/binding", "", name, f"pod {name} {problem}")
    return api.storage(pods).write(old.key, _bound(api, pod, node_name, metadata))


def _binding_problem(pod: Object) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "is being deleted, cannot be assigned to a host"
    assigned = pod["spec"].get("nodeName")
    if assigned:
        return f'is already assigned to node "{assigned}"'
    if pod["spec"].get("schedulingGates"):
        return "has non-empty .spec.schedulingGates"
    return ""


def _bound(api: ObjectApi, pod: Object, node_name: str, binding_metadata: Object) -> Object:
    metadata = dict(pod["metadata"])
    labels = dict(binding_metadata.get("labels") or {})
    node = api.find("nodes", "", node_name)
    if node is not None:
        node_labels = node.obj["metadata"].get("labels") or {}
        # PodTopologyLabels admission copies the node's zone and region.
        labels.update({key: node_labels[key] for key in TOPOLOGY_LABELS if key in node_labels})
    for field, added in (("annotations", binding_metadata.get("annotations")), ("labels", labels)):
        if added:
            metadata[field] = {**(metadata.get(field) or {}), **added}
    status = {key: value for key, value in pod["status"].items() if key != "nominatedNodeName"}
    status["conditions"] = _scheduled_conditions(status.get("conditions") or [], api.now_text())
    spec = {**pod["spec"], "nodeName": node_name}
    return {**pod, "metadata": metadata, "spec": spec, "status": status}


def _scheduled_conditions(conditions: list[Object], now: str) -> list[Object]:
    """``conditions`` with PodScheduled true since ``now``."""
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": now,
    }
    if all(condition["type"] != "PodScheduled" for condition in conditions):
        return [*conditions, scheduled]
    return [scheduled if c["type"] == "PodScheduled" else c for c in conditions]


def evict(
    api: ObjectApi, pods: ServedResource, namespace: str, name: str, options: DeleteOptions
) -> None:
    """Delete a pod if its disruption budgets allow it. Raises StatusError 404, 409 or 429."""
    check_disruption_budgets(api, api.get(pods, namespace, name).obj)
    api.delete(pods, namespace, name, options)


def resized(spec: Object, requested: Object) -> Object:
    """``spec`` with the container resources of ``requested``; resize changes nothing else."""
    changed = dict(spec)
    for field in ("containers", "initContainers"):
        if field in spec:
            by_name = {each.get("name"): each for each in requested.get(field) or ()}
            changed[field] = [
                {**each, "resources": by_name[each.get("name")].get("resources") or {}}
                if each.get("name") in by_name
                else each
                for each in spec[field]
            ]
    return changed


def scale_of(workload: Object) -> Object:
    """The ``autoscaling/v1`` Scale of a workload."""
    metadata, spec = workload["metadata"], workload["spec"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {field: metadata[field] for field in kept},
        "spec": {"replicas": spec["replicas"]},
        "status": {
            "replicas": (workload.get("status") or {}).get("replicas") or 0,
            "selector": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        },
    }


def scaled(workload: Object, scale: Object) -> Object:
    """The workload with the size of a Scale. Raises StatusError 409 for another revision, 422 for a
    size that is not a number from 0."""
    metadata = workload["metadata"]
    name, version = metadata["name"], (scale.get("metadata") or {}).get("resourceVersion")
    if version and version != metadata["resourceVersion"]:
        raise conflict("scale", "autoscaling", name, MODIFIED)
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        cause = invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid("Scale", "autoscaling", name, [cause])
    return {**workload, "spec": {**workload["spec"], "replicas": replicas}}
