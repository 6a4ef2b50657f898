"""OpenAPI schemas of the kinds, which ``kubectl explain`` prints.

They have names and types of the fields that the embedded server knows, without descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asched.apiserver.errors import Object
from asched.apiserver.resources import ServedResource
from asched.apiserver.schemas import METADATA, field_names, schema_of

_DESCRIPTION = (
    "The embedded API server of asched publishes the fields that it knows, without descriptions."
    " A field that it does not read is shown as Object. All fields of Kubernetes are described at"
    " https://kubernetes.io/docs/reference/kubernetes-api/."
)
_TYPES: Mapping[Any, str] = {str: "string", int: "integer", bool: "boolean"}
_ANY: Object = {"type": "object"}
_SAME_FIELDS = {"initContainers": "containers"}


def kind_schema(resource: ServedResource) -> Object:
    """The schema of a kind, as a document below ``/openapi/v3`` has it."""
    kind = {"group": resource.group, "kind": resource.kind, "version": resource.version}
    fields = {"apiVersion": str, "kind": str, "metadata": METADATA, **schema_of(resource)}
    named = None if resource.custom else resource.kind
    found = _object(fields, named)
    found["properties"]["metadata"] = _object(METADATA, "metadata")
    return {**found, "description": _DESCRIPTION, "x-kubernetes-group-version-kind": [kind]}


def _schema(schema: Any, place: str | None) -> Object:
    """``place``: under which name more fields are known."""
    if isinstance(schema, list):
        return {"type": "array", "items": _schema(schema[0], place)}
    if isinstance(schema, dict):
        if str in schema:
            return {"type": "object", "additionalProperties": _schema(schema[str], None)}
        return _object(schema, place)
    return {"type": _TYPES.get(schema, "string")}


def _object(fields: Object, place: str | None) -> Object:
    properties = {
        name: _schema(value, f"{place}.{_SAME_FIELDS.get(name, name)}")
        for name, value in fields.items()
    }
    for name in field_names(place):
        properties.setdefault(name, _ANY)
    return {**_ANY, "properties": properties} if properties else _ANY
