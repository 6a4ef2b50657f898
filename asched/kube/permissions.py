"""What asched asks of the API server: no more than ``system:kube-scheduler`` allows.

That ClusterRole exists in every cluster, so a binding to it is all that an installation needs;
where pods have volumes, one to ``system:volume-scheduler`` too, which kube-scheduler's user has.
"""

from __future__ import annotations

from typing import NamedTuple

from asched.model.resources import GroupResource, Resource, WatchedResource


class ApiPermission(NamedTuple):
    """A verb on a resource, as RBAC names them; ``resource`` may hold a subresource."""

    group: str
    resource: str
    verb: str


OPTIONAL: frozenset[WatchedResource] = frozenset({Resource.PRIORITY_CLASSES, *GroupResource})
"""Resources that the role does not let us read: where that is forbidden the scheduler goes on as if
there were none. The API server writes a priority class's value into each pod; pod groups and queues
are of use in some configurations only (``docs/batch.md`` says what they take)."""

READ = frozenset(
    ApiPermission(resource.value.group, resource.plural, verb)
    for resource in Resource
    if resource not in OPTIONAL
    for verb in ("list", "watch")
)
WRITE = frozenset(
    {
        ApiPermission("", "pods", "get"),
        ApiPermission("", "pods/binding", "create"),
        ApiPermission("", "pods/status", "patch"),
        ApiPermission("", "pods", "delete"),
        ApiPermission("", "persistentvolumes", "get"),
        ApiPermission("", "persistentvolumes", "patch"),
        ApiPermission("", "persistentvolumeclaims", "get"),
        ApiPermission("", "persistentvolumeclaims", "patch"),
        ApiPermission("events.k8s.io", "events", "create"),
        ApiPermission("events.k8s.io", "events", "patch"),
    }
)
REQUIRED = READ | WRITE
"""Everything that this package uses of what every cluster has."""

_POD_GROUPS = frozenset(
    resource.value.group for resource in GroupResource if resource.kind == "PodGroup"
)
_OWN = GroupResource.POD_GROUPS.value.group
SESSIONS = frozenset(
    {
        ApiPermission(resource.value.group, resource.plural, verb)
        for resource in OPTIONAL - {GroupResource.WORKLOADS}
        for verb in ("list", "watch")
    }
    | {ApiPermission(group, "podgroups/status", "patch") for group in _POD_GROUPS}
    | {ApiPermission(group, "podgroups", "patch") for group in _POD_GROUPS - {_OWN}}
)
"""What batch sessions use beside it."""
GANGS = frozenset(
    {ApiPermission(group, "podgroups", verb) for group in _POD_GROUPS for verb in ("list", "watch")}
    | {ApiPermission(_OWN, "podgroups/status", "patch")}
)
"""What profiles with ``GangScheduling`` use beside it: they write the status of Kubernetes' own PodGroups
alone."""
