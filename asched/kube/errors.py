"""Errors of connections and requests to the API server."""

from __future__ import annotations

import msgspec

from asched.model.nesting import decode_any_depth


class KubeConfigError(Exception):
    """The connection cannot be configured; the text is one line for the user."""


class CredentialPluginError(KubeConfigError):
    """An exec plugin or identity provider gave no credentials; a retry may succeed."""


class NoResponseError(Exception):
    """No response: refused, dropped, timed out, TLS. If ``sent``, it may have been carried out."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
        """False if the request did not reach the server."""


class ResponseTooLargeError(NoResponseError):
    """The response exceeds the limit. Another attempt would receive the same."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the body is too large: more than {limit_bytes} bytes", sent=True)


class StatusCause(msgspec.Struct, frozen=True):
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of the details that are read."""

    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class ApiStatus(msgspec.Struct, frozen=True):
    """A ``Status`` of meta/v1: the body of a failure, and the object of an ERROR watch event."""

    reason: str | None = None
    message: str | None = None
    code: int | None = None
    details: StatusDetails | None = None


_status_decoder = msgspec.json.Decoder(ApiStatus)
_PLAIN_TEXT_LIMIT = 200
_ETCD_TIMEOUT = "etcdserver: request timed out"


class ApiError(Exception):
    """A failure response. ``reason`` is machine-readable (``NotFound`` ...), maybe empty."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        retry_after_s: float | None = None,
        details: StatusDetails | None = None,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.details = details if details is not None else StatusDetails()

    @classmethod
    def from_response(cls, status: int, body: bytes, retry_after: str | None) -> ApiError:
        """Decode a failure. A body that is not a Status, as from a proxy, becomes the message."""
        try:
            decoded = decode_any_depth(_status_decoder, body)
        except msgspec.DecodeError:
            text = body[:_PLAIN_TEXT_LIMIT].decode(errors="replace").strip()
            decoded = ApiStatus(message=" ".join(text.split()))
        error = cls.from_status(decoded, status)
        header_s = _seconds(retry_after)
        if header_s is not None:
            error.retry_after_s = header_s
        return error

    @classmethod
    def from_status(cls, status: ApiStatus, code: int = 0) -> ApiError:
        """From a decoded Status; ``code`` is the HTTP status if there was one."""
        details = status.details or StatusDetails()
        return cls(
            code or status.code or 500,
            status.reason or "",
            status.message or "no message",
            retry_after_s=details.retry_after_seconds or None,
            details=details,
        )

    @property
    def expired(self) -> bool:
        """410: the server no longer has the resourceVersion or continue token."""
        return self.status == 410 or self.reason in ("Expired", "Gone")

    @property
    def may_take_effect(self) -> bool:
        """The write may have been carried out, or may be later.

        The timeout filter of kube-apiserver, or a proxy, returns 504 while the handler continues,
        and a proxy that lost its connection to kube-apiserver 502. A write that etcd timed out on
        may still be applied. It is reported with etcd's message and status 500, or 409 for a
        Binding (``assignPod``).
        """
        return self.status in (502, 504) or _ETCD_TIMEOUT in self.message

    @property
    def concerns_uid(self) -> bool:
        """The UID precondition failed: the object of that name is now another one."""
        if self.status == 422:
            return any(cause.field == "metadata.uid" for cause in self.details.causes)
        return self.status == 409 and "UID in" in self.message


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds, the only form that the API server uses."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def one_line(error: Exception) -> str:
    """The message of an error without line breaks, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
