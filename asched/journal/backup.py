"""A copy of a journal in SQLite, taken while a daemon writes to it.

Copying the file itself would miss what is still in its write-ahead log, or take half of it. SQLite's own
backup reads in one transaction: the copy is the journal as it was at one moment between two batches.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from asched.journal.errors import JournalError, JournalIOError, JournalOpenError

_BUSY_TIMEOUT_S = 30.0


def back_up(source: Path, target: Path) -> None:
    """Copy the journal in ``source`` to the new file ``target``, durable on return.

    Nobody is kept from writing meanwhile. Raises :class:`JournalOpenError` where ``source`` is no
    file or ``target`` is there already, and :class:`JournalIOError` where the copy cannot be made.
    """
    if not source.is_file():
        raise JournalOpenError(f"cannot open {source}: there is no such file")
    if target.exists():
        raise JournalOpenError(f"{target} is there already; a copy is made under a new name")
    partial = target.with_name(f"{target.name}.partial")
    try:
        # Readable by its owner alone, as the journal is, from its first byte on.
        os.close(os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        _copy(source, partial)
        _sync(partial)
        partial.rename(target)
        _sync(target.parent)
    except (OSError, sqlite3.Error) as error:
        raise _failure(source, target, error) from error
    finally:
        partial.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    read_only = f"{source.absolute().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(read_only, uri=True, timeout=_BUSY_TIMEOUT_S)) as journal,
        closing(sqlite3.connect(target)) as copy,
    ):
        # All in one step: a copy in several begins anew whenever a batch is written.
        journal.backup(copy)
        # One file, with no log beside it, until somebody opens it for writing.
        copy.execute("PRAGMA journal_mode = DELETE")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failure(source: Path, target: Path, error: Exception) -> JournalError:
    what = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return JournalIOError(f"cannot copy {source} to {target}: {what}")
