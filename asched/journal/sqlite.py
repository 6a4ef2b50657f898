"""SQLite as the journal's database: connections, errors, and fast appends.

One connection writes and runs WAL checkpoints; readers have connections that do neither. SQLite
before 3.51.3 can corrupt a WAL if one connection checkpoints while another commits. SQLite
checkpoints during commits, so a lock file serializes commits even between processes (a fenced
writer and its successor).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote

import anyio
from sqlalchemy import URL, insert
from sqlalchemy.dialects import sqlite as sqlite_dialect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from asched.journal import schema
from asched.journal.chain import SealedBatch
from asched.journal.database import READERS, SqlDatabase, driver_of, pooled_engine
from asched.journal.errors import (
    JournalBusyError,
    JournalCorruptError,
    JournalError,
    JournalFullError,
    JournalIOError,
    JournalOpenError,
    JournalReplacedError,
    trigger_error,
)
from asched.journal.schema import JOURNAL_BATCH, JOURNAL_RECORD
from asched.journal.sqlite_files import (
    DaemonLock,
    FileLock,
    OpenedFiles,
    check_still_immutable,
    held_exclusively,
    may_read,
    must_be_immutable,
    wal_path,
)

_DRIVER = "sqlite+aiosqlite"
_BUSY_TIMEOUT_S = 10.0

# Foreign keys are declared but not enforced: the sequence trigger already checks each row, and
# another check would cost a tenth of an append.
_EVERY_CONNECTION = (f"PRAGMA busy_timeout = {int(_BUSY_TIMEOUT_S * 1000)}",)
_WRITER = (
    *_EVERY_CONNECTION,
    "PRAGMA journal_mode = WAL",
    # FULL syncs the WAL at every commit: a decision must survive a power loss before its effect.
    # NORMAL syncs at checkpoints only and would lose later commits.
    "PRAGMA synchronous = FULL",
    # 32 MiB: writes to the subject index are scattered, so its upper levels must stay in memory.
    "PRAGMA cache_size = -32768",
    # In pages of 4 KiB. Rare, large checkpoints write each index page once.
    "PRAGMA wal_autocheckpoint = 4000",
)
_READER = (*_EVERY_CONNECTION, "PRAGMA query_only = ON", "PRAGMA wal_autocheckpoint = 0")

_DIALECT = sqlite_dialect.dialect(paramstyle="qmark")
_INSERT_BATCH = str(insert(JOURNAL_BATCH).compile(dialect=_DIALECT))
_INSERT_RECORD = str(insert(JOURNAL_RECORD).compile(dialect=_DIALECT))
_ROWS_AT_ONCE: Final = 500
"""Rows of one statement. The driver returns to the interpreter after each statement, and then waits
for the event loop if it decodes a list meanwhile."""
_INSERT_RECORDS = _INSERT_RECORD + (", " + _INSERT_RECORD.partition(" VALUES ")[2]) * (
    _ROWS_AT_ONCE - 1
)
_APPEND: Final = "append a batch"
"""Instead of a statement; its parameters are a sealed batch."""


class _Connection(sqlite3.Connection):
    """A connection that appends a batch in one call of :meth:`execute`."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """As the base class. For :data:`_APPEND`, insert and commit the batch, or roll back."""
        if sql is not _APPEND:
            return super().execute(sql, parameters)
        sealed: SealedBatch = parameters
        try:
            # Begins the transaction.
            cursor = super().execute(_INSERT_BATCH, sealed.batch)
            # The driver binds a plain tuple over 1 us faster than a named one.
            rows = [*map(tuple, sealed.rows)]
            while len(rows) >= _ROWS_AT_ONCE:
                cursor.execute(_INSERT_RECORDS, [*chain.from_iterable(rows[:_ROWS_AT_ONCE])])
                del rows[:_ROWS_AT_ONCE]
            cursor.executemany(_INSERT_RECORD, rows)
            self.commit()
        except BaseException:
            self.rollback()
            raise
        return cursor


class SqliteDatabase(SqlDatabase):
    """An open SQLite file. Made by :meth:`open`."""

    driver_errors = (sqlite3.Error,)

    def __init__(
        self,
        path: Path,
        readers: AsyncEngine,
        writer: AsyncEngine | None,
        locks: _Locks,
        *,
        immutable: bool = False,
    ) -> None:
        super().__init__(str(path), readers, writer)
        self.path = path
        self._file_lock, self._daemon_lock = locks
        self._files = OpenedFiles(path)
        self._immutable = immutable
        self._connection: AsyncConnection | None = None
        self._driver: Any = None
        """The driver's connection of :attr:`_connection`, once something was appended."""

    @classmethod
    async def open(cls, path: Path, *, read_only: bool, daemon: bool = False) -> SqliteDatabase:
        """Open the journal at ``path``; for writing, create or upgrade it first.

        ``daemon``: exclude other daemons until it is closed. Raises :class:`JournalOpenError`,
        :class:`JournalSchemaError` (newer, or read-only and older), :class:`JournalCorruptError`
        (not a database), :class:`JournalBusyError`, :class:`JournalHeldError`.
        """
        _check_path(path, read_only=read_only)
        if read_only:
            immutable = must_be_immutable(path)
            readers = _engine(_read_only_url(path, immutable=immutable), _READER, READERS)
            return await cls(path, readers, None, _Locks(), immutable=immutable).prepared()
        writer = _engine(URL.create(_DRIVER, database=str(path)), _WRITER, 1)
        readers = _engine(_read_only_url(path), _READER, READERS)
        opened = cls(path, readers, writer, _Locks.of(path, daemon=daemon))
        return await opened.prepared(daemon=daemon)

    async def upgrade(self) -> None:
        assert self._file_lock is not None
        assert self._writer is not None
        async with self._file_lock.held(_BUSY_TIMEOUT_S):
            _create_private(self.path)
            self._files.note()
            with self.translated():
                self._connection = await self._writer.connect()
        async with self.write() as connection:
            # Python's driver opens no transaction for DDL.
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
            await connection.run_sync(schema.upgrade)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        async with super().read() as connection:
            yield connection
        if self._immutable:
            check_still_immutable(self.path)

    async def fetch_all(
        self, driver: Any, statement: str, values: Sequence[Any]
    ) -> Sequence[tuple[Any, ...]]:
        # One switch to the driver's thread.
        return cast("list[tuple[Any, ...]]", await driver.execute_fetchall(statement, values))

    @asynccontextmanager
    async def archiving(self) -> AsyncIterator[None]:
        """Exclude other archive runs with a lock file."""
        path = self.path.with_name(f"{self.path.name}-archive-lock")
        with held_exclusively(path, f"another process is archiving {self.path}"):
            yield

    def check_files(self) -> None:
        self._files.check()

    async def end_stuck_writers(self) -> None:
        """Nothing to do: only processes of this machine hold the lock file."""

    async def append(self, sealed: SealedBatch) -> None:
        """Insert a batch in a transaction of its own, durable on return.

        One call to the driver, because each is a switch to its thread and back.
        """
        async with self.exclusively() as connection:
            if self._driver is None:
                self._driver = await driver_of(connection)
            await self._driver.execute(_APPEND, sealed)

    @asynccontextmanager
    async def exclusively(self) -> AsyncIterator[AsyncConnection]:
        if self._file_lock is None or self._connection is None:
            raise self.read_only_error()
        async with self._write_lock:
            await self._file_lock.acquire(_BUSY_TIMEOUT_S)
            try:
                self._files.check()
                with anyio.CancelScope(shield=True), self.translated():
                    yield self._connection
            finally:
                self._file_lock.release()

    def translate(self, error: BaseException) -> JournalError:
        cause, path = self.driver_error(error), self.path
        of_trigger = trigger_error(str(cause), self.name)
        if of_trigger is not None:
            return of_trigger
        match getattr(cause, "sqlite_errorname", "").split("_")[1:2]:
            case ["FULL"]:
                return JournalFullError(f"cannot write {path}: the disk is full")
            case ["CANTOPEN" | "READONLY" | "PERM" | "AUTH"]:
                return JournalOpenError(
                    f"cannot open {path}: {cause}; check permissions of the file and its directory"
                )
            case ["NOTADB"]:
                return JournalCorruptError(f"{path} is not an asched journal: {cause}")
            case ["CORRUPT"]:
                return JournalCorruptError(f"{path} is damaged: {cause}")
            case ["BUSY" | "LOCKED"]:
                return JournalBusyError(f"{path} is locked by another process")
            case _:
                return JournalIOError(f"{path}: {cause}")

    async def close(self) -> None:
        """Idempotent."""
        await self._readers.dispose()
        if self._writer is None or self._file_lock is None:
            return
        writer, self._writer = self._writer, None
        # Closing the last connection runs a checkpoint.
        async with self._file_lock.held(_BUSY_TIMEOUT_S):
            if self._connection is not None:
                await self._complete_if_moved(self._connection)
                await self._connection.close()
                self._connection = self._driver = None
            await writer.dispose()
        self._file_lock.close()
        # Last: closing the database deletes its WAL by name, which must not be that of a successor.
        if self._daemon_lock is not None:
            self._daemon_lock.close()

    async def _complete_if_moved(self, connection: AsyncConnection) -> None:
        """Move the write-ahead log into a database file that has another name now.

        SQLite does that for a file that still has its name. A log that stays behind under the old
        name would be deleted with its records, or applied to another file with that name.
        """
        with suppress(JournalError):
            try:
                self._files.check()
            except JournalReplacedError:
                with self.translated():
                    await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


class _Locks(NamedTuple):
    """The locks of a database that is open for writing."""

    commits: FileLock | None = None
    """Held during each commit."""
    daemon: DaemonLock | None = None
    """Held as long as a daemon has the database open."""

    @classmethod
    def of(cls, path: Path, *, daemon: bool) -> _Locks:
        # SQLite names its files after the target of a symbolic link, too.
        target = path.resolve()
        held = DaemonLock(target) if daemon else None
        try:
            return cls(FileLock(target.with_name(f"{target.name}-lock")), held)
        except BaseException:
            if held is not None:
                held.close()
            raise


def _read_only_url(path: Path, *, immutable: bool = False) -> URL:
    query = {"mode": "ro", "uri": "true"} | ({"immutable": "1"} if immutable else {})
    return URL.create(_DRIVER, database=f"file:{quote(str(path))}", query=query)


def _engine(url: URL, pragmas: Sequence[str], connections: int) -> AsyncEngine:
    # "BEGIN IMMEDIATE" takes the write lock at the start, when it is still possible to wait.
    connect_args = {
        "timeout": _BUSY_TIMEOUT_S,
        "isolation_level": "IMMEDIATE",
        "factory": _Connection,
    }
    return pooled_engine(url, connections, connect_args, pragmas)


def _check_path(path: Path, *, read_only: bool) -> None:
    """Raise an error with the reason; SQLite reports only that it cannot open the file."""
    folder = path.parent
    try:
        if path.is_dir():
            raise JournalOpenError(f"cannot open {path}: it is a directory")
        if path.exists() and not path.is_file():
            # Opening a pipe would wait for its other end.
            raise JournalOpenError(f"cannot open {path}: it is not a regular file")
        if read_only and not path.exists():
            raise JournalOpenError(f"cannot open {path}: no such file")
        if path.exists() and not may_read(path):
            raise JournalOpenError(
                f"cannot open {path}: permission denied; check permissions of the file and its"
                " directory"
            )
        if not folder.is_dir():
            why = "is not a directory" if folder.exists() else "does not exist"
            raise JournalOpenError(f"cannot open {path}: {folder} {why}")
        wal = wal_path(path)
        if not path.exists() and wal.exists() and wal.stat().st_size:
            # SQLite would delete it: a new file cannot have one.
            raise JournalOpenError(
                f"cannot create {path}: {wal} holds records of the file that was there; put that"
                " file back, or move its write-ahead log away, too"
            )
    except OSError as error:
        raise JournalOpenError(f"cannot open {path}: {error.strerror}") from None


def _create_private(path: Path) -> None:
    """Create the file readable by its owner only, whatever the umask: it describes the cluster.

    SQLite creates its other files with the same mode.
    """
    try:
        # O_EXCL, because closing a descriptor of an open database would drop SQLite's locks.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise JournalOpenError(f"cannot open {path}: {error.strerror}") from None
