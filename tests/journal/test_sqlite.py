"""SQLite: files, paths, schemas, connections, locks, a full disk."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from sqlalchemy import Connection, create_engine, inspect

from asched.journal import JournalError, open_journal, schema
from asched.journal.chain import GENESIS
from asched.journal.errors import (
    JournalBusyError,
    JournalCorruptError,
    JournalFullError,
    JournalOpenError,
    JournalSchemaError,
    JournalUrlError,
)
from asched.journal.opening import sqlite_path
from asched.journal.sql import SqlStore
from asched.journal.sqlite import SqliteDatabase
from asched.journal.sqlite_files import FileLock, held_exclusively
from tests.journal.samples import turn, verified_head


async def refusal(url: str | Path, *, read_only: bool = False) -> str:
    """The one-line error of opening ``url``."""
    with pytest.raises(JournalError) as raised:
        async with open_journal(str(url), read_only=read_only):
            pytest.fail("it opened")
    text = str(raised.value)
    assert "\n" not in text
    return f"{type(raised.value).__name__}: {text}"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("journal.db", "journal.db"),
        ("/var/lib/a b?.db", "/var/lib/a b?.db"),
        ("sqlite:///journal.db", "journal.db"),
        ("sqlite:////var/lib/journal.db", "/var/lib/journal.db"),
        ("sqlite+aiosqlite:////var/lib/journal.db", "/var/lib/journal.db"),
        ("~/journal.db", str(Path.home() / "journal.db")),
    ],
)
def test_urls(url: str, path: str) -> None:
    assert sqlite_path(url) == Path(path)


@pytest.mark.parametrize(
    "url",
    [
        "",
        ":memory:",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite://host/journal.db",
        "sqlite:///journal.db?mode=ro",
        "sqlite+pysqlite:///journal.db",
        "mysql://user:secret@host/db",
        "http://[::1",
        "://",
    ],
)
def test_urls_without_file_are_rejected(url: str) -> None:
    with pytest.raises(JournalUrlError, match="expected a file's path") as raised:
        sqlite_path(url)
    assert "secret" not in str(raised.value)


async def test_memory_journal_cannot_be_opened_read_only() -> None:
    async with open_journal("memory://") as store:
        assert await store.head() == GENESIS
    assert "nothing to read" in await refusal("memory://", read_only=True)


async def test_unwritable_paths(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    absent = tmp_path / "absent"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, why in (
        (tmp_path, "it is a directory"),
        (pipe, "it is not a regular file"),
        (absent / "journal.db", f"{absent} does not exist"),
        (file / "journal.db", f"{file} is not a directory"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        message = await refusal(path)
        assert message.startswith("JournalOpenError: cannot ")
        assert str(path) in message
        assert why in message
    assert not absent.exists()
    assert "no such file" in await refusal(tmp_path / "none.db", read_only=True)
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("read_only", [False, True])
async def test_file_without_database(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary, " * 100)
    message = await refusal(path, read_only=read_only)
    assert message.startswith(f"JournalCorruptError: {path} is not an asched journal")
    assert path.read_text() == "dear diary, " * 100


async def test_database_without_journal(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE something (else_ TEXT)")
    assert "this database holds no journal" in await refusal(path, read_only=True)


async def test_corrupt_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with open_journal(str(path)) as store:
        await store.claim("test", claimed_at_ns=1)
        await store.append(turn(1, 2000), written_at_ns=1)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * (size // 2))
    async with open_journal(str(path), read_only=True) as store:
        with pytest.raises(JournalCorruptError, match="is damaged"):
            await verified_head(store)


@pytest.mark.parametrize("read_only", [False, True])
async def test_newer_schema_is_rejected(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "journal.db"
    async with open_journal(str(path)):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE journal_schema SET version_num = '9999'")
        connection.commit()
    message = await refusal(path, read_only=read_only)
    assert message == (
        f"JournalSchemaError: {path}: the journal has schema 9999, newer than this asched's"
        f" {schema.NEWEST}: upgrade asched"
    )


async def test_interrupted_upgrade_is_rolled_back(tmp_path: Path) -> None:
    def fail_after_upgrade(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        schema.upgrade(connection)
        assert inspect(connection).has_table("journal_record")
        raise KeyboardInterrupt

    engine = create_engine(f"sqlite:///{tmp_path / 'journal.db'}")
    with pytest.raises(KeyboardInterrupt), engine.begin() as connection:
        fail_after_upgrade(connection)
    with engine.begin() as connection:
        assert inspect(connection).get_table_names() == []
    engine.dispose()
    async with open_journal(str(tmp_path / "journal.db")) as store:
        assert await store.head() == GENESIS


async def test_concurrent_opens_create_one_journal(tmp_path: Path) -> None:
    epochs: list[int] = []

    async def open_and_claim() -> None:
        async with open_journal(str(tmp_path / "journal.db")) as store:
            epochs.append(await store.claim("one of many", claimed_at_ns=1))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(open_and_claim)
    assert sorted(epochs) == [1, 2, 3, 4]


async def test_read_only_journal_reads_and_rejects_writes(tmp_path: Path) -> None:
    url = str(tmp_path / "my journal?#%20.db")
    async with open_journal(url) as writer:
        await writer.claim("test", claimed_at_ns=1)
        await writer.append(turn(1), written_at_ns=1)
        async with open_journal(url, read_only=True) as reader:
            assert [s.record async for s in reader.read()] == turn(1)
            await writer.append(turn(2), written_at_ns=2)
            assert (await reader.head()).seq == 6
            with pytest.raises(JournalError, match="reading only"):
                await reader.claim("reader", claimed_at_ns=1)
            with pytest.raises(JournalError, match="reading only"):
                await reader.save_checkpoint(1, b"")
    assert sorted(os.listdir(tmp_path)) == ["my journal?#%20.db", "my journal?#%20.db-lock"]


async def test_writer_connection_is_durable(tmp_path: Path) -> None:
    database = await SqliteDatabase.open(tmp_path / "journal.db", read_only=False)
    settings: dict[str, list[object]] = {}
    pragmas = ("journal_mode", "synchronous", "wal_autocheckpoint", "query_only")
    async with database.write() as writer, database.read() as reader:
        for pragma in pragmas:
            settings[pragma] = [
                (await connection.exec_driver_sql(f"PRAGMA {pragma}")).scalar_one()
                for connection in (writer, reader)
            ]
    await database.close()
    assert settings.pop("synchronous")[0] == 2  # FULL
    assert settings == {
        "journal_mode": ["wal", "wal"],
        "wal_autocheckpoint": [4000, 0],
        "query_only": [0, 1],
    }


async def test_full_disk_stores_nothing_and_recovers(tmp_path: Path) -> None:
    database = await SqliteDatabase.open(tmp_path / "journal.db", read_only=False)
    store = SqlStore(database)
    await store.claim("test", claimed_at_ns=1)
    await store.append(turn(1), written_at_ns=1)

    async def limit(pages: int) -> None:
        async with database.write() as connection:
            await connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    await limit(1)  # SQLite raises this to the present size
    for _ in range(2):
        with pytest.raises(JournalFullError, match="the disk is full"):
            await store.append(turn(2, 3000), written_at_ns=2, first_seq=4)
    assert [s.record async for s in store.read()] == turn(1)
    await limit(100_000)
    await store.append(turn(2, 3000), written_at_ns=2, first_seq=4)
    assert await verified_head(store) == await store.head()
    await database.close()


async def test_file_lock_excludes_others_and_times_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = FileLock(path), FileLock(path)
    async with first.held(0.02):
        with pytest.raises(JournalBusyError, match=f"another process holds {path}"):
            async with second.held(0.02):
                pytest.fail("both hold it")
        with (
            pytest.raises(JournalBusyError, match=r"^busy$"),
            held_exclusively(path, "busy"),
        ):
            pytest.fail("both hold it")
    async with second.held(0.02):
        pass
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_file_lock_is_released_when_its_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, time; from pathlib import Path; from asched.journal.sqlite_files import"
        " held_exclusively;"
        " lock = held_exclusively(Path(sys.argv[1]), ''); lock.__enter__();"
        " print('held', flush=True); time.sleep(60)"
    )
    async with await anyio.open_process([sys.executable, "-c", code, str(path)]) as holder:
        assert holder.stdout is not None
        assert (await holder.stdout.receive()).startswith(b"held")
        lock = FileLock(path)
        with pytest.raises(JournalBusyError):
            async with lock.held(0.02):
                pytest.fail("both hold it")
        holder.kill()
        await holder.wait()
        async with lock.held(0.02):
            pass


async def test_journal_with_unwritable_lock_file_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "journal.db-lock").mkdir()
    with pytest.raises(JournalOpenError, match=r"cannot write .*journal\.db-lock"):
        await SqliteDatabase.open(tmp_path / "journal.db", read_only=False)


async def test_files_are_readable_by_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    before = os.umask(0)
    try:
        async with open_journal(str(folder / "journal.db")) as store:
            await store.claim("test", claimed_at_ns=1)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    finally:
        os.umask(before)
    assert modes.keys() >= {"journal.db", "journal.db-wal"}
    assert set(modes.values()) == {0o600}


async def test_schema_error_names_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path)):
        pass
    path.touch()
    with pytest.raises(JournalSchemaError, match=str(path)):
        await SqliteDatabase.open(path, read_only=True)
