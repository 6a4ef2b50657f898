"""Validation with the messages of kube-apiserver.

Covers the part of pkg/apis/core/validation that the recorded exchanges show and that keeps invalid
input from the scheduler: names, labels, quantities, taints and selectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asched.apiserver import workload_api
from asched.apiserver.dra import strategy
from asched.apiserver.errors import (
    Cause,
    Object,
    bad_request,
    forbidden_value,
    invalid,
    invalid_value,
    not_supported,
    required,
    undecodable,
)
from asched.apiserver.names import (
    LABEL,
    LABEL_RULE,
    LABEL_VALUE,
    LABEL_VALUE_RULE,
    MAX_LABEL,
    MAX_SUBDOMAIN,
    QUALIFIED_NAME,
    QUALIFIED_NAME_RULE,
    SUBDOMAIN,
    SUBDOMAIN_RULE,
)
from asched.apiserver.resources import ServedResource
from asched.apiserver.schemas import json_type
from asched.model.quantity import QuantityError, milli_value

_QUANTITY_RULE = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
HIGHEST_USER_PRIORITY = 1_000_000_000


def _name_causes(resource: ServedResource, name: str) -> list[Cause]:
    if resource.plural == "namespaces":
        limit, pattern, rule = MAX_LABEL, LABEL, LABEL_RULE
    else:
        limit, pattern, rule = MAX_SUBDOMAIN, SUBDOMAIN, SUBDOMAIN_RULE
    causes = []
    if len(name) > limit:
        causes.append(invalid_value("metadata.name", name, f"must be no more than {limit} bytes"))
    if not pattern.fullmatch(name):
        causes.append(invalid_value("metadata.name", name, rule))
    return causes


def _label_causes(labels: Any, field: str) -> list[Cause]:
    causes = []
    for key, value in (labels or {}).items():
        prefix, slash, name = key.rpartition("/")
        if len(name) > MAX_LABEL or not QUALIFIED_NAME.fullmatch(name):
            causes.append(invalid_value(field, key, QUALIFIED_NAME_RULE))
        elif slash and not SUBDOMAIN.fullmatch(prefix):
            causes.append(invalid_value(field, key, f"prefix part {SUBDOMAIN_RULE}"))
        if not isinstance(value, str):
            raise bad_request(
                "json: cannot unmarshal "
                f"{json_type(value)} into Go struct field ObjectMeta.{field} of type string"
            )
        if len(value) > MAX_LABEL:
            causes.append(invalid_value(field, value, f"must be no more than {MAX_LABEL} bytes"))
        elif not LABEL_VALUE.fullmatch(value):
            causes.append(invalid_value(field, value, LABEL_VALUE_RULE))
    return causes


def check_object(resource: ServedResource, obj: Object) -> None:
    """Raises StatusError 422 with every invalid field, or 400 for a wrong JSON type."""
    metadata = obj["metadata"]
    name = metadata.get("name") or ""
    if name:
        causes = _name_causes(resource, name)
    else:
        causes = [required("metadata.name", "name or generateName is required")]
    causes.extend(_label_causes(metadata.get("labels"), "metadata.labels"))
    if resource.group == strategy.GROUP:
        strategy.check_types(resource, obj)
    check = _CHECKS.get(resource.storage_key)
    if check is not None:
        causes.extend(check(obj))
    if causes:
        # Events of both groups are validated as the core kind.
        group = "" if resource.storage_key == "events" else resource.group
        raise invalid(resource.kind, group, name, causes)


def _check_quantities(kind: str, quantities: Any) -> None:
    """Raises StatusError 400 for an invalid quantity, as decoding does."""
    for quantity in (quantities or {}).values():
        try:
            milli_value(quantity)
        except (QuantityError, TypeError) as error:
            raise undecodable(kind, "v1", _QUANTITY_RULE) from error


def _resource_causes(container: Object, path: str) -> list[Cause]:
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    _check_quantities("Pod", requests)
    _check_quantities("Pod", limits)
    causes = []
    for field, quantities in (("limits", limits), ("requests", requests)):
        for name, quantity in quantities.items():
            if milli_value(quantity) < 0:
                where = f"{path}.resources.{field}[{name}]"
                rule = "must be greater than or equal to 0"
                causes.append(invalid_value(where, str(quantity), rule))
    for name, quantity in requests.items():
        limit = limits.get(name)
        if limit is not None and milli_value(quantity) > milli_value(limit):
            rule = f"must be less than or equal to {name} limit of {limit}"
            causes.append(invalid_value(f"{path}.resources.requests", str(quantity), rule))
    return causes


def _pod_causes(pod: Object) -> list[Cause]:
    spec = pod.get("spec") or {}
    containers = spec.get("containers") or []
    causes = [] if containers else [required("spec.containers")]
    for field in ("containers", "initContainers"):
        seen: set[str] = set()
        for index, container in enumerate(spec.get(field) or ()):
            path = f"spec.{field}[{index}]"
            name = container.get("name")
            if not name:
                causes.append(required(f"{path}.name"))
            elif not LABEL.fullmatch(name):
                causes.append(invalid_value(f"{path}.name", name, LABEL_RULE))
            elif name in seen:
                message = f'Duplicate value: "{name}"'
                causes.append(Cause("FieldValueDuplicate", message, f"{path}.name"))
            seen.add(name or "")
            if not container.get("image"):
                causes.append(required(f"{path}.image"))
            causes.extend(_resource_causes(container, path))
    causes.extend(_label_causes(spec.get("nodeSelector"), "spec.nodeSelector"))
    if spec.get("schedulingGates") and spec.get("nodeName"):
        rule = "cannot be set until all schedulingGates have been cleared"
        causes.append(forbidden_value("spec.nodeName", rule))
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        if not gate.get("name"):
            path = f"spec.schedulingGates[{index}]"
            causes.append(invalid_value(path, "", "name part must be non-empty"))
    causes.extend(_spread_causes(spec.get("topologySpreadConstraints") or []))
    return causes


def _spread_causes(constraints: list[Object]) -> list[Cause]:
    causes = []
    for index, constraint in enumerate(constraints):
        path = f"spec.topologySpreadConstraints[{index}]"
        skew = constraint.get("maxSkew", 0)
        if skew <= 0:
            causes.append(invalid_value(f"{path}.maxSkew", skew, "must be greater than zero"))
        if not constraint.get("topologyKey"):
            causes.append(required(f"{path}.topologyKey", "can not be empty"))
        action = constraint.get("whenUnsatisfiable", "")
        choices = ("DoNotSchedule", "ScheduleAnyway")
        if action not in choices:
            causes.append(not_supported(f"{path}.whenUnsatisfiable", action, choices))
    return causes


def _node_causes(node: Object) -> list[Cause]:
    status = node.get("status") or {}
    _check_quantities("Node", status.get("capacity"))
    _check_quantities("Node", status.get("allocatable"))
    causes = []
    for index, taint in enumerate((node.get("spec") or {}).get("taints") or ()):
        path = f"metadata.taints[{index}]"
        if not taint.get("key"):
            causes.append(required(f"{path}.key"))
        effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
        if taint.get("effect") not in effects:
            causes.append(not_supported(f"{path}.effect", taint.get("effect") or "", effects))
    return causes


def _event_causes(event: Object) -> list[Cause]:
    namespace = event["metadata"].get("namespace") or ""
    about = (event.get("involvedObject") or {}).get("namespace") or ""
    causes = []
    # Events of cluster-scoped objects are in "default" or "kube-system".
    if about != namespace and not (not about and namespace in ("default", "kube-system")):
        rule = "does not match event.namespace"
        causes.append(invalid_value("involvedObject.namespace", about, rule))
    if event.get("reportingComponent") or not event.get("firstTimestamp"):
        if not event.get("eventTime"):
            causes.append(required("eventTime"))
        if event.get("type") not in ("Normal", "Warning"):
            causes.append(invalid_value("type", event.get("type") or "", "has invalid value: "))
    return causes


def _budget_causes(budget: Object) -> list[Cause]:
    spec = budget.get("spec") or {}
    if "minAvailable" in spec and "maxUnavailable" in spec:
        shown = "minAvailable and maxUnavailable cannot be both set"
        return [Cause("FieldValueInvalid", f"Invalid value: {shown}", "spec")]
    return []


def _priority_class_causes(priority_class: Object) -> list[Cause]:
    name, number = priority_class["metadata"].get("name") or "", priority_class.get("value", 0)
    if name in ("system-cluster-critical", "system-node-critical"):
        return []
    if name.startswith("system-"):
        rule = "priority class names with 'system-' prefix are reserved for system use only"
        return [forbidden_value("metadata.name", rule)]
    if number > HIGHEST_USER_PRIORITY:
        rule = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
        return [forbidden_value("value", rule)]
    return []


_CHECKS: dict[str, Callable[[Object], list[Cause]]] = {
    "pods": _pod_causes,
    "nodes": _node_causes,
    "events": _event_causes,
    "poddisruptionbudgets.policy": _budget_causes,
    "priorityclasses.scheduling.k8s.io": _priority_class_causes,
    **strategy.CHECKS,
    **workload_api.CHECKS,
}
