"""Schemas of the fields that the embedded server reads: JSON types and known field names.

kube-apiserver decodes into Go structs, which rejects a wrong JSON type. The embedded server keeps
plain JSON and checks the types here. For ``fieldValidation`` it knows the top level of every
built-in object and the fields of pods and nodes, where a misspelt field changes scheduling.
"""

from __future__ import annotations

from typing import Any

from asched.apiserver.errors import StatusError, undecodable
from asched.apiserver.resources import ServedResource

Object = dict[str, Any]


class ListOf:
    """A list with elements of one schema."""

    __slots__ = ("element",)

    def __init__(self, element: Any) -> None:
        self.element = element


class MapOf:
    """An object with any keys and values of one schema."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


ANY_OBJECT: Object = {}
_STRINGS = ListOf(str)
_QUANTITIES = MapOf((str, int, float))
_SELECTOR = {
    "matchLabels": MapOf(str),
    "matchExpressions": ListOf({"key": str, "operator": str, "values": _STRINGS}),
}
_AFFINITY_TERM = {
    "labelSelector": _SELECTOR,
    "matchLabelKeys": _STRINGS,
    "mismatchLabelKeys": _STRINGS,
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
_SPREAD_CONSTRAINT = {
    "maxSkew": int,
    "topologyKey": str,
    "whenUnsatisfiable": str,
    "labelSelector": _SELECTOR,
    "matchLabelKeys": _STRINGS,
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
    "topologySpreadConstraints": ListOf(_SPREAD_CONSTRAINT),
}
_WORKLOAD = {
    "spec": {"replicas": int, "template": {"metadata": ANY_OBJECT, "spec": _POD_SPEC}},
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
    "finalizers": _STRINGS,
    "ownerReferences": ListOf({"uid": str, "name": str, "kind": str}),
    "managedFields": ListOf(ANY_OBJECT),
}
_CONDITIONS = ListOf({"type": str, "status": str})
_CRD_VERSION = {
    "name": str,
    "served": bool,
    "storage": bool,
    "subresources": ANY_OBJECT,
    "additionalPrinterColumns": ListOf({"name": str, "jsonPath": str}),
}
_SCHEMAS: dict[str, Object] = {
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
    "persistentvolumes": {"spec": {"capacity": _QUANTITIES, "accessModes": _STRINGS}},
    "persistentvolumeclaims": {"spec": {"accessModes": _STRINGS}},
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
            "names": {"plural": str, "kind": str, "shortNames": _STRINGS, "categories": _STRINGS},
            "versions": ListOf(_CRD_VERSION),
        }
    },
    **dict.fromkeys(
        ("replicationcontrollers", "replicasets.apps", "deployments.apps", "statefulsets.apps",
         "daemonsets.apps", "jobs.batch"),
        _WORKLOAD,
    ),
}  # fmt: skip
_OTHER = {"spec": ANY_OBJECT, "status": ANY_OBJECT}
_DELETE_OPTIONS = {
    "gracePeriodSeconds": int,
    "preconditions": {"uid": str, "resourceVersion": str},
    "propagationPolicy": str,
    "dryRun": _STRINGS,
}
_REQUESTS: dict[str, Object] = {
    "Binding": {"metadata": _METADATA, "target": {"kind": str, "name": str}},
    "Eviction": {"metadata": _METADATA, "deleteOptions": _DELETE_OPTIONS},
    "DeleteOptions": _DELETE_OPTIONS,
}
_GO_NAMES: dict[Any, str] = {str: "string", int: "int64", bool: "bool"}


def check_types(resource: ServedResource, obj: Object) -> None:
    """Reject values of a wrong JSON type; drop nulls, which mean "not set" to the typed API.

    Raises StatusError 400 naming the field.
    """
    # Custom resources keep their nulls.
    check = _TypeCheck(resource.kind, resource.version, drop_nulls=not resource.custom)
    check(obj.get("metadata"), _METADATA, "metadata")
    check(obj, _OTHER if resource.custom else _SCHEMAS.get(resource.storage_key, _OTHER), "")


def check_request(kind: str, obj: object) -> Object:
    """``obj`` after the same check; ``kind`` is Binding, Eviction or DeleteOptions."""
    _TypeCheck(kind, "v1", drop_nulls=True)(obj, _REQUESTS[kind], "")
    assert isinstance(obj, dict)
    return obj


class _TypeCheck:
    """Compares values with schemas."""

    __slots__ = ("drop_nulls", "kind", "version")

    def __init__(self, kind: str, version: str, *, drop_nulls: bool) -> None:
        self.kind = kind
        self.version = version
        self.drop_nulls = drop_nulls

    def __call__(self, value: Any, schema: Any, path: str) -> None:
        if isinstance(schema, dict):
            self._check_object(value, schema, path)
        elif isinstance(schema, ListOf):
            if not isinstance(value, list):
                raise self._error(value, path, "array")
            for index, element in enumerate(value):
                self(element, schema.element, f"{path}[{index}]")
        elif isinstance(schema, MapOf):
            if not isinstance(value, dict):
                raise self._error(value, path, "object")
            for key, element in value.items():
                self(element, schema.value, f"{path}.{key}")
        elif not isinstance(value, schema) or (isinstance(value, bool) and schema is not bool):
            raise self._error(value, path, _GO_NAMES.get(schema, "quantity"))

    def _check_object(self, value: Any, schema: Object, path: str) -> None:
        if not isinstance(value, dict):
            raise self._error(value, path, "object")
        for field, below in schema.items():
            if field not in value:
                continue
            if value[field] is not None:
                self(value[field], below, f"{path}.{field}" if path else field)
            elif self.drop_nulls:
                del value[field]

    def _error(self, value: Any, path: str, expected: str) -> StatusError:
        return undecodable(
            self.kind,
            self.version,
            f"json: cannot unmarshal {json_type(value)} into Go struct field "
            f"{self.kind}.{path} of type {expected}",
        )


def json_type(value: Any) -> str:
    """The name of a value's JSON type in messages of Go's decoder."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


_METADATA_FIELDS = frozenset(
    [
        "name",
        "generateName",
        "namespace",
        "selfLink",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "ownerReferences",
        "finalizers",
        "managedFields",
    ]
)
_TOP_FIELDS = {
    **dict.fromkeys(
        [
            "Pod",
            "Node",
            "Namespace",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "Service",
            "ReplicationController",
            "ReplicaSet",
            "Deployment",
            "StatefulSet",
            "DaemonSet",
            "Job",
            "PodDisruptionBudget",
            "CustomResourceDefinition",
        ],
        "spec status",
    ),
    "PriorityClass": "value globalDefault description preemptionPolicy",
    "StorageClass": "provisioner parameters reclaimPolicy mountOptions allowVolumeExpansion "
    "volumeBindingMode allowedTopologies",
    "CSINode": "spec",
    "CSIDriver": "spec",
    "Lease": "spec",
    "ConfigMap": "data binaryData immutable",
    "Secret": "data stringData type immutable",
    "RuntimeClass": "handler overhead scheduling",
}
_POD_SPEC_FIELDS = frozenset(
    [
        "activeDeadlineSeconds",
        "affinity",
        "automountServiceAccountToken",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "ephemeralContainers",
        "hostAliases",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "hostUsers",
        "hostname",
        "hostnameOverride",
        "imagePullSecrets",
        "initContainers",
        "nodeName",
        "nodeSelector",
        "os",
        "overhead",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "readinessGates",
        "resourceClaims",
        "resources",
        "restartPolicy",
        "runtimeClassName",
        "schedulerName",
        "schedulingGates",
        "schedulingGroup",
        "securityContext",
        "serviceAccount",
        "serviceAccountName",
        "setHostnameAsFQDN",
        "shareProcessNamespace",
        "subdomain",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
        "workloadRef",
    ]
)
_CONTAINER_FIELDS = frozenset(
    [
        "name",
        "image",
        "command",
        "args",
        "workingDir",
        "ports",
        "envFrom",
        "env",
        "resources",
        "resizePolicy",
        "restartPolicy",
        "restartPolicyRules",
        "volumeMounts",
        "volumeDevices",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "imagePullPolicy",
        "securityContext",
        "stdin",
        "stdinOnce",
        "tty",
    ]
)
_NODE_SPEC_FIELDS = frozenset(
    ["configSource", "externalID", "podCIDR", "podCIDRs", "providerID", "taints", "unschedulable"]
)


def check_fields(resource: ServedResource, obj: Object, mode: str) -> tuple[str, ...]:
    """Warnings about unknown fields. Raises StatusError 400 instead if ``mode`` is Strict."""
    if mode not in ("Strict", "Warn"):
        return ()
    unknown = _unknown_fields(resource, obj)
    if unknown and mode == "Strict":
        problem = f"strict decoding error: {', '.join(unknown)}"
        raise undecodable(resource.kind, resource.version, problem)
    return tuple(unknown)


def _unknown_fields(resource: ServedResource, obj: Object) -> list[str]:
    found = _outside(obj.get("metadata"), _METADATA_FIELDS, "metadata.")
    top = _TOP_FIELDS.get(resource.kind)
    if top is None or resource.custom:
        return found
    found += _outside(obj, {"apiVersion", "kind", "metadata", *top.split()}, "")
    spec = obj.get("spec")
    if resource.kind == "Pod" and isinstance(spec, dict):
        found += _outside(spec, _POD_SPEC_FIELDS, "spec.")
        for field in ("containers", "initContainers"):
            for index, container in enumerate(spec.get(field) or ()):
                found += _outside(container, _CONTAINER_FIELDS, f"spec.{field}[{index}].")
    elif resource.kind == "Node":
        found += _outside(spec, _NODE_SPEC_FIELDS, "spec.")
    return found


def _outside(value: Any, known: frozenset[str] | set[str], prefix: str) -> list[str]:
    if not isinstance(value, dict):
        return []
    return [f'unknown field "{prefix}{key}"' for key in value if key not in known]
