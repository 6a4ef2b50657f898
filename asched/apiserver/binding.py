"""The pods/binding and pods/eviction subresources.

Rules and messages: pkg/registry/core/pod/storage (``assignPod``) and the recorded exchanges.
"""

from __future__ import annotations

from typing import Any

from asched.apiserver.admission import TOPOLOGY_LABELS, check_budget
from asched.apiserver.api import DeleteOptions, ObjectApi, uid_conflict
from asched.apiserver.errors import conflict, internal
from asched.apiserver.resources import ServedResource
from asched.apiserver.store import StoredObject

Object = dict[str, Any]


def bind(
    api: ObjectApi, pods: ServedResource, namespace: str, name: str, binding: Object
) -> StoredObject:
    """Assign a pod to a node. The node is not checked for existence, as in the real server.

    Raises StatusError 404 for no such pod; 409 for one that is bound, gated, being deleted or of
    another uid; 500 for no node name.
    """
    node_name = (binding.get("target") or {}).get("name") or ""
    if not node_name:
        raise internal("target.name: Required value")
    old = api.get(pods, namespace, name)
    pod = old.obj
    metadata = binding.get("metadata") or {}
    uid = metadata.get("uid")
    if uid and uid != pod["metadata"]["uid"]:
        raise uid_conflict(pods, old, uid)
    refusal = _refusal(pod)
    if refusal:
        raise conflict("pods/binding", "", name, f"pod {name} {refusal}")
    return api.storage(pods).write(old.key, _assigned(api, pod, node_name, metadata))


def _refusal(pod: Object) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "is being deleted, cannot be assigned to a host"
    assigned = pod["spec"].get("nodeName")
    if assigned:
        return f'is already assigned to node "{assigned}"'
    if pod["spec"].get("schedulingGates"):
        return "has non-empty .spec.schedulingGates"
    return ""


def _assigned(api: ObjectApi, pod: Object, node_name: str, binding_metadata: Object) -> Object:
    metadata = dict(pod["metadata"])
    if binding_metadata.get("annotations"):
        metadata["annotations"] = {
            **(metadata.get("annotations") or {}),
            **binding_metadata["annotations"],
        }
    labels = dict(binding_metadata.get("labels") or {})
    node = api.find("nodes", "", node_name)
    if node is not None:
        node_labels = node.obj["metadata"].get("labels") or {}
        # PodTopologyLabels admission: the node's zone and region become the pod's.
        labels.update({key: node_labels[key] for key in TOPOLOGY_LABELS if key in node_labels})
    if labels:
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    status = {key: value for key, value in pod["status"].items() if key != "nominatedNodeName"}
    status["conditions"] = scheduled_conditions(status.get("conditions") or (), api.now_text())
    return {
        **pod,
        "metadata": metadata,
        "spec": {**pod["spec"], "nodeName": node_name},
        "status": status,
    }


def scheduled_conditions(conditions: Any, now: str) -> list[Object]:
    """``conditions`` with PodScheduled true since ``now``."""
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": now,
    }
    present = any(condition["type"] == "PodScheduled" for condition in conditions)
    if not present:
        return [*conditions, scheduled]
    return [
        scheduled if condition["type"] == "PodScheduled" else condition for condition in conditions
    ]


def evict(
    api: ObjectApi, pods: ServedResource, namespace: str, name: str, options: DeleteOptions
) -> None:
    """Delete a pod if its disruption budgets allow it. Raises StatusError 404, 409 or 429."""
    check_budget(api, api.get(pods, namespace, name).obj)
    api.delete(pods, namespace, name, options)
