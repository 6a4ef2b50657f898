"""Locks between processes, by ``flock`` on lock files. The kernel releases them if a process dies.

The database's own file is never locked: closing any descriptor of it would drop SQLite's locks.
Lock files stay in place, because removing one would let two processes lock different files.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
from filelock import FileLock, Timeout

from asched.journal.errors import JournalBusyError, JournalIOError, JournalOpenError

_POLL_S = 0.01


def file_lock(path: Path) -> FileLock:
    """A lock on ``path``, readable by its owner only. The file is created when it is acquired."""
    return FileLock(path, mode=0o600, thread_local=False)


@asynccontextmanager
async def held(lock: FileLock, timeout_s: float) -> AsyncIterator[None]:
    """Hold the lock. Raises :class:`JournalBusyError` after the timeout, :class:`JournalOpenError`
    if its file cannot be created."""
    deadline_s = anyio.current_time() + timeout_s
    while True:
        try:
            lock.acquire(blocking=False)
            break
        except Timeout:
            if anyio.current_time() >= deadline_s:
                raise JournalBusyError(f"another process holds {lock.lock_file}") from None
        except OSError as error:
            raise JournalOpenError(f"cannot write {lock.lock_file}: {error.strerror}") from None
        await anyio.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def held_exclusively(path: Path, message: str) -> Iterator[None]:
    """Hold a lock on ``path``, without waiting.

    Raises :class:`JournalBusyError` with ``message`` if it is held, :class:`JournalIOError` if the
    file cannot be created or locked.
    """
    lock = file_lock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        raise JournalBusyError(message) from None
    except OSError as error:
        raise JournalIOError(f"cannot write {path}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()
