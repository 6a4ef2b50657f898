"""Validation with the API server's own messages, for the mistakes that a scheduler's users make.

This is not all of pkg/apis/core/validation: it is what the recorded exchanges show and what would
otherwise put nonsense in front of a scheduler (names, labels, quantities, taints, selectors).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from asched.apiserver.errors import Cause, StatusError, bad_request, invalid
from asched.apiserver.resources import ServedResource
from asched.model.quantity import QuantityError, milli_value

Object = dict[str, Any]

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    "or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_QUALIFIED_NAME_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_QUANTITY_RULE = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
_MAX_SUBDOMAIN, _MAX_LABEL = 253, 63


def required(field: str, detail: str = "") -> Cause:
    message = f"Required value: {detail}" if detail else "Required value"
    return Cause("FieldValueRequired", message, field)


def invalid_value(field: str, value: Any, detail: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {detail}", field)


def forbidden_value(field: str, detail: str) -> Cause:
    return Cause("FieldValueForbidden", f"Forbidden: {detail}", field)


def not_supported(field: str, value: str, supported: list[str]) -> Cause:
    listed = ", ".join(f'"{choice}"' for choice in supported)
    message = f'Unsupported value: "{value}": supported values: {listed}'
    return Cause("FieldValueNotSupported", message, field)


def _name_causes(resource: ServedResource, name: str) -> list[Cause]:
    if resource.plural == "namespaces":
        limit, pattern, rule = _MAX_LABEL, _LABEL, _LABEL_RULE
    else:
        limit, pattern, rule = _MAX_SUBDOMAIN, _SUBDOMAIN, _SUBDOMAIN_RULE
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
        if len(name) > _MAX_LABEL or not _QUALIFIED_NAME.fullmatch(name):
            causes.append(invalid_value(field, key, _QUALIFIED_NAME_RULE))
        elif slash and not _SUBDOMAIN.fullmatch(prefix):
            causes.append(invalid_value(field, key, f"prefix part {_SUBDOMAIN_RULE}"))
        if not isinstance(value, str):
            raise bad_request(
                "json: cannot unmarshal "
                f"{_go_type(value)} into Go struct field ObjectMeta.{field} of type string"
            )
        if len(value) > _MAX_LABEL:
            causes.append(invalid_value(field, value, f"must be no more than {_MAX_LABEL} bytes"))
        elif not _LABEL_VALUE.fullmatch(value):
            causes.append(invalid_value(field, value, _LABEL_VALUE_RULE))
    return causes


def _go_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "array" if isinstance(value, list) else "object"


def check_object(resource: ServedResource, obj: Object) -> None:
    """Refuse an object that the API server would refuse.

    Raises StatusError 422 with every broken field, or 400 for a value of the wrong JSON type.
    """
    metadata = obj["metadata"]
    name = metadata.get("name") or ""
    causes = _name_causes(resource, name) if name else [
        required("metadata.name", "name or generateName is required")
    ]  # fmt: skip
    causes.extend(_label_causes(metadata.get("labels"), "metadata.labels"))
    check = _CHECKS.get(resource.storage_key)
    if check is not None:
        causes.extend(check(obj))
    if causes:
        raise invalid(resource.kind, resource_group_for_errors(resource), name, causes)


def resource_group_for_errors(resource: ServedResource) -> str:
    """Events of both groups are validated as the core kind."""
    return "" if resource.storage_key == "events" else resource.group


def check_quantities(kind: str, version: str, quantities: Any) -> None:
    """Raises StatusError 400 for a quantity outside the grammar, as decoding it does."""
    for quantity in (quantities or {}).values():
        try:
            milli_value(quantity)
        except (QuantityError, TypeError) as error:
            raise StatusError(
                400,
                "BadRequest",
                f'{kind} in version "{version}" cannot be handled as a {kind}: {_QUANTITY_RULE}',
            ) from error


def _resource_causes(container: Object, path: str) -> list[Cause]:
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    check_quantities("Pod", "v1", requests)
    check_quantities("Pod", "v1", limits)
    causes = []
    for field, quantities in (("limits", limits), ("requests", requests)):
        for name, quantity in quantities.items():
            if milli_value(quantity) < 0:
                causes.append(
                    invalid_value(
                        f"{path}.resources.{field}[{name}]",
                        str(quantity),
                        "must be greater than or equal to 0",
                    )
                )
    for name, quantity in requests.items():
        limit = limits.get(name)
        if limit is not None and milli_value(quantity) > milli_value(limit):
            causes.append(
                invalid_value(
                    f"{path}.resources.requests",
                    str(quantity),
                    f"must be less than or equal to {name} limit of {limit}",
                )
            )
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
            elif not _LABEL.fullmatch(name):
                causes.append(invalid_value(f"{path}.name", name, _LABEL_RULE))
            elif name in seen:
                causes.append(
                    Cause("FieldValueDuplicate", f'Duplicate value: "{name}"', f"{path}.name")
                )
            seen.add(name or "")
            if not container.get("image"):
                causes.append(required(f"{path}.image"))
            causes.extend(_resource_causes(container, path))
    causes.extend(_label_causes(spec.get("nodeSelector"), "spec.nodeSelector"))
    if spec.get("schedulingGates") and spec.get("nodeName"):
        causes.append(
            forbidden_value(
                "spec.nodeName", "cannot be set until all schedulingGates have been cleared"
            )
        )
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
        if constraint.get("maxSkew", 0) <= 0:
            causes.append(
                invalid_value(
                    f"{path}.maxSkew", constraint.get("maxSkew", 0), "must be greater than zero"
                )
            )
        if not constraint.get("topologyKey"):
            causes.append(required(f"{path}.topologyKey", "can not be empty"))
        action = constraint.get("whenUnsatisfiable", "")
        choices = ["DoNotSchedule", "ScheduleAnyway"]
        if action not in choices:
            causes.append(not_supported(f"{path}.whenUnsatisfiable", action, choices))
    return causes


def _node_causes(node: Object) -> list[Cause]:
    status = node.get("status") or {}
    check_quantities("Node", "v1", status.get("capacity"))
    check_quantities("Node", "v1", status.get("allocatable"))
    causes = []
    for index, taint in enumerate((node.get("spec") or {}).get("taints") or ()):
        path = f"metadata.taints[{index}]"
        if not taint.get("key"):
            causes.append(required(f"{path}.key"))
        effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
        if taint.get("effect") not in effects:
            causes.append(not_supported(f"{path}.effect", taint.get("effect") or "", effects))
    return causes


def _event_causes(event: Object) -> list[Cause]:
    namespace = event["metadata"].get("namespace") or ""
    about = (event.get("involvedObject") or {}).get("namespace") or ""
    causes = []
    # Events about cluster-scoped objects live in "default" (or kube-system).
    if about != namespace and not (not about and namespace in ("default", "kube-system")):
        causes.append(
            invalid_value("involvedObject.namespace", about, "does not match event.namespace")
        )
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


def _pod_group_causes(group: Object) -> list[Cause]:
    policy = (group.get("spec") or {}).get("schedulingPolicy") or {}
    gang = policy.get("gang")
    if gang is not None and not gang.get("minCount"):
        return [required("spec.schedulingPolicy.gang.minCount")]
    return []


def _priority_class_causes(priority_class: Object) -> list[Cause]:
    name, number = priority_class["metadata"].get("name") or "", priority_class.get("value", 0)
    if name.startswith("system-") and name not in ("system-cluster-critical",
                                                   "system-node-critical"):  # fmt: skip
        return [
            forbidden_value(
                "metadata.name",
                "priority class names with 'system-' prefix are reserved for system use only",
            )
        ]
    if number > HIGHEST_USER_PRIORITY and not name.startswith("system-"):
        return [
            forbidden_value(
                "value",
                f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}",
            )
        ]
    return []


HIGHEST_USER_PRIORITY = 1_000_000_000

_CHECKS: dict[str, Callable[[Object], list[Cause]]] = {
    "pods": _pod_causes,
    "nodes": _node_causes,
    "events": _event_causes,
    "poddisruptionbudgets.policy": _budget_causes,
    "podgroups.scheduling.k8s.io": _pod_group_causes,
    "priorityclasses.scheduling.k8s.io": _priority_class_causes,
}
