"""The files of a SQLite journal: whether they are still those that were opened, and may be written.

SQLite would continue with the files that it opened: records in a file without a name are lost when
the process ends, and another daemon would start with the file that has the name now.

A reader of a database in WAL mode normally writes: it creates the log's index next to the database.
Where it cannot, or should not because the owner could not use a file of another user, SQLite reads
the database as immutable. That ignores the write-ahead log, so it is right only without one.
"""

from __future__ import annotations

import os
from pathlib import Path

from asched.journal.errors import (
    JournalBusyError,
    JournalIOError,
    JournalOpenError,
    JournalReplacedError,
)


def wal_path(database: Path) -> Path:
    """The write-ahead log. SQLite names it after the target of a symbolic link."""
    target = database.resolve()
    return target.with_name(f"{target.name}-wal")


class OpenedFiles:
    """The identity of a database's file and of its write-ahead log."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._wal = str(wal_path(path))
        self._opened: dict[str, tuple[int, int]] = {}

    def note(self) -> None:
        """Remember the database's file, which is about to be opened."""
        self._opened.pop(self._path, None)
        self._check(self._path)

    def check(self) -> None:
        """Compare the files with those that were opened, in some microseconds.

        SQLite creates the write-ahead log after the database is opened, and keeps it while it is
        open. Raises :class:`JournalReplacedError`, :class:`JournalIOError`.
        """
        self._check(self._path)
        self._check(self._wal)

    def _check(self, path: str) -> None:
        opened = self._opened.get(path)
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            if opened is not None:
                raise JournalReplacedError(_message(path, "removed or moved")) from None
            return
        except OSError as error:
            raise JournalIOError(f"cannot read {path}: {error.strerror}") from None
        if opened is None:
            self._opened[path] = (found.st_dev, found.st_ino)
        elif opened != (found.st_dev, found.st_ino):
            raise JournalReplacedError(_message(path, "replaced"))


def _message(path: str, what: str) -> str:
    return (
        f"{path} was {what} while it was in use: nothing can be recorded any longer; a restart uses"
        " the file that is there"
    )


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
