"""Reading a SQLite journal that this process cannot write: on read-only media, or another user's.

A reader of a database in WAL mode normally writes: it creates the log's index next to the database.
Where it cannot, or should not because the owner could not use a file of another user, SQLite reads
the database as immutable. That ignores the write-ahead log, so it is right only without one.
"""

from __future__ import annotations

import os
from pathlib import Path

from asched.journal.errors import JournalBusyError, JournalOpenError
from asched.journal.opened_files import wal_path


def must_be_immutable(path: Path) -> bool:
    """Whether the database at ``path`` can only be read as immutable.

    Raises :class:`JournalOpenError` if that would omit records.
    """
    target = path.resolve()
    if _is_writable(target) and _is_writable(target.parent):
        return False
    wal = wal_path(path)
    # A process that has the database open for writing has both files, however small.
    if not wal.exists():
        return True
    if target.with_name(f"{target.name}-shm").exists():
        return False
    if wal.stat().st_size == 0:
        return True
    raise JournalOpenError(
        f"cannot read {path}: its last records are in {wal}, which cannot be read in place without"
        f" write access; copy {target.name} and {wal.name} to a directory of your own"
    )


def check_still_immutable(path: Path) -> None:
    """Raise :class:`JournalBusyError` if a writer opened the database meanwhile: what was read may
    be inconsistent."""
    if wal_path(path).exists():
        raise JournalBusyError(f"a daemon started to write to {path} meanwhile: repeat the command")


def may_read(path: Path) -> bool:
    """Whether this process may read the file."""
    return _may(path, os.R_OK)


def _is_writable(path: Path) -> bool:
    return _may(path, os.W_OK)


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)
