"""Checkpoints of the index: states between those of the journal, in a file next to the index.

A worker process restores them, so that a question about the past folds few records. The file may be
deleted at any time, and is cleared with the index.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, cast

import structlog

from asched.journal.store import Checkpoint, CheckpointMark, JournalStore
from asched.state.checkpoint import FORMAT, KnownObjects

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

EVERY_RECORDS: Final = 2_500
MAX_BYTES: Final = 512 * 1024**2
"""Of all states. Above it, every second one is deleted."""
_TABLE: Final = "CREATE TABLE IF NOT EXISTS state (seq INTEGER PRIMARY KEY, blob BLOB NOT NULL)"


class StateFile:
    """Written by the process that extends the index. Errors are logged: states are a shortcut."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, sqlite3.Error."""
        self.path = path
        # It names pods: no other user may read it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._connection = sqlite3.connect(path, check_same_thread=False)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = OFF")
            self._connection.execute(_TABLE)
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version != FORMAT:
                self.clear()
                self._connection.execute(f"PRAGMA user_version = {FORMAT}")
            self.last_seq, self._bytes = self._extent()
        except BaseException:
            self._connection.close()
            raise

    def _extent(self) -> tuple[int, int]:
        extent = "SELECT coalesce(max(seq), 0), coalesce(sum(length(blob)), 0) FROM state"
        last_seq, size_bytes = self._connection.execute(extent).fetchone()
        return last_seq, size_bytes

    def clear(self) -> None:
        with self._connection:
            self._connection.execute("DELETE FROM state")
        self.last_seq = self._bytes = 0

    def drop_after(self, seq: int) -> None:
        """Delete states of records that are not indexed."""
        with self._connection:
            self._connection.execute("DELETE FROM state WHERE seq > ?", (seq,))
        self.last_seq, self._bytes = self._extent()

    def add(self, seq: int, blob: bytes) -> None:
        with self._connection:
            self._connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (seq, blob))
        self.last_seq, self._bytes = seq, self._bytes + len(blob)
        if self._bytes > MAX_BYTES:
            self._thin()

    def _thin(self) -> None:
        seqs = [seq for (seq,) in self._connection.execute("SELECT seq FROM state ORDER BY seq")]
        with self._connection:
            self._connection.executemany(
                "DELETE FROM state WHERE seq = ?", [(seq,) for seq in seqs[:-1:2]]
            )
        _, self._bytes = self._extent()

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()


class JournalWithStates:
    """An open journal to which the states of a file are added. For reading."""

    def __init__(self, store: JournalStore, path: Path | None, known: KnownObjects | None) -> None:
        self._store = store
        self._path = path
        self._known = known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def checkpoint_marks(self) -> Sequence[CheckpointMark]:
        """Those of the journal and of the file. A mark of the file names no batch."""
        marks = [*await self._store.checkpoint_marks()]
        known, archived = {mark.seq for mark in marks}, await self._store.archived()
        found = _rows(self._path, "SELECT seq FROM state WHERE seq > ?", (archived.seq,))
        marks += (CheckpointMark(seq, 0, "") for (seq,) in found if seq not in known)
        return sorted(marks)

    async def load_checkpoint(self, at_or_before_seq: int | None = None) -> Checkpoint | None:
        """The latest one of both. Only that one is read: each has about a megabyte."""
        last_seq = at_or_before_seq if at_or_before_seq is not None else _NO_LIMIT
        archived = await self._store.archived()
        marks = await self._store.checkpoint_marks()
        begin = max((mark.seq for mark in marks if mark.seq <= last_seq), default=0)
        query = "SELECT seq, blob FROM state WHERE seq > ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
        for seq, blob in _rows(self._path, query, (max(begin, archived.seq), last_seq)):
            return Checkpoint(seq, blob, self._known)
        found = await self._store.load_checkpoint(at_or_before_seq)
        return None if found is None else Checkpoint(found.seq, found.blob, self._known)


def newest_state(path: Path) -> bytes | None:
    """The checkpoint of the last record in the file."""
    for (blob,) in _rows(path, "SELECT blob FROM state ORDER BY seq DESC LIMIT 1", ()):
        state: bytes = blob
        return state
    return None


def _rows(path: Path | None, query: str, parameters: tuple[int, ...]) -> list[Any]:
    if path is None:
        return []
    try:
        address = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            return connection.execute(query, parameters).fetchall()
    except sqlite3.Error as error:
        log.warning("states not used", file=str(path), reason=str(error))
        return []


_NO_LIMIT: Final = (1 << 63) - 1


def with_states(
    store: JournalStore, path: Path | None, known: KnownObjects | None = None
) -> JournalStore:
    """The journal with the checkpoints of the file, if there is one. Its states are restored with
    known objects."""
    if path is None and known is None:
        return store
    return cast("JournalStore", JournalWithStates(store, path, known))
