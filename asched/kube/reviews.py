"""Authentication and authorization of others by the API server: TokenReview, SubjectAccessReview.

Both are questions: the API server stores nothing. So they are repeated after a failure.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from asched.kube.client import ApiClient, RequestOptions
from asched.kube.errors import ApiError, KubeConfigError, NoResponseError, one_line
from asched.kube.timing import RetryPolicy
from asched.model.nesting import decode_any_depth

T = TypeVar("T")

TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
REVIEW_TIMEOUT_S: Final = 10.0
_OPTIONS: Final = RequestOptions(
    idempotent=True, retry=RetryPolicy(attempts=2), timeout_s=REVIEW_TIMEOUT_S
)


class ReviewError(Exception):
    """The API server did not answer a review. Its text is one line for the operator."""


class ReviewedUser(msgspec.Struct, frozen=True):
    """A user that the API server authenticated."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}

    @property
    def identity(self) -> str:
        """Equal for users who are equal in everything that rules can name."""
        return msgspec.json.encode(self, order="deterministic").decode()


class AccessQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a user wants to do with a resource; an empty namespace means all."""

    verb: str
    resource: str
    namespace: str = ""
    group: str = ""


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: ReviewedUser | None = None
    audiences: tuple[str, ...] | None = None


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus | None = None


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus | None = None


_encode = msgspec.json.Encoder().encode
_token_review = msgspec.json.Decoder(_TokenReview)
_access_review = msgspec.json.Decoder(_AccessReview)


class ApiReviewer:
    """Asks the API server who somebody is and what they may do."""

    def __init__(self, client: ApiClient, audiences: tuple[str, ...] = ()) -> None:
        """``audiences``: a token must be for one of these; without any, for the API server."""
        self._client = client
        self._audiences = audiences

    async def authenticate(self, token: str) -> ReviewedUser | None:
        """The user of the token; None if it is not valid. Raises :class:`ReviewError`."""
        spec: dict[str, object] = {"token": token}
        if self._audiences:
            spec["audiences"] = self._audiences
        body = await self._create(TOKEN_REVIEWS, "TokenReview", spec)
        status = _decoded(_token_review, body).status
        if status is None or not status.authenticated or status.user is None:
            return None
        # A server that ignores audiences does not return any.
        if self._audiences and not set(self._audiences) & set(status.audiences or ()):
            return None
        return status.user if status.user.username else None

    async def allows(self, user: ReviewedUser, question: AccessQuestion) -> bool:
        """Whether the user may do that. Raises :class:`ReviewError`."""
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups,
            "extra": user.extra,
            "resourceAttributes": question,
        }
        body = await self._create(ACCESS_REVIEWS, "SubjectAccessReview", spec)
        status = _decoded(_access_review, body).status
        return status is not None and status.allowed and not status.denied

    async def _create(self, path: str, kind: str, spec: dict[str, object]) -> bytes:
        group = path.removeprefix("/apis/").rpartition("/")[0]
        body = _encode({"apiVersion": group, "kind": kind, "spec": spec})
        try:
            return await self._client.request("POST", path, body=body, options=_OPTIONS)
        except ApiError as error:
            # The message of the server may quote the request, which holds a token.
            reason = f"{error.status} {error.reason}".strip()
            raise ReviewError(f"the API server rejects a {kind}: {reason}") from None
        except (NoResponseError, KubeConfigError) as error:
            raise ReviewError(f"no answer to a {kind}: {one_line(error)}") from None


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decode_any_depth(decoder, body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ReviewError("the API server answers a review with something else") from None
