"""Failures that the simulated API server answers with, worded as kube-apiserver words them.

Messages follow k8s.io/apimachinery/pkg/api/errors; the recorded exchanges of a 1.36 server are
the reference for each one that they show.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Cause(NamedTuple):
    """One broken field of an object: what ``field.Error`` is to the API server."""

    reason: str
    message: str
    field: str

    def as_object(self) -> dict[str, Any]:
        return {"reason": self.reason, "message": self.message, "field": self.field}


class StatusError(Exception):
    """A request that the API server refuses; carries everything its Status body says."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.metadata = metadata or {}
        self.retry_after_s = retry_after_s

    def status(self) -> dict[str, Any]:
        """The ``Status`` object of meta/v1 that describes this failure."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


def qualified(resource: str, group: str) -> str:
    """``leases.coordination.k8s.io`` for a grouped resource, ``pods`` for a core one."""
    return f"{resource}.{group}" if group else resource


def _details(name: str, group: str, kind: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    return details


def not_found(resource: str, group: str, name: str) -> StatusError:
    message = f'{qualified(resource, group)} "{name}" not found'
    return StatusError(404, "NotFound", message, details=_details(name, group, resource))


def unknown_path() -> StatusError:
    """No such resource in a group version that exists."""
    message = "the server could not find the requested resource"
    return StatusError(404, "NotFound", message, details={})


def already_exists(resource: str, group: str, name: str) -> StatusError:
    message = f'{qualified(resource, group)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, details=_details(name, group, resource))


def conflict(resource: str, group: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {qualified(resource, group)} "{name}": {why}'
    return StatusError(409, "Conflict", message, details=_details(name, group, resource))


MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def forbidden(resource: str, group: str, name: str, why: str) -> StatusError:
    message = f'{qualified(resource, group)} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", message, details=_details(name, group, resource))


def invalid(kind: str, group: str, name: str, causes: list[Cause]) -> StatusError:
    """422 with one cause a field; several are listed in brackets as the server lists them."""
    listed = [f"{cause.field}: {cause.message}" for cause in causes]
    text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    details = _details(name, group, kind)
    details["causes"] = [cause.as_object() for cause in causes]
    message = f'{qualified(kind, group)} "{name}" is invalid: {text}'
    return StatusError(422, "Invalid", message, details=details)


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def internal(message: str) -> StatusError:
    """A failure the real server reports as 500 without a reason."""
    return StatusError(500, "", message)


def method_not_allowed() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, details={})


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def expired(message: str, metadata: dict[str, Any] | None = None) -> StatusError:
    return StatusError(410, "Expired", message, metadata=metadata)


def too_old(requested_rv: int, oldest_rv: int) -> StatusError:
    """A watch from before the history that is kept."""
    return expired(f"too old resource version: {requested_rv} ({oldest_rv})")


def too_large(requested_rv: int, current_rv: int) -> StatusError:
    """A list at a resourceVersion that the server has not reached."""
    details = {
        "causes": [
            {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"},
        ],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {requested_rv}, current: {current_rv}"
    return StatusError(504, "Timeout", message, details=details, retry_after_s=1)


def too_many_requests(retry_after_s: int) -> StatusError:
    return StatusError(
        429,
        "TooManyRequests",
        "Too many requests, please try again later.",
        details={"retryAfterSeconds": retry_after_s},
        retry_after_s=retry_after_s,
    )


def unsupported_route_media_type() -> StatusError:
    """A patch type that the route of a built-in resource does not consume."""
    return StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})


def unsupported_media_type(accepted: list[str]) -> StatusError:
    message = (
        "the body of the request was in an unknown format - "
        f"accepted media types include: {', '.join(accepted)}"
    )
    return StatusError(415, "UnsupportedMediaType", message)
