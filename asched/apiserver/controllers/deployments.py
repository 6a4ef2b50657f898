"""Deployments: a ReplicaSet for each pod template, and updates from one to the next."""

from __future__ import annotations

from typing import Any, Final

from asched.apiserver.controllers.dependents import (
    Dependents,
    conditions_with,
    counted,
    is_finished,
    template_hash,
)
from asched.apiserver.controllers.replica_sets import REPLICA_SETS
from asched.apiserver.errors import Object
from asched.apiserver.storage import deep_copy

DEPLOYMENTS = "deployments"
_HASH: Final = "pod-template-hash"
_REVISION: Final = "deployment.kubernetes.io/revision"
_DEFAULT_HISTORY: Final = 10


def sync_deployment(dependents: Dependents, deployment: Object) -> None:
    """One step of an update or a change of size; changed ReplicaSets cause the next one."""
    spec = deployment["spec"]
    owned = dependents.controlled(REPLICA_SETS, deployment)
    current = next((one for one in owned if _same_template(one, spec["template"])), None)
    if current is None and not spec.get("paused"):
        current = _new_replica_set(dependents, deployment, owned)
        owned.append(current)
    old = [one for one in owned if one is not current]
    if current is not None:
        deployment, current = _with_revision(dependents, deployment, current, old)
        if spec.get("paused"):
            _resize(dependents, current, spec["replicas"])
        elif (spec.get("strategy") or {}).get("type") == "Recreate":
            _recreate(dependents, current, old, spec["replicas"])
        else:
            _roll(dependents, deployment, current, old)
        _drop_history(dependents, old, spec)
    _report(dependents, deployment, current)


def _same_template(replica_set: Object, template: Object) -> bool:
    own = deep_copy(replica_set["spec"]["template"])
    own.get("metadata", {}).get("labels", {}).pop(_HASH, None)
    same: bool = _without_empty(own) == _without_empty(template)
    return same


def _without_empty(value: Any) -> Any:
    """Without fields that are null or empty, which clients write or omit as they like."""
    if isinstance(value, dict):
        kept = {key: _without_empty(each) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each not in (None, {}, [])}
    return [_without_empty(each) for each in value] if isinstance(value, list) else value


def _new_replica_set(dependents: Dependents, deployment: Object, owned: list[Object]) -> Object:
    spec, hashed = deployment["spec"], template_hash(_without_empty(deployment["spec"]["template"]))
    template = deep_copy(spec["template"])
    labels = {**(template.setdefault("metadata", {}).get("labels") or {}), _HASH: hashed}
    template["metadata"]["labels"] = labels
    selector = deep_copy(spec["selector"])
    selector["matchLabels"] = {**(selector.get("matchLabels") or {}), _HASH: hashed}
    body = {
        "metadata": {
            "name": f"{deployment['metadata']['name']}-{hashed}",
            "labels": labels,
            "annotations": {_REVISION: str(1 + max(map(_revision, owned), default=0))},
        },
        "spec": {"replicas": 0, "selector": selector, "template": template},
    }
    return dependents.make(REPLICA_SETS, deployment, body)


def _revision(obj: Object) -> int:
    return int((obj["metadata"].get("annotations") or {}).get(_REVISION) or 0)


def _with_revision(
    dependents: Dependents, deployment: Object, current: Object, old: list[Object]
) -> tuple[Object, Object]:
    """Both with the number of the current revision: the highest, also after a rollback."""
    number = max(_revision(current), 1 + max(map(_revision, old), default=0))
    annotation = {_REVISION: str(number)}
    if _revision(current) != number:
        current = dependents.annotate(REPLICA_SETS, current, annotation)
    if _revision(deployment) != number:
        deployment = dependents.annotate(DEPLOYMENTS, deployment, annotation)
    return deployment, current


def _resize(dependents: Dependents, replica_set: Object, replicas: int) -> None:
    if replica_set["spec"]["replicas"] != replicas:
        dependents.scale(REPLICA_SETS, replica_set, replicas)


def _recreate(dependents: Dependents, current: Object, old: list[Object], replicas: int) -> None:
    for one in old:
        _resize(dependents, one, 0)
    remaining = [pod for one in old for pod in dependents.controlled("pods", one)]
    if all(map(is_finished, remaining)):
        _resize(dependents, current, replicas)


def _roll(dependents: Dependents, deployment: Object, current: Object, old: list[Object]) -> None:
    """``rolling.go``: the new one grows within maxSurge, the old ones shrink within
    maxUnavailable, those that are not available first."""
    wanted = deployment["spec"]["replicas"]
    surge, unavailable = _limits(deployment["spec"], wanted)
    size = current["spec"]["replicas"]
    total = size + sum(one["spec"]["replicas"] for one in old)
    if size > wanted:
        _resize(dependents, current, wanted)
        return
    if size < wanted:
        grown = min(wanted - size, max(0, wanted + surge - total))
        if grown:
            _resize(dependents, current, size + grown)
            return
    available = _available(current)
    spare = total - (wanted - unavailable) - (size - available)
    shrunk = []
    for one in sorted(old, key=_revision):
        unhealthy = min(spare, one["spec"]["replicas"] - _available(one))
        if unhealthy > 0:
            one = dependents.scale(REPLICA_SETS, one, one["spec"]["replicas"] - unhealthy)
            spare -= unhealthy
        shrunk.append(one)
    spare = available + sum(map(_available, shrunk)) - (wanted - unavailable)
    for one in shrunk:
        fewer = min(spare, one["spec"]["replicas"])
        if fewer > 0:
            dependents.scale(REPLICA_SETS, one, one["spec"]["replicas"] - fewer)
            spare -= fewer


def _limits(spec: Object, replicas: int) -> tuple[int, int]:
    """(maxSurge, maxUnavailable) in pods; both cannot be 0."""
    rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    surge = counted(rolling.get("maxSurge", "25%"), replicas, up=True)
    unavailable = counted(rolling.get("maxUnavailable", "25%"), replicas, up=False)
    return surge, unavailable if surge or unavailable else 1


def _available(replica_set: Object) -> int:
    return (replica_set.get("status") or {}).get("availableReplicas") or 0


def _drop_history(dependents: Dependents, old: list[Object], spec: Object) -> None:
    limit = spec.get("revisionHistoryLimit", _DEFAULT_HISTORY)
    empty = [
        one
        for one in sorted(old, key=_revision)
        if not one["spec"]["replicas"] and not (one.get("status") or {}).get("replicas")
    ]
    for one in empty[: max(0, len(empty) - limit)]:
        dependents.remove(REPLICA_SETS, one)


def _report(dependents: Dependents, deployment: Object, current: Object | None) -> None:
    owned = dependents.controlled(REPLICA_SETS, deployment)
    uid = None if current is None else current["metadata"]["uid"]
    updated = sum(_count(one, "replicas") for one in owned if one["metadata"]["uid"] == uid)
    total, available = (
        sum(_count(one, field) for one in owned) for field in ("replicas", "availableReplicas")
    )
    wanted, status = deployment["spec"]["replicas"], deployment.get("status") or {}
    unavailable = _limits(deployment["spec"], wanted)[1]
    enough = available >= wanted - unavailable
    complete = updated == total == available == wanted
    name = "" if current is None else current["metadata"]["name"]
    conditions = conditions_with(
        status,
        {
            "type": "Available",
            "status": "True" if enough else "False",
            "reason": "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
            "message": "Deployment has minimum availability."
            if enough
            else "Deployment does not have minimum availability.",
        },
        dependents.now,
    )
    progress = {
        "type": "Progressing",
        "status": "True",
        "reason": "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated",
        "message": f'ReplicaSet "{name}" has successfully progressed.'
        if complete
        else f'ReplicaSet "{name}" is progressing.',
    }
    conditions = conditions_with({"conditions": conditions}, progress, dependents.now)
    reported: Object = {
        "observedGeneration": deployment["metadata"].get("generation", 0),
        "replicas": total,
        "updatedReplicas": updated,
        "readyReplicas": sum(_count(one, "readyReplicas") for one in owned),
        "availableReplicas": available,
        "unavailableReplicas": max(0, wanted - available),
        "conditions": conditions,
    }
    dependents.set_status(DEPLOYMENTS, deployment, reported)


def _count(replica_set: Object, field: str) -> int:
    return (replica_set.get("status") or {}).get(field) or 0
