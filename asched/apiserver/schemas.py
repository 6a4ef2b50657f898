"""Schemas of the fields that the embedded server reads: JSON types and known field names.

kube-apiserver decodes into Go structs, which rejects a wrong JSON type. The embedded server keeps
plain JSON and checks the types here. For ``fieldValidation`` it knows the top level of every
built-in object and the fields of pods and nodes, where a misspelt field changes scheduling.
"""

from __future__ import annotations

from typing import Any

from asched.apiserver.errors import Object, StatusError, undecodable
from asched.apiserver.resources import ServedResource

# A schema is a type or several, [element] for a list, {str: value} for a map with any keys, or
# field names with schemas for an object, which may have other fields, too.
ANY_OBJECT: dict[Any, Any] = {}
_STRINGS = [str]
_QUANTITIES = {str: (str, int, float)}
_SELECTOR = {
    "matchLabels": {str: str},
    "matchExpressions": [{"key": str, "operator": str, "values": _STRINGS}],
}
_AFFINITY_TERM = {
    "labelSelector": _SELECTOR,
    "matchLabelKeys": _STRINGS,
    "mismatchLabelKeys": _STRINGS,
    "topologyKey": str,
}
_POD_AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": [_AFFINITY_TERM],
    "preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": _AFFINITY_TERM}],
}
_TOLERATION = {"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}
_CONTAINER = {
    "name": str,
    "image": str,
    "resources": {"requests": _QUANTITIES, "limits": _QUANTITIES},
    "ports": [{"containerPort": int, "hostPort": int, "protocol": str, "hostIP": str}],
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
    "nodeSelector": {str: str},
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "overhead": _QUANTITIES,
    "tolerations": [_TOLERATION],
    "schedulingGates": [{"name": str}],
    "volumes": [ANY_OBJECT],
    "readinessGates": [{"conditionType": str}],
    "affinity": {
        "podAffinity": _POD_AFFINITY,
        "podAntiAffinity": _POD_AFFINITY,
        "nodeAffinity": ANY_OBJECT,
    },
    "topologySpreadConstraints": [_SPREAD_CONSTRAINT],
}
_WORKLOAD = {
    "spec": {"replicas": int, "template": {"metadata": ANY_OBJECT, "spec": _POD_SPEC}},
    "status": ANY_OBJECT,
}
METADATA = {
    "name": str,
    "generateName": str,
    "namespace": str,
    "uid": str,
    "resourceVersion": str,
    "labels": {str: str},
    "annotations": {str: str},
    "finalizers": _STRINGS,
    "ownerReferences": [{"uid": str, "name": str, "kind": str}],
    "managedFields": [ANY_OBJECT],
}
_CONDITIONS = [{"type": str, "status": str}]
_CRD_VERSION = {
    "name": str,
    "served": bool,
    "storage": bool,
    "subresources": ANY_OBJECT,
    "additionalPrinterColumns": [{"name": str, "jsonPath": str}],
}
_SCHEMAS: dict[str, Object] = {
    "pods": {
        "spec": _POD_SPEC,
        "status": {
            "phase": str,
            "conditions": _CONDITIONS,
            "containerStatuses": [ANY_OBJECT],
        },
    },
    "nodes": {
        "spec": {
            "unschedulable": bool,
            "taints": [{"key": str, "value": str, "effect": str}],
        },
        "status": {
            "capacity": _QUANTITIES,
            "allocatable": _QUANTITIES,
            "conditions": _CONDITIONS,
            "addresses": [{"type": str, "address": str}],
            "nodeInfo": ANY_OBJECT,
        },
    },
    "events": {"involvedObject": ANY_OBJECT, "series": ANY_OBJECT, "source": ANY_OBJECT},
    "services": {"spec": {"ports": [{"port": int}]}, "status": ANY_OBJECT},
    "persistentvolumes": {"spec": {"capacity": _QUANTITIES, "accessModes": _STRINGS}},
    "persistentvolumeclaims": {"spec": {"accessModes": _STRINGS}},
    "poddisruptionbudgets.policy": {
        "spec": {"selector": _SELECTOR},
        "status": {"disruptionsAllowed": int},
    },
    "priorityclasses.scheduling.k8s.io": {
        "value": int,
        "globalDefault": bool,
        "preemptionPolicy": str,
    },
    "runtimeclasses.node.k8s.io": {
        "overhead": {"podFixed": _QUANTITIES},
        "scheduling": {"nodeSelector": {str: str}, "tolerations": [_TOLERATION]},
    },
    "customresourcedefinitions.apiextensions.k8s.io": {
        "spec": {
            "group": str,
            "scope": str,
            "names": {"plural": str, "kind": str, "shortNames": _STRINGS, "categories": _STRINGS},
            "versions": [_CRD_VERSION],
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
    "Binding": {"metadata": METADATA, "target": {"kind": str, "name": str}},
    "Eviction": {"metadata": METADATA, "deleteOptions": _DELETE_OPTIONS},
    "DeleteOptions": _DELETE_OPTIONS,
}
_GO_NAMES: dict[Any, str] = {str: "string", int: "int64", bool: "bool"}


def schema_of(resource: ServedResource) -> Object:
    """The fields that the embedded server reads, except ``METADATA``."""
    return _OTHER if resource.custom else _SCHEMAS.get(resource.storage_key, _OTHER)


def field_names(place: str | None) -> list[str]:
    """All names of fields of an object, such as ``Pod.spec``; none if they are not known."""
    return _KNOWN_FIELDS.get(place or "", "").split()


def check_types(resource: ServedResource, obj: Object) -> None:
    """Drop nulls, which mean "not set". Raises StatusError 400 naming a field of a wrong type."""
    # Custom resources keep their nulls.
    check = _TypeCheck(resource.kind, resource.version, drop_nulls=not resource.custom)
    check(obj.get("metadata"), METADATA, "metadata")
    check(obj, schema_of(resource), "")


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
        elif isinstance(schema, list):
            if not isinstance(value, list):
                raise self._error(value, path, "array")
            for index, element in enumerate(value):
                self(element, schema[0], f"{path}[{index}]")
        elif not isinstance(value, schema) or (isinstance(value, bool) and schema is not bool):
            raise self._error(value, path, _GO_NAMES.get(schema, "quantity"))

    def _check_object(self, value: Any, schema: dict[Any, Any], path: str) -> None:
        if not isinstance(value, dict):
            raise self._error(value, path, "object")
        if str in schema:
            for key, element in value.items():
                self(element, schema[str], f"{path}.{key}")
            return
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


_WITH_SPEC_AND_STATUS = """
Pod Node Namespace PersistentVolume PersistentVolumeClaim Service ReplicationController ReplicaSet
Deployment StatefulSet DaemonSet Job PodDisruptionBudget CustomResourceDefinition
"""
_KNOWN_FIELDS = {
    # By kind: the top level besides apiVersion, kind and metadata.
    **dict.fromkeys(_WITH_SPEC_AND_STATUS.split(), "spec status"),
    "PriorityClass": "value globalDefault description preemptionPolicy",
    "StorageClass": "provisioner parameters reclaimPolicy mountOptions allowVolumeExpansion "
    "volumeBindingMode allowedTopologies",
    "CSINode": "spec",
    "CSIDriver": "spec",
    "Lease": "spec",
    "ConfigMap": "data binaryData immutable",
    "Secret": "data stringData type immutable",
    "RuntimeClass": "handler overhead scheduling",
    # Parts of objects.
    "metadata": """
name generateName namespace selfLink uid resourceVersion generation creationTimestamp
deletionTimestamp deletionGracePeriodSeconds labels annotations ownerReferences finalizers
managedFields
""",
    "Pod.spec": """
activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy
enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname
hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy
priority priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName
schedulerName schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName
setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations
topologySpreadConstraints volumes workloadRef
""",
    "Pod.spec.containers": """
name image command args workingDir ports envFrom env resources resizePolicy restartPolicy
restartPolicyRules volumeMounts volumeDevices livenessProbe readinessProbe startupProbe lifecycle
terminationMessagePath terminationMessagePolicy imagePullPolicy securityContext stdin stdinOnce tty
""",
    "Node.spec": "configSource externalID podCIDR podCIDRs providerID taints unschedulable",
}


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
    found = _outside(obj.get("metadata"), "metadata", "metadata.")
    if resource.kind not in _KNOWN_FIELDS or resource.custom:
        return found
    found += _outside(obj, resource.kind, "", "apiVersion", "kind", "metadata")
    spec = obj.get("spec")
    if resource.kind == "Pod" and isinstance(spec, dict):
        found += _outside(spec, "Pod.spec", "spec.")
        for field in ("containers", "initContainers"):
            for index, container in enumerate(spec.get(field) or ()):
                found += _outside(container, "Pod.spec.containers", f"spec.{field}[{index}].")
    elif resource.kind == "Node":
        found += _outside(spec, "Node.spec", "spec.")
    return found


def _outside(value: Any, part: str, prefix: str, *also_known: str) -> list[str]:
    if not isinstance(value, dict):
        return []
    known = {*_KNOWN_FIELDS[part].split(), *also_known}
    return [f'unknown field "{prefix}{key}"' for key in value if key not in known]
