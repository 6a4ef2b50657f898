"""Errors of the embedded API server, with the messages of kube-apiserver.

Messages follow k8s.io/apimachinery/pkg/api/errors and Go's encoding/json. The recorded exchanges
of a 1.36 server are the reference where they show one.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

Object = dict[str, Any]
"""A JSON object."""
MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)
_SHOWN_BODY_BYTES = 30


class Cause(NamedTuple):
    """One invalid field of an object (``field.Error``)."""

    reason: str
    message: str
    field: str

    def as_object(self) -> Object:
        return {"reason": self.reason, "message": self.message, "field": self.field}


def required(field: str, detail: str = "") -> Cause:
    message = f"Required value: {detail}" if detail else "Required value"
    return Cause("FieldValueRequired", message, field)


def invalid_value(field: str, value: Any, detail: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {detail}", field)


def forbidden_value(field: str, detail: str) -> Cause:
    return Cause("FieldValueForbidden", f"Forbidden: {detail}", field)


def not_supported(field: str, value: str, supported: tuple[str, ...]) -> Cause:
    listed = ", ".join(f'"{choice}"' for choice in supported)
    message = f'Unsupported value: "{value}": supported values: {listed}'
    return Cause("FieldValueNotSupported", message, field)


def too_long(field: str, most_bytes: int) -> Cause:
    return Cause("FieldValueTooLong", f"Too long: may not be more than {most_bytes} bytes", field)


def too_many(field: str, count: int, most: int) -> Cause:
    message = f"Too many: {count}: must have at most {most} items"
    return Cause("FieldValueTooMany", message, field)


def duplicate(field: str, value: Any) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return Cause("FieldValueDuplicate", f"Duplicate value: {shown}", field)


def immutable(field: str, value: Any) -> Cause:
    """A field that an update changes."""
    shown = f'"{value}"' if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: field is immutable", field)


class StatusError(Exception):
    """A rejected request, with the fields of its Status response."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Object | None = None,
        metadata: Object | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.metadata = metadata or {}
        self.retry_after_s = retry_after_s

    def status(self) -> Object:
        """The meta/v1 ``Status`` object."""
        status: Object = {
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


def details_of(name: str, group: str, kind: str) -> Object:
    details = {"name": name, "group": group, "kind": kind}
    return {key: value for key, value in details.items() if value}


def not_found(resource: str, group: str, name: str) -> StatusError:
    message = f'{qualified(resource, group)} "{name}" not found'
    return StatusError(404, "NotFound", message, details=details_of(name, group, resource))


def unknown_path() -> StatusError:
    """An unknown resource in a known group version."""
    message = "the server could not find the requested resource"
    return StatusError(404, "NotFound", message, details={})


def without_containers() -> StatusError:
    message = (
        "pods of this cluster are simulated and run no containers: logs, exec, attach, port-forward"
        " and proxy are not available"
    )
    return StatusError(501, "NotImplemented", message)


def already_exists(resource: str, group: str, name: str) -> StatusError:
    message = f'{qualified(resource, group)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, details=details_of(name, group, resource))


def conflict(resource: str, group: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {qualified(resource, group)} "{name}": {why}'
    return StatusError(409, "Conflict", message, details=details_of(name, group, resource))


def uid_conflict(
    resource: str, key: str, metadata: Object, uid: str, group: str = ""
) -> StatusError:
    """The storage error for a uid other than that of the object."""
    return conflict(
        resource,
        group,
        metadata["name"],
        f"StorageError: invalid object, Code: 4, Key: /registry/{resource}/{key}, "
        "ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: "
        f"UID in precondition: {uid}, UID in object meta: {metadata['uid']}",
    )


def forbidden(resource: str, group: str, name: str, why: str) -> StatusError:
    message = f'{qualified(resource, group)} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", message, details=details_of(name, group, resource))


def invalid(kind: str, group: str, name: str, causes: list[Cause]) -> StatusError:
    """422 with one cause per field."""
    listed = [f"{cause.field}: {cause.message}" for cause in causes]
    text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    details = details_of(name, group, kind)
    details["causes"] = [cause.as_object() for cause in causes]
    message = f'{qualified(kind, group)} "{name}" is invalid: {text}'
    return StatusError(422, "Invalid", message, details=details)


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def undecodable(kind: str, version: str, problem: str) -> StatusError:
    """400 for a body that does not decode into the type of ``kind``."""
    return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {problem}')


def method_not_allowed() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, details={})


def expired(message: str, metadata: Object | None = None) -> StatusError:
    return StatusError(410, "Expired", message, metadata=metadata)


def too_old(requested_rv: int, oldest_rv: int) -> StatusError:
    """A watch from before the watch history."""
    return expired(f"too old resource version: {requested_rv} ({oldest_rv})")


def too_large(requested_rv: int, current_rv: int) -> StatusError:
    """A list at a future resourceVersion."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    details = {"causes": [cause], "retryAfterSeconds": 1}
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


def unsupported_media_type(accepted: tuple[str, ...]) -> StatusError:
    message = (
        "the body of the request was in an unknown format - "
        f"accepted media types include: {', '.join(accepted)}"
    )
    return StatusError(415, "UnsupportedMediaType", message)


def json_error(raw: bytes) -> str:
    """The message of Go's JSON scanner at the byte where Python's parser stops."""
    text = raw.decode("latin-1")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()):
            return "unexpected end of JSON input"
        return f"invalid character {_quoted(text[error.pos])} {_context(error)}"
    return "invalid character in string literal"


def _context(error: json.JSONDecodeError) -> str:
    if "property name" in error.msg:
        return "looking for beginning of object key string"
    if "':' delimiter" in error.msg:
        return "after object key"
    if "',' delimiter" in error.msg:
        before = error.doc[: error.pos]
        inside_object = before.rfind("{") > before.rfind("[")
        return "after object key:value pair" if inside_object else "after array element"
    if "Extra data" in error.msg:
        return "after top-level value"
    if "control character" in error.msg:
        return "in string literal"
    return "looking for beginning of value"


def _quoted(char: str) -> str:
    if char == "'":
        return r"'\''"
    if char.isprintable() and char.isascii():
        return f"'{char}'"
    return f"'\\u{ord(char):04x}'"


def summarized(raw: bytes) -> str:
    """The start of a request body as shown in messages (``summarizeData``)."""
    if not raw:
        return "<empty>"
    start = raw[:_SHOWN_BODY_BYTES]
    shown = start.decode("utf-8", "replace") if raw[:1] == b"{" else start.hex()
    return f"{shown} ..." if len(raw) > _SHOWN_BODY_BYTES else shown
