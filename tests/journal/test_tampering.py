"""The database rejects changes, and forced changes are detected."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from asched.journal import open_journal
from asched.journal.chain import GENESIS, verify
from asched.journal.errors import ConflictError, JournalCorruptError, RecordError
from asched.journal.sql import SqlStore
from asched.journal.sqlite import SqliteDatabase
from tests.journal.forging import without_triggers
from tests.journal.samples import turn, verified_head


async def write_journal(path: Path) -> None:
    async with open_journal(str(path)) as store:
        await store.claim("test", claimed_at_ns=1)
        for number in range(4):
            await store.append(turn(number), written_at_ns=number)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "journal.db"
    anyio.run(write_journal, path)
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A closed journal of 4 batches of 3 records."""
    return Path(shutil.copy(original, tmp_path / "journal.db"))


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE journal_record SET payload = '{}' WHERE seq = 2", "append-only"),
        ("DELETE FROM journal_record WHERE seq = 12", "append-only"),
        ("DELETE FROM journal_record", "append-only"),
        ("UPDATE journal_batch SET hash = ''", "append-only"),
        ("DELETE FROM journal_batch WHERE batch = 4", "append-only"),
        ("UPDATE journal_writer SET writer = 'me'", "append-only"),
        ("DELETE FROM journal_writer", "append-only"),
        ("INSERT OR REPLACE INTO journal_record VALUES (2, 1, 'Bound', 1, '', '{}')", "sequence"),
        ("INSERT INTO journal_record VALUES (14, 5, 'Bound', 1, '', '{}')", "out of sequence"),
        ("INSERT OR REPLACE INTO journal_batch VALUES (4, 10, 12, 1, 1, '', '')", "sequence"),
        ("INSERT INTO journal_batch VALUES (6, 13, 13, 1, 1, '', '')", "out of sequence"),
        ("INSERT INTO journal_batch VALUES (5, 14, 14, 1, 1, '', '')", "out of sequence"),
        ("INSERT INTO journal_batch VALUES (5, 13, 12, 1, 1, '', '')", "out of sequence"),
        ("INSERT INTO journal_batch VALUES (5, 13, 13, 1, 1, 'other', '')", "out of sequence"),
        ("INSERT INTO journal_batch VALUES (5, 13, 13, 0, 1, '', '')", "fenced"),
        ("INSERT INTO journal_batch VALUES (5, 13, 13, 2, 1, '', '')", "fenced"),
        ("INSERT INTO journal_writer VALUES (3, 'me', 1, '')", "out of sequence"),
        ("INSERT OR REPLACE INTO journal_writer VALUES (1, 'me', 1, '')", "out of sequence"),
    ],
)
def test_triggers_reject_changes(path: Path, statement: str, reason: str) -> None:
    with (
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match=reason),
    ):
        connection.execute(statement)


def tamper(path: Path, *statements: str) -> None:
    """Change the file without its triggers."""
    with without_triggers(path) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["UPDATE journal_record SET payload = replace(payload, 'node-1', 'node-2') WHERE seq = 5"],
         r"batch 2 \(records 4 to 6\) was altered"),
        (["UPDATE journal_record SET subject = 'pod/a/b' WHERE seq = 5"], "batch 2 .* altered"),
        (["UPDATE journal_record SET version = 2 WHERE seq = 5"], "batch 2 .* altered"),
        (["UPDATE journal_record SET kind = 'Bound' WHERE seq = 5"], "batch 2 .* altered"),
        (["UPDATE journal_record SET batch = 3 WHERE seq = 6"], "record 6 is .* out of place"),
        (["DELETE FROM journal_record WHERE seq = 5"], "record 5 is missing"),
        (["DELETE FROM journal_record WHERE seq = 6"], r"batch 2 .* has 2 records"),
        (["UPDATE journal_record SET seq = 99 WHERE seq = 4",
          "UPDATE journal_record SET seq = 4 WHERE seq = 5",
          "UPDATE journal_record SET seq = 5 WHERE seq = 99"], "batch 2 .* altered"),
        (["UPDATE journal_batch SET written_at_ns = 9 WHERE batch = 2"], "batch 2 .* altered"),
        (["UPDATE journal_batch SET epoch = 9 WHERE batch = 2"], "batch 2 .* altered"),
        (["UPDATE journal_batch SET hash = previous_hash WHERE batch = 2"], "batch 2 .* altered"),
        (
            ["UPDATE journal_batch SET previous_hash = hash WHERE batch = 2"],
            "batch 2 .* not chained",
        ),
        (["DELETE FROM journal_batch WHERE batch = 1", "DELETE FROM journal_record WHERE batch = 1",
          "UPDATE journal_batch SET batch = batch - 1",
          "UPDATE journal_record SET batch = batch - 1"], "batch 1 .* does not follow batch 0"),
    ],
)  # fmt: skip
async def test_verification_names_batch(path: Path, statements: list[str], message: str) -> None:
    async with open_journal(str(path)) as store:
        assert (await verified_head(store)).seq == 12
    tamper(path, *statements)
    async with open_journal(str(path), read_only=True) as store:
        with pytest.raises(JournalCorruptError, match=message):
            await verified_head(store)


@pytest.mark.parametrize(("seq", "missing"), [(1, 1), (5, 5), (12, 12)])
async def test_read_detects_missing_record(path: Path, seq: int, missing: int) -> None:
    tamper(path, f"DELETE FROM journal_record WHERE seq = {seq}")
    async with open_journal(str(path), read_only=True) as store:
        with pytest.raises(JournalCorruptError, match=f"record {missing} is missing"):
            assert [s async for s in store.read()] == []


async def test_read_names_undecodable_record(path: Path) -> None:
    tamper(path, "UPDATE journal_record SET payload = '{\"type\":' WHERE seq = 5")
    async with open_journal(str(path), read_only=True) as store:
        with pytest.raises(RecordError, match="record 5 "):
            assert [s async for s in store.read(2)] == []


@pytest.fixture
async def database(path: Path) -> AsyncIterator[SqliteDatabase]:
    database = await SqliteDatabase.open(path, read_only=False)
    yield database
    await database.close()


async def test_writer_with_stale_head_is_rejected(path: Path, database: SqliteDatabase) -> None:
    store = SqlStore(database)
    await store.claim("test", claimed_at_ns=2)
    await store.append(turn(4), written_at_ns=4)
    sealed = [s async for s in store.batches(3)]
    # As the writer of batch 4 without knowledge of batch 5.
    with pytest.raises(ConflictError, match="does not follow"):
        await database.append(sealed[1])
    assert verify(sealed[0], GENESIS._replace(seq=9, batch=3, hash=sealed[0].batch.previous_hash))
    await store.append(turn(5), written_at_ns=5, first_seq=16)
