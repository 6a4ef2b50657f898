"""A strict reading of Kubernetes objects, by the schema that the client library is generated from.

An API server with ``fieldValidation=Strict`` refuses an unknown field, a value of another type and
the absence of what is required; so does :func:`faults`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import kubernetes_asyncio.client.models as models

_SCALARS: Final[dict[str, type | tuple[type, ...]]] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "datetime": str,
}
_LIST = re.compile(r"list\[(.+)\]")
_MAP = re.compile(r"dict\(str, (.+)\)")
_SERVICE_MONITOR: Final = {
    "apiVersion": None,
    "kind": None,
    "metadata": "V1ObjectMeta",
    "spec": {
        "selector": "V1LabelSelector",
        "namespaceSelector": {"matchNames": "list[str]", "any": "bool"},
        "endpoints": {"port": "str", "path": "str", "interval": "str"},
    },
}
_RULE: Final = {
    "apiVersion": None,
    "kind": None,
    "metadata": "V1ObjectMeta",
    "spec": {
        "groups": {
            "name": "str",
            "rules": {
                "alert": "str",
                "expr": "str",
                "for": "str",
                "labels": "dict(str, str)",
                "annotations": "dict(str, str)",
            },
        }
    },
}
_OPERATOR: Final[Mapping[str, Mapping[str, Any]]] = {
    "ServiceMonitor": _SERVICE_MONITOR,
    "PrometheusRule": _RULE,
}
"""What is used here of monitoring.coreos.com/v1, which the client library does not know."""
_MODELS: Final = {
    ("apps/v1", "Deployment"): "V1Deployment",
    ("apps/v1", "StatefulSet"): "V1StatefulSet",
    ("v1", "ConfigMap"): "V1ConfigMap",
    ("v1", "Service"): "V1Service",
    ("v1", "ServiceAccount"): "V1ServiceAccount",
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): "V1ClusterRole",
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): "V1ClusterRoleBinding",
    ("rbac.authorization.k8s.io/v1", "Role"): "V1Role",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "V1RoleBinding",
    ("policy/v1", "PodDisruptionBudget"): "V1PodDisruptionBudget",
    ("networking.k8s.io/v1", "NetworkPolicy"): "V1NetworkPolicy",
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): "V1CustomResourceDefinition",
}


def faults(found: Mapping[str, Any]) -> list[str]:
    """What an API server would refuse the object for, a line each."""
    kind = found["apiVersion"], found["kind"]
    if kind[0] == "monitoring.coreos.com/v1" and kind[1] in _OPERATOR:
        return [*_of_fields(found, _OPERATOR[kind[1]], kind[1])]
    if kind not in _MODELS:
        return [f"no schema for {kind}"]
    return [*_of_type(found, _MODELS[kind], found["kind"])]


def _of_fields(value: Any, fields: Mapping[str, Any], path: str) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        for name, inner in each.items():
            where, wanted = f"{path}.{name}", fields.get(name, "unknown")
            if wanted == "unknown":
                yield f"{where}: unknown field"
            elif isinstance(wanted, dict):
                yield from _of_fields(inner, wanted, where)
            elif wanted is not None:
                yield from _of_type(inner, wanted, where)


def _of_type(value: Any, wanted: str, path: str) -> Iterator[str]:
    if wanted == "object":
        return
    if value is None:
        yield f"{path}: null"
    elif wanted in _SCALARS:
        # A bool is an int to Python, and not to Kubernetes.
        if not isinstance(value, _SCALARS[wanted]) or isinstance(value, bool) != (wanted == "bool"):
            yield f"{path}: expected {wanted}, got {value!r}"
    elif (inner := _LIST.fullmatch(wanted)) is not None:
        if not isinstance(value, list):
            yield f"{path}: expected a list, got {value!r}"
            return
        for index, each in enumerate(value):
            yield from _of_type(each, inner[1], f"{path}[{index}]")
    elif (inner := _MAP.fullmatch(wanted)) is not None:
        if not isinstance(value, dict):
            yield f"{path}: expected a map, got {value!r}"
            return
        for name, each in value.items():
            yield from _of_type(each, inner[1], f"{path}.{name}")
    else:
        yield from _of_model(value, wanted, path)


def _of_model(value: Any, wanted: str, path: str) -> Iterator[str]:
    model = getattr(models, wanted)
    if not isinstance(value, dict):
        yield f"{path}: expected {wanted}, got {value!r}"
        return
    attributes = {name: attribute for attribute, name in model.attribute_map.items()}
    for name, each in value.items():
        if name not in attributes:
            yield f"{path}.{name}: unknown field"
            continue
        yield from _of_type(each, model.openapi_types[attributes[name]], f"{path}.{name}")
    try:
        model(**{attributes[name]: each for name, each in value.items() if name in attributes})
    except ValueError as error:  # it checks what is required, and limits
        yield f"{path}: {error}"
