"""Outcomes of writes to the API server: failures that it is expected to return are values."""

from __future__ import annotations

import msgspec

from asched.kube.client import ApiClient, RequestOptions
from asched.kube.errors import ApiError, NoResponseError


class WriteSucceeded(msgspec.Struct, frozen=True, gc=False):
    """The object is in the requested state."""


class BoundElsewhere(msgspec.Struct, frozen=True, gc=False):
    """The pod is already bound to another node."""

    node: str

    @property
    def message(self) -> str:
        return f"already bound to node {self.node}"


class ObjectGone(msgspec.Struct, frozen=True, gc=False):
    """The object no longer exists, or another one has its name."""

    message: str = "the pod is gone"


class WriteRejected(msgspec.Struct, frozen=True, gc=False):
    """Not carried out; ``status`` is the HTTP status, 0 if the server was not reached."""

    message: str
    status: int = 0


class OutcomeUnknown(msgspec.Struct, frozen=True, gc=False):
    """Whether the write was carried out is unknown until the watch shows it."""

    message: str


WriteOutcome = WriteSucceeded | WriteRejected | OutcomeUnknown
PatchOutcome = WriteOutcome | ObjectGone
BindOutcome = PatchOutcome | BoundElsewhere

IDEMPOTENT = RequestOptions(idempotent=True)
"""For writes that can be repeated without further effect."""


def outcome_of(error: ApiError | NoResponseError) -> WriteRejected | OutcomeUnknown:
    """The outcome of an idempotent write that failed."""
    if isinstance(error, NoResponseError):
        return OutcomeUnknown(str(error)) if error.sent else WriteRejected(str(error))
    if error.status >= 500:
        return OutcomeUnknown(error.message)
    return WriteRejected(error.message, error.status)


def is_gone(error: ApiError | NoResponseError) -> bool:
    """Whether the object no longer exists, or another one has its name."""
    return isinstance(error, ApiError) and (error.status == 404 or error.concerns_uid)


async def patch(
    client: ApiClient, path: str, body: bytes, content_type: str, gone: str = "the pod is gone"
) -> PatchOutcome:
    """Send a PATCH with the object's UID as its precondition. ``gone``: message if that fails."""
    try:
        await client.request(
            "PATCH", path, body=body, content_type=content_type, options=IDEMPOTENT
        )
    except (ApiError, NoResponseError) as error:
        return ObjectGone(gone) if is_gone(error) else outcome_of(error)
    return WriteSucceeded()
