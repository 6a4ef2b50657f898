"""Verification reports every change of a journal."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest
from sqlalchemy import BigInteger, Column, Integer, SmallInteger, Table, text
from sqlalchemy.ext.asyncio import create_async_engine

from asched.journal import open_journal
from asched.journal.chain import GENESIS_HASH
from asched.journal.errors import JournalCorruptError
from asched.journal.memory import MemoryStore
from asched.journal.schema import JOURNAL_BATCH, JOURNAL_RECORD, JOURNAL_WRITER
from asched.journal.verification import TrustedHead, VerificationResult, verify_journal
from tests.journal.samples import turn

BATCHES = 6


async def write_journal(url: str) -> None:
    """Batches of 3 records, by two writers, with checkpoints in batch 3 and at the end."""
    async with open_journal(url) as store:
        for epoch in (1, 2):
            await store.claim(f"writer {epoch}", claimed_at_ns=epoch)
            for number in range(BATCHES // 2):
                await store.append(turn(10 * epoch + number), written_at_ns=number)
        await store.save_checkpoint(8, b"eight")
        await store.save_checkpoint(18, b"eighteen")


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "journal.db"
    anyio.run(write_journal, str(path))
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path / "copy.db"))


def engine_url(url: str) -> str:
    return url if "://" in url else f"sqlite+aiosqlite:///{url}"


async def tamper(url: str, *statements: str) -> None:
    """Change the database without its triggers, which are there again afterwards."""
    engine = create_async_engine(engine_url(url))
    restored: list[str] = []
    async with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            found = await connection.execute(
                text("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
            )
            for name, sql in found.all():
                await connection.execute(text(f"DROP TRIGGER {name}"))
                restored.append(sql)
        else:
            await connection.execute(text("SET session_replication_role = replica"))
        for statement in statements:
            assert (await connection.execute(text(statement))).rowcount != 0, statement
        for statement in restored:
            await connection.exec_driver_sql(statement)
    await engine.dispose()


async def proven(url: str | Path, kept: str | None = None) -> VerificationResult:
    async with open_journal(str(url), read_only=True) as store:
        return await verify_journal(
            store, trusted=None if kept is None else TrustedHead.parse(kept)
        )


async def fault(url: str | Path, kept: str | None = None) -> str:
    with pytest.raises(JournalCorruptError) as raised:
        await proven(url, kept)
    return str(raised.value)


def changed(column: Column[object]) -> str:
    if isinstance(column.type, BigInteger | Integer | SmallInteger):
        return f"{column.name} + 1000"
    return f"{column.name} || 'x'"


EDITS = [
    (table, column)
    for table in (JOURNAL_BATCH, JOURNAL_RECORD, JOURNAL_WRITER)
    for column in table.columns
]


async def test_unaltered_journal_verifies(path: Path) -> None:
    found = await proven(path)
    assert (found.records, found.batches, found.writers, found.checkpoints) == (18, 6, 2, 2)
    assert found.head.seq == 18
    assert await proven(path, str(found.head)) == found


@pytest.mark.parametrize("row", ["first", "middle", "last"])
@pytest.mark.parametrize(("table", "column"), EDITS, ids=lambda value: getattr(value, "name", None))
async def test_edit_of_any_column_is_detected(
    path: Path, table: Table, column: Column[object], row: str
) -> None:
    (key,) = table.primary_key.columns
    middle = {JOURNAL_BATCH: 3, JOURNAL_RECORD: 8, JOURNAL_WRITER: 2}[table]
    number = {
        "first": "1",
        "middle": str(middle),
        "last": f"(SELECT max({key.name}) FROM {table.name})",
    }[row]
    await tamper(
        str(path),
        f"UPDATE {table.name} SET {column.name} = {changed(column)} WHERE {key.name} = {number}",
    )
    message = await fault(path)
    assert any(word in message for word in ("batch", "record", "writer"))


@pytest.mark.parametrize("seq", range(1, 19))
async def test_deletion_of_any_record_is_detected(path: Path, seq: int) -> None:
    await tamper(str(path), f"DELETE FROM journal_record WHERE seq = {seq}")
    assert f"batch {(seq + 2) // 3} " in await fault(path)


@pytest.mark.parametrize("batch", range(1, BATCHES + 1))
async def test_deletion_of_any_batch_is_detected(path: Path, batch: int) -> None:
    await tamper(
        str(path),
        f"DELETE FROM journal_batch WHERE batch = {batch}",
        f"DELETE FROM journal_record WHERE batch = {batch}",
    )
    message = await fault(path)
    if batch < BATCHES:
        assert f"batch {batch + 1} (records" in message
        assert f"does not follow batch {batch - 1}" in message
    else:
        assert "ends at record 15, but it once had record 18" in message


@pytest.mark.parametrize("epoch", [1, 2])
async def test_deletion_of_writer_is_detected(path: Path, epoch: int) -> None:
    await tamper(str(path), f"DELETE FROM journal_writer WHERE epoch = {epoch}")
    assert await fault(path) == f"the writer of epoch {epoch} is missing from the journal"


RECORD = "'Bound', 1, 'pod/a/b', '{}'"
COPIED = (
    "INSERT INTO journal_batch"
    " SELECT 7, 19, 19, 2, 1, hash, previous_hash FROM journal_batch WHERE batch = 6"
)


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ([f"INSERT INTO journal_record VALUES (19, 6, {RECORD})"], "record 19 was inserted"),
        ([f"INSERT INTO journal_record VALUES (19, 7, {RECORD})"], "record 19 was inserted"),
        ([f"INSERT INTO journal_record VALUES (-5, 1, {RECORD})"], "record -5 was inserted"),
        ([f"INSERT INTO journal_batch VALUES (0, 0, 0, 1, 1, '{GENESIS_HASH}', '')"],
         "batch 0 was inserted"),
        ([f"INSERT INTO journal_batch VALUES (7, 19, 19, 2, 1, '{GENESIS_HASH}', '')",
          f"INSERT INTO journal_record VALUES (19, 7, {RECORD})"], "batch 7 .* is not chained"),
        ([COPIED,
          f"INSERT INTO journal_record VALUES (19, 7, {RECORD})"], "batch 7 .* was altered"),
        ([f"INSERT INTO journal_writer VALUES (3, 'me', 1, '{GENESIS_HASH}')"],
         "the writer of epoch 3 was altered"),
    ],
)  # fmt: skip
async def test_insertions_are_detected(path: Path, statements: list[str], message: str) -> None:
    await tamper(str(path), *statements)
    with pytest.raises(JournalCorruptError, match=message):
        await proven(path)


@pytest.mark.parametrize(("one", "other"), [(1, 2), (4, 5), (3, 4), (2, 17), (17, 18)])
async def test_swapped_records_are_detected(path: Path, one: int, other: int) -> None:
    def move(seq: int, to: int) -> str:
        batch = (to + 2) // 3 if to > 0 else 1
        return f"UPDATE journal_record SET seq = {to}, batch = {batch} WHERE seq = {seq}"

    await tamper(str(path), move(one, -1), move(other, one), move(-1, other))
    assert f"batch {(one + 2) // 3} " in await fault(path)


async def test_swapped_batches_are_detected(path: Path) -> None:
    """With their records, renumbered so that only the chain reveals it."""
    statements = []
    for batch, to in ((2, -1), (3, 2), (-1, 3)):
        first_seq = 3 * to - 2
        shift = f"{first_seq} - (SELECT first_seq FROM journal_batch WHERE batch = {batch})"
        numbers = f"first_seq = {first_seq}, last_seq = {first_seq + 2}"
        statements += [
            f"UPDATE journal_record SET batch = {to}, seq = seq + {shift} WHERE batch = {batch}",
            f"UPDATE journal_batch SET batch = {to}, {numbers} WHERE batch = {batch}",
        ]
    await tamper(str(path), *statements)
    assert await fault(path) == "batch 2 (records 4 to 6) is not chained to batch 1 as it is stored"


def cut_off(batch: int, *, checkpoints: bool) -> list[str]:
    """Remove everything from ``batch`` on, and with ``checkpoints`` also these, with all statements
    about them."""
    tables = ["journal_batch", "journal_record"] + ["journal_checkpoint"] * checkpoints
    deleted = [f"DELETE FROM {table} WHERE batch >= {batch}" for table in tables]
    return [*deleted, *["DELETE FROM journal_statement"] * checkpoints]


@pytest.mark.parametrize("batch", range(1, BATCHES + 1))
async def test_truncation_is_detected_by_checkpoint(path: Path, batch: int) -> None:
    await tamper(str(path), *cut_off(batch, checkpoints=False))
    assert await fault(path) == (
        f"the journal ends at record {3 * batch - 3}, but it once had record 18:"
        f" records from {3 * batch - 2} on were cut off"
    )


@pytest.mark.parametrize("batch", range(1, BATCHES + 1))
async def test_truncation_with_checkpoints_is_detected_by_trusted_head(
    path: Path, batch: int
) -> None:
    kept = str((await proven(path)).head)
    await tamper(
        str(path),
        *cut_off(batch, checkpoints=True),
        *["DELETE FROM journal_checkpoint"] * (batch > 3),
    )
    await proven(path)  # undetectable without a trusted head
    assert "it once had record 18" in await fault(path, kept)


async def test_rewritten_journal_is_detected_by_trusted_head(path: Path, tmp_path: Path) -> None:
    async with open_journal(str(path), read_only=True) as store:
        heads = [TrustedHead(s.batch.last_seq, s.batch.hash) async for s in store.batches()]
    other = tmp_path / "other.db"
    async with open_journal(str(other)) as store:
        await store.claim("writer 1", claimed_at_ns=1)
        for number in range(BATCHES + 1):
            await store.append(turn(number), written_at_ns=number)
    for head in heads:
        await proven(path, str(head))
        assert f"does not have the trusted head {head}" in await fault(other, str(head))
    middle = heads[2]._replace(seq=8)
    assert "does not have the trusted head 8:" in await fault(path, str(middle))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal_checkpoint SET batch = 2 WHERE seq = 8",
        "UPDATE journal_checkpoint SET batch_hash = '' WHERE seq = 18",
        "UPDATE journal_checkpoint SET seq = 12 WHERE seq = 8",
    ],
)
async def test_altered_checkpoints_are_detected(path: Path, statement: str) -> None:
    await tamper(str(path), statement)
    assert "differs from the one before the checkpoint at record" in await fault(path)


@pytest.mark.parametrize("text_", ["", "7", "7:abc", f"x:{GENESIS_HASH}", f"7:{'g' * 64}"])
def test_invalid_head(text_: str) -> None:
    with pytest.raises(ValueError, match="is not SEQ:HASH"):
        TrustedHead.parse(text_)


async def test_head_of_empty_journal_verifies() -> None:
    store = MemoryStore()
    head = (await verify_journal(store)).head
    assert head == TrustedHead(0, GENESIS_HASH)
    await store.claim("test", claimed_at_ns=1)
    await store.append(turn(1), written_at_ns=1)
    seen: list[int] = []
    assert (await verify_journal(store, trusted=head, progress=seen.append)).records == 3
    assert seen == [3]


async def test_tampering_in_every_kind_of_database(database_url: str) -> None:
    await write_journal(database_url)
    kept = (await proven(database_url)).head
    for statement, undo, message in (
        ("UPDATE journal_record SET payload = payload || ' ' WHERE seq = 8",
         "UPDATE journal_record SET payload = trim(payload) WHERE seq = 8", "batch 3 .* altered"),
        ("UPDATE journal_batch SET written_at_ns = written_at_ns + 1 WHERE batch = 2",
         "UPDATE journal_batch SET written_at_ns = written_at_ns - 1 WHERE batch = 2",
         "batch 2 .* altered"),
        (f"INSERT INTO journal_record VALUES (19, 6, {RECORD})",
         "DELETE FROM journal_record WHERE seq = 19", "record 19 was inserted"),
        ("UPDATE journal_writer SET writer = writer || 'x' WHERE epoch = 1",
         "UPDATE journal_writer SET writer = 'writer 1' WHERE epoch = 1", "writer of epoch 1"),
    ):  # fmt: skip
        await tamper(database_url, statement)
        with pytest.raises(JournalCorruptError, match=message):
            await proven(database_url)
        await tamper(database_url, undo)
    assert (await proven(database_url, str(kept))).records == 18
    await tamper(database_url, *cut_off(5, checkpoints=False)[::-1])
    assert "it once had record 18" in await fault(database_url)


async def test_verification_continues_where_the_last_one_ended(path: Path) -> None:
    async with open_journal(str(path)) as store:
        await store.claim("writer 3", claimed_at_ns=3)
        first = await verify_journal(store)
        await store.append(turn(99), written_at_ns=9)
    async with open_journal(str(path), read_only=True) as store:
        read: list[int] = []
        second = await verify_journal(store, after=first.position, progress=read.append)
        assert second == (await verify_journal(store))._replace(
            batches=1,
            records=second.head.seq - first.head.seq,
            checkpoints=0,
            resumed_seq=first.head.seq,
        )
        assert read == [second.head.seq]
        assert (await verify_journal(store, after=second.position)).records == 0


async def test_verification_of_a_longer_journal_notices_a_change_after_it(path: Path) -> None:
    async with open_journal(str(path)) as store:
        await store.claim("writer 3", claimed_at_ns=3)
        verified = (await verify_journal(store)).position
        await store.append(turn(99), written_at_ns=9)
    await tamper(str(path), "UPDATE journal_record SET payload = '{}' WHERE seq = 20")
    async with open_journal(str(path), read_only=True) as store:
        with pytest.raises(JournalCorruptError):
            await verify_journal(store, after=verified)


async def test_position_in_another_journal_reads_all(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    async with open_journal(str(other)) as store:
        await store.claim("another", claimed_at_ns=5)
        await store.append(turn(1), written_at_ns=1)
        position = (await verify_journal(store)).position
    async with open_journal(str(path), read_only=True) as store:
        found = await verify_journal(store, after=position)
        assert (found.resumed_seq, found.records) == (0, found.head.seq)
