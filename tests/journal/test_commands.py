"""The commands ``asched journal`` and ``asched checkpoint``."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner

from asched.cli.main import app
from asched.framework.runtime.profile import PluginWeight, ProfileSpec
from asched.journal import export as exporting
from asched.journal import open_journal
from asched.journal.archive import archive
from asched.journal.chain import SealedBatch
from asched.model.quantity import NS_PER_S
from asched.state.records import AnyRecord, EngineStarted, ProfilesLoaded, TurnStarted
from tests.journal.samples import mixed, turn
from tests.journal.test_verification import tamper

DAY_NS = 24 * 3600 * NS_PER_S
runner = CliRunner()


def run(*args: str | Path) -> tuple[int, str, str]:
    result = runner.invoke(app, ["journal", *map(str, args)], prog_name="asched")
    return result.exit_code, result.stdout, result.stderr


async def write_journal(path: Path) -> None:
    """Batches of 3 records a day from 1970-01-01, the last of 4; a checkpoint on the third day."""
    async with open_journal(str(path)) as store:
        await store.claim("node-a", claimed_at_ns=0)
        for day in range(4):
            await store.append(turn(day), written_at_ns=day * DAY_NS)
        await store.append(mixed(), written_at_ns=4 * DAY_NS)
        await store.save_checkpoint(8, b"state")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    anyio.run(write_journal, path)
    return path


def test_verify_prints_and_compares_head(path: Path) -> None:
    code, out, err = run("verify", "--journal", path)
    assert (code, err) == (0, "")
    assert out.startswith(
        "verified 16 records in 5 batches; writers: 1, checkpoints: 1\nnot signed: "
    )
    head = out.split()[-1]
    assert run("verify", "--journal", path, "--head", head) == (0, out, "")
    other = f"16:{'0' * 64}"
    code, out, err = run("verify", "--journal", path, "--head", other)
    assert (code, out) == (1, "")
    assert err == (f"asched: batch 5 (records 13 to 16) does not have the trusted head {other}\n")


def test_verify_reports_alteration(path: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(path, tmp_path / "copy.db"))
    anyio.run(tamper, str(copy), "UPDATE journal_record SET subject = 'pod/a/b' WHERE seq = 5")
    assert run("verify", "--journal", copy) == (
        1,
        "",
        "asched: batch 2 (records 4 to 6) was altered: its hash does not match\n",
    )
    assert run("verify", "--journal", path)[0] == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("verify", "--journal", "absent.db"), "asched: cannot open absent.db: no such file\n"),
        (
            ("verify", "--head", "7"),
            "asched: '7' is not SEQ:HASH with 48 to 64 hexadecimal digits of a hash",
        ),
        (("stats", "--journal", "mysql://x/y"), "asched: cannot keep a journal in mysql://x/y"),
    ],
)
def test_errors_are_one_line(
    args: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "args", [("checkpoint",), ("archive", "--before", "2026-01-31", "--to", "archive")]
)
def test_mistyped_journal_is_not_created(args: tuple[str, ...], tmp_path: Path) -> None:
    absent, others = tmp_path / "jornal.db", tmp_path / "others.db"
    with closing(sqlite3.connect(others)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    before = others.read_bytes()
    assert run(*args, "--journal", absent) == (
        2,
        "",
        f"asched: cannot open {absent}: no such file\n",
    )
    assert run(*args, "--journal", others) == (
        2,
        "",
        f"asched: {others}: this database holds no journal\n",
    )
    assert others.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["others.db"]


def test_stats(path: Path) -> None:
    code, out, _ = run("stats", "--journal", path, "-o", "json")
    found = json.loads(out)
    assert code == 0
    kinds = found.pop("kinds")
    assert [(kind["kind"], kind["records"]) for kind in kinds] == [
        ("Assigned", 10),
        ("ObjectObserved", 1),
        ("TurnStarted", 4),
        ("Bound", 1),
    ]
    assert len(found.pop("journalId")) == 36
    assert found.pop("payloadBytes") == sum(kind["payloadBytes"] for kind in kinds) > 600
    assert found == {
        "firstSeq": 1,
        "lastSeq": 16,
        "records": 16,
        "batches": 5,
        "firstWrittenAtNs": 0,
        "lastWrittenAtNs": 4 * DAY_NS,
        "archivedRecords": 0,
        "archivedSegments": 0,
        "checkpoints": 1,
        "writers": [
            {"epoch": 1, "writer": "node-a", "claimedAtNs": 0, "batches": 5, "records": 16}
        ],
    }
    table = run("stats", "--journal", path)[1]
    for text in ("16 (1 to 16)", "1970-01-05 00:00:00", "TurnStarted", "node-a"):
        assert text in table


async def write_clock(path: Path) -> None:
    """The same numbers of batches, with records that can be folded."""
    async with open_journal(str(path)) as store:
        await store.claim("node-a", claimed_at_ns=0)
        for day, records in enumerate((3, 3, 3, 3, 4)):
            batch: list[AnyRecord] = [TurnStarted(day * DAY_NS) for _ in range(records)]
            await store.append(batch, written_at_ns=day * DAY_NS)


def test_export_during_an_archive_run_is_repeated(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of archived records are deleted while they are read."""
    export, lines = exporting.export, tmp_path / "all.jsonl"

    async def archived_meanwhile(
        batches: AsyncIterator[SealedBatch], sink: exporting.ExportSink
    ) -> int:
        monkeypatch.undo()
        async with open_journal(str(path)) as store:
            await archive(store, tmp_path / "a", before_ns=2 * DAY_NS, archived_at_ns=0)
        return await export(batches, sink)

    monkeypatch.setattr(exporting, "export", archived_meanwhile)
    message = "asched: records were archived meanwhile: repeat the command\n"
    assert run("export", "--journal", path, "--to", lines) == (1, "", message)
    assert run("export", "--journal", path, "--to", lines)[0] == 0


def test_export_to_a_full_disk_leaves_no_file(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> list[exporting.ExportedRecord]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(exporting, "_exported", full)
    lines = tmp_path / "all.jsonl"
    message = f"asched: cannot write {lines}: No space left on device\n"
    assert run("export", "--journal", path, "--to", lines) == (1, "", message)
    assert not lines.exists()


def test_archive_verify_restore_and_export(tmp_path: Path) -> None:
    path = tmp_path / "clock.db"
    anyio.run(write_clock, path)
    folder, whole, lines = tmp_path / "old", tmp_path / "whole.db", tmp_path / "all.jsonl"
    head = run("verify", "--journal", path)[1].split()[-1]
    moved = run("archive", "--before", "1970-01-04", "--to", folder, "--journal", path)
    (file,) = folder.glob("segment-*")
    assert moved == (0, f"moved records 1 to 6 to {file}\n", "")
    again = run("archive", "--before", "1970-01-04", "--to", folder, "--journal", path)
    assert again == (0, "nothing moved: no batch before the last one is that old\n", "")

    code, out, err = run("verify", "--journal", path)
    assert (code, out) == (1, "")
    assert err.startswith("asched: records 1 to 6 are in the archive: give its directory with")
    assert run("verify", "--journal", path, "--skip-archive")[1] == (
        "not verified: records 1 to 6 in the archive\n"
        "verified 10 records in 3 batches; writers: 1, checkpoints: 1\n"
        f"not signed: whoever can write the database can change all of it\nhead {head}\n"
    )
    assert run("verify", "--journal", path, "--archive", folder)[1].endswith(f"head {head}\n")

    assert run("export", "--journal", path, "--archive", folder, "--to", lines) == (
        0, f"wrote 16 records to {lines}\n", "",
    )  # fmt: skip
    assert [json.loads(line)["seq"] for line in lines.read_text().splitlines()] == [*range(1, 17)]
    part = run("export", "--journal", path, "--to", tmp_path / "part.jsonl")[1]
    assert part.endswith("omitted records 1 to 6, which are in the archive: --archive DIR\n")

    assert run("restore", "--journal", path, "--archive", folder, "--to", whole) == (
        0, f"{whole} holds records 1 to 16\n", "",
    )  # fmt: skip
    assert run("verify", "--journal", whole, "--head", head)[0] == 0


async def write_turns(path: Path) -> None:
    async with open_journal(str(path)) as store:
        await store.claim("node-a", claimed_at_ns=0)
        for number in range(4):
            await store.append(turn(number, 0), written_at_ns=number)


def test_inconsistent_journal_is_not_archived(path: Path, tmp_path: Path) -> None:
    """No checkpoint can be saved for the remaining records."""
    anyio.run(tamper, str(path), "DELETE FROM journal_checkpoint")
    code, out, err = run("archive", "--before", "1970-01-04", "--to", tmp_path, "--journal", path)
    assert (code, out) == (2, "")
    assert err.startswith("asched: record 2 (Assigned) contradicts the records before it: ")
    assert len(err.splitlines()) == 1


async def write_with_a_lost_plugin(path: Path) -> None:
    lost = ProfileSpec("default-scheduler", {"preEnqueue": (PluginWeight("LostForEver"),)})
    async with open_journal(str(path)) as store:
        await store.claim("node-a", claimed_at_ns=0)
        await store.append([ProfilesLoaded((lost,)), TurnStarted(1)], written_at_ns=1)
        await store.append([TurnStarted(2)], written_at_ns=2)


@pytest.mark.parametrize(
    "args",
    [("checkpoint",), ("archive", "--before", "2000-01-01", "--to", "old")],
)
def test_checkpoint_command_with_missing_plugin_fails(
    args: tuple[str, ...], tmp_path: Path
) -> None:
    """The checkpoint would hold another state than one with the plugin."""
    path = tmp_path / "guarded.db"
    anyio.run(write_with_a_lost_plugin, path)
    code, out, err = run(*args, "--journal", path)
    assert (code, out) == (1, "")
    assert err.startswith(
        "asched: cannot save a checkpoint at record 3: a plugin of one of its profiles is missing;"
        " install it, or run this command where it is installed: "
    )
    assert "LostForEver" in err
    assert len(err.splitlines()) == 1
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM journal_checkpoint").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM journal_record").fetchone() == (3,)


def test_archive_command_writes_checkpoint(tmp_path: Path) -> None:
    path, folder = tmp_path / "turns.db", tmp_path / "old"
    anyio.run(write_turns, path)
    move = ("archive", "--before", "2000-01-01", "--to", folder, "--journal", path)
    assert run(*move)[1].startswith("moved records 1 to 3 to ")
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]
    assert run(*move)[1] == "nothing moved: no batch before the last one is that old\n"
    assert run("verify", "--journal", path, "--archive", folder)[0] == 0
    assert run("checkpoint", "--journal", path) == (
        0,
        "the journal has a checkpoint at its end\n",
        "",
    )
    replayed = runner.invoke(app, ["replay", "--verify", "--journal", str(path)])
    assert (replayed.exit_code, replayed.stdout) == (2, "")
    assert replayed.stderr == (
        "asched: nothing to replay: records 1 to 3 are in the archive (asched journal restore),"
        " and no record follows the checkpoint at 4\n"
    )


async def write_as_shadow(path: Path) -> None:
    async with open_journal(str(path)) as store:
        await store.claim("node-a", claimed_at_ns=0)
        await store.append([EngineStarted("0.1.0", 0, shadow=True)], written_at_ns=0)
        await store.append(turn(1, 1), written_at_ns=1)


def test_journal_of_a_shadow_is_not_archived(tmp_path: Path) -> None:
    path = tmp_path / "shadow.db"
    anyio.run(write_as_shadow, path)
    code, out, err = run("archive", "--before", "2000-01-01", "--to", tmp_path, "--journal", path)
    assert (code, out) == (2, "")
    assert err == "asched: a shadow wrote the journal; give another one\n"
