"""Creation and upgrade of journals, for each kind of database."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine

from asched.journal import open_journal, schema
from asched.journal.errors import JournalAbsentError, JournalOpenError, JournalSchemaError
from asched.journal.verification import verify_journal
from tests.journal.samples import mixed, turn
from tests.journal.test_verification import engine_url

T = TypeVar("T")

NEXT_REVISION = """
import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade():
    op.create_table("journal_note", sa.Column("note", sa.Text(), nullable=False))
"""


async def in_transaction(url: str, work: Callable[[Connection], T]) -> T:
    engine = create_async_engine(engine_url(url))
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to become a release with one more revision."""

    def become() -> None:
        folder = tmp_path / "next release"
        shutil.copytree(schema.migrations_path(), folder)
        (folder / "versions" / "0003_next.py").write_text(NEXT_REVISION)
        monkeypatch.setattr(schema, "NEWEST", "0003")
        monkeypatch.setattr(schema, "migrations_path", lambda: folder)

    return become


async def fill(url: str) -> None:
    """Two writers, two batches and a checkpoint."""
    async with open_journal(url) as store:
        await store.claim("node-a", claimed_at_ns=1)
        await store.append(turn(1), written_at_ns=100)
        await store.save_checkpoint(3, b"three")
        await store.claim("näme", claimed_at_ns=2)
        await store.append(mixed(), written_at_ns=200)


def test_newest_revision_is_head_of_migrations() -> None:
    scripts = ScriptDirectory(str(schema.migrations_path()))
    assert scripts.get_current_head() == schema.NEWEST


async def test_upgrade_keeps_data(database_url: str, next_release: Callable[[], None]) -> None:
    await fill(database_url)
    next_release()
    with pytest.raises(JournalSchemaError, match="has schema 0002, this asched reads 0003"):
        async with open_journal(database_url, read_only=True):
            pytest.fail("it opened")
    async with open_journal(database_url) as store:
        assert [s.record async for s in store.read()] == turn(1) + mixed()
        verified = await verify_journal(store)
        assert (verified.records, verified.writers, verified.checkpoints) == (7, 2, 1)
        assert await store.claim("after", claimed_at_ns=4) == 3
        assert (await store.append(turn(2), written_at_ns=300, first_seq=8)).last_seq == 10
        checkpoint = await store.load_checkpoint()
        assert checkpoint is not None
        assert checkpoint.blob == b"three"
        assert (await verify_journal(store)).writers == 3
    async with open_journal(database_url, read_only=True) as store:
        assert (await store.head()).seq == 10
    notes = text("SELECT count(*) FROM journal_note")
    assert await in_transaction(database_url, lambda c: c.execute(notes).scalar()) == 0
    with pytest.raises(Exception, match="append-only"):
        await in_transaction(
            database_url, lambda c: c.execute(text("UPDATE journal_writer SET writer = 'me'"))
        )


async def test_existing_older_journal_is_upgraded(
    database_url: str, next_release: Callable[[], None]
) -> None:
    await fill(database_url)
    next_release()
    async with open_journal(database_url, must_exist=True) as store:
        assert (await store.head()).seq == 7


async def test_missing_journal_is_not_created_if_it_must_exist(database_url: str) -> None:
    with pytest.raises((JournalAbsentError, JournalOpenError)):
        async with open_journal(database_url, must_exist=True):
            pytest.fail("it opened")
    async with open_journal(database_url):
        pass
    async with open_journal(database_url, must_exist=True) as store:
        assert (await store.head()).seq == 0


async def test_migrations_create_tables_of_schema(database_url: str) -> None:
    def differences(connection: Connection) -> object:
        options = {"version_table": schema.VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        return compare_metadata(context, schema.METADATA)

    async with open_journal(database_url):
        pass
    assert await in_transaction(database_url, differences) == []


async def test_new_sqlite_journal_equals_migrated_one(tmp_path: Path) -> None:
    """The failure shows the text that newest_sqlite.sql should have."""
    url = f"sqlite+aiosqlite:///{tmp_path}/migrated.db"

    def statements(connection: Connection) -> list[str]:
        schema.migrate(connection)
        stored = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
        rows = connection.execute(text(stored)).scalars()
        return ["\n".join(map(str.rstrip, sql.splitlines())) for sql in rows]

    revision = f"INSERT INTO journal_schema VALUES ('{schema.NEWEST}')"
    expected = [*await in_transaction(url, statements), revision]
    written = (schema.migrations_path() / schema.NEWEST_SQLITE).read_text()
    assert written == "\n\n".join(expected) + "\n"


@pytest.mark.parametrize("read_only", [False, True])
async def test_newer_schema_is_rejected_and_unchanged(database_url: str, read_only: bool) -> None:
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
