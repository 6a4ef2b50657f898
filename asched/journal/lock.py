"""A lock between processes, on a file of its own."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from asched.journal.errors import JournalBusyError, JournalOpenError

_POLL_S = 0.01


class FileLock:
    """``flock`` on ``path``: exclusive among processes and among openers within one.

    Never lock the database's own file: closing any descriptor of it would drop SQLite's locks.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        """Raises :class:`JournalOpenError` if the file cannot be created or written."""
        self._path = path
        self._timeout_s = timeout_s
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalOpenError(f"cannot write {path}: {error.strerror}") from None

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock; waits at most the timeout, then raises :class:`JournalBusyError`."""
        deadline_s = anyio.current_time() + self._timeout_s
        while not self._acquired():
            if anyio.current_time() >= deadline_s:
                raise JournalBusyError(f"another process holds {self._path}")
            await anyio.sleep(_POLL_S)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _acquired(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Idempotent. The file stays: removing it would let two openers lock two files."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
