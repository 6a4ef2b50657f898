"""Detects that SQLite's files were removed, moved or replaced while they are open.

SQLite would continue with the files that it opened: records in a file without a name are lost when
the process ends, and another daemon would start with the file that has the name now.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from asched.journal.errors import JournalIOError, JournalReplacedError


class _FileId(NamedTuple):
    device: int
    inode: int


def wal_path(database: Path) -> Path:
    """The write-ahead log. SQLite names it after the target of a symbolic link."""
    target = database.resolve()
    return target.with_name(f"{target.name}-wal")


class OpenedFiles:
    """The identity of a database's file and of its write-ahead log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wal = wal_path(path)
        self._opened: dict[Path, _FileId] = {}

    def note(self) -> None:
        """Remember the database's file, which is about to be opened."""
        found = _file_id(self._path)
        if found is not None:
            self._opened[self._path] = found

    def check(self) -> None:
        """Compare the files with those that were opened, in some microseconds.

        SQLite creates the write-ahead log after the database is opened, and keeps it while it is
        open. Raises :class:`JournalReplacedError`, :class:`JournalIOError`.
        """
        for path in (self._path, self._wal):
            found, opened = _file_id(path), self._opened.get(path)
            if opened is None:
                if found is not None:
                    self._opened[path] = found
            elif found != opened:
                what = "removed or moved" if found is None else "replaced"
                raise JournalReplacedError(
                    f"{path} was {what} while it was in use: nothing can be recorded any longer;"
                    " a restart uses the file that is there"
                )


def _file_id(path: Path) -> _FileId | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise JournalIOError(f"cannot read {path}: {error.strerror}") from None
    return _FileId(found.st_dev, found.st_ino)
