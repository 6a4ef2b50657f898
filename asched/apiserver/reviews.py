"""TokenReview and SubjectAccessReview: questions about the tokens and rules of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from asched.apiserver.auth import Auth, User, WantedAccess
from asched.apiserver.errors import Object, StatusError, bad_request, details_of, qualified

PATHS: Final[Mapping[str, tuple[str, str, str]]] = {
    "/apis/authentication.k8s.io/v1/tokenreviews": (
        "authentication.k8s.io", "tokenreviews", "TokenReview",
    ),
    "/apis/authorization.k8s.io/v1/subjectaccessreviews": (
        "authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview",
    ),
}  # fmt: skip
"""Group, resource and kind of each."""
AUDIENCE: Final = "https://kubernetes.default.svc"


def review(auth: Auth, user: User, path: str, body: bytes) -> Object:
    """The answered review. Raises StatusError."""
    group, resource, kind = PATHS[path]
    if not user.may(WantedAccess("create", group, resource)):
        message = (
            f'{qualified(resource, group)} is forbidden: User "{user.name}" cannot create resource '
            f'"{resource}" in API group "{group}" at the cluster scope'
        )
        raise StatusError(403, "Forbidden", message, details=details_of("", group, resource))
    try:
        asked = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise bad_request(f"the request body is not a {kind}") from None
    spec = asked.get("spec")
    if asked.get("kind") != kind or not isinstance(spec, dict):
        raise bad_request(f"the request body is not a {kind} with a spec")
    answer = _STATUS[kind](auth, spec)
    return {
        "kind": kind,
        "apiVersion": f"{group}/v1",
        "metadata": {"creationTimestamp": None},
        "spec": spec,
        "status": answer,
    }


def _token_status(auth: Auth, spec: Object) -> Object:
    token, wanted = spec.get("token"), spec.get("audiences") or [AUDIENCE]
    if not token or not isinstance(token, str):
        raise bad_request("spec.token: Required value")
    user = auth.reviewed(token)
    if user is None or AUDIENCE not in wanted:
        return {"user": {}, "error": "[invalid bearer token, unknown token]"}
    groups = [*user.groups, "system:authenticated"]
    info = {"username": user.name, "uid": f"uid-of-{user.name}", "groups": groups}
    return {"authenticated": True, "user": info, "audiences": [AUDIENCE]}


def _access_status(auth: Auth, spec: Object) -> Object:
    attributes = spec.get("resourceAttributes")
    if not isinstance(attributes, dict) or not (spec.get("user") or spec.get("groups")):
        raise bad_request("spec: a user or groups, and resourceAttributes are required")
    user = auth.named(str(spec.get("user")))
    verb, group, resource, name, namespace = (
        str(attributes.get(field, ""))
        for field in ("verb", "group", "resource", "name", "namespace")
    )
    wanted = WantedAccess(verb, group, resource, name, namespace)
    if user is None or not user.may(wanted):
        return {"allowed": False, "reason": ""}
    return {"allowed": True, "reason": "RBAC: allowed by a rule of the server"}


_STATUS: Final[Mapping[str, Callable[[Auth, Object], Object]]] = {
    "TokenReview": _token_status,
    "SubjectAccessReview": _access_status,
}
