"""The patch formats of the API: JSON merge patch (RFC 7386) and JSON patch (RFC 6902).

Both leave their inputs untouched: results share unchanged parts with them.

Strategic merge patch: a merge patch that knows which lists are maps in disguise.

The merge keys are those of the ``patchMergeKey`` tags of k8s.io/api; the directives ``$patch``,
``$retainKeys``, ``$deleteFromPrimitiveList`` and ``$setElementOrder`` are those of
k8s.io/apimachinery/pkg/util/strategicpatch. Inputs stay untouched.
"""

from __future__ import annotations

from typing import Any

from asched.apiserver.errors import StatusError, bad_request


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch: null removes, objects merge, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


class _PathError(Exception):
    """A JSON pointer that does not resolve."""


def _pointer(path: Any) -> list[str]:
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise _PathError(f"invalid JSON pointer {path!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _index(part: str, length: int, *, appending: bool) -> int:
    if part == "-" and appending:
        return length
    if not part.isdecimal() or (len(part) > 1 and part[0] == "0"):
        raise _PathError(f"invalid array index {part!r}")
    index = int(part)
    if index >= length + (1 if appending else 0):
        raise _PathError(f"array index {index} out of bounds")
    return index


def _resolve(document: Any, parts: list[str]) -> Any:
    for part in parts:
        if isinstance(document, dict):
            if part not in document:
                raise _PathError(f"missing path: {'/'.join(parts)}")
            document = document[part]
        elif isinstance(document, list):
            document = document[_index(part, len(document), appending=False)]
        else:
            raise _PathError(f"missing path: {'/'.join(parts)}")
    return document


def _changed(document: Any, parts: list[str], operation: str, value: Any) -> Any:
    """A copy of ``document`` in which ``operation`` (add, replace, remove) was done at ``parts``."""
    if not parts:
        if operation == "remove":
            raise _PathError("cannot remove the whole document")
        return value
    head, rest = parts[0], parts[1:]
    if isinstance(document, dict):
        if (rest or operation != "add") and head not in document:
            raise _PathError(f"missing path: {head}")
        copy = dict(document)
        if rest:
            copy[head] = _changed(document[head], rest, operation, value)
        elif operation == "remove":
            del copy[head]
        else:
            copy[head] = value
        return copy
    if not isinstance(document, list):
        raise _PathError(f"missing path: {head}")
    items = list(document)
    index = _index(head, len(items), appending=operation == "add" and not rest)
    if rest:
        items[index] = _changed(items[index], rest, operation, value)
    elif operation == "add":
        items.insert(index, value)
    elif operation == "remove":
        del items[index]
    else:
        items[index] = value
    return items


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    name, parts = operation.get("op"), _pointer(operation.get("path"))
    if name in ("add", "replace"):
        if "value" not in operation:
            raise _PathError(f"{name} without a value")
        return _changed(document, parts, name, operation["value"])
    if name == "remove":
        return _changed(document, parts, "remove", None)
    if name == "test":
        if not _equal(_resolve(document, parts), operation.get("value")):
            raise _PathError(f"testing path {operation['path']} failed: test failed")
        return document
    if name in ("copy", "move"):
        source = _pointer(operation.get("from"))
        value = _resolve(document, source)
        if name == "move":
            document = _changed(document, source, "remove", None)
        return _changed(document, parts, "add", value)
    raise _PathError(f"unexpected kind: {name}")


def _equal(left: Any, right: Any) -> bool:
    """JSON equality: unlike in Python, true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right)


def json_patch(document: Any, operations: Any) -> Any:
    """Apply a JSON patch: a list of operations, all or nothing.

    Raises StatusError 400 when the patch is not a list of operations, 422 when one cannot be done.
    """
    if not isinstance(operations, list) or not all(isinstance(op, dict) for op in operations):
        raise bad_request("error decoding patch: json: cannot unmarshal into Go value of type"
                          " jsonpatch.Patch")  # fmt: skip
    for operation in operations:
        try:
            document = _apply(document, operation)
        except _PathError as error:
            message = (
                "the server rejected our request due to an error in our request: "
                f"{operation.get('op')} operation does not apply: doc is {error}"
            )
            raise StatusError(422, "Invalid", message, details={}) from error
    return document


_DELETE_PRIMITIVE = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_RETAIN = "$retainKeys"

# Field name -> merge key; names are unambiguous enough in k8s.io/api that the path does not matter,
# except where _KEY_BY_PARENT says otherwise.
_MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "addresses": "type",
    "ownerReferences": "uid",
    "secrets": "name",
    "podIPs": "ip",
    "hostIPs": "ip",
    "resourceClaimStatuses": "name",
    "drivers": "name",
}
_KEY_BY_PARENT = {
    # ServicePort merges by port, ContainerPort by containerPort.
    ("spec", "ports"): "port",
    ("resources", "claims"): "",
}
_PRIMITIVE_SETS = frozenset({"finalizers", "podCIDRs"})


def merge_key_of(parent: str, field: str) -> str:
    """The field that identifies elements of the list ``field`` inside ``parent``; empty for none."""
    return _KEY_BY_PARENT.get((parent, field), _MERGE_KEYS.get(field, ""))


def strategic_merge(target: Any, patch: dict[str, Any], parent: str = "") -> Any:
    """Apply a strategic merge patch to ``target``; ``parent`` is the field that holds it.

    Raises StatusError 400 for a directive that is not known.
    """
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
                result[field] = _in_order(result[field], value, merge_key_of(parent, field))
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
    # New elements go to the front, as the API server's list merge leaves them
    # (normalizeElementOrder: elements of the patch before those only the server has).
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


def _in_order(items: list[Any], order: list[Any], merge_key: str) -> list[Any]:
    """Elements named by ``order`` in that order, the others kept at the end."""

    def key_of(item: Any) -> Any:
        return item.get(merge_key) if isinstance(item, dict) else item

    wanted = [entry.get(merge_key) if isinstance(entry, dict) else entry for entry in order]
    first = [item for key in wanted for item in items if key_of(item) == key]
    return [*first, *(item for item in items if key_of(item) not in wanted)]
