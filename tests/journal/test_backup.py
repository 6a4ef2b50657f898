"""``asched journal backup``: consistent copies during appends, and their use."""

from __future__ import annotations

import stat
from pathlib import Path

import anyio

from asched.journal import open_journal
from asched.journal.export import back_up
from asched.journal.verification import verify_journal
from tests.daemon.world import world
from tests.journal.samples import turn
from tests.journal.test_commands import path, run  # noqa: F401  a fixture


def test_backup_is_verified_and_equal(path: Path, tmp_path: Path) -> None:  # noqa: F811
    copy = tmp_path / "copy.db"
    code, out, err = run("backup", "--journal", path, "--to", copy)
    assert (code, err) == (0, "")
    assert out.startswith(f"{copy}: 16 records, verified, ")
    assert run("verify", "--journal", copy)[1] == run("verify", "--journal", path)[1]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [*tmp_path.glob("copy.db*")] == [copy]


def test_existing_target_is_not_overwritten(path: Path, tmp_path: Path) -> None:  # noqa: F811
    copy = tmp_path / "copy.db"
    copy.write_text("precious")
    line = f"asched: {copy} already exists; choose another name\n"
    assert run("backup", "--journal", path, "--to", copy) == (2, "", line)
    assert copy.read_text() == "precious"


def test_backup_errors(path: Path, tmp_path: Path) -> None:  # noqa: F811
    none = tmp_path / "none.db"
    line = f"asched: cannot open {none}: there is no such file\n"
    assert run("backup", "--journal", none, "--to", tmp_path / "copy.db") == (2, "", line)
    to = tmp_path / "nowhere" / "copy.db"
    line = f"asched: cannot copy {path} to {to}: No such file or directory\n"
    assert run("backup", "--journal", path, "--to", to) == (1, "", line)
    garbage = tmp_path / "garbage.db"
    garbage.write_text("My dear journal, today I scheduled pods.\n" * 500)
    code, _, err = run("backup", "--journal", garbage, "--to", tmp_path / "copy.db")
    assert (code, err.count("\n")) == (1, 1)
    assert "file is not a database" in err
    assert not (tmp_path / "copy.db").exists()


def test_backup_of_postgresql_is_rejected() -> None:
    code, _, err = run("backup", "--journal", "postgresql+asyncpg://h/db", "--to", "copy.db")
    assert (code, err) == (
        2,
        "asched: only SQLite journals are files; for PostgreSQL use pg_dump\n",
    )


async def test_backup_during_appends_is_consistent(tmp_path: Path) -> None:
    """Each copy verifies by itself and ends with a complete batch."""
    source = tmp_path / "journal.db"
    async with open_journal(str(source)) as store:
        await store.claim("writer", claimed_at_ns=0)
        await store.append(turn(0), written_at_ns=0)
        done = anyio.Event()

        async def write() -> None:
            number = 1
            while not done.is_set():
                await store.append(turn(number), written_at_ns=number)
                number += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            for number in range(5):
                await anyio.to_thread.run_sync(back_up, source, tmp_path / f"copy-{number}.db")
            done.set()
        end = await store.head()
    records = []
    for number in range(5):
        async with open_journal(str(tmp_path / f"copy-{number}.db"), read_only=True) as copy:
            records.append((await verify_journal(copy)).head.seq)
    assert records == sorted(records)
    assert 3 <= records[0] < records[-1] <= end.seq


def restore(journal: Path, copy: Path) -> None:
    """Replace a journal, including SQLite's other files, with the copy."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{journal}{suffix}").unlink(missing_ok=True)
    copy.rename(journal)


async def test_backup_can_be_used_as_journal(tmp_path: Path) -> None:
    """The journal is lost after a backup: a daemon goes on with the copy, and what was bound since
    is what the API server says."""
    async with world(tmp_path, nodes=2) as w:
        async with w.daemon():
            w.add_pods(5, "before")
            await w.until(lambda: len(w.placements.order) == 5)
            await anyio.to_thread.run_sync(back_up, w.journal, tmp_path / "backup.db")
            w.add_pods(5, "after")
            await w.until(lambda: len(w.placements.order) == 10)
        restore(w.journal, tmp_path / "backup.db")
        async with w.daemon() as daemon:
            w.add_pods(5, "later")
            await w.until(lambda: len(w.placements.order) == 15)
            assert len(daemon.cluster.pods) == 15
        async with open_journal(str(w.journal), read_only=True) as store:
            await verify_journal(store)
