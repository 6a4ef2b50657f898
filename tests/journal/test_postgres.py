"""PostgreSQL: missing servers, lost connections, settings, the driver."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from asched.journal import JournalError, open_journal
from asched.journal.chain import GENESIS
from asched.journal.errors import JournalIOError
from asched.journal.postgres import PostgresDatabase
from tests.journal.conftest import NewDatabase
from tests.journal.samples import turn, verified_head


async def refusal(url: str, *, read_only: bool = False) -> str:
    """The one-line error of opening ``url``."""
    with pytest.raises(JournalError) as raised:
        async with open_journal(url, read_only=read_only):
            pytest.fail("it opened")
    message = str(raised.value)
    assert "\n" not in message
    return f"{type(raised.value).__name__}: {message}"


async def test_missing_server_or_database(
    new_postgres_database: NewDatabase, tmp_path: Path
) -> None:
    url = make_url(await new_postgres_database())
    for there, kind in (
        (url.set(database="absent"), "JournalOpenError"),
        (url.set(query={"host": str(tmp_path)}), "JournalUnreachableError"),
        (url.set(query={}, host="127.0.0.1", port=1), "JournalUnreachableError"),
        (url.set(username="unknown"), "JournalOpenError"),
    ):
        message = await refusal(there.render_as_string(hide_password=False))
        assert message.startswith(f"{kind}: ")
    secret = url.set(database="absent", password="hunter2")
    assert "hunter2" not in await refusal(secret.render_as_string(hide_password=False))
    assert "this database holds no journal" in await refusal(
        url.render_as_string(hide_password=False), read_only=True
    )


async def test_missing_driver_names_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "asched.journal.postgres")
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    assert await refusal("postgresql+asyncpg://x@localhost/y") == (
        "JournalUrlError: a journal in PostgreSQL needs asyncpg: pip install 'asched[postgres]'"
    )


async def test_append_can_be_repeated_after_lost_connection(
    new_postgres_database: NewDatabase,
) -> None:
    url = await new_postgres_database()
    engine = create_async_engine(url)
    terminate = text(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE application_name = 'asched' AND datname = current_database()"
    )
    async with open_journal(url) as store:
        await store.claim("test", claimed_at_ns=1)
        await store.append(turn(1), written_at_ns=1, first_seq=1)
        for number in (2, 3):
            async with engine.connect() as connection:
                assert (await connection.execute(terminate)).all()
            with pytest.raises(JournalIOError):
                await store.append(turn(number), written_at_ns=number, first_seq=3 * number - 2)
            # As the engine does until it is known: the same call again. The readers' connections
            # are gone as well, and each is found out once.
            with anyio.fail_after(60):
                while True:
                    try:
                        appended = await store.append(
                            turn(number), written_at_ns=number, first_seq=3 * number - 2
                        )
                    except JournalIOError:
                        continue
                    break
            assert appended[:2] == (3 * number - 2, 3 * number)
        assert [s.record async for s in store.read()] == turn(1) + turn(2) + turn(3)
        assert await verified_head(store) == await store.head()
    await engine.dispose()


async def test_synchronous_commit_overrides_server_setting(
    new_postgres_database: NewDatabase,
) -> None:
    url = await new_postgres_database()
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        name = make_url(url).database
        await connection.execute(text(f'ALTER DATABASE "{name}" SET synchronous_commit = off'))
    await engine.dispose()
    database = await PostgresDatabase.open(make_url(url), read_only=False)
    async with database.write() as connection:
        assert (await connection.execute(text("SHOW synchronous_commit"))).scalar_one() == "on"
    async with database.read() as connection:
        shown = await connection.execute(text("SHOW default_transaction_read_only"))
        assert shown.scalar_one() == "on"
    await database.close()


async def test_concurrent_opens_create_one_journal(new_postgres_database: NewDatabase) -> None:
    url = await new_postgres_database()
    epochs: list[int] = []

    async def open_and_claim() -> None:
        async with open_journal(url) as store:
            epochs.append(await store.claim("one of many", claimed_at_ns=1))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(open_and_claim)
    assert sorted(epochs) == [1, 2, 3]


async def test_read_only_journal_rejects_writes(new_postgres_database: NewDatabase) -> None:
    url = await new_postgres_database()
    async with open_journal(url) as store:
        assert await store.head() == GENESIS
    async with open_journal(url, read_only=True) as reader:
        with pytest.raises(JournalError, match="reading only"):
            await reader.claim("reader", claimed_at_ns=1)


async def test_suspended_writer_does_not_block_claim(
    new_postgres_database: NewDatabase,
) -> None:
    url = await new_postgres_database()
    engine = create_async_engine(url)
    async with open_journal(url) as store, engine.connect() as sleeper:
        await sleeper.execute(
            text("SELECT pg_advisory_xact_lock(1634952040, hashtext(current_schema()))")
        )
        # Longer than a running process holds it, by the server's clock.
        await sleeper.execute(text("SELECT pg_sleep(1.1)"))
        with anyio.fail_after(60):
            assert await store.claim("successor", claimed_at_ns=1) == 1
        with pytest.raises(DBAPIError):
            await sleeper.execute(text("SELECT 1"))
        await sleeper.invalidate()
    await engine.dispose()
