"""Unknown fields: what ``fieldValidation=Strict`` refuses and ``Warn`` warns about.

The embedded server holds no full schema. It knows the top level of every built-in object and the
fields of pods and nodes, where a misspelt field would silently change scheduling.

What Go's encoding/json says of text that is not JSON: the API server quotes it to clients.
"""

from __future__ import annotations

import json
from typing import Any

from asched.apiserver.errors import StatusError
from asched.apiserver.resources import ServedResource

Object = dict[str, Any]

_METADATA = frozenset(
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
_TOP = frozenset(("apiVersion", "kind", "metadata"))
_TOP_FIELDS = {
    "Pod": "spec status",
    "Node": "spec status",
    "Namespace": "spec status",
    "PersistentVolume": "spec status",
    "PersistentVolumeClaim": "spec status",
    "Service": "spec status",
    "ReplicationController": "spec status",
    "ReplicaSet": "spec status",
    "Deployment": "spec status",
    "StatefulSet": "spec status",
    "DaemonSet": "spec status",
    "Job": "spec status",
    "PodDisruptionBudget": "spec status",
    "PriorityClass": "value globalDefault description preemptionPolicy",
    "StorageClass": "provisioner parameters reclaimPolicy mountOptions allowVolumeExpansion "
    "volumeBindingMode allowedTopologies",
    "CSINode": "spec",
    "CSIDriver": "spec",
    "Lease": "spec",
    "ConfigMap": "data binaryData immutable",
    "Secret": "data stringData type immutable",
    "RuntimeClass": "handler overhead scheduling",
    "CustomResourceDefinition": "spec status",
}
_POD_SPEC = frozenset(
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
_CONTAINER = frozenset(
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
_NODE_SPEC = frozenset(
    ["configSource", "externalID", "podCIDR", "podCIDRs", "providerID", "taints", "unschedulable"]
)


def check_fields(resource: ServedResource, obj: Object, mode: str) -> tuple[str, ...]:
    """Warnings about unknown fields. Raises StatusError 400 for them when ``mode`` is Strict."""
    if mode not in ("Strict", "Warn"):
        return ()
    unknown = _unknown(resource, obj)
    if not unknown:
        return ()
    if mode == "Warn":
        return tuple(unknown)
    raise StatusError(
        400,
        "BadRequest",
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
        f"strict decoding error: {', '.join(unknown)}",
    )


def _unknown(resource: ServedResource, obj: Object) -> list[str]:
    found = _beyond(obj.get("metadata"), _METADATA, "metadata.")
    top = _TOP_FIELDS.get(resource.kind)
    if top is None or resource.custom:
        return found
    found += _beyond(obj, _TOP | frozenset(top.split()), "")
    spec = obj.get("spec")
    if resource.kind == "Pod" and isinstance(spec, dict):
        found += _beyond(spec, _POD_SPEC, "spec.")
        for field in ("containers", "initContainers"):
            for index, container in enumerate(spec.get(field) or ()):
                found += _beyond(container, _CONTAINER, f"spec.{field}[{index}].")
    elif resource.kind == "Node":
        found += _beyond(spec, _NODE_SPEC, "spec.")
    return found


def _beyond(value: Any, known: frozenset[str], prefix: str) -> list[str]:
    if not isinstance(value, dict):
        return []
    return [f'unknown field "{prefix}{key}"' for key in value if key not in known]


_BODY_SHOWN = 30


def json_error(raw: bytes) -> str:
    """The message of Go's scanner at the first byte that cannot be.

    Positions come from Python's parser; the wording for the commonest contexts is Go's.
    """
    text = raw.decode("latin-1")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()):
            return "unexpected end of JSON input"
        return f"invalid character {_quoted(text[error.pos])} {_context(error)}"
    return "invalid character in string literal"


def _context(error: json.JSONDecodeError) -> str:
    if "property name" in error.msg:
        return "looking for beginning of object key string"
    if "':' delimiter" in error.msg:
        return "after object key"
    if "',' delimiter" in error.msg:
        before = error.doc[: error.pos]
        inside_object = before.rfind("{") > before.rfind("[")
        return "after object key:value pair" if inside_object else "after array element"
    if "Extra data" in error.msg:
        return "after top-level value"
    if "control character" in error.msg:
        return "in string literal"
    return "looking for beginning of value"


def _quoted(char: str) -> str:
    if char == "'":
        return r"'\''"
    if char.isprintable() and char.isascii():
        return f"'{char}'"
    return f"'\\u{ord(char):04x}'"


def summarized(raw: bytes) -> str:
    """The start of a request body as the server shows it in a message (``summarizeData``)."""
    if not raw:
        return "<empty>"
    if raw[:1] != b"{":
        shown = raw[:_BODY_SHOWN].hex()
    else:
        shown = raw[:_BODY_SHOWN].decode("utf-8", "replace")
    return f"{shown} ..." if len(raw) > _BODY_SHOWN else shown
