"""StatefulSets: pods with a number each, created and updated in order."""

from __future__ import annotations

from asched.apiserver.controllers.dependents import (
    Dependents,
    controller_of,
    is_finished,
    is_ready,
    pod_of,
    template_hash,
)
from asched.apiserver.errors import Object, StatusError
from asched.apiserver.reconciler import ObjectKey
from asched.apiserver.storage import deep_copy

STATEFUL_SETS = "statefulsets"
REVISION_LABEL = "controller-revision-hash"


def sync_stateful_set(dependents: Dependents, stateful_set: Object) -> None:
    """Create, replace and delete pods as far as the order permits, then report."""
    spec = stateful_set["spec"]
    revision = f"{stateful_set['metadata']['name']}-{template_hash(spec['template'])}"
    _next_steps(dependents, stateful_set, revision)
    pods = dependents.controlled("pods", stateful_set)
    updated = sum(_revision(pod) == revision for pod in pods)
    ready = sum(map(is_ready, pods))
    status: Object = {
        "observedGeneration": stateful_set["metadata"].get("generation", 0),
        "replicas": len(pods),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "currentReplicas": updated,
        "updatedReplicas": updated,
        "updateRevision": revision,
        "currentRevision": revision,
        "collisionCount": 0,
    }
    previous = (stateful_set.get("status") or {}).get("currentRevision")
    if previous and updated < len(pods):
        status |= {"currentRevision": previous, "currentReplicas": len(pods) - updated}
    dependents.set_status(STATEFUL_SETS, stateful_set, status)


def _next_steps(dependents: Dependents, stateful_set: Object, revision: str) -> None:
    spec = stateful_set["spec"]
    ordered = spec.get("podManagementPolicy") != "Parallel"
    first = (spec.get("ordinals") or {}).get("start") or 0
    wanted = range(first, first + spec["replicas"])
    by_number = {_number(pod): pod for pod in dependents.controlled("pods", stateful_set)}
    for number in wanted:
        pod = by_number.get(number)
        if pod is not None and is_finished(pod):
            dependents.remove("pods", pod)
            pod = None
        if pod is None:
            pod = _create(dependents, stateful_set, number, revision)
        if ordered and (pod is None or not is_ready(pod) or _is_leaving(pod)):
            return
    for number in sorted((n for n in by_number if n not in wanted), reverse=True):
        if not _is_leaving(by_number[number]):
            dependents.remove("pods", by_number[number])
        if ordered:
            return
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return
    partition = (strategy.get("rollingUpdate") or {}).get("partition") or 0
    for number in reversed(wanted):
        pod = by_number.get(number)
        if pod is None or _is_leaving(pod):
            return
        if number >= partition and _revision(pod) != revision:
            dependents.remove("pods", pod)
            return
        if not is_ready(pod):
            return


def _create(
    dependents: Dependents, stateful_set: Object, number: int, revision: str
) -> Object | None:
    """The pod and its volume claims; None if the API server refuses it, or while a pod of another
    owner has the name."""
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    name = f"{metadata['name']}-{number}"
    pod = pod_of(spec["template"], name=name)
    pod["metadata"]["labels"] = {
        **(pod["metadata"].get("labels") or {}),
        "apps.kubernetes.io/pod-index": str(number),
        "statefulset.kubernetes.io/pod-name": name,
        REVISION_LABEL: revision,
    }
    pod["spec"]["hostname"] = name
    if spec.get("serviceName"):
        pod["spec"]["subdomain"] = spec["serviceName"]
    volumes = []
    try:
        for template in spec.get("volumeClaimTemplates") or ():
            claim = f"{template['metadata']['name']}-{name}"
            _ensure_claim(dependents, stateful_set, template, claim)
            named = {"claimName": claim}
            volumes.append({"name": template["metadata"]["name"], "persistentVolumeClaim": named})
        if volumes:
            taken = {volume["name"] for volume in volumes}
            others = [v for v in pod["spec"].get("volumes") or () if v["name"] not in taken]
            pod["spec"]["volumes"] = [*others, *volumes]
        return dependents.make("pods", stateful_set, pod)
    except StatusError:
        return None


def _ensure_claim(
    dependents: Dependents, stateful_set: Object, template: Object, name: str
) -> None:
    """Volume claims outlive their StatefulSet, so they have no owner."""
    namespace = stateful_set["metadata"]["namespace"]
    if dependents.find(ObjectKey("persistentvolumeclaims", f"{namespace}/{name}")) is not None:
        return
    labels = (stateful_set["spec"].get("selector") or {}).get("matchLabels") or {}
    body = {
        "metadata": {"name": name, "labels": {**labels}},
        "spec": deep_copy(template["spec"]),
    }
    dependents.add("persistentvolumeclaims", namespace, body)


def _number(pod: Object) -> int:
    text = pod["metadata"]["name"].rpartition("-")[2]
    return int(text) if text.isdecimal() and controller_of(pod) else -1


def _revision(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(REVISION_LABEL, ""))


def _is_leaving(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))
