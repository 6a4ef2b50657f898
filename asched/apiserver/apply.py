"""Server-side apply: field ownership and conflicts.

``metadata.managedFields`` lists the fields that each manager applied. A field that its last owner
omits is removed. A field that another manager owns with another value is a conflict unless forced
(kubernetes.io/docs, "Server-Side Apply"). Updates do not take ownership, so they never conflict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asched.apiserver.errors import Object, StatusError, bad_request
from asched.apiserver.patches import merge_key_of, strategic_merge
from asched.apiserver.requests import RequestInfo
from asched.apiserver.storage import StoredObject, encode

if TYPE_CHECKING:
    from asched.apiserver.api import ObjectApi

FieldSet = dict[str, Any]

_NOT_OWNED = frozenset({"apiVersion", "kind"})
_NOT_OWNED_METADATA = frozenset({"name", "namespace", "managedFields", "resourceVersion", "uid"})


def server_side_apply(
    api: ObjectApi, info: RequestInfo, applied: Object
) -> tuple[StoredObject, bool]:
    """The object and whether it was created. Raises StatusError 400 without a manager, 409."""
    manager = info.query.get("fieldManager", "")
    if not manager:
        raise bad_request(
            'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: '
            "is required for apply patch"
        )
    entry = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": info.resource.group_version,
        "time": api.now_text(),
        "fieldsType": "FieldsV1",
        "fieldsV1": _fields_of(applied),
    }
    if api.storage(info.resource).get(info.namespace, info.name) is None:
        metadata = {**(applied.get("metadata") or {}), "name": info.name, "managedFields": [entry]}
        created = api.create(
            info.resource, info.namespace, {**applied, "metadata": metadata}, dry_run=info.dry_run
        )
        return created, True
    updated = api.update(
        info.resource,
        info.namespace,
        info.name,
        lambda current: _applied_to(current, applied, entry, info.flag("force")),
        subresource=info.subresource,
        dry_run=info.dry_run,
    )
    return updated, False


def _applied_to(current: Object, applied: Object, entry: Object, force: bool) -> Object:
    entries = list(current["metadata"].get("managedFields") or ())
    mine = next((e for e in entries if _same(e, entry)), None)
    others = [e for e in entries if not _same(e, entry)]
    if not force:
        _check_conflicts(current, applied, others)
    result = current
    if mine is not None:
        owned_by_others = [e["fieldsV1"] for e in others if e.get("operation") == "Apply"]
        result = _without(result, mine["fieldsV1"], entry["fieldsV1"], owned_by_others)
    patch = {
        **applied,
        "metadata": {
            key: value
            for key, value in (applied.get("metadata") or {}).items()
            if key not in ("managedFields", "creationTimestamp")
        },
    }
    merged: Object = strategic_merge(result, patch)
    if mine is not None and mine["fieldsV1"] == entry["fieldsV1"]:
        entry = mine
    merged["metadata"] = {**merged["metadata"], "managedFields": [*others, entry]}
    return merged


def _same(left: Object, right: Object) -> bool:
    return bool(left["manager"] == right["manager"] and left["operation"] == right["operation"])


def _key_text(merge_key: str, item: Object) -> str:
    return f"k:{encode({merge_key: item[merge_key]}).decode()}"


def _children(value: Any, parent: str, field: str) -> dict[str, tuple[str, Any]]:
    """The separately owned parts of a value: FieldsV1 key -> (field, part)."""
    if isinstance(value, dict):
        return {f"f:{key}": (key, part) for key, part in value.items()}
    merge_key = merge_key_of(parent, field)
    if (
        isinstance(value, list)
        and merge_key
        and all(isinstance(item, dict) and merge_key in item for item in value)
    ):
        return {_key_text(merge_key, item): (field, item) for item in value}
    return {}


def _owned(value: Any, parent: str, field: str) -> FieldSet:
    children = _children(value, parent, field)
    if not children:
        return {}
    owned: FieldSet = {key: _owned(part, field, name) for key, (name, part) in children.items()}
    return owned


def _fields_of(applied: Object) -> FieldSet:
    """The FieldsV1 set of a configuration."""
    fields: FieldSet = {}
    for key, value in applied.items():
        if key in _NOT_OWNED:
            continue
        if key == "metadata":
            value = {k: v for k, v in value.items() if k not in _NOT_OWNED_METADATA}
            if not value:
                continue
        fields[f"f:{key}"] = _owned(value, "", key)
    return fields


def _without(obj: Any, before: FieldSet, now: FieldSet, others: list[FieldSet]) -> Any:
    """``obj`` without the fields that were owned before and no longer are."""
    if isinstance(obj, dict):
        result = dict(obj)
        for key, below in before.items():
            name = key.removeprefix("f:")
            if not key.startswith("f:") or name not in result:
                continue
            held = [other[key] for other in others if key in other]
            if key in now:
                result[name] = _without(result[name], below, now[key], held)
            elif not held:
                del result[name]
        return result
    if isinstance(obj, list):
        return _list_without(obj, before, now, others)
    return obj


def _list_without(
    items: list[Any], before: FieldSet, now: FieldSet, others: list[FieldSet]
) -> list[Any]:
    result = []
    for item in items:
        fields = item if isinstance(item, dict) else ()
        keys = {_key_text(name, item) for name in fields}
        key = next((k for k in before if k in keys), None)
        if key is None:
            result.append(item)
        elif key in now:
            held = [other[key] for other in others if key in other]
            result.append(_without(item, before[key], now[key], held))
        elif any(key in other for other in others):
            result.append(item)
    return result


def _check_conflicts(current: Object, applied: Object, others: list[Object]) -> None:
    causes: list[Object] = []
    for entry in others:
        if entry.get("operation") != "Apply":
            continue
        causes.extend(
            {
                "reason": "FieldManagerConflict",
                "message": f'conflict with "{entry["manager"]}"',
                "field": path,
            }
            for path in _conflicting(current, applied, entry["fieldsV1"], "", "", "")
        )
    if causes:
        listed = "\n".join(f"- {cause['field']}" for cause in causes)
        single = len(causes) == 1
        count = "1 conflict" if single else f"{len(causes)} conflicts"
        fields = f" {causes[0]['field']}" if single else f"\n{listed}"
        message = f"Apply failed with {count}: {causes[0]['message']}:{fields}"
        raise StatusError(409, "Conflict", message, details={"causes": causes})


def _conflicting(
    current: Any, applied: Any, owned: FieldSet, parent: str, field: str, path: str
) -> list[str]:
    """Paths owned by another manager that ``applied`` would change."""
    if not owned:
        return [path] if current != applied else []
    here = _children(current, parent, field)
    wanted = _children(applied, parent, field)
    found: list[str] = []
    for key, below in owned.items():
        if key in here and key in wanted:
            name = wanted[key][0]
            step = f".{key[2:]}" if key.startswith("f:") else f"[{key[2:]}]"
            found += _conflicting(here[key][1], wanted[key][1], below, field, name, path + step)
    return found
