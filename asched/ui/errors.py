"""Errors of the browser interface, and what a client sees of them."""

from __future__ import annotations

from typing import Final

import msgspec

from asched.audit.lookup import AuditError
from asched.audit.times import TimeTextError
from asched.audit.visibility import NamespacesUnknownError, NotVisibleError
from asched.framework.runtime.profile import ProfileError
from asched.journal import errors as journal


class RequestError(Exception):
    """A request with a wrong parameter. Its text is one line for the user."""


class ForbiddenError(Exception):
    """A request that changes something and is not from a page of this server. Its text is one line
    for the user."""


class BusyError(Exception):
    """Too many requests are in progress. Its text is one line for the user."""


class ReviewUnavailableError(Exception):
    """The API server did not say who the reader is or what they may see."""


class StartingError(Exception):
    """The journal is not open yet. Its text is one line for the user."""


class FollowError(Exception):
    """Following the journal failed because of a bug, which is logged."""


class BeforeBeginningError(AuditError):
    """A time before the first record that is not archived."""


class ErrorAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to a request that failed."""

    status: int
    """The HTTP status."""
    error: str
    """What is wrong, in one line."""
    advice: str = ""
    """What to do; empty if the error says it."""


class AnsweredError(Exception):
    """A query that failed in a worker process, with what the client sees of it."""

    def __init__(self, answer: ErrorAnswer) -> None:
        self.answer = answer
        super().__init__(answer.error)


_VERIFY: Final = "run: asched journal verify --journal URL"
_CREATE: Final = "check --journal, or start asched run with it: the daemon creates the journal"
_RETRY: Final = "the page works again when the journal can be read"

_KNOWN: Final[tuple[tuple[tuple[type[Exception], ...], int, str], ...]] = (
    ((RequestError, TimeTextError), 400, ""),
    ((ForbiddenError,), 403, ""),
    ((BeforeBeginningError,), 404, "choose a later time"),
    ((NotVisibleError,), 403, "ask an administrator of the cluster for the right"),
    ((AuditError,), 404, ""),
    ((journal.ArchivedError,), 410, ""),
    ((ReviewUnavailableError,), 503, "the page works again when the API server answers"),
    ((BusyError, NamespacesUnknownError, StartingError), 503, "try again in a few seconds"),
    ((journal.JournalUnreachableError, journal.JournalBusyError), 503, _RETRY),
    ((journal.JournalIOError, journal.JournalOpenError), 503, _RETRY),
    ((journal.JournalAbsentError,), 503, _CREATE),
    ((journal.JournalSchemaError,), 503, "use the version of asched that writes the journal"),
    ((journal.NewerRecordError,), 503, "use the version of asched that writes the journal"),
    ((journal.JournalCorruptError, journal.RecordError), 500, _VERIFY),
    ((journal.JournalError,), 500, _VERIFY),
    ((FollowError,), 500, "the log of asched ui has the details"),
    ((ProfileError,), 500, "install the plugin where asched ui runs"),
    ((TimeoutError,), 504, "choose a shorter period or an earlier time; see asched checkpoint"),
)
"""Error types with their HTTP status and advice; the first that matches counts."""


def error_answer(error: BaseException) -> ErrorAnswer | None:
    """What a client sees of an expected error; None for a bug."""
    if isinstance(error, AnsweredError):
        return error.answer
    for kinds, status, advice in _KNOWN:
        if isinstance(error, kinds):
            text = " ".join(str(error).split()) or "the answer took too long"
            return ErrorAnswer(status, text, advice)
    return None
