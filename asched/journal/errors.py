"""Errors of a journal; each message is one line that a user can act on."""

from __future__ import annotations


class JournalError(Exception):
    """Base class; the message is shown to users without a traceback."""


class JournalUrlError(JournalError):
    """The URL does not name a journal that asched can open."""


class JournalOpenError(JournalError):
    """The journal cannot be opened or written at its location."""


class JournalUnreachableError(JournalOpenError):
    """The database is unreachable or read-only at present; a retry may succeed."""


class JournalSchemaError(JournalError):
    """The tables have another revision and cannot or must not be upgraded."""


class JournalAbsentError(JournalSchemaError):
    """The database exists but holds no journal."""


class JournalBusyError(JournalError):
    """Another process holds a lock for too long. Retrying the same append is safe."""


class JournalHeldError(JournalError):
    """Another daemon uses the journal; the message names it."""


class JournalReplacedError(JournalError):
    """The journal's file was removed, moved or replaced while it was in use. What is written from
    now on would be lost."""


class JournalFullError(JournalError):
    """The disk is full. Nothing of the batch was stored; it can be retried."""


class JournalIOError(JournalError):
    """The disk or the connection failed. Whether the batch was stored is unknown; retry it with the
    same ``first_seq``."""


class JournalCorruptError(JournalError):
    """Stored data is corrupt or was altered; the message names the record or batch."""


class ContradictionError(JournalCorruptError):
    """A stored record contradicts the records before it; the message names it."""


class JournalKindError(JournalError):
    """A shadow's journal cannot be used for scheduling, nor a scheduler's in shadow mode."""


class ArchivedError(JournalError):
    """The requested records are in the archive's files, no longer in the database."""


class IncompleteStateError(JournalError):
    """No checkpoint can be written at a record: a plugin that the state needs is missing."""


class FencedError(JournalError):
    """A newer writer has claimed the journal; this one must stop deciding immediately."""


class ConflictError(JournalError):
    """The batch does not follow the head, and differs from the batch stored there."""


class RecordError(JournalError):
    """A stored record cannot be decoded: unknown kind, newer version, or corrupt payload."""


class NewerRecordError(RecordError):
    """A stored record has a kind or version of a later release."""


def fenced_message(epoch: int, newest: int) -> str:
    """Message of :class:`FencedError`; ``epoch`` 0 means a store that never claimed."""
    if epoch == 0:
        return "this process has not claimed the journal and must not append"
    return f"another process claimed the journal: epoch {newest} fenced epoch {epoch}"


def conflict_message(first_seq: int, head_seq: int) -> str:
    """Message of :class:`ConflictError`."""
    return (
        f"cannot append at record {first_seq}: the journal ends at record {head_seq} and holds"
        " other records there"
    )


VERIFY_ADVICE = "`asched journal verify` shows whether the journal was altered"


def contradiction_message(seq: int, kind: str, reason: str) -> str:
    """Message of :class:`ContradictionError`."""
    return f"record {seq} ({kind}) contradicts the records before it: {reason}; {VERIFY_ADVICE}"


def unknown_seq_message(seq: int) -> str:
    return f"cannot save a checkpoint at record {seq}: the journal has no such record"


def longer_head_message(stored: int, batches: int) -> str:
    return f"a head of {stored} batches is signed already, more than {batches}"


def archived_message(archived_seq: int) -> str:
    """Message of :class:`ArchivedError`."""
    return (
        f"records 1 to {archived_seq} are archived: restore them with"
        " `asched journal restore --archive DIR --to FILE.db` and use that file; if only the"
        " checkpoints are of another release, recreate them with `asched checkpoint --archive DIR`"
    )


_TRIGGER_ERRORS: tuple[tuple[str, type[JournalError], str], ...] = (
    ("fenced: ", FencedError, "another process has claimed this journal"),
    ("out of sequence: ", ConflictError, "the batch does not follow the head"),
    ("append-only: ", JournalError, "stored data must not be changed"),
)
"""Prefixes of the triggers' messages (see ``migrations/``), and their meaning."""


def trigger_error(reason: str, where: str) -> JournalError | None:
    """The error for a trigger's message; None if it is not one of our triggers."""
    for prefix, kind, meaning in _TRIGGER_ERRORS:
        if reason.startswith(prefix):
            return kind(f"{where}: {meaning} ({reason})")
    return None


_REASONS: tuple[tuple[type[JournalError], str], ...] = (
    (JournalFullError, "the disk is full"),
    (JournalBusyError, "another process holds a lock"),
    (JournalUnreachableError, "the database is unreachable"),
    (JournalIOError, "the disk or the connection failed"),
    (FencedError, "another process claimed it"),
)


TRANSIENT_ERRORS = (JournalBusyError, JournalFullError, JournalIOError)
"""Errors that a later attempt may not meet."""


def reason_of(error: JournalError) -> str:
    """What is wrong, without paths and hosts: for clients of the health port."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "see the log")
