"""The API server's defaulting of raw JSON objects.

Recorded scheduling data holds objects as a user would write them. These are the steps of the API
server (1.36) that matter to scheduling: request and port defaults, pod-level resources, priority
admission, match label keys, node allocatable. Everything else is filled in while decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from asched.model.quantity import thousandths
from asched.model.requests import CPU, HUGEPAGES_PREFIX, MEMORY

ApiObject = dict[str, Any]

_BUILT_IN_PRIORITIES = {
    "system-node-critical": 2000001000,
    "system-cluster-critical": 2000000000,
}


def copied(value: Any) -> Any:
    """A copy of JSON data or a struct as plain data; ``copy.deepcopy`` takes ten times as long."""
    return msgspec.json.decode(msgspec.json.encode(value))


def default_node(node: ApiObject) -> ApiObject:
    """Missing allocatable equals the capacity."""
    node = copied(node)
    status = node.setdefault("status", {})
    if not status.get("allocatable"):
        status["allocatable"] = status.get("capacity") or {}
    return node


def default_namespace(namespace: ApiObject) -> ApiObject:
    """Add the name as a label."""
    namespace = copied(namespace)
    metadata = namespace["metadata"]
    metadata["labels"] = {
        **(metadata.get("labels") or {}),
        "kubernetes.io/metadata.name": metadata["name"],
    }
    return namespace


def default_replication_controller(controller: ApiObject) -> ApiObject:
    """Missing selector and labels come from the template."""
    controller = copied(controller)
    spec = controller.setdefault("spec", {})
    labels = (spec.get("template") or {}).get("metadata", {}).get("labels") or {}
    if not spec.get("selector"):
        spec["selector"] = dict(labels)
    metadata = controller["metadata"]
    if not metadata.get("labels"):
        metadata["labels"] = dict(labels)
    return controller


def default_resource_claim(claim: ApiObject) -> ApiObject:
    """Allocation mode and count of requests, and the operator of tolerations."""
    claim = copied(claim)
    for request in claim.get("spec", {}).get("devices", {}).get("requests") or ():
        for each in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if each is not None:
                _default_device_request(each)
    default_allocation((claim.get("status") or {}).get("allocation"))
    return claim


def _default_device_request(request: ApiObject) -> None:
    if not request.get("allocationMode"):
        request["allocationMode"] = "ExactCount"
    if request["allocationMode"] == "ExactCount" and not request.get("count"):
        request["count"] = 1
    _default_tolerations(request)


def _default_tolerations(holder: ApiObject) -> None:
    for toleration in holder.get("tolerations") or ():
        toleration["operator"] = toleration.get("operator") or "Equal"


def default_allocation(allocation: ApiObject | None) -> None:
    """Change an allocation as the API server stores it."""
    for result in ((allocation or {}).get("devices") or {}).get("results") or ():
        _default_tolerations(result)


def default_pod(pod: ApiObject, priority_classes: Sequence[ApiObject] = ()) -> ApiObject:
    """All defaults of a pod, in the API server's order."""
    pod = copied(pod)
    spec = pod.setdefault("spec", {})
    for container in _all_containers(spec):
        _default_requests(container)
        if spec.get("hostNetwork"):
            for port in container.get("ports") or ():
                port["hostPort"] = port.get("hostPort") or port["containerPort"]
    if any((spec.get("resources") or {}).values()):
        _default_pod_level_resources(spec)
    _admit_priority(spec, priority_classes)
    _merge_match_label_keys(spec, pod.get("metadata", {}).get("labels") or {})
    return pod


def _all_containers(spec: ApiObject) -> list[ApiObject]:
    return [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]


def _default_requests(container: ApiObject) -> None:
    """A limit without a request becomes the request."""
    resources = container.get("resources") or {}
    limits = resources.get("limits")
    if limits:
        resources["requests"] = {**limits, **(resources.get("requests") or {})}


# -- pod-level resources --------------------------------------------------------------------------


def _default_pod_level_resources(spec: ApiObject) -> None:
    resources = spec["resources"]
    limits = {**_huge_pages(_aggregate(spec, "limits")), **(resources.get("limits") or {})}
    if not limits:
        return
    resources["limits"] = limits
    asked = _aggregate(spec, "requests")
    requests = dict(resources.get("requests") or {})
    for name, limit in limits.items():
        if name in (CPU, MEMORY):
            requests.setdefault(name, asked.get(name, limit))
        elif name.startswith(HUGEPAGES_PREFIX):
            requests.setdefault(name, limit)
    for name in (CPU, MEMORY):
        if name in asked:
            requests.setdefault(name, asked[name])
    resources["requests"] = requests


def _huge_pages(quantities: Mapping[str, str]) -> dict[str, str]:
    return {n: quantity for n, quantity in quantities.items() if n.startswith(HUGEPAGES_PREFIX)}


def _aggregate(spec: ApiObject, field: str) -> dict[str, str]:
    """Requests or limits of all containers: the sum, or the peak during initialization."""
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        _add(total, _amounts(container, field))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        amounts = _amounts(container, field)
        if container.get("restartPolicy") == "Always":
            _add(total, amounts)
            _add(sidecars, amounts)
            amounts = dict(sidecars)
        else:
            _add(amounts, sidecars)
        _raise_to(peak, amounts)
    _raise_to(total, peak)
    return {name: f"{number}m" for name, number in total.items()}


def _amounts(container: ApiObject, field: str) -> dict[str, int]:
    quantities = (container.get("resources") or {}).get(field) or {}
    return {name: thousandths(quantity) for name, quantity in quantities.items()}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, number in more.items():
        total[name] = total.get(name, 0) + number


def _raise_to(total: dict[str, int], floor: Mapping[str, int]) -> None:
    for name, number in floor.items():
        total[name] = max(number, total.get(name, 0))


# -- priority -------------------------------------------------------------------------------------


def _admit_priority(spec: ApiObject, classes: Sequence[ApiObject]) -> None:
    by_name = {c["metadata"]["name"]: c for c in classes}
    chosen: ApiObject | None = by_name.get(spec.get("priorityClassName") or "")
    if spec.get("priority") is None:
        name = spec.get("priorityClassName")
        if not name:
            chosen = next((c for c in classes if c.get("globalDefault")), None)
        built_in = _BUILT_IN_PRIORITIES.get(name or "", 0)
        spec["priority"] = chosen.get("value", 0) if chosen is not None else built_in
    if not spec.get("preemptionPolicy"):
        policy = chosen.get("preemptionPolicy") if chosen is not None else None
        spec["preemptionPolicy"] = policy or "PreemptLowerPriority"


# -- match label keys -----------------------------------------------------------------------------


def _merge_match_label_keys(spec: ApiObject, labels: Mapping[str, str]) -> None:
    for constraint in spec.get("topologySpreadConstraints") or ():
        _add_requirements(constraint, "matchLabelKeys", "In", labels)
    for term in _affinity_terms(spec.get("affinity") or {}):
        _add_requirements(term, "matchLabelKeys", "In", labels)
        _add_requirements(term, "mismatchLabelKeys", "NotIn", labels)


def _affinity_terms(affinity: ApiObject) -> Iterable[ApiObject]:
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        yield from terms.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        for weighted in terms.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            yield weighted["podAffinityTerm"]


def _add_requirements(
    holder: ApiObject, field: str, operator: str, labels: Mapping[str, str]
) -> None:
    selector = holder.get("labelSelector")
    if selector is None:
        return
    added = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for key in holder.get(field) or ()
        if key in labels
    ]
    if added:
        selector["matchExpressions"] = [*(selector.get("matchExpressions") or ()), *added]
