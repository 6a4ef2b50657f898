"""What can go wrong with a journal, each with one line that a user can act on."""

from __future__ import annotations


class JournalError(Exception):
    """Base of all; its text is one line for a user, without a traceback."""


class JournalUrlError(JournalError):
    """The URL does not name a journal that asched can open."""


class JournalOpenError(JournalError):
    """The journal cannot be opened or written where it lies."""


class JournalUnreachableError(JournalOpenError):
    """Nobody answers where the journal lies, or who answers cannot write now: later it may open."""


class JournalSchemaError(JournalError):
    """The tables are not of this asched's revision, and cannot or may not be upgraded."""


class JournalAbsentError(JournalSchemaError):
    """The database is there, and holds no journal."""


class JournalBusyError(JournalError):
    """Another process kept the journal locked for too long. Retrying the same append is safe."""


class JournalFullError(JournalError):
    """No room on the disk. Nothing of the batch was stored; it may be retried once there is."""


class JournalIOError(JournalError):
    """The disk or the connection failed. Whether the batch was stored is unknown: retry it with its
    ``first_seq`` to learn that."""


class JournalCorruptError(JournalError):
    """What is stored is damaged or was altered; the message names the record or batch."""


class ArchivedError(JournalError):
    """Records were asked for that are no longer in the database but in the archive's files."""


class IncompleteStateError(JournalError):
    """The state at a record cannot be kept here: a plugin that it depends on cannot be had."""


class FencedError(JournalError):
    """A newer writer has claimed the journal: this one must stop deciding at once."""


class ConflictError(JournalError):
    """The batch does not follow what is stored, and is not what is stored there."""


class RecordError(JournalError):
    """A stored record cannot be decoded: unknown kind, newer version, or damaged payload."""


def fenced_message(epoch: int, newest: int) -> str:
    """The text of :class:`FencedError`; ``epoch`` 0 stands for a store that never claimed."""
    if epoch == 0:
        return "this process has not claimed the journal, so it may not append"
    return f"another process claimed the journal: epoch {newest} deposed epoch {epoch}"


def conflict_message(first_seq: int, head_seq: int) -> str:
    """The text of :class:`ConflictError`."""
    return (
        f"a batch was to start at record {first_seq}, but the journal ends at {head_seq} and other"
        " records are stored there"
    )


def unknown_seq_message(seq: int) -> str:
    return f"a checkpoint of record {seq} is refused: the journal has no such record"


def archived_seq_message(seq: int, archived_seq: int) -> str:
    return f"a checkpoint of record {seq} is refused: records 1 to {archived_seq} were moved to the archive"


def archived_message(archived_seq: int) -> str:
    """The text of :class:`ArchivedError`."""
    return (
        f"records 1 to {archived_seq} were moved to the archive: put them back together with"
        " `asched journal restore --archive DIR --to FILE.db` and ask that file; where only the"
        " checkpoints are of another release, `asched checkpoint --archive DIR` makes them anew"
    )


def incomplete_message(seq: int, reason: str) -> str:
    """The text of :class:`IncompleteStateError`; ``reason`` says which plugin is missing."""
    return (
        f"the state at record {seq} cannot be kept where a plugin of one of its profiles is missing;"
        f" install it, or run this where it is installed: {reason}"
    )


_REFUSALS: tuple[tuple[str, type[JournalError], str], ...] = (
    ("fenced: ", FencedError, "another process has claimed this journal"),
    ("out of sequence: ", ConflictError, "the batch does not follow what is stored"),
    ("append-only: ", JournalError, "what is stored may not be changed"),
)
"""How the triggers' texts begin (see ``migrations/``) and what they mean."""


def refusal(reason: str, where: str) -> JournalError | None:
    """The error for what a trigger of the database said; None if it was none of ours."""
    for prefix, kind, meaning in _REFUSALS:
        if reason.startswith(prefix):
            return kind(f"{where}: {meaning} ({reason})")
    return None
