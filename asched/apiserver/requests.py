"""What an HTTP request asks of the API: verb, resource, name, query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from asched.apiserver.errors import StatusError, unknown_path
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
_TRUE = frozenset({"1", "true", "True", "t", "T", "TRUE"})


class PathNotServedError(Exception):
    """No group version is served at this path: answered as plain text, not as a Status."""


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A request for resources, taken apart."""

    verb: str
    resource: ServedResource
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def full_resource(self) -> str:
        """``pods`` or ``pods/binding``: the name by which permissions go."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else (
            self.resource.plural
        )  # fmt: skip

    @property
    def selected_name(self) -> str:
        """The one object that a list or watch is of by its field selector: permission for an object
        of that name is enough for it (``RequestInfoFactory.NewRequestInfo``)."""
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
        raise StatusError(405, "MethodNotAllowed", "the server does not allow this method on the "
                       "requested resource", details={})  # fmt: skip
    if verb == "get" and (not name or watching) and not subresource:
        return "watch" if watching else "list"
    if verb == "delete" and not name:
        return "deletecollection"
    return verb


def parse_request(
    registry: ResourceRegistry, method: str, path: str, query: Mapping[str, str]
) -> RequestInfo:
    """Take ``/api/v1/...`` or ``/apis/GROUP/VERSION/...`` apart.

    Raises PathNotServedError for an unknown group version, StatusError 404 for an unknown resource in a
    known one, StatusError 405 for a method that the API does not have.
    """
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        group, version, rest = "", parts[1] if len(parts) > 1 else "", parts[2:]
    else:
        group, version = parts[1] if len(parts) > 1 else "", parts[2] if len(parts) > 2 else ""
        rest = parts[3:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if not rest:
        raise PathNotServedError
    resource = registry.find(group, version, rest[0])
    if rest[0] == "bindings" and not group:
        # A Binding posted to the collection names its pod in its body.
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
    return resource.storage_key == "pods" and subresource in _POD_SUBRESOURCES
