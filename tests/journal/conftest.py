from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from asched.journal.memory import MemoryJournal, MemoryStore
from asched.journal.sql import SqlStore
from asched.journal.sqlite import SqliteDatabase
from asched.journal.store import JournalStore

OpenStore = Callable[[], Awaitable[JournalStore]]


@pytest.fixture(params=["memory", "sqlite"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Opens one and the same journal, as often as called, once for each kind of store."""
    shared = MemoryJournal()

    async with AsyncExitStack() as stack:

        async def open_one() -> JournalStore:
            store: JournalStore
            if request.param == "memory":
                store = MemoryStore(shared)
            else:
                path = tmp_path / "journal.db"
                store = SqlStore(await SqliteDatabase.open(path, read_only=False))
            stack.push_async_callback(store.close)
            return store

        yield open_one


@pytest.fixture
async def store(open_store: OpenStore) -> JournalStore:
    """A store that has claimed its empty journal."""
    store = await open_store()
    await store.claim("test", claimed_at_ns=1)
    return store
