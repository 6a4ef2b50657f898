"""An open SQL database: what the journal needs of it, and what SQLite and PostgreSQL share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any, ClassVar, Self

import anyio
from sqlalchemy import URL, Dialect, Select, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from asched.journal import schema
from asched.journal.chain import SealedBatch
from asched.journal.definitions import check_definitions, check_indexes
from asched.journal.errors import JournalCorruptError, JournalError, JournalSchemaError

READERS = 4
"""Connections for reading."""

ErrorTypes = tuple[type[BaseException], ...]


class SqlDatabase(ABC):
    """An open SQL database with tables of the newest revision.

    ``open`` of a subclass makes it.
    """

    driver_errors: ClassVar[ErrorTypes]
    """Errors of the driver; :meth:`translate` converts them."""

    def __init__(self, name: str, readers: AsyncEngine, writer: AsyncEngine | None) -> None:
        """``name`` is for errors. Without ``writer`` the database is read-only."""
        self.name = name
        self._readers = readers
        self._writer = writer
        self._write_lock = anyio.Lock(fast_acquire=True)

    # -- opening and closing ------------------------------------------------------------------

    async def prepared(self, *, daemon: bool = False) -> Self:
        """This database after :meth:`prepare`; closed if that fails."""
        try:
            await self.prepare(daemon=daemon)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise
        return self

    async def prepare(self, *, daemon: bool) -> None:
        """Connect, and create or upgrade the tables; read-only, check their revision.

        For a daemon, also check their definitions.
        """
        try:
            if self._writer is not None:
                await self.upgrade()
            else:
                async with self.read() as connection:
                    await connection.run_sync(schema.check)
            if daemon:
                await self.check_definitions()
        except JournalSchemaError as error:
            raise type(error)(f"{self.name}: {error}") from None

    async def upgrade(self) -> None:
        async with self.write() as connection:
            await connection.run_sync(schema.upgrade)

    async def check_definitions(self, *, indexes: bool = False) -> None:
        """Raise :class:`JournalCorruptError` if tables, indexes or triggers are not those that
        asched creates; with ``indexes``, also if the content of an index is wrong."""
        try:
            async with self.read() as connection:
                await connection.run_sync(check_definitions)
                if indexes:
                    await connection.run_sync(check_indexes)
        except JournalCorruptError as error:
            raise JournalCorruptError(f"{self.name}: {error}") from None

    async def close(self) -> None:
        """Idempotent."""
        await self._readers.dispose()
        if self._writer is not None:
            await self._writer.dispose()

    # -- reading ------------------------------------------------------------------------------

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A read-only connection; its transaction ends with the block."""
        with self.translated():
            async with self._readers.connect() as connection:
                yield connection

    async def fetch(self, query: Select[Any]) -> Sequence[tuple[Any, ...]]:
        """All rows of a query as the driver returns them.

        For many rows, SQLAlchemy's named columns would double the cost.
        """
        async with self.read() as connection:
            return await self.fetch_on(connection, query)

    async def fetch_on(
        self, connection: AsyncConnection, query: Select[Any]
    ) -> Sequence[tuple[Any, ...]]:
        """As :meth:`fetch`, on a connection of :meth:`read`."""
        statement, values = _compiled(query, self._readers.dialect)
        return await self.fetch_all(await driver_of(connection), statement, values)

    @abstractmethod
    async def fetch_all(
        self, driver: Any, statement: str, values: Sequence[Any]
    ) -> Sequence[tuple[Any, ...]]:
        """All rows of a statement on the driver's connection."""

    # -- writing ------------------------------------------------------------------------------

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """The writing connection in a transaction, committed at the end of the block.

        The block is shielded from cancellation, so the result of a commit is always known.
        """
        async with self.exclusively() as connection, connection.begin():
            yield connection

    @abstractmethod
    def exclusively(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """The writing connection, shielded from cancellation, for one task at a time.

        Raises :class:`JournalError` if the database is read-only.
        """

    @abstractmethod
    async def append(self, sealed: SealedBatch) -> None:
        """Insert a batch atomically, durable on return, shielded from cancellation.

        Raises :class:`FencedError` or :class:`ConflictError` if the database rejects it.
        """

    @abstractmethod
    def archiving(self) -> AbstractAsyncContextManager[None]:
        """Exclude other archive runs of this journal, on any machine.

        Raises :class:`JournalBusyError` immediately if there is one.
        """

    @abstractmethod
    def check_files(self) -> None:
        """Raise :class:`JournalReplacedError` if the database's files are not those that were
        opened. Quick."""

    @abstractmethod
    async def end_stuck_writers(self) -> None:
        """Release locks of suspended writers, which would block a claim."""

    # -- errors -------------------------------------------------------------------------------

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Convert the driver's errors to journal errors that name the database."""
        errors: ErrorTypes = (SQLAlchemyError, *self.driver_errors)
        try:
            yield
        except errors as error:
            raise self.translate(error) from error

    @abstractmethod
    def translate(self, error: BaseException) -> JournalError:
        """The journal error for an error of the driver or of SQLAlchemy."""

    def driver_error(self, error: BaseException) -> BaseException:
        """The driver's error inside SQLAlchemy's, else ``error`` itself."""
        inner: BaseException | None = error
        while inner is not None:
            if isinstance(inner, self.driver_errors):
                return inner
            inner = (inner.orig if isinstance(inner, DBAPIError) else None) or inner.__cause__
        return error

    def read_only_error(self) -> JournalError:
        return JournalError(f"{self.name} is open for reading only")


@lru_cache(maxsize=8)
def _compiled(query: Select[Any], dialect: Dialect) -> tuple[str, tuple[Any, ...]]:
    """The statement and its values. Compiling takes a millisecond, and some queries repeat."""
    compiled = query.compile(dialect=dialect)
    return str(compiled), tuple(compiled.params[name] for name in compiled.positiontup or ())


async def driver_of(connection: AsyncConnection) -> Any:
    """The driver's connection, which saves SQLAlchemy's cost per statement and row."""
    return (await connection.get_raw_connection()).driver_connection


def pooled_engine(
    url: URL, connections: int, connect_args: Mapping[str, Any], statements: Sequence[str]
) -> AsyncEngine:
    """An engine with a fixed number of connections, which execute ``statements`` at first."""
    engine = create_async_engine(
        url, pool_size=connections, max_overflow=0, connect_args=dict(connect_args)
    )

    @event.listens_for(engine.sync_engine, "connect")
    def set_up(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        try:
            for statement in statements:
                cursor.execute(statement)
        finally:
            cursor.close()
        connection.commit()

    return engine
