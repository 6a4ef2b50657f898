"""Upgrades of journals with data in them, from each stage, in each kind of database."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine

from asched.journal import migrate, open_journal, revision
from asched.journal.chain import GENESIS, SealedBatch, seal
from asched.journal.codec import CODEC
from asched.journal.errors import JournalAbsentError, JournalOpenError, JournalSchemaError
from asched.journal.schema import METADATA
from asched.journal.verification import verify_journal
from tests.journal.samples import mixed, turn
from tests.journal.test_verification import engine_url

OLDER = ["0001"]
"""All revisions but the newest."""


async def in_transaction(url: str, work: Callable[[Connection], object]) -> object:
    engine = create_async_engine(engine_url(url))
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


def upgrade_to(revision: str) -> Callable[[Connection], None]:
    def upgrade(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(migrate.script_location()))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    return upgrade


def fill(connection: Connection) -> None:
    """Three writers and two batches, as asched of that time wrote them."""
    claim = text("INSERT INTO journal_writer (epoch, writer, claimed_at_ns) VALUES (:e, :w, :at)")
    for epoch, writer in ((1, "node-a"), (2, "näme")):
        connection.execute(claim, {"e": epoch, "w": writer, "at": epoch})
        if epoch == 1:
            first = _insert(connection, seal(GENESIS, [*map(CODEC.encode, turn(1))], 1, 100))
    second = _insert(connection, seal(first.head, [*map(CODEC.encode, mixed())], 2, 200))
    connection.execute(
        text("INSERT INTO journal_checkpoint VALUES (3, 1, :hash, :blob)"),
        {"hash": first.batch.hash, "blob": b"three"},
    )
    connection.execute(claim, {"e": 3, "w": "idle", "at": 3})
    assert second.head.seq == 7


def _insert(connection: Connection, sealed: SealedBatch) -> SealedBatch:
    for table, rows in (("journal_batch", [sealed.batch]), ("journal_record", sealed.rows)):
        for row in rows:
            places = ", ".join(f":{name}" for name in row._fields)
            connection.execute(text(f"INSERT INTO {table} VALUES ({places})"), row._asdict())
    return sealed


def test_every_stage_is_tested() -> None:
    assert migrate.newest() == revision.NEWEST
    assert [*OLDER, migrate.newest()] == [f"{n:04d}" for n in range(1, len(OLDER) + 2)]


@pytest.mark.parametrize("revision", OLDER)
async def test_an_upgrade_keeps_what_is_there(database_url: str, revision: str) -> None:
    await in_transaction(database_url, upgrade_to(revision))
    await in_transaction(database_url, fill)
    with pytest.raises(JournalSchemaError, match=f"has schema {revision}, this asched reads"):
        async with open_journal(database_url, read_only=True):
            pytest.fail("it opened")
    async with open_journal(database_url) as store:
        assert [s.record async for s in store.read()] == turn(1) + mixed()
        proven = await verify_journal(store)
        assert (proven.records, proven.writers, proven.checkpoints) == (7, 3, 1)
        assert await store.claim("after", claimed_at_ns=4) == 4
        assert await store.append(turn(2), written_at_ns=300, first_seq=8) == (8, 10)
        checkpoint = await store.load_checkpoint()
        assert checkpoint is not None
        assert checkpoint.blob == b"three"
        assert (await verify_journal(store)).writers == 4
    async with open_journal(database_url, read_only=True) as store:
        assert (await store.head()).seq == 10
    with pytest.raises(Exception, match="append-only"):
        await in_transaction(
            database_url, lambda c: c.execute(text("UPDATE journal_writer SET writer = 'me'"))
        )


async def test_an_older_one_that_must_be_there_is_upgraded(database_url: str) -> None:
    await in_transaction(database_url, upgrade_to(OLDER[0]))
    await in_transaction(database_url, fill)
    async with open_journal(database_url, must_exist=True) as store:
        assert (await store.head()).seq == 7


async def test_what_must_be_there_is_not_made(database_url: str) -> None:
    with pytest.raises((JournalAbsentError, JournalOpenError)):
        async with open_journal(database_url, must_exist=True):
            pytest.fail("it opened")
    async with open_journal(database_url):
        pass
    async with open_journal(database_url, must_exist=True) as store:
        assert (await store.head()).seq == 0


async def test_the_migrations_make_the_tables_that_queries_see(database_url: str) -> None:
    def differences(connection: Connection) -> object:
        options = {"version_table": revision.VERSION_TABLE}
        return compare_metadata(MigrationContext.configure(connection, opts=options), METADATA)

    async with open_journal(database_url):
        pass
    assert await in_transaction(database_url, differences) == []


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_newer_schema_is_refused_and_left_alone(database_url: str, read_only: bool) -> None:
    async with open_journal(database_url) as store:
        await store.claim("test", claimed_at_ns=1)
    newer = text("UPDATE journal_schema SET version_num = '9999'")
    await in_transaction(database_url, lambda c: c.execute(newer))
    with pytest.raises(JournalSchemaError, match="has schema 9999, newer than this asched's"):
        async with open_journal(database_url, read_only=read_only):
            pytest.fail("it opened")
    found = await in_transaction(
        database_url, lambda c: c.execute(text("SELECT version_num FROM journal_schema")).scalar()
    )
    assert found == "9999"
