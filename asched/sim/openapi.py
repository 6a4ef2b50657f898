"""OpenAPI documents, as little as kubectl needs to trust the server's own validation.

kubectl looks in ``/openapi/v3`` whether PATCH of a kind takes ``fieldValidation``; if so it leaves
validation to the server. Schemas are not published: kubectl then computes patches from its own
types, and ``kubectl explain`` has nothing to show.
"""

from __future__ import annotations

import hashlib
from typing import Any

from aiohttp import web

from asched.sim.errors import unknown_path
from asched.sim.resources import Registry, ResourceType
from asched.sim.store import encode

Object = dict[str, Any]

_INFO = {"title": "Kubernetes", "version": "v1.36.2+asched"}
_QUERY_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]
_PROTOBUF_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def _length_delimited(field: int, payload: bytes) -> bytes:
    """One field of a protobuf message (payloads here are shorter than 128 bytes)."""
    return bytes([field << 3 | 2, len(payload)]) + payload


def _v2_document() -> bytes:
    """An openapi.v2.Document with nothing but its mandatory fields: swagger=1, info=2."""
    info = _length_delimited(1, b"Kubernetes") + _length_delimited(2, _INFO["version"].encode())
    return _length_delimited(1, b"2.0") + _length_delimited(2, info)


class OpenApi:
    """Writes the OpenAPI documents of a registry as it is now."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @staticmethod
    def v2_response() -> web.Response:
        """The v2 document, in protobuf: the one form in which kubectl reads it."""
        return web.Response(body=_v2_document(), headers={"Content-Type": _PROTOBUF_V2})

    def v3(self, path: str) -> bytes:
        """The index at ``/openapi/v3`` or the document of one group version below it.

        Raises ApiError 404 for a group version that is not served.
        """
        wanted = path.removeprefix("/openapi/v3").strip("/")
        if not wanted:
            return encode({"paths": self._index()})
        for group, version in self._registry.group_versions():
            if _location(group, version) == wanted:
                return encode(self._document(group, version))
        raise unknown_path()

    def _index(self) -> Object:
        index = {}
        for group, version in self._registry.group_versions():
            location = _location(group, version)
            document = encode(self._document(group, version))
            digest = hashlib.sha256(document).hexdigest().upper()
            index[location] = {"serverRelativeURL": f"/openapi/v3/{location}?hash={digest}"}
        return index

    def _document(self, group: str, version: str) -> Object:
        resources = self._registry.in_group_version(group, version)
        return {
            "openapi": "3.0.0",
            "info": _INFO,
            "paths": {
                f"/{_location(group, version)}{_object_path(resource)}": _operations(resource)
                for resource in resources
            },
            "components": {"schemas": {}},
        }


def _location(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _object_path(resource: ResourceType) -> str:
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    return f"{scope}/{resource.plural}/{{name}}"


def _operations(resource: ResourceType) -> Object:
    kind = {"group": resource.group, "kind": resource.kind, "version": resource.version}
    name = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    if resource.namespaced:
        name.append(
            {"name": "namespace", "in": "path", "required": True, "schema": {"type": "string"}}
        )

    def operation(action: str, operation_id: str, parameters: list[Any]) -> Object:
        return {
            "operationId": f"{operation_id}{resource.kind}",
            "parameters": parameters,
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind,
        }

    return {
        "parameters": name,
        "get": operation("get", "read", []),
        "put": operation("put", "replace", _QUERY_PARAMETERS),
        "patch": operation("patch", "patch", _QUERY_PARAMETERS),
        "delete": operation("delete", "delete", _QUERY_PARAMETERS[:1]),
    }
