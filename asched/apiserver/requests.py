"""API requests: verb, resource, namespace, name and query of an HTTP request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from asched.apiserver.errors import method_not_allowed, unknown_path
from asched.apiserver.resources import ResourceRegistry, ServedResource

_VERBS = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_POD_SUBRESOURCES = frozenset({"binding", "eviction", "resize"})
CONTAINER_SUBRESOURCES = frozenset({"log", "exec", "attach", "portforward", "proxy"})
"""Subresources of pods that need containers, which this server does not have."""
SCALED = frozenset({"deployments.apps", "replicasets.apps", "statefulsets.apps"})
"""Storage keys of the resources with a ``scale`` subresource."""
_TRUE = frozenset({"1", "true", "True", "t", "T", "TRUE"})


class PathNotServedError(Exception):
    """The path has no group version; the response is plain text instead of a Status."""


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A parsed request for resources."""

    verb: str
    resource: ServedResource
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def full_resource(self) -> str:
        """``pods`` or ``pods/binding``, as RBAC rules name it."""
        plural = self.resource.plural
        return f"{plural}/{self.subresource}" if self.subresource else plural

    @property
    def selected_name(self) -> str:
        """The name in the field selector; permission for that object suffices for a list."""
        for term in self.query.get("fieldSelector", "").split(","):
            field_name, _, value = term.partition("=")
            if field_name == "metadata.name":
                return value.removeprefix("=")
        return ""

    def flag(self, name: str) -> bool:
        return self.query.get(name, "") in _TRUE

    @property
    def dry_run(self) -> bool:
        return self.query.get("dryRun") == "All"


def _verb(method: str, name: str, subresource: str, watching: bool) -> str:
    verb = _VERBS.get(method)
    if verb is None:
        raise method_not_allowed()
    if verb == "get" and (not name or watching) and not subresource:
        return "watch" if watching else "list"
    if verb == "delete" and not name:
        return "deletecollection"
    return verb


def parse_request(
    registry: ResourceRegistry, method: str, path: str, query: Mapping[str, str]
) -> RequestInfo:
    """Parse ``/api/v1/...`` or ``/apis/GROUP/VERSION/...``. Raises StatusError 404 or 405,
    PathNotServedError for an unknown group version."""
    first, *parts = path.strip("/").split("/")
    group = "" if first == "api" else next(iter(parts), "")
    version, *rest = parts[0 if first == "api" else 1 :] or [""]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if not rest:
        raise PathNotServedError
    resource = registry.find(group, version, rest[0])
    if rest[0] == "bindings" and not group:
        # The body of a Binding posted to the collection names its pod.
        resource = registry.find("", "v1", "pods")
        rest = ["pods", "", "binding"]
    if resource is None:
        if not registry.has_group_version(group, version):
            raise PathNotServedError
        raise unknown_path()
    if len(rest) > 3 or (namespace and not resource.namespaced):
        raise unknown_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and not _has_subresource(resource, subresource):
        raise unknown_path()
    watching = query.get("watch", "") in _TRUE
    verb = _verb(method, name, subresource, watching)
    return RequestInfo(verb, resource, namespace, name, subresource, query)


def _has_subresource(resource: ServedResource, subresource: str) -> bool:
    if subresource == "status":
        return resource.status
    if resource.plural == "namespaces":
        return subresource == "finalize"
    if subresource == "scale":
        return resource.storage_key in SCALED
    served = _POD_SUBRESOURCES | CONTAINER_SUBRESOURCES
    return resource.storage_key == "pods" and subresource in served
