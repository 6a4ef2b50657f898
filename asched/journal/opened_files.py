"""Detects that SQLite's files were removed, moved or replaced while they are open.

SQLite would continue with the files that it opened: records in a file without a name are lost when
the process ends, and another daemon would start with the file that has the name now.
"""

from __future__ import annotations

import os
from pathlib import Path

from asched.journal.errors import JournalIOError, JournalReplacedError


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
