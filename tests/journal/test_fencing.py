"""One writer at a time: between processes, and enforced by the database."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from asched.journal import open_journal
from tests.journal.conftest import NewDatabase
from tests.journal.samples import turn, verified_head
from tests.journal.test_verification import engine_url

ROOT = Path(__file__).resolve().parents[2]


class Writer:
    """Another process that writes; see :mod:`tests.journal.scripted_writer`."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self._process = process
        self._output = TextReceiveStream(process.stdout)
        self._received = ""

    async def line(self) -> str:
        with anyio.fail_after(60):
            while "\n" not in self._received:
                self._received += await self._output.receive()
        line, _, self._received = self._received.partition("\n")
        return line

    async def append(self, number: int) -> str:
        """Its response to an append."""
        assert self._process.stdin is not None
        await self._process.stdin.send(f"{number}\n".encode())
        return await self.line()


@asynccontextmanager
async def writer(url: str, name: str) -> AsyncIterator[Writer]:
    command = [sys.executable, "-m", "tests.journal.scripted_writer", url, name]
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        yield Writer(process)
        assert process.stdin is not None
        await process.stdin.aclose()
        assert await process.wait() == 0


async def test_fenced_process_is_rejected(database_url: str) -> None:
    async with writer(database_url, "old") as old:
        assert await old.line() == "epoch 1"
        assert await old.append(1) == "records 1 to 3"
        async with writer(database_url, "new") as new:
            assert await new.line() == "epoch 2"
            # Before and after the first append of the new writer, and later.
            assert await old.append(2) == "FencedError"
            assert await new.append(3) == "records 4 to 6"
            assert await old.append(4) == "FencedError"
        assert await old.append(5) == "FencedError"
    async with open_journal(database_url, read_only=True) as store:
        assert [s.record async for s in store.read()] == turn(1) + turn(3)
        assert [(w.epoch, w.writer) for w in await store.writers()] == [(1, "old"), (2, "new")]
        assert await verified_head(store) == await store.head()


HASH = "(SELECT hash FROM journal_batch WHERE batch = 1)"


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (f"INSERT INTO journal_batch VALUES (2, 4, 4, 1, 1, {HASH}, '')", "fenced: not the newest"),
        (f"INSERT INTO journal_batch VALUES (2, 4, 4, 3, 1, {HASH}, '')", "fenced: not the newest"),
        (f"INSERT INTO journal_batch VALUES (3, 4, 4, 2, 1, {HASH}, '')", "out of sequence"),
        (f"INSERT INTO journal_batch VALUES (2, 5, 5, 2, 1, {HASH}, '')", "out of sequence"),
        ("INSERT INTO journal_batch VALUES (2, 4, 4, 2, 1, 'other', '')", "out of sequence"),
        ("INSERT INTO journal_record VALUES (5, 2, 'Bound', 1, '', '{}')", "out of sequence"),
        ("INSERT INTO journal_writer VALUES (4, 'me', 1, '')", "out of sequence"),
        (
            "INSERT INTO journal_segment VALUES (1, 1, 1, 1, 3, '', '', '', '', 1)",
            "out of sequence",
        ),
        ("UPDATE journal_record SET payload = '{}' WHERE seq = 2", "append-only"),
        ("DELETE FROM journal_record WHERE seq = 3", "append-only"),
        ("UPDATE journal_batch SET hash = ''", "append-only"),
        ("DELETE FROM journal_batch", "append-only"),
        ("UPDATE journal_writer SET writer = 'me'", "append-only"),
        ("DELETE FROM journal_writer WHERE epoch = 2", "append-only"),
    ],
)
async def test_database_rejects_statement(claimed_twice: str, statement: str, reason: str) -> None:
    engine = create_async_engine(engine_url(claimed_twice))
    with pytest.raises(DBAPIError, match=reason):
        async with engine.begin() as connection:
            await connection.execute(text(statement))
    await engine.dispose()


@pytest.fixture
async def claimed_twice(database_url: str) -> str:
    """A journal with two writers and one batch, of the first one."""
    async with open_journal(database_url) as store:
        await store.claim("old", claimed_at_ns=1)
        await store.append(turn(1), written_at_ns=1)
        await store.claim("new", claimed_at_ns=2)
    return database_url


async def test_append_waits_for_concurrent_claim(
    new_postgres_database: NewDatabase,
) -> None:
    """PostgreSQL runs transactions concurrently; the trigger's lock serializes them."""
    url = await new_postgres_database()
    async with open_journal(url) as store:
        await store.claim("old", claimed_at_ns=1)
        engine = create_async_engine(url)
        refused: list[str] = []

        async def claim_late(first: anyio.Event) -> None:
            async with engine.begin() as connection:
                await first.wait()
                try:
                    await connection.execute(text(_CLAIM.format(epoch=2)))
                except DBAPIError as error:
                    refused.append(str(error.orig))

        first = anyio.Event()
        async with anyio.create_task_group() as tasks, engine.connect() as connection:
            tasks.start_soon(claim_late, first)
            await connection.execute(text(_CLAIM.format(epoch=2)))
            first.set()  # the other claim now waits for the lock
            await until_somebody_waits(url)
            await connection.commit()
        assert len(refused) == 1
        assert "out of sequence: not the next epoch" in refused[0]
        await engine.dispose()


_CLAIM = "INSERT INTO journal_writer VALUES ({epoch}, 'by hand', 1, '')"


async def until_somebody_waits(url: str) -> None:
    engine = create_async_engine(url)
    waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    with anyio.fail_after(60):
        found = 0
        while not found:
            async with engine.connect() as connection:
                found = (await connection.execute(waiting)).scalar_one()
    await engine.dispose()
