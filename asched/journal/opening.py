"""Opens a journal by its URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from asched.journal.database import SqlDatabase
from asched.journal.errors import (
    JournalAbsentError,
    JournalCorruptError,
    JournalSchemaError,
    JournalUrlError,
)
from asched.journal.memory import MemoryStore
from asched.journal.sealing import trusted_log
from asched.journal.sql import SqlStore
from asched.journal.sqlite import SqliteDatabase
from asched.journal.store import JournalStore
from asched.proof.keys import NO_KEYS, TRUSTED_KEY_ENV, JournalKeys

MEMORY_URL = "memory://"

_ACCEPTED = (
    "expected a file's path, sqlite+aiosqlite:///PATH, postgresql+asyncpg://USER@HOST/NAME or"
    " memory://"
)
_POSTGRES = ("postgresql+asyncpg:", "postgresql:")


@asynccontextmanager
async def open_journal(
    url: str,
    *,
    read_only: bool = False,
    must_exist: bool = False,
    daemon: bool = False,
    keys: JournalKeys = NO_KEYS,
) -> AsyncIterator[JournalStore]:
    """Open the journal at ``url`` and close it at the end of the block.

    ``url`` is a file's path, ``sqlite:///PATH``, ``sqlite+aiosqlite:///PATH`` (four slashes for an
    absolute path), ``postgresql+asyncpg://USER@HOST/NAME`` or ``memory://``. Unless ``read_only``,
    an older schema is upgraded and a missing journal created. ``must_exist`` makes a missing
    journal an error, so that a mistyped URL creates no file and no tables in another database.
    ``keys`` sign what is stored.
    ``daemon`` excludes other daemons from a journal in a file until the end of the block, and
    rejects tables, indexes and triggers that are not those that asched creates.

    Raises a :class:`~asched.journal.errors.JournalError` with one line for the user.
    """
    if must_exist and not read_only:
        await _check_exists(url)
    store = await _open(url, keys, read_only=read_only, daemon=daemon)
    try:
        yield store
    finally:
        with anyio.CancelScope(shield=True):
            await store.close()


@asynccontextmanager
async def open_trusted(url: str, keys: JournalKeys) -> AsyncIterator[JournalStore]:
    """As :func:`open_journal`, for reading. If ``keys`` has the trusted keys of the environment,
    one of them must have signed the journal: otherwise raises :class:`JournalCorruptError`."""
    async with open_journal(url, read_only=True, keys=keys) as journal:
        if keys.trusted:
            try:
                trusted_log(await journal.statements(), keys)
            except JournalCorruptError as error:
                raise JournalCorruptError(f"{error} ({TRUSTED_KEY_ENV})") from None
        yield journal


async def _check_exists(url: str) -> None:
    try:
        await (await _open(url, NO_KEYS, read_only=True)).close()
    except JournalAbsentError:
        raise
    except JournalSchemaError:
        pass  # opening it for writing upgrades an older schema and rejects a newer one


async def _open(
    url: str, keys: JournalKeys, *, read_only: bool, daemon: bool = False
) -> JournalStore:
    if url == MEMORY_URL:
        if read_only:
            raise JournalUrlError("memory:// is always empty: there is nothing to read")
        return MemoryStore(keys=keys)
    if url.startswith(_POSTGRES):
        database = await _open_postgres(url, read_only=read_only, daemon=daemon)
        return SqlStore(database, keys)
    path = sqlite_path(url)
    return SqlStore(await SqliteDatabase.open(path, read_only=read_only, daemon=daemon), keys)


async def _open_postgres(url: str, *, read_only: bool, daemon: bool) -> SqlDatabase:
    try:
        from asched.journal.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise JournalUrlError(
            "a journal in PostgreSQL needs asyncpg: pip install 'asched[postgres]'"
        ) from None
    return await PostgresDatabase.open(_parsed(url), read_only=read_only, daemon=daemon)


def is_shared(url: str) -> bool:
    """Whether several machines can use the journal at ``url``: PostgreSQL."""
    return url.startswith(_POSTGRES)


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise JournalUrlError(f"{without_password(url)!r} is not a URL: {_ACCEPTED}") from None


def without_password(url: str) -> str:
    """Text that may not be a URL, without what would be user, password and options of one."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    address, at, host = rest.rpartition("@")
    shown = (host if at else address or rest).partition("?")[0]
    return f"{scheme}{separator}{'***@' if at else ''}{shown}"


def redacted(url: str) -> str:
    """The URL without password and options, for logs."""
    if "://" not in url:
        return url
    return _parsed(url).set(query={}).render_as_string(hide_password=True)


def journal_file(url: str) -> Path | None:
    """The file of the journal at ``url``; None if it is not in a file.

    Raises :class:`JournalUrlError` as :func:`open_journal` does.
    """
    if url == MEMORY_URL or url.startswith(_POSTGRES):
        return None
    return sqlite_path(url)


def sqlite_path(url: str) -> Path:
    """The file that ``url`` names.

    Raises :class:`JournalUrlError` if it does not name a file.
    """
    if "://" not in url:
        if not url or url == ":memory:":
            raise JournalUrlError(f"{url!r} is not a journal: {_ACCEPTED}")
        return Path(url).expanduser()
    parsed = _parsed(url)
    safe = parsed.set(query={}).render_as_string(hide_password=True)
    if parsed.drivername not in ("sqlite", "sqlite+aiosqlite"):
        raise JournalUrlError(f"cannot keep a journal in {safe}: {_ACCEPTED}")
    if parsed.host or parsed.query or not parsed.database or parsed.database == ":memory:":
        raise JournalUrlError(f"{safe} does not name a file: {_ACCEPTED}")
    return Path(parsed.database)
