"""Changed tables, indexes and triggers of the database are reported."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from asched.journal import open_journal
from asched.journal.codec import CODEC
from asched.journal.errors import JournalCorruptError
from asched.journal.verification import verify_journal
from tests.journal.conftest import NewDatabase
from tests.journal.samples import turn
from tests.journal.test_verification import engine_url

SUBJECTS = "journal_record_subject"
PARTIAL = f"CREATE INDEX {SUBJECTS} ON journal_record (subject, seq) WHERE seq <> 5"
WHOLE = f"CREATE INDEX {SUBJECTS} ON journal_record (subject, seq)"


async def fill(url: str) -> None:
    """A journal of 6 records."""
    async with open_journal(url, daemon=True) as store:
        await store.claim("test", claimed_at_ns=1)
        for number in range(2):
            await store.append(turn(number), written_at_ns=number)


async def problem_of_verification(url: str) -> str:
    async with open_journal(url, read_only=True) as store:
        with pytest.raises(JournalCorruptError) as raised:
            await verify_journal(store)
    return str(raised.value)


async def problem_of_start(url: str) -> str:
    with pytest.raises(JournalCorruptError) as raised:
        async with open_journal(url, daemon=True):
            pytest.fail("it opened")
    return str(raised.value)


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


async def change_postgresql(url: str, *statements: str) -> None:
    engine = create_async_engine(engine_url(url))
    async with engine.begin() as connection:
        for statement in statements:
            await connection.execute(text(statement))
    await engine.dispose()


CHANGED = (
    ([f"DROP INDEX {SUBJECTS}"], f"index {SUBJECTS} was deleted by another program: expected"),
    ([f"DROP INDEX {SUBJECTS}", PARTIAL], f"index {SUBJECTS} was altered by another program"),
    (["CREATE INDEX later ON journal_record (kind)"], "index later was added by another program"),
    (["ALTER TABLE journal_record ADD COLUMN note TEXT"], "table journal_record was altered"),
    (["DROP TABLE journal_signed_head"], "table journal_signed_head was deleted"),
)

CHANGED_IN_SQLITE = (
    (
        [
            "PRAGMA writable_schema = ON",
            f"UPDATE sqlite_schema SET sql = '{PARTIAL}' WHERE name = '{SUBJECTS}'",
        ],
        f"index {SUBJECTS} was altered by another program",
    ),
    (["DROP TRIGGER journal_record_next"], "trigger journal_record_next was deleted"),
    (
        [
            "DROP TRIGGER journal_record_no_update",
            (
                "CREATE TRIGGER journal_record_no_update BEFORE UPDATE ON journal_record WHEN 0"
                " BEGIN SELECT RAISE(ABORT, 'append-only'); END"
            ),
        ],
        "trigger journal_record_no_update was altered",
    ),
    (
        [
            (
                "CREATE TRIGGER later AFTER INSERT ON journal_checkpoint BEGIN"
                " DELETE FROM journal_checkpoint; END"
            )
        ],
        "trigger later was added by another program: drop it",
    ),
)

NO_UPDATE = (
    "CREATE TRIGGER journal_record_no_update BEFORE UPDATE ON journal_record BEGIN"
    " SELECT RAISE(ABORT, 'append-only: UPDATE on journal_record is refused'); END"
)
NEXT = (
    "CREATE TRIGGER journal_statement_next BEFORE INSERT ON journal_statement WHEN NEW.number <>"
    " (SELECT coalesce(max(number), 0) + 1 FROM journal_statement) BEGIN"
    " SELECT RAISE(ABORT, 'out of sequence: not the next statement'); END"
)

TURNED_OFF_IN_SQLITE = (
    # SQLite takes a name that it does not know for a string.
    (NO_UPDATE, NO_UPDATE.replace("RAISE", '"RAISE').replace("refused')", "refused')\"")),
    (NEXT, NEXT.replace("NEW", '"NEW').replace(" BEGIN", '" BEGIN')),
    (NEXT, NEXT.replace("0) + 1", "0) + 1 + number")),
)

CHANGED_IN_POSTGRESQL = (
    (
        ["ALTER TABLE journal_record DISABLE TRIGGER journal_record_no_update"],
        "trigger journal_record_no_update was altered",
    ),
    (["DROP TRIGGER journal_record_next ON journal_record"], "trigger journal_record_next was d"),
    (
        [
            (
                "CREATE OR REPLACE FUNCTION journal_refuse_change() RETURNS trigger"
                " LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$"
            )
        ],
        "function journal_refuse_change was altered",
    ),
    (
        [
            (
                "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('journal_refuse_change'::regproc),"
                " 'append-only', 'Append-only'); END $$"
            )
        ],
        "function journal_refuse_change was altered",
    ),
    (
        [
            (
                "CREATE TRIGGER later AFTER INSERT ON journal_checkpoint"
                " FOR EACH ROW EXECUTE FUNCTION journal_refuse_change()"
            )
        ],
        "trigger later was added by another program: drop it",
    ),
    (["ALTER TABLE journal_record ENABLE ROW LEVEL SECURITY"], "table journal_record was altered"),
    (["CREATE TABLE more () INHERITS (journal_record)"], "table journal_record was altered"),
    (
        ["ALTER TABLE journal_record DROP CONSTRAINT journal_record_pkey"],
        "table journal_record was",
    ),
    (["ALTER TABLE journal_writer ADD CHECK (epoch < 9)"], "table journal_writer was altered"),
    (["ALTER TABLE journal_signed_head SET UNLOGGED"], "table journal_signed_head was altered"),
    (
        ["CREATE RULE later AS ON INSERT TO journal_statement DO INSTEAD NOTHING"],
        "table journal_statement was altered",
    ),
    (
        [f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{SUBJECTS}'::regclass"],
        f"index {SUBJECTS} was altered",
    ),
)


@pytest.mark.parametrize(("statements", "problem"), CHANGED + CHANGED_IN_SQLITE)
async def test_changed_definition_in_sqlite(
    tmp_path: Path, statements: Sequence[str], problem: str
) -> None:
    path = tmp_path / "journal.db"
    await fill(str(path))
    change(path, *statements)
    found = await problem_of_start(str(path))
    assert found.startswith(f"{path}: {problem}")
    assert "\n" not in found
    if "signed_head" not in problem:  # reading it comes first
        assert await problem_of_verification(str(path)) == found


@pytest.mark.parametrize(("statements", "problem"), CHANGED + CHANGED_IN_POSTGRESQL)
async def test_changed_definition_in_postgresql(
    new_postgres_database: NewDatabase, statements: Sequence[str], problem: str
) -> None:
    url = await new_postgres_database()
    await fill(url)
    await change_postgresql(url, *statements)
    found = await problem_of_start(url)
    assert problem in found
    assert "\n" not in found
    if "signed_head was deleted" not in problem:
        assert await problem_of_verification(url) == found


@pytest.mark.parametrize(("whole", "turned_off"), TURNED_OFF_IN_SQLITE)
async def test_trigger_that_is_turned_off(tmp_path: Path, whole: str, turned_off: str) -> None:
    path = tmp_path / "journal.db"
    await fill(str(path))
    name = whole.split()[2]
    change(path, f"DROP TRIGGER {name}", whole)
    async with open_journal(str(path), daemon=True):
        pass  # only spaces differ
    change(path, f"DROP TRIGGER {name}", turned_off)
    found = await problem_of_start(str(path))
    assert found.startswith(f"{path}: trigger {name} was altered by another program")
    assert await problem_of_verification(str(path)) == found


async def test_narrowed_index_is_reported_and_hides_a_record(tmp_path: Path) -> None:
    """The definition is the right one again, but the index was built by another."""
    path = tmp_path / "journal.db"
    await fill(str(path))
    set_sql = "UPDATE sqlite_schema SET sql = '{}' WHERE name = '{}'"
    change(path, "PRAGMA writable_schema = ON", set_sql.format(PARTIAL, SUBJECTS))
    change(path, f"REINDEX {SUBJECTS}")
    change(path, "PRAGMA writable_schema = ON", set_sql.format(WHOLE, SUBJECTS))
    async with open_journal(str(path), daemon=True) as store:
        everything = [stored.seq async for stored in store.read()]
        subject = CODEC.encode(turn(1)[1]).subject
        assert 5 not in [stored.seq async for stored in store.read(subject=subject)]
    assert everything == [1, 2, 3, 4, 5, 6]
    assert f"row 5 missing from index {SUBJECTS}" in await problem_of_verification(str(path))


async def test_narrowed_index_in_postgresql(new_postgres_database: NewDatabase) -> None:
    url = await new_postgres_database()
    await fill(url)
    await change_postgresql(
        url,
        f"DROP INDEX {SUBJECTS}",
        PARTIAL,
        f"UPDATE pg_index SET indpred = NULL WHERE indexrelid = '{SUBJECTS}'::regclass",
    )
    async with open_journal(url, daemon=True):
        pass
    found = await problem_of_verification(url)
    assert f"index {SUBJECTS} has 5 entries for 6 records" in found


async def test_objects_of_other_programs_are_ignored(new_postgres_database: NewDatabase) -> None:
    url = await new_postgres_database()
    await fill(url)
    await change_postgresql(
        url,
        "CREATE TABLE other (number bigint PRIMARY KEY)",
        "CREATE VIEW kinds AS SELECT kind, count(*) FROM journal_record GROUP BY kind",
        "CREATE SCHEMA elsewhere CREATE TABLE journal_record (seq text)",
        "ANALYZE journal_record",
    )
    async with open_journal(url, daemon=True) as store:
        assert (await verify_journal(store)).records == 6


async def test_statistics_of_sqlite_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await fill(str(path))
    change(path, "ANALYZE", "VACUUM")
    async with open_journal(str(path), daemon=True) as store:
        assert (await verify_journal(store)).records == 6
