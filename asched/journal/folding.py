"""Folds stored records, and reports the one that contradicts those before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from asched.framework.runtime.profile import ProfileError
from asched.journal.errors import ContradictionError, contradiction_message
from asched.journal.store import StoredRecord
from asched.state.fold import FoldError
from asched.state.records import AnyRecord

FOLD_ERRORS: Final = (AssertionError, LookupError, TypeError, ValueError, AttributeError)
"""What a fold raises for a record that no engine can have recorded there: a FoldError where the
fold checks it, otherwise the error of the statement that fails."""


class AppliesRecords(Protocol):
    """A fold, or what contains one."""

    def apply(self, record: AnyRecord, /) -> object: ...


def apply_stored(fold: AppliesRecords, stored: StoredRecord) -> None:
    """Apply one record. Raises :class:`ContradictionError`, which names it, and ProfileError."""
    try:
        fold.apply(stored.record)
    except FOLD_ERRORS as error:
        raise _named(stored.seq, stored.record, error) from error


@contextmanager
def folding(stored: StoredRecord) -> Iterator[None]:
    """As :func:`apply_stored`, for a block that folds the record."""
    try:
        yield
    except FOLD_ERRORS as error:
        raise _named(stored.seq, stored.record, error) from error


def _named(seq: int, record: AnyRecord, error: Exception) -> Exception:
    if isinstance(error, ProfileError):
        return error
    return ContradictionError(
        contradiction_message(seq, type(record).__name__, contradiction_reason(error))
    )


def contradiction_reason(error: BaseException) -> str:
    """Why a record cannot be folded."""
    return str(error) if isinstance(error, FoldError) else repr(error)
