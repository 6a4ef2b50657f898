"""Reading a journal without write access: read-only media, another user's file."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from asched.journal import JournalError, open_journal
from asched.journal.errors import JournalBusyError
from asched.journal.sqlite_files import check_still_immutable
from tests.audit.recording import woken_pod
from tests.journal.samples import turn

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
from typer.testing import CliRunner
from asched.cli.main import app
results = []
for arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, arguments, prog_name="asched")
    results.append([result.exit_code, result.stdout, result.stderr])
print(json.dumps(results))
"""
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2


class Result(NamedTuple):
    code: int
    out: str
    err: str


def obey_permissions() -> None:
    """Make permissions count for root, too, in the program that follows."""
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def run(*commands: list[str]) -> list[Result]:
    """Results of ``asched`` commands in another process, which obeys permissions."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        capture_output=True,
        check=True,
        cwd=ROOT,
        preexec_fn=obey_permissions,
        text=True,
    )
    return [Result(*result) for result in json.loads(done.stdout)]


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The directory and its files cannot be written in this block."""
    with ExitStack() as stack:
        for path in [*folder.iterdir(), folder]:
            stack.callback(path.chmod, path.stat().st_mode & 0o777)
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield


@pytest.fixture
def media(tmp_path: Path) -> Path:
    """A directory with a complete journal of a stopped daemon."""
    folder = tmp_path / "media"
    folder.mkdir()

    async def write() -> None:
        async with open_journal(str(folder / "journal.db")) as store:
            await woken_pod().store_in(store)

    anyio.run(write)
    for path in folder.glob("*-lock"):
        path.unlink()
    return folder


def test_every_reading_command_works(media: Path, tmp_path: Path) -> None:
    journal = str(media / "journal.db")
    commands = [
        ["history", "--journal", journal, "web"],
        ["explain", "--journal", journal, "web"],
        ["replay", "--verify", "--journal", journal],
        ["journal", "verify", "--journal", journal],
        ["journal", "stats", "--journal", journal],
        ["journal", "export", "--journal", journal, "--to", str(tmp_path / "out.jsonl")],
        ["journal", "backup", "--journal", journal, "--to", str(tmp_path / "copy.db")],
    ]
    with read_only(media):
        results = run(*commands)
    assert [(result.code, result.err) for result in results] == [(0, "")] * len(commands)
    assert sorted(path.name for path in media.iterdir()) == ["journal.db"]


def with_log(media: Path, tmp_path: Path, *, index: bool) -> None:
    """Replace the journal by one of a killed daemon, with the last batch in the log only."""
    work = tmp_path / "work"
    work.mkdir()

    async def write() -> None:
        async with open_journal(str(work / "journal.db")) as store:
            await store.claim("one", claimed_at_ns=1)
            await store.append(turn(1), written_at_ns=1)
            names = ["journal.db", "journal.db-wal", *(["journal.db-shm"] if index else [])]
            for name in names:
                shutil.copy(work / name, media / name)

    anyio.run(write)


def test_log_is_read_with_its_index(media: Path, tmp_path: Path) -> None:
    with_log(media, tmp_path, index=True)
    with read_only(media):
        (result,) = run(["journal", "verify", "--journal", str(media / "journal.db")])
    assert result.code == 0
    assert result.out.startswith("verified 3 records in 1 batches")


def test_log_without_index_is_not_ignored(media: Path, tmp_path: Path) -> None:
    with_log(media, tmp_path, index=False)
    journal, copy = media / "journal.db", tmp_path / "copy.db"
    with read_only(media):
        results = run(
            ["journal", "verify", "--journal", str(journal)],
            ["journal", "backup", "--journal", str(journal), "--to", str(copy)],
        )
    for result in results:
        assert (result.code, result.out) == (2, "")
        assert result.err == (
            f"asched: cannot read {journal}: its last records are in {journal}-wal, which cannot be"
            " read in place without write access; copy journal.db and journal.db-wal to a"
            " directory of your own\n"
        )
    assert not copy.exists()


def test_live_writer_is_followed_without_write_access(media: Path) -> None:
    """The reader neither ignores the log of a running daemon nor creates files for it."""
    journal = media / "journal.db"
    with closing(sqlite3.connect(journal)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        (before,) = writer.execute("SELECT count(*) FROM journal_writer").fetchone()
        values = f"({before + 1}, 'another', 1, '')"
        writer.execute(f"INSERT INTO journal_writer VALUES {values}")
        writer.commit()
        with read_only(media):
            (result,) = run(["journal", "stats", "-o", "json", "--journal", str(journal)])
    assert result.code == 0
    assert len(json.loads(result.out)["writers"]) == before + 1


def test_writer_that_appears_is_noticed(tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"
    check_still_immutable(journal)
    (tmp_path / "journal.db-wal").touch()
    with pytest.raises(JournalBusyError, match=r"a daemon started to write to .*: repeat"):
        check_still_immutable(journal)


def test_unreadable_journal_is_one_line(media: Path) -> None:
    journal = media / "journal.db"
    with read_only(media):
        journal.chmod(0)
        (result,) = run(["journal", "stats", "--journal", str(journal)])
        journal.chmod(0o644)
    assert result.code == 2
    assert result.err.startswith(f"asched: cannot open {journal}: ")
    assert result.err.count("\n") == 1


async def test_writable_journal_is_read_as_before(tmp_path: Path) -> None:
    """Next to a writer, without the restrictions of an immutable database."""
    url = str(tmp_path / "journal.db")
    async with open_journal(url) as store, open_journal(url, read_only=True) as reader:
        await store.claim("one", claimed_at_ns=1)
        await store.append(turn(1), written_at_ns=1)
        assert (await reader.head()).seq == 3
        with pytest.raises(JournalError):
            await reader.claim("two", claimed_at_ns=1)
    assert os.listdir(tmp_path)
