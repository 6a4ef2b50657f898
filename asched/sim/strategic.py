"""Strategic merge patch: a merge patch that knows which lists are maps in disguise.

The merge keys are those of the ``patchMergeKey`` tags of k8s.io/api; the directives ``$patch``,
``$retainKeys``, ``$deleteFromPrimitiveList`` and ``$setElementOrder`` are those of
k8s.io/apimachinery/pkg/util/strategicpatch. Inputs stay untouched.
"""

from __future__ import annotations

from typing import Any

from asched.sim.errors import bad_request

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

    Raises ApiError 400 for a directive that is not known.
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
