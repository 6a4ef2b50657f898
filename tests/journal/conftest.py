from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from asched.journal.memory import MemoryJournal, MemoryStore
from asched.journal.opening import open_journal
from asched.journal.store import JournalStore
from tests.journal.postgres_server import PostgresServer

OpenStore = Callable[[], Awaitable[JournalStore]]
NewDatabase = Callable[[], Awaitable[str]]

_numbers = itertools.count(1)


@pytest.fixture
def new_postgres_database(postgres: PostgresServer) -> NewDatabase:
    """Makes an empty database at each call; its URL."""

    async def new_database() -> str:
        return await postgres.new_database(f"journal_{next(_numbers)}")

    return new_database


@pytest.fixture(params=["sqlite", "postgres"])
async def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a journal can be made, once for each kind of database."""
    if request.param == "sqlite":
        return str(tmp_path / "journal.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return await server.new_database(f"journal_{next(_numbers)}")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Opens one and the same journal, as often as called, once for each kind of store."""
    shared = MemoryJournal()
    url = str(tmp_path / "journal.db")
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = await server.new_database(f"journal_{next(_numbers)}")

    async with AsyncExitStack() as stack:

        async def open_one() -> JournalStore:
            if request.param == "memory":
                return MemoryStore(shared)
            return await stack.enter_async_context(open_journal(url))

        yield open_one


@pytest.fixture
async def store(open_store: OpenStore) -> JournalStore:
    """A store that has claimed its empty journal."""
    store = await open_store()
    await store.claim("test", claimed_at_ns=1)
    return store
