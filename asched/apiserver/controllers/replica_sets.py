"""ReplicaSets: as many pods as ``spec.replicas`` asks for."""

from __future__ import annotations

from asched.apiserver.controllers.dependents import (
    Dependents,
    conditions_with,
    is_active,
    is_ready,
    pod_of,
    removal_order,
    without_condition,
)
from asched.apiserver.errors import Object, StatusError

REPLICA_SETS = "replicasets"


def sync_replica_set(dependents: Dependents, replica_set: Object) -> None:
    """Create and delete pods, then report."""
    spec, status = replica_set["spec"], replica_set.get("status") or {}
    pods = [pod for pod in dependents.controlled("pods", replica_set) if is_active(pod)]
    failure = ""
    missing = spec["replicas"] - len(pods)
    for _ in range(missing):
        made = pod_of(spec["template"], prefix=f"{replica_set['metadata']['name']}-")
        try:
            pods.append(dependents.make("pods", replica_set, made))
        except StatusError as error:
            failure = str(error)
            break
    for pod in removal_order(pods)[: max(0, -missing)]:
        dependents.remove("pods", pod)
        pods.remove(pod)
    labels = spec["template"].get("metadata", {}).get("labels") or {}
    ready = sum(map(is_ready, pods))
    reported: Object = {
        "replicas": len(pods),
        "fullyLabeledReplicas": sum(_has_labels(pod, labels) for pod in pods),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "observedGeneration": replica_set["metadata"].get("generation", 0),
    }
    conditions = without_condition(status, "ReplicaFailure")
    if failure:
        problem = {
            "type": "ReplicaFailure",
            "status": "True",
            "reason": "FailedCreate",
            "message": failure,
        }
        conditions = conditions_with(status, problem, dependents.now)
    if conditions:
        reported["conditions"] = conditions
    dependents.set_status(REPLICA_SETS, replica_set, reported)


def _has_labels(pod: Object, labels: Object) -> bool:
    own = pod["metadata"].get("labels") or {}
    return all(own.get(key) == value for key, value in labels.items())
