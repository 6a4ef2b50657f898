"""The patch formats of the API: JSON patch, JSON merge patch and strategic merge patch.

The merge keys of strategic merge patch are those of the ``patchMergeKey`` tags of k8s.io/api; the
directives ``$patch``, ``$retainKeys``, ``$deleteFromPrimitiveList`` and ``$setElementOrder`` are
those of k8s.io/apimachinery/pkg/util/strategicpatch. No function changes the patched object.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from jsonpatch import JsonPatch, JsonPatchException, JsonPatchTestFailed, TestOperation
from jsonpointer import JsonPointerException

from asched.apiserver.errors import StatusError, bad_request
from asched.apiserver.storage import deep_copy


class _ExactTest(TestOperation):
    """A test that compares encoded JSON: in Python true equals 1."""

    def apply(self, obj: Any) -> Any:
        found = self.pointer.resolve(obj)
        if _canonical(found) != _canonical(self.operation.get("value")):
            raise JsonPatchTestFailed(f"testing path {self.location} failed: test failed")
        return obj


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


class _JsonPatch(JsonPatch):
    operations: ClassVar[Any] = {**JsonPatch.operations, "test": _ExactTest}


# The library raises built-in exceptions for pointers into values without members.
_PATCH_ERRORS = (
    JsonPatchException,
    JsonPointerException,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
)


def json_patch(document: Any, operations: Any) -> Any:
    """Apply RFC 6902. Raises StatusError 400 if not a list of operations, 422 if one fails."""
    if not isinstance(operations, list) or not all(isinstance(op, dict) for op in operations):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal into Go value of type jsonpatch.Patch"
        )
    document = deep_copy(document)
    for operation in operations:
        try:
            document = _JsonPatch([operation]).apply(document, in_place=True)
        except _PATCH_ERRORS as error:
            message = (
                "the server rejected our request due to an error in our request: "
                f"{operation.get('op')} operation does not apply: doc is {error}"
            )
            raise StatusError(422, "Invalid", message, details={}) from error
    return document


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


_DELETE_PRIMITIVE = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_RETAIN = "$retainKeys"

# Field names determine the merge key in k8s.io/api, except for those in _KEY_BY_PARENT.
_FIELDS_BY_MERGE_KEY = {
    "name": "containers initContainers ephemeralContainers env volumes imagePullSecrets "
    "schedulingGates resourceClaims resourceClaimStatuses secrets drivers",
    "type": "conditions addresses",
    "ip": "hostAliases podIPs hostIPs",
    "mountPath": "volumeMounts",
    "devicePath": "volumeDevices",
    "containerPort": "ports",
    "topologyKey": "topologySpreadConstraints",
    "uid": "ownerReferences reservedFor",
}
_MERGE_KEYS = {field: key for key, names in _FIELDS_BY_MERGE_KEY.items() for field in names.split()}
_KEY_BY_PARENT = {
    # ServicePort merges by port, ContainerPort by containerPort.
    ("spec", "ports"): "port",
    ("resources", "claims"): "",
}
_PRIMITIVE_SETS = frozenset({"finalizers", "podCIDRs"})


def merge_key_of(parent: str, field: str) -> str:
    """The field that identifies the elements of the list ``field`` in ``parent``; may be empty."""
    return _KEY_BY_PARENT.get((parent, field), _MERGE_KEYS.get(field, ""))


def strategic_merge(target: Any, patch: dict[str, Any], parent: str = "") -> Any:
    """Merge into the value of the field ``parent``. Raises StatusError 400: unknown directive."""
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"Unknown patch type found in patch: [{directive}]")
    result = dict(target) if isinstance(target, dict) else {}
    retained = patch.get(_RETAIN)
    if isinstance(retained, list):
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key.startswith(_DELETE_PRIMITIVE):
            field = key.removeprefix(_DELETE_PRIMITIVE)
            result[field] = [item for item in result.get(field) or [] if item not in value]
    for key, value in patch.items():
        if not key.startswith("$"):
            _merge_field(result, key, value, parent)
    for key, value in patch.items():
        if key.startswith(_ORDER):
            field = key.removeprefix(_ORDER)
            if isinstance(result.get(field), list):
                result[field] = _ordered(result[field], value, merge_key_of(parent, field))
    return result


def _merge_field(result: dict[str, Any], key: str, value: Any, parent: str) -> None:
    if value is None:
        result.pop(key, None)
    elif isinstance(value, dict):
        result[key] = strategic_merge(result.get(key), value, key)
    elif isinstance(value, list) and (merge_key := merge_key_of(parent, key)):
        result[key] = _merge_list(result.get(key) or [], value, merge_key, key)
    elif isinstance(value, list) and key in _PRIMITIVE_SETS:
        known = result.get(key) or []
        result[key] = [*known, *(item for item in value if item not in known)]
    else:
        result[key] = value


def _merge_list(target: list[Any], patch: list[Any], merge_key: str, field: str) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if not (isinstance(item, dict) and "$patch" in item)]
    merged = list(target)
    # New elements precede those that only the server has (normalizeElementOrder).
    added: list[Any] = []
    for item in patch:
        if not isinstance(item, dict) or merge_key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {merge_key}")
        position = next(
            (i for i, known in enumerate(merged) if known.get(merge_key) == item[merge_key]), None
        )
        if item.get("$patch") == "delete":
            merged = [known for known in merged if known.get(merge_key) != item[merge_key]]
        elif position is None:
            added.append(strategic_merge({}, item, field))
        else:
            merged[position] = strategic_merge(merged[position], item, field)
    return [*added, *merged]


def _ordered(items: list[Any], order: list[Any], merge_key: str) -> list[Any]:
    """The elements in ``order`` first, then the others."""

    def key_of(item: Any) -> Any:
        return item.get(merge_key) if isinstance(item, dict) else item

    keys = [key_of(entry) for entry in order]
    first = [item for key in keys for item in items if key_of(item) == key]
    return [*first, *(item for item in items if key_of(item) not in keys)]
