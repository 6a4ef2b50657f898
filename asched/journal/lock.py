"""Locks between processes: on a file of its own, and on a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio

from asched.journal.errors import JournalBusyError, JournalIOError, JournalOpenError

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


@contextmanager
def folder_held(folder: Path, refusal: str) -> Iterator[None]:
    """Hold ``folder``, which is made if need be; it leaves no file there. Else as
    :func:`file_held`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JournalIOError(f"cannot write {folder}: {error.strerror}") from None
    with _held_at_once(folder, os.O_RDONLY | os.O_DIRECTORY, refusal):
        yield


@contextmanager
def file_held(path: Path, refusal: str) -> Iterator[None]:
    """Hold the file at ``path``, which is made if need be, by ``flock``: against other processes, and
    other callers in this one. The file stays, as a :class:`FileLock`'s does.

    Raises :class:`JournalBusyError` with the text ``refusal`` at once where somebody else holds it,
    :class:`JournalIOError` where it cannot be made or held.
    """
    with _held_at_once(path, os.O_RDWR | os.O_CREAT, refusal):
        yield


@contextmanager
def _held_at_once(path: Path, flags: int, refusal: str) -> Iterator[None]:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalIOError(f"cannot write {path}: {error.strerror}") from None
    try:
        _lock(descriptor, path, refusal)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, refusal: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JournalBusyError(refusal) from None
    except OSError as error:
        raise JournalIOError(f"cannot lock {path}: {error.strerror}") from None
