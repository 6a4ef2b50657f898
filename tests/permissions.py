"""The permissions that asched needs, all of them within ``system:kube-scheduler``.

That ClusterRole exists in every cluster, so an installation needs only a binding to it. For pods
with volumes it also needs ``system:volume-scheduler``, as does kube-scheduler's user.
"""

from __future__ import annotations

from typing import NamedTuple

from asched.kube.reflector import OPTIONAL
from asched.model.resources import GroupResource, Resource


class ApiPermission(NamedTuple):
    """A verb on a resource in RBAC's terms; ``resource`` may hold a subresource."""

    group: str
    resource: str
    verb: str


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
        ApiPermission("resource.k8s.io", "resourceclaims", "get"),
        ApiPermission("resource.k8s.io", "resourceclaims", "patch"),
        ApiPermission("resource.k8s.io", "resourceclaims", "update"),
        ApiPermission("resource.k8s.io", "resourceclaims", "create"),
        ApiPermission("resource.k8s.io", "resourceclaims", "delete"),
        ApiPermission("resource.k8s.io", "resourceclaims/status", "update"),
        ApiPermission("resource.k8s.io", "resourceclaims/status", "patch"),
        ApiPermission("resource.k8s.io", "resourceclaims/binding", "update"),
        ApiPermission("resource.k8s.io", "resourceclaims/binding", "patch"),
        ApiPermission("coordination.k8s.io", "leases", "get"),
        ApiPermission("events.k8s.io", "events", "create"),
        ApiPermission("events.k8s.io", "events", "patch"),
    }
)
REQUIRED = READ | WRITE
"""All permissions on resources that every cluster has."""

_POD_GROUPS = frozenset(
    resource.value.group for resource in GroupResource if resource.kind == "PodGroup"
)
_OWN = GroupResource.POD_GROUPS.value.group
_COMPOSITES = GroupResource.COMPOSITE_POD_GROUPS
SESSIONS = frozenset(
    {
        ApiPermission(resource.value.group, resource.plural, verb)
        for resource in OPTIONAL - {GroupResource.WORKLOADS, _COMPOSITES}
        for verb in ("list", "watch")
    }
    | {ApiPermission(group, "podgroups/status", "patch") for group in _POD_GROUPS}
    | {ApiPermission(group, "podgroups", "patch") for group in _POD_GROUPS - {_OWN}}
)
"""Additional permissions for batch sessions."""
GANGS = frozenset(
    {ApiPermission(group, "podgroups", verb) for group in _POD_GROUPS for verb in ("list", "watch")}
    | {ApiPermission(_OWN, _COMPOSITES.plural, verb) for verb in ("list", "watch")}
    | {ApiPermission(_OWN, f"{kind}/status", "patch") for kind in ("podgroups", _COMPOSITES.plural)}
)
"""Additional permissions for profiles with ``GangScheduling``, which write the status of
Kubernetes' own PodGroups only."""
