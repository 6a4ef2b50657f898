"""JSON types of the fields that the server itself reads: a wrong one is refused on arrival.

kube-apiserver decodes into Go structs, so a string where an object belongs never gets further than
the decoder. The embedded server keeps plain JSON; this is its decoder's conscience.
"""

from __future__ import annotations

from typing import Any

from asched.apiserver.errors import StatusError, bad_request
from asched.apiserver.resources import ServedResource

Object = dict[str, Any]


class ListOf:
    """A list whose elements have one shape."""

    __slots__ = ("element",)

    def __init__(self, element: Any) -> None:
        self.element = element


class MapOf:
    """An object with any keys and values of one shape."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


ANY_OBJECT: Object = {}
_TEXTS = ListOf(str)
_QUANTITIES = MapOf((str, int, float))
_SELECTOR = {
    "matchLabels": MapOf(str),
    "matchExpressions": ListOf({"key": str, "operator": str, "values": _TEXTS}),
}
_AFFINITY_TERM = {
    "labelSelector": _SELECTOR,
    "matchLabelKeys": _TEXTS,
    "mismatchLabelKeys": _TEXTS,
    "topologyKey": str,
}
_POD_AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": ListOf(_AFFINITY_TERM),
    "preferredDuringSchedulingIgnoredDuringExecution": ListOf({"podAffinityTerm": _AFFINITY_TERM}),
}
_TOLERATION = {"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}
_CONTAINER = {
    "name": str,
    "image": str,
    "resources": {"requests": _QUANTITIES, "limits": _QUANTITIES},
    "ports": ListOf({"containerPort": int, "hostPort": int, "protocol": str, "hostIP": str}),
    "livenessProbe": ANY_OBJECT,
    "readinessProbe": ANY_OBJECT,
    "startupProbe": ANY_OBJECT,
}
_POD_SPEC = {
    "nodeName": str,
    "schedulerName": str,
    "priorityClassName": str,
    "priority": int,
    "runtimeClassName": str,
    "hostNetwork": bool,
    "terminationGracePeriodSeconds": int,
    "nodeSelector": MapOf(str),
    "containers": ListOf(_CONTAINER),
    "initContainers": ListOf(_CONTAINER),
    "overhead": _QUANTITIES,
    "tolerations": ListOf(_TOLERATION),
    "schedulingGates": ListOf({"name": str}),
    "volumes": ListOf(ANY_OBJECT),
    "readinessGates": ListOf({"conditionType": str}),
    "affinity": {
        "podAffinity": _POD_AFFINITY,
        "podAntiAffinity": _POD_AFFINITY,
        "nodeAffinity": ANY_OBJECT,
    },
    "topologySpreadConstraints": ListOf(
        {
            "maxSkew": int,
            "topologyKey": str,
            "whenUnsatisfiable": str,
            "labelSelector": _SELECTOR,
            "matchLabelKeys": _TEXTS,
        }
    ),
}
_TEMPLATED = {
    "spec": {
        "replicas": int,
        "template": {"metadata": ANY_OBJECT, "spec": _POD_SPEC},
    },
    "status": ANY_OBJECT,
}
_METADATA = {
    "name": str,
    "generateName": str,
    "namespace": str,
    "uid": str,
    "resourceVersion": str,
    "labels": MapOf(str),
    "annotations": MapOf(str),
    "finalizers": _TEXTS,
    "ownerReferences": ListOf({"uid": str, "name": str, "kind": str}),
    "managedFields": ListOf(ANY_OBJECT),
}
_CONDITIONS = ListOf({"type": str, "status": str})
_SHAPES: dict[str, Object] = {
    "pods": {
        "spec": _POD_SPEC,
        "status": {
            "phase": str,
            "conditions": _CONDITIONS,
            "containerStatuses": ListOf(ANY_OBJECT),
        },
    },
    "nodes": {
        "spec": {
            "unschedulable": bool,
            "taints": ListOf({"key": str, "value": str, "effect": str}),
        },
        "status": {
            "capacity": _QUANTITIES,
            "allocatable": _QUANTITIES,
            "conditions": _CONDITIONS,
            "addresses": ListOf({"type": str, "address": str}),
            "nodeInfo": ANY_OBJECT,
        },
    },
    "events": {"involvedObject": ANY_OBJECT, "series": ANY_OBJECT, "source": ANY_OBJECT},
    "services": {"spec": {"ports": ListOf({"port": int})}, "status": ANY_OBJECT},
    "persistentvolumes": {"spec": {"capacity": _QUANTITIES, "accessModes": _TEXTS}},
    "persistentvolumeclaims": {"spec": {"accessModes": _TEXTS}},
    "poddisruptionbudgets.policy": {
        "spec": {"selector": _SELECTOR},
        "status": {"disruptionsAllowed": int},
    },
    "podgroups.scheduling.k8s.io": {
        "spec": {"schedulingPolicy": {"gang": {"minCount": int}}},
        "status": {"conditions": _CONDITIONS},
    },
    "priorityclasses.scheduling.k8s.io": {
        "value": int,
        "globalDefault": bool,
        "preemptionPolicy": str,
    },
    "runtimeclasses.node.k8s.io": {
        "overhead": {"podFixed": _QUANTITIES},
        "scheduling": {"nodeSelector": MapOf(str), "tolerations": ListOf(_TOLERATION)},
    },
    "customresourcedefinitions.apiextensions.k8s.io": {
        "spec": {
            "group": str,
            "scope": str,
            "names": {"plural": str, "kind": str, "shortNames": _TEXTS, "categories": _TEXTS},
            "versions": ListOf(
                {
                    "name": str,
                    "served": bool,
                    "storage": bool,
                    "subresources": ANY_OBJECT,
                    "additionalPrinterColumns": ListOf({"name": str, "jsonPath": str}),
                }
            ),
        }
    },
    "replicationcontrollers": _TEMPLATED,
    "replicasets.apps": _TEMPLATED,
    "deployments.apps": _TEMPLATED,
    "statefulsets.apps": _TEMPLATED,
    "daemonsets.apps": _TEMPLATED,
    "jobs.batch": _TEMPLATED,
}
_OTHER = {"spec": ANY_OBJECT, "status": ANY_OBJECT}
_GO_NAMES: dict[Any, str] = {str: "string", int: "int64", bool: "bool"}


_DELETE_OPTIONS = {
    "gracePeriodSeconds": int,
    "preconditions": {"uid": str, "resourceVersion": str},
    "propagationPolicy": str,
    "dryRun": _TEXTS,
}
_REQUESTS: dict[str, Object] = {
    "Binding": {"metadata": _METADATA, "target": {"kind": str, "name": str}},
    "Eviction": {"metadata": _METADATA, "deleteOptions": _DELETE_OPTIONS},
    "DeleteOptions": _DELETE_OPTIONS,
}


def check_shape(resource: ServedResource, obj: Object) -> None:
    """Refuse values of a wrong JSON type; drop nulls, which mean "not set" to the typed API.

    Raises StatusError 400 naming the field.
    """
    # A custom resource keeps its nulls; its body is nobody's struct.
    check = _Check(resource.kind, resource.version, drop_nulls=not resource.custom)
    check(obj.get("metadata"), _METADATA, "metadata")
    check(obj, _OTHER if resource.custom else _SHAPES.get(resource.storage_key, _OTHER), "")


def check_request(kind: str, obj: object) -> Object:
    """The same for what is sent but never stored: a Binding, an Eviction, DeleteOptions."""
    _Check(kind, "v1", drop_nulls=True)(obj, _REQUESTS[kind], "")
    assert isinstance(obj, dict)
    return obj


class _Check:
    """Compares values with shapes."""

    __slots__ = ("drop_nulls", "kind", "version")

    def __init__(self, kind: str, version: str, *, drop_nulls: bool) -> None:
        self.kind = kind
        self.version = version
        self.drop_nulls = drop_nulls

    def __call__(self, value: Any, shape: Any, path: str) -> None:
        if isinstance(shape, dict):
            self._object(value, shape, path)
        elif isinstance(shape, ListOf):
            if not isinstance(value, list):
                raise self._wrong(value, path, "array")
            for index, element in enumerate(value):
                self(element, shape.element, f"{path}[{index}]")
        elif isinstance(shape, MapOf):
            if not isinstance(value, dict):
                raise self._wrong(value, path, "object")
            for key, element in value.items():
                self(element, shape.value, f"{path}.{key}")
        elif not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
            raise self._wrong(value, path, _GO_NAMES.get(shape, "quantity"))

    def _object(self, value: Any, shape: Object, path: str) -> None:
        if not isinstance(value, dict):
            raise self._wrong(value, path, "object")
        for field, below in shape.items():
            if field not in value:
                continue
            if value[field] is not None:
                self(value[field], below, f"{path}.{field}" if path else field)
            elif self.drop_nulls:
                del value[field]

    def _wrong(self, value: Any, path: str, wanted: str) -> StatusError:
        return bad_request(
            f'{self.kind} in version "{self.version}" cannot be handled as a {self.kind}: '
            f"json: cannot unmarshal {_json_type(value)} into Go struct field "
            f"{self.kind}.{path} of type {wanted}"
        )


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
