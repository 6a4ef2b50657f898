"""The files of a SQLite journal: whether they were replaced, whether to write them, and locks.

SQLite would continue with the files that it opened: records in a file without a name are lost when
the process ends, and another daemon would start with the file that has the name now.

A reader of a database in WAL mode normally writes: it creates the log's index next to the database.
Where it cannot, or should not because the owner could not use a file of another user, SQLite reads
the database as immutable. That ignores the write-ahead log, so it is right only without one.

Locks between processes use ``flock``. The kernel releases them if a process dies. The database's
own file is never locked: closing any descriptor of it would drop SQLite's locks. Lock files stay in
place, because removing one would let two processes lock different files.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
from filelock import lock_descriptor, unlock_descriptor

from asched.journal.errors import (
    JournalBusyError,
    JournalHeldError,
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


_POLL_S = 0.01
_HOLDER_LIMIT_BYTES = 500


class FileLock:
    """A lock on the file ``path``, exclusive between processes and between instances.

    Its descriptor stays open: ``filelock.FileLock``, which opens the file for each acquisition,
    would add a tenth to the CPU time of an append.
    """

    def __init__(self, path: Path) -> None:
        """Raises :class:`JournalOpenError` if the file cannot be created or written."""
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalOpenError(f"cannot write {path}: {error.strerror}") from None

    async def acquire(self, timeout_s: float) -> None:
        """Raises :class:`JournalBusyError` after the timeout."""
        if lock_descriptor(self._descriptor, blocking=False):
            return
        deadline_s = anyio.current_time() + timeout_s
        while not lock_descriptor(self._descriptor, blocking=False):
            if anyio.current_time() >= deadline_s:
                raise JournalBusyError(f"another process holds {self._path}")
            await anyio.sleep(_POLL_S)

    def release(self) -> None:
        unlock_descriptor(self._descriptor)

    @asynccontextmanager
    async def held(self, timeout_s: float) -> AsyncIterator[None]:
        """Hold the lock, as :meth:`acquire`."""
        await self.acquire(timeout_s)
        try:
            yield
        finally:
            self.release()

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class DaemonLock:
    """Excludes other daemons from a journal while this process lives.

    The lock file holds a line about the daemon, for the message of the next one. A process without
    the lock may still write to the journal, as ``asched checkpoint`` does.
    """

    def __init__(self, journal: Path) -> None:
        """Acquire the lock of the journal in the file ``journal``.

        Raises :class:`JournalHeldError` if another daemon holds it, :class:`JournalOpenError` if
        the lock file cannot be created or written.
        """
        path = journal.with_name(f"{journal.name}-daemon-lock")
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalOpenError(f"cannot write {path}: {error.strerror}") from None
        try:
            if not lock_descriptor(self._descriptor, blocking=False):
                raise JournalHeldError(_held_message(journal, self._descriptor))
            line = f"process {os.getpid()} on host {socket.gethostname()} since {_now()}\n"
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, line.encode(), 0)
        except OSError as error:
            self.close()
            raise JournalOpenError(f"cannot lock {path}: {error.strerror}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _held_message(journal: Path, descriptor: int) -> str:
    holder = os.pread(descriptor, _HOLDER_LIMIT_BYTES, 0).decode(errors="replace").strip()
    return (
        f"another daemon uses {journal}: {holder or 'an unknown process'}; stop it, or give this"
        " one a journal of its own"
    )


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


@contextmanager
def held_exclusively(path: Path, message: str) -> Iterator[None]:
    """Hold a lock on a directory, or on a file that is created if necessary, without waiting.

    Raises :class:`JournalBusyError` with ``message`` if it is held, :class:`JournalIOError` if it
    cannot be opened or locked.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalIOError(f"cannot write {path}: {error.strerror}") from None
    try:
        try:
            locked = lock_descriptor(descriptor, blocking=False)
        except OSError as error:
            raise JournalIOError(f"cannot lock {path}: {error.strerror}") from None
        if not locked:
            raise JournalBusyError(message)
        yield
    finally:
        os.close(descriptor)
