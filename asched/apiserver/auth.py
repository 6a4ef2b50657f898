"""Authentication by bearer token and authorization of an administrator and a scheduler."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import NamedTuple

from asched.apiserver.errors import StatusError, details_of, qualified
from asched.apiserver.requests import RequestInfo

_READ = frozenset({"get", "list", "watch"})
_PUBLIC_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/version"})


@dataclass(frozen=True, slots=True)
class AuthRule:
    """A PolicyRule of RBAC; empty ``names`` match every name."""

    verbs: frozenset[str]
    group: str
    resources: frozenset[str]
    names: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()
    """Where it holds, as a RoleBinding in each; empty for a ClusterRoleBinding."""

    def allows(self, wanted: WantedAccess) -> bool:
        return (
            wanted.verb in self.verbs
            and wanted.group == self.group
            and wanted.resource in self.resources
            and (not self.names or wanted.name in self.names)
            and (not self.namespaces or wanted.namespace in self.namespaces)
        )


class WantedAccess(NamedTuple):
    """A verb on a resource; an empty name or namespace means all."""

    verb: str
    group: str
    resource: str
    name: str = ""
    namespace: str = ""


def _rule(verbs: str, group: str, resources: str, names: str = "") -> AuthRule:
    wanted = _READ if verbs == "read" else frozenset(verbs.split())
    return AuthRule(wanted, group, frozenset(resources.split()), frozenset(names.split()))


KUBE_SCHEDULER_RULES: tuple[AuthRule, ...] = (
    # ClusterRole system:kube-scheduler (plugin/pkg/auth/authorizer/rbac/bootstrappolicy).
    _rule("create patch update", "", "events"),
    _rule("create patch update", "events.k8s.io", "events"),
    _rule("create", "coordination.k8s.io", "leases"),
    # A 1.36 server responds "not found" instead of "forbidden" for other leases.
    _rule("read", "coordination.k8s.io", "leases"),
    _rule("update", "coordination.k8s.io", "leases", "kube-scheduler"),
    _rule("create", "", "endpoints"),
    _rule("get update", "", "endpoints", "kube-scheduler"),
    _rule("read", "", "nodes"),
    _rule("get list watch delete", "", "pods"),
    _rule("create", "", "pods/binding bindings"),
    _rule("patch update", "", "pods/status"),
    _rule("read", "", "services replicationcontrollers"),
    _rule("read", "apps", "replicasets statefulsets"),
    _rule("read", "policy", "poddisruptionbudgets"),
    _rule("read", "", "persistentvolumeclaims persistentvolumes"),
    _rule("create", "authentication.k8s.io", "tokenreviews"),
    _rule("create", "authorization.k8s.io", "subjectaccessreviews"),
    _rule("read", "storage.k8s.io", "csinodes csidrivers csistoragecapacities"),
    _rule("read", "", "namespaces"),
    _rule("read", "storage.k8s.io", "volumeattachments"),
    _rule("read", "resource.k8s.io", "deviceclasses resourceslices"),
    _rule("get list watch patch update", "resource.k8s.io", "resourceclaims resourceclaims/status"),
    _rule("update", "", "pods/finalizers"),
    _rule("create delete", "resource.k8s.io", "resourceclaims"),
    # To change allocation and reservations: gate DRAResourceClaimGranularStatusAuthorization.
    _rule("patch update", "resource.k8s.io", "resourceclaims/binding"),
    # ClusterRole system:volume-scheduler, bound to the same user by default.
    _rule("get list patch update watch", "", "persistentvolumes persistentvolumeclaims"),
    _rule("read", "storage.k8s.io", "storageclasses"),
)


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user; None for ``rules`` allows everything."""

    name: str
    rules: tuple[AuthRule, ...] | None
    groups: tuple[str, ...] = ()

    def may(self, wanted: WantedAccess) -> bool:
        return self.rules is None or any(rule.allows(wanted) for rule in self.rules)


ADMIN = User("kubernetes-admin", None)
SCHEDULER = User("system:kube-scheduler", KUBE_SCHEDULER_RULES)
ANONYMOUS = User("system:anonymous", ())


class Auth:
    """Authenticates and authorizes requests; without tokens every client is administrator."""

    def __init__(self, tokens: dict[str, User] | None = None) -> None:
        self.tokens = tokens or {}

    def authenticate(self, authorization: str) -> User:
        """The user of an Authorization header. Raises StatusError 401 for an unknown token."""
        if not self.tokens:
            return ADMIN
        if not authorization:
            return ANONYMOUS
        user = self.tokens.get(_token_in(authorization))
        if user is None:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        return user

    @staticmethod
    def authorize(user: User, request: RequestInfo) -> None:
        """Raises StatusError 403 with the message of kube-apiserver."""
        resource, group = request.resource, request.resource.group
        full = request.full_resource
        name = "" if request.verb == "create" else request.name or request.selected_name
        if user.may(WantedAccess(request.verb, group, full, name, request.namespace)):
            return
        where = "at the cluster scope"
        if request.namespace:
            where = f'in the namespace "{request.namespace}"'
        shown_name = f' "{request.name}"' if request.name else ""
        message = (
            f'{qualified(resource.plural, group)}{shown_name} is forbidden: User "{user.name}" '
            f'cannot {request.verb} resource "{full}" in API group "{group}" {where}'
        )
        details = details_of(request.name, group, resource.plural)
        raise StatusError(403, "Forbidden", message, details=details)

    @staticmethod
    def permits(user: User, verb: str, group: str, resource: str) -> bool:
        """Whether the user may do this with all objects of the resource."""
        return user.may(WantedAccess(verb, group, resource))

    def reviewed(self, token: str) -> User | None:
        """The user of a token of a TokenReview; None if it is unknown."""
        return self.tokens.get(token)

    def named(self, name: str) -> User | None:
        """The user of a SubjectAccessReview; None if no token is theirs."""
        return next((user for user in self.tokens.values() if user.name == name), None)

    @staticmethod
    def authorize_path(user: User, verb: str, path: str) -> None:
        """Health and version are public; discovery requires authentication."""
        if user is not ANONYMOUS or path in _PUBLIC_PATHS:
            return
        message = f'forbidden: User "{user.name}" cannot {verb} path "{path}"'
        raise StatusError(403, "Forbidden", message, details={})


def _token_in(authorization: str) -> str:
    """The token of a bearer header, or a basic one's password: client-go over plain HTTP."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value).decode().rpartition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""
