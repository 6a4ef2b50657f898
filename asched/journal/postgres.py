"""PostgreSQL as the journal's database: connections, errors, and fast appends.

Every transaction that claims or appends holds one advisory lock. The triggers take it, too, so
writes of other programs are also serialized (see ``migrations/``).

Connections use TLS as the server's address requires. The driver's default accepts any certificate,
and a connection without TLS. Connections that may leave the machine are verified against the
system's authorities, unless the URL has ``ssl=`` (``disable``, or ``verify-full`` with
``PGSSLROOTCERT``). The address is the one that the driver uses: the URL's host, its parameter
``host``, a service, or ``PGHOST``.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from inspect import signature
from ipaddress import ip_address
from typing import Any, Final

import anyio
import asyncpg
from sqlalchemy import URL, Select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from asched.journal.chain import Batch, JournalRow, SealedBatch
from asched.journal.database import READERS, SqlDatabase, driver_of, pooled_engine
from asched.journal.errors import (
    JournalBusyError,
    JournalCorruptError,
    JournalError,
    JournalFullError,
    JournalIOError,
    JournalOpenError,
    JournalUnreachableError,
    trigger_error,
)
from asched.journal.schema import JOURNAL_BATCH, JOURNAL_RECORD

_INDIRECT: Final = ("dsn", "service", "servicefile")
"""Settings that name the server in a way that only the driver resolves."""
_OPTIONS: Final = signature(asyncpg.connect).parameters.keys()


async def connect_verified(*args: Any, **settings: Any) -> Any:
    """``asyncpg.connect`` with verified TLS where it is required.

    Raises :class:`asyncpg.ClientConfigurationError` also for an option, host or port of the URL
    that cannot be used.
    """
    unknown = sorted(settings.keys() - _OPTIONS)
    if unknown:
        raise asyncpg.ClientConfigurationError(
            f"unknown option {unknown[0]!r} in the URL; TLS is set with ssl=, such as"
            " ssl=verify-full with PGSSLROOTCERT"
        )
    try:
        return await asyncpg.connect(*args, **settings, **tls_arguments(settings))
    except (OverflowError, UnicodeError) as error:
        raise asyncpg.ClientConfigurationError(f"host or port of the URL: {error}") from None


def tls_arguments(
    settings: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> dict[str, ssl.SSLContext]:
    """The TLS arguments to add to the driver's connection settings."""
    if settings.get("ssl") is not None or _is_local(settings, environ):
        return {}
    # The driver ignores it for a Unix socket.
    return {"ssl": ssl.create_default_context()}


def _is_local(settings: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether a connection cannot leave the machine."""
    named = settings.get("host")
    if not named:
        if any(settings.get(name) for name in _INDIRECT) or environ.get("PGSERVICE"):
            return False
        named = environ.get("PGHOST", "")
    hosts = named.split(",") if isinstance(named, str) else named
    # Without any host the driver tries Unix sockets and localhost.
    return all(_is_local_host(str(host)) for host in hosts if host)


def _is_local_host(host: str) -> bool:
    if host.startswith("/") or host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


_DRIVER: Final = "postgresql+asyncpg"
_CONNECT_TIMEOUT_S: Final = 10.0
_READ_TIMEOUT_S: Final = 60.0
_WRITE_TIMEOUT_S: Final = 20.0
"""After this time without a response the append is retried. A stop may wait for it and for a new
connection, which must be less than the stop timeouts of systemd and Kubernetes."""
_CLOSE_TIMEOUT_S: Final = 2.0

# The first number is "asch" in ASCII; the second distinguishes schemas of one database.
_LOCK: Final = text("SELECT pg_advisory_xact_lock(1634952040, hashtext(current_schema()))")

# A session lock, because an archive run has many transactions. The writer uses another lock.
_ARCHIVING: Final = "1634952041, hashtext(current_schema())"
_TRY_ARCHIVING: Final = text(f"SELECT pg_try_advisory_lock({_ARCHIVING})")
_END_ARCHIVING: Final = text(f"SELECT pg_advisory_unlock({_ARCHIVING})")

# A writer process that is suspended within a transaction would keep the lock and block the claim
# that is to fence it. Ending its session rolls back its transaction, and it is fenced when
# it resumes. A running process holds the lock for one batch or chunk, never for a second.
_END_STUCK: Final = text(
    "SELECT pg_terminate_backend(held.pid) FROM pg_locks held JOIN pg_stat_activity USING (pid)"
    " WHERE held.locktype = 'advisory' AND held.granted AND held.pid <> pg_backend_pid()"
    " AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND held.classid = 1634952040 AND held.objid = hashtext(current_schema())::oid"
    " AND xact_start < now() - interval '1 second' AND usename = current_user"
)

# A server may be configured to confirm commits before they are on disk. A decision must be durable
# before its effect, so this setting is overridden. Stronger settings, as remote_apply, are kept.
_DURABLE: Final = (
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') = 'off'"
)

_COLUMNS: Final = Batch._fields
_INSERT_BATCH: Final = (
    f"INSERT INTO {JOURNAL_BATCH.name} ({', '.join(_COLUMNS)})"
    f" VALUES ({', '.join(f'${place}' for place in range(1, len(_COLUMNS) + 1))})"
)


_WRONG_URL: Final = (asyncpg.ClientConfigurationError, ssl.SSLCertVerificationError)
"""Errors that a retry cannot resolve."""


class PostgresDatabase(SqlDatabase):
    """The tables in the first schema of the search path. Made by :meth:`open`."""

    # InternalClientError: a statement after the server announced the end of the session.
    # OSError: no server, or (as TimeoutError) none that responds.
    driver_errors = (
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        OSError,
    )

    @classmethod
    async def open(cls, url: URL, *, read_only: bool, daemon: bool = False) -> PostgresDatabase:
        """Open the journal at ``url``; for writing, create or upgrade its tables first.

        Raises :class:`JournalOpenError` (:class:`JournalUnreachableError` if a retry may succeed),
        :class:`JournalSchemaError` (newer, or read-only and older), and for a ``daemon``
        :class:`JournalCorruptError` (other tables, indexes or triggers).
        """
        url = url.set(drivername=_DRIVER)
        readers = _engine(url, READERS, _READ_TIMEOUT_S, default_transaction_read_only="on")
        writer = None if read_only else _engine(url, 1, _WRITE_TIMEOUT_S)
        name = url.set(query={}).render_as_string(hide_password=True)
        return await cls(name, readers, writer).prepared(daemon=daemon)

    async def prepare(self, *, daemon: bool) -> None:
        try:
            await super().prepare(daemon=daemon)
        except JournalIOError as error:
            permanent = isinstance(self.driver_error(error), _WRONG_URL)
            kind = JournalOpenError if permanent else JournalUnreachableError
            raise kind(str(error)) from error

    async def fetch_on(
        self, connection: AsyncConnection, query: Select[Any]
    ) -> Sequence[tuple[Any, ...]]:
        try:
            return await super().fetch_on(connection, query)
        except asyncpg.PostgresError:
            raise  # the server responded
        except Exception:
            # The pool does not notice: SQLAlchemy did not execute the statement.
            await connection.invalidate()
            raise

    async def fetch_all(
        self, driver: Any, statement: str, values: Sequence[Any]
    ) -> Sequence[tuple[Any, ...]]:
        return [tuple(row) for row in await driver.fetch(statement, *values)]

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """As the base, in a transaction that holds the journal's lock."""
        async with super().write() as connection:
            await connection.execute(_LOCK)
            yield connection

    @asynccontextmanager
    async def archiving(self) -> AsyncIterator[None]:
        """Exclude other archive runs on any machine.

        If the session is lost, so is its lock. The database then rejects the second of two equal
        segments.
        """
        async with self.read() as connection:
            if not (await connection.execute(_TRY_ARCHIVING)).scalar_one():
                raise JournalBusyError(f"another process is archiving {self.name}")
            # The server may end a session that is idle in a transaction.
            await connection.commit()
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self._end_archiving(connection)

    async def _end_archiving(self, connection: AsyncConnection) -> None:
        """Release the lock. If that fails, end the session, which releases it, too."""
        try:
            await connection.execute(_END_ARCHIVING)
        except (SQLAlchemyError, *self.driver_errors):
            await connection.invalidate()

    def check_files(self) -> None:
        """Nothing to do: the server owns its files."""

    async def end_stuck_writers(self) -> None:
        """End sessions that hold the journal's lock for longer than a running process would."""
        async with self.exclusively() as connection, connection.begin():
            await connection.execute(_END_STUCK)

    async def append(self, sealed: SealedBatch) -> None:
        """Insert a batch in a transaction of its own with the driver's COPY, durable on return."""
        async with self.exclusively() as connection:
            driver = await driver_of(connection)
            try:
                async with driver.transaction():
                    await driver.execute(_INSERT_BATCH, *sealed.batch)
                    await driver.copy_records_to_table(
                        JOURNAL_RECORD.name, records=sealed.rows, columns=JournalRow._fields
                    )
            except asyncpg.PostgresError:
                raise  # the server responded: the connection works, the transaction was rolled back
            except BaseException:
                await connection.invalidate()
                raise

    @asynccontextmanager
    async def exclusively(self) -> AsyncIterator[AsyncConnection]:
        if self._writer is None:
            raise self.read_only_error()
        async with self._write_lock:
            with anyio.CancelScope(shield=True), self.translated():
                async with self._writer.connect() as connection:
                    try:
                        yield connection
                    except Exception as error:
                        # The URL may now lead to another server, after a failover.
                        cause = self.driver_error(error)
                        if isinstance(cause, asyncpg.ReadOnlySQLTransactionError):
                            await connection.invalidate()
                        raise

    def translate(self, error: BaseException) -> JournalError:
        cause, name = self.driver_error(error), self.name
        reason = " ".join(str(cause).split()) or type(cause).__name__
        if isinstance(cause, asyncpg.RaiseError):
            return trigger_error(reason, name) or JournalIOError(f"{name}: {reason}")
        match cause:
            case asyncpg.DiskFullError() | asyncpg.OutOfMemoryError():
                return JournalFullError(
                    f"cannot write {name}: the server is out of space: {reason}"
                )
            case (
                asyncpg.InvalidAuthorizationSpecificationError()
                | asyncpg.InvalidCatalogNameError()
                | asyncpg.InsufficientPrivilegeError()
            ):
                return JournalOpenError(f"cannot open {name}: {reason}")
            case asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError():
                return JournalCorruptError(f"{name} is damaged: {reason}")
            case asyncpg.LockNotAvailableError() | asyncpg.DeadlockDetectedError():
                return JournalBusyError(f"{name} is locked by another process: {reason}")
            case OSError():
                return JournalIOError(f"{name}: no connection to the server: {reason}")
            case _:
                # Includes a read-only server: a former primary, or a standby before its promotion.
                return JournalIOError(f"{name}: {reason}")


class _Connection(asyncpg.Connection):  # type: ignore[misc]  # the driver has no types
    """Limits the time to close a connection, for a server that hangs."""

    __slots__ = ()

    # The pool passes ``timeout``.
    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109
        with suppress(TimeoutError):
            await super().close(timeout=_CLOSE_TIMEOUT_S if timeout is None else timeout)


def _engine(url: URL, connections: int, timeout_s: float, **settings: str) -> AsyncEngine:
    connect_args = {
        "connection_class": _Connection,
        "timeout": _CONNECT_TIMEOUT_S,
        "command_timeout": timeout_s,
        "server_settings": {"application_name": "asched", **settings},
        "async_creator_fn": connect_verified,
    }
    return pooled_engine(url, connections, connect_args, (_DURABLE,))
