"""Discovery and OpenAPI documents of the served groups, versions and resources.

Discovery has two forms: one document per group version, and the aggregated document
(apidiscovery.k8s.io) that newer clients request.

The OpenAPI documents contain what kubectl needs to leave validation to the server: it checks in
``/openapi/v3`` whether PATCH of a kind accepts ``fieldValidation``. ``kubectl explain`` prints the
schemas; kubectl computes patches from its own types.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from asched.apiserver.errors import Object, unknown_path
from asched.apiserver.openapi import kind_schema
from asched.apiserver.requests import SCALED, PathNotServedError
from asched.apiserver.resources import ResourceRegistry, ServedResource
from asched.apiserver.storage import encode

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_STATUS_VERBS = ["get", "patch", "update"]


def wants_aggregated(accept: str) -> str:
    """The first aggregated discovery media type of the Accept header; may be empty."""
    for choice in accept.split(","):
        if "g=apidiscovery.k8s.io" in choice and "as=APIGroupDiscoveryList" in choice:
            for version in ("v2", "v2beta1"):
                if f"v={version};" in f"{choice};":
                    group = f"g=apidiscovery.k8s.io;v={version}"
                    return f"application/json;{group};as=APIGroupDiscoveryList"
    return ""


def storage_version_hash(resource: ServedResource) -> str:
    """``discovery.StorageVersionHash``, which shows storage migrations to clients."""
    group, version = resource.group, resource.version
    if resource.storage_key == "events":
        group, version = "", "v1"
    digest = hashlib.sha256(f"{group}/{version}/{resource.kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def _verbs(resource: ServedResource) -> list[str]:
    if resource.plural == "namespaces":
        return [verb for verb in _VERBS if verb != "deletecollection"]
    return list(_VERBS)


def _subresources(resource: ServedResource) -> list[tuple[str, Object]]:
    """(name, kind and verbs) of each subresource."""
    found: list[tuple[str, Object]] = []
    if resource.storage_key == "pods":
        found.append(("binding", {"kind": "Binding", "verbs": ["create"]}))
        found.append(
            ("eviction", {"group": "policy", "version": "v1", "kind": "Eviction",
                          "verbs": ["create"]})
        )  # fmt: skip
        found.append(("resize", {"kind": resource.kind, "verbs": _STATUS_VERBS}))
    if resource.storage_key in SCALED:
        scale = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
        found.append(("scale", {**scale, "verbs": _STATUS_VERBS}))
    if resource.plural == "namespaces":
        found.append(("finalize", {"kind": resource.kind, "verbs": ["update"]}))
    if resource.status:
        found.append(("status", {"kind": resource.kind, "verbs": _STATUS_VERBS}))
    return found


def _entries(resource: ServedResource) -> list[Object]:
    main: Object = {
        "name": resource.plural,
        "singularName": resource.singular_name,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _verbs(resource),
        **_aliases(resource),
        "storageVersionHash": storage_version_hash(resource),
    }
    of_main = {"singularName": "", "namespaced": resource.namespaced}
    return [
        main,
        *(
            {"name": f"{resource.plural}/{name}", **of_main, **takes}
            for name, takes in _subresources(resource)
        ),
    ]


def _aliases(resource: ServedResource) -> Object:
    found = {"shortNames": resource.short_names, "categories": resource.categories}
    return {field: names for field, names in found.items() if names}


_BINDINGS: Object = {
    "name": "bindings",
    "singularName": "binding",
    "namespaced": True,
    "kind": "Binding",
    "verbs": ["create"],
}


def _aggregated_resource(resource: ServedResource) -> Object:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    entry: Object = {
        "resource": resource.plural,
        "responseKind": kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular_name,
        "verbs": _verbs(resource),
        **_aliases(resource),
    }
    subresources = [
        {
            "subresource": name,
            "responseKind": {field: takes.get(field, kind[field]) for field in kind},
            "verbs": takes["verbs"],
        }
        for name, takes in _subresources(resource)
    ]
    if subresources:
        entry["subresources"] = subresources
    return entry


class Discovery:
    """Generates the discovery and OpenAPI documents of a registry."""

    def __init__(self, registry: ResourceRegistry) -> None:
        self._registry = registry

    def _groups(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for group, version in self._registry.group_versions():
            groups.setdefault(group, []).append(version)
        return groups

    def root(self, path: str, media_type: str) -> bytes:
        """``/api`` or ``/apis``; aggregated if ``media_type`` is given."""
        if media_type:
            return self._aggregated(path, "v2" if "v=v2;" in media_type else "v2beta1")
        if path == "/api":
            addresses = {
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}]
            }
            return encode({"kind": "APIVersions", "versions": ["v1"], **addresses})
        groups = [_api_group(group, found) for group, found in self._groups().items() if group]
        return encode({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})

    def _aggregated(self, path: str, version: str) -> bytes:
        items = []
        for group, versions in self._groups().items():
            if bool(group) is (path == "/api"):
                continue
            items.append(
                {
                    "metadata": {"name": group} if group else {},
                    "versions": [
                        {
                            "version": found,
                            "resources": [
                                _aggregated_resource(resource)
                                for resource in self._registry.in_group_version(group, found)
                            ],
                            "freshness": "Current",
                        }
                        for found in versions
                    ],
                }
            )
        return encode(
            {
                "kind": "APIGroupDiscoveryList",
                "apiVersion": f"apidiscovery.k8s.io/{version}",
                "metadata": {},
                "items": items,
            }
        )

    def group(self, path: str) -> bytes:
        """``/api/v1``, ``/apis/GROUP`` or ``/apis/GROUP/VERSION``. Raises PathNotServedError."""
        parts = path.strip("/").split("/")
        if parts[0] == "apis" and len(parts) == 2:
            versions = self._groups().get(parts[1])
            if versions is None:
                raise PathNotServedError
            document = _api_group(parts[1], versions)
            return encode({"kind": "APIGroup", "apiVersion": "v1", **document})
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        resources = self._registry.in_group_version(group, version)
        if not resources:
            raise PathNotServedError
        entries = [entry for resource in resources for entry in _entries(resource)]
        if not group:
            entries.append(_BINDINGS)
        entries.sort(key=lambda entry: str(entry["name"]))
        document = {"groupVersion": resources[0].group_version, "resources": entries}
        api_version = {"apiVersion": "v1"} if group else {}
        return encode({"kind": "APIResourceList", **api_version, **document})

    def paths(self) -> bytes:
        """``/``: every served path."""
        found = ["/api", "/api/v1", "/apis"]
        for group, version in self._registry.group_versions():
            if group:
                found += [f"/apis/{group}", f"/apis/{group}/{version}"]
        found += ["/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
        return encode({"paths": list(dict.fromkeys(found))})

    def openapi_v3(self, path: str) -> bytes:
        """The index at ``/openapi/v3`` or a document below it. Raises StatusError 404."""
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
        location = _location(group, version)
        return {
            "openapi": "3.0.0",
            "info": _INFO,
            "paths": {
                f"/{location}{_object_path(resource)}": _operations(resource)
                for resource in self._registry.in_group_version(group, version)
            },
            "components": {
                "schemas": {
                    resource.kind: kind_schema(resource)
                    for resource in self._registry.in_group_version(group, version)
                }
            },
        }


def _api_group(group: str, versions: list[str]) -> Object:
    entries = [{"groupVersion": f"{group}/{found}", "version": found} for found in versions]
    return {"name": group, "versions": entries, "preferredVersion": entries[0]}


_INFO = {"title": "Kubernetes", "version": "v1.36.2+asched"}
_QUERY_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]

# kubectl reads the v2 document in protobuf only. This is an openapi.v2.Document with its mandatory
# fields: swagger "2.0", info (title, version).
OPENAPI_V2_HEADERS = {"Content-Type": "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"}
OPENAPI_V2_DOCUMENT = b"\n\x032.0\x12\x1c\n\nKubernetes\x12\x0ev1.36.2+asched"


def _location(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _object_path(resource: ServedResource) -> str:
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    return f"{scope}/{resource.plural}/{{name}}"


def _operations(resource: ServedResource) -> Object:
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
