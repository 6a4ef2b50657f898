"""Discovery documents: which groups, versions and resources are served.

Both forms: one document a group version, and the aggregated one (apidiscovery.k8s.io) that newer
clients ask for.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from asched.sim.requests import PathNotServedError
from asched.sim.resources import Registry, ResourceType
from asched.sim.store import encode

Object = dict[str, Any]

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_STATUS_VERBS = ["get", "patch", "update"]


def wants_aggregated(accept: str) -> str:
    """The aggregated discovery media type that the client takes first, or nothing."""
    for choice in accept.split(","):
        if "g=apidiscovery.k8s.io" in choice and "as=APIGroupDiscoveryList" in choice:
            for version in ("v2", "v2beta1"):
                if f"v={version};" in f"{choice};":
                    return (
                        f"application/json;g=apidiscovery.k8s.io;v={version};"
                        "as=APIGroupDiscoveryList"
                    )
    return ""


def storage_version_hash(resource: ResourceType) -> str:
    """``discovery.StorageVersionHash``: clients compare it to learn of storage migrations."""
    group, version = resource.group, resource.version
    if resource.storage_key == "events":
        group, version = "", "v1"
    digest = hashlib.sha256(f"{group}/{version}/{resource.kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def _verbs(resource: ResourceType) -> list[str]:
    if resource.plural == "namespaces":
        return [verb for verb in _VERBS if verb != "deletecollection"]
    return list(_VERBS)


def _subresources(resource: ResourceType) -> list[tuple[str, Object]]:
    """(name, what it takes) of each subresource."""
    found: list[tuple[str, Object]] = []
    if resource.storage_key == "pods":
        found.append(("binding", {"kind": "Binding", "verbs": ["create"]}))
        found.append(
            ("eviction", {"group": "policy", "version": "v1", "kind": "Eviction",
                          "verbs": ["create"]})
        )  # fmt: skip
        found.append(("resize", {"kind": resource.kind, "verbs": _STATUS_VERBS}))
    if resource.plural == "namespaces":
        found.append(("finalize", {"kind": resource.kind, "verbs": ["update"]}))
    if resource.status:
        found.append(("status", {"kind": resource.kind, "verbs": _STATUS_VERBS}))
    return found


def _entries(resource: ResourceType) -> list[Object]:
    main: Object = {
        "name": resource.plural,
        "singularName": resource.singular_name,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _verbs(resource),
    }
    if resource.short_names:
        main["shortNames"] = list(resource.short_names)
    if resource.categories:
        main["categories"] = list(resource.categories)
    main["storageVersionHash"] = storage_version_hash(resource)
    entries = [main]
    for name, takes in _subresources(resource):
        entries.append(
            {
                "name": f"{resource.plural}/{name}",
                "singularName": "",
                "namespaced": resource.namespaced,
                **takes,
            }
        )
    return entries


_BINDINGS: Object = {
    "name": "bindings",
    "singularName": "binding",
    "namespaced": True,
    "kind": "Binding",
    "verbs": ["create"],
}


def _aggregated_resource(resource: ResourceType) -> Object:
    def kind(group: str, version: str, name: str) -> Object:
        return {"group": group, "version": version, "kind": name}

    entry: Object = {
        "resource": resource.plural,
        "responseKind": kind(resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular_name,
        "verbs": _verbs(resource),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    subresources = [
        {
            "subresource": name,
            "responseKind": kind(
                takes.get("group", resource.group),
                takes.get("version", resource.version),
                takes["kind"],
            ),
            "verbs": takes["verbs"],
        }
        for name, takes in _subresources(resource)
    ]
    if subresources:
        entry["subresources"] = subresources
    return entry


class Discovery:
    """Writes the discovery documents of a registry as it is now."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def _groups(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for group, version in self._registry.group_versions():
            groups.setdefault(group, []).append(version)
        return groups

    def root(self, path: str, media_type: str) -> bytes:
        """``/api`` or ``/apis``; aggregated when ``media_type`` says so."""
        if media_type:
            return self._aggregated(path, "v2" if "v=v2;" in media_type else "v2beta1")
        if path == "/api":
            addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}]
            return encode(
                {
                    "kind": "APIVersions",
                    "versions": ["v1"],
                    "serverAddressByClientCIDRs": addresses,
                }
            )
        groups = [
            _api_group(group, versions) for group, versions in self._groups().items() if group
        ]
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
                            "resources": self._aggregated_resources(group, found),
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

    def _aggregated_resources(self, group: str, version: str) -> list[Object]:
        return [
            _aggregated_resource(resource)
            for resource in self._registry.in_group_version(group, version)
        ]

    def group(self, path: str) -> bytes:
        """``/api/v1``, ``/apis/GROUP`` or ``/apis/GROUP/VERSION``. Raises PathNotServedError."""
        parts = path.strip("/").split("/")
        if parts[0] == "apis" and len(parts) == 2:
            versions = self._groups().get(parts[1])
            if versions is None:
                raise PathNotServedError
            return encode(
                {"kind": "APIGroup", "apiVersion": "v1", **_api_group(parts[1], versions)}
            )
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        resources = self._registry.in_group_version(group, version)
        if not resources:
            raise PathNotServedError
        entries = [entry for resource in resources for entry in _entries(resource)]
        if not group:
            entries.append(_BINDINGS)
        entries.sort(key=lambda entry: str(entry["name"]))
        document: Object = {"kind": "APIResourceList"}
        if group:
            document["apiVersion"] = "v1"
        document["groupVersion"] = f"{group}/{version}" if group else version
        document["resources"] = entries
        return encode(document)

    def paths(self) -> bytes:
        """``/``: every path that answers."""
        found = ["/api", "/api/v1", "/apis"]
        for group, version in self._registry.group_versions():
            if group:
                found += [f"/apis/{group}", f"/apis/{group}/{version}"]
        found += ["/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
        return encode({"paths": list(dict.fromkeys(found))})


def _api_group(group: str, versions: list[str]) -> Object:
    entries = [{"groupVersion": f"{group}/{found}", "version": found} for found in versions]
    return {"name": group, "versions": entries, "preferredVersion": entries[0]}
