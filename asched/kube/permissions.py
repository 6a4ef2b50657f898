"""What asched asks of the API server: no more than ``system:kube-scheduler`` allows.

That ClusterRole exists in every cluster, so a binding to it is all that an installation needs;
where pods have volumes, one to ``system:volume-scheduler`` too, which kube-scheduler's user has.
"""

from __future__ import annotations

from typing import NamedTuple

from asched.model.resources import GroupResource, Resource, WatchedResource


class Permission(NamedTuple):
    """A verb on a resource, as RBAC names them; ``resource`` may hold a subresource."""

    group: str
    resource: str
    verb: str


OPTIONAL: frozenset[WatchedResource] = frozenset({Resource.PRIORITY_CLASSES, *GroupResource})
"""Resources that the role does not let us read: where that is forbidden the scheduler goes on as if
there were none. The API server writes a priority class's value into each pod; pod groups and queues
are of use in some configurations only (``docs/batch.md`` says what they take)."""

READ = frozenset(
    Permission(resource.value.group, resource.plural, verb)
    for resource in Resource
    if resource not in OPTIONAL
    for verb in ("list", "watch")
)
WRITE = frozenset(
    {
        Permission("", "pods", "get"),
        Permission("", "pods/binding", "create"),
        Permission("", "pods/status", "patch"),
        Permission("", "pods", "delete"),
        Permission("", "persistentvolumes", "get"),
        Permission("", "persistentvolumes", "patch"),
        Permission("", "persistentvolumeclaims", "get"),
        Permission("", "persistentvolumeclaims", "patch"),
        Permission("events.k8s.io", "events", "create"),
        Permission("events.k8s.io", "events", "patch"),
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
        Permission(resource.value.group, resource.plural, verb)
        for resource in OPTIONAL - {GroupResource.WORKLOADS}
        for verb in ("list", "watch")
    }
    | {Permission(group, "podgroups/status", "patch") for group in _POD_GROUPS}
    | {Permission(group, "podgroups", "patch") for group in _POD_GROUPS - {_OWN}}
)
"""What batch sessions use beside it."""
GANGS = frozenset(
    {Permission(group, "podgroups", verb) for group in _POD_GROUPS for verb in ("list", "watch")}
    | {Permission(_OWN, "podgroups/status", "patch")}
)
"""What profiles with ``GangScheduling`` use beside it: they write the status of Kubernetes' own PodGroups
alone."""
