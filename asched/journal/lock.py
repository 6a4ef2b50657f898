"""Locks between processes, by ``flock``. The kernel releases them if a process dies.

The database's own file is never locked: closing any descriptor of it would drop SQLite's locks.
Lock files stay in place, because removing one would let two processes lock different files.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
from filelock import lock_descriptor, unlock_descriptor

from asched.journal.errors import JournalBusyError, JournalIOError, JournalOpenError

_POLL_S = 0.01


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

    @asynccontextmanager
    async def held(self, timeout_s: float) -> AsyncIterator[None]:
        """Hold the lock. Raises :class:`JournalBusyError` after the timeout."""
        deadline_s = anyio.current_time() + timeout_s
        while not lock_descriptor(self._descriptor, blocking=False):
            if anyio.current_time() >= deadline_s:
                raise JournalBusyError(f"another process holds {self._path}")
            await anyio.sleep(_POLL_S)
        try:
            yield
        finally:
            unlock_descriptor(self._descriptor)

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


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
