"""Archive runs, verification with the archive, and restore."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import anyio
import pytest

from asched.journal import archive as archiving
from asched.journal import archive as files
from asched.journal import open_journal
from asched.journal.archive import all_batches, archive, restore
from asched.journal.chain import GENESIS, BatchRange, Segment
from asched.journal.errors import (
    ArchivedError,
    ConflictError,
    JournalBusyError,
    JournalCorruptError,
    JournalError,
    JournalIOError,
)
from asched.journal.memory import MemoryStore
from asched.journal.sql import SqlStore
from asched.journal.sqlite_files import held_exclusively
from asched.journal.store import JournalStore
from asched.journal.verification import TrustedHead, verify_journal
from asched.state.records import AnyRecord, ClockStepped, TurnStarted
from tests.journal.samples import turn
from tests.journal.test_verification import tamper

BATCHES = 8


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def fill(store: JournalStore, *checkpoints: int) -> None:
    """Batches of 3 records, written at 0, 10, 20 ...; checkpoints at these records."""
    for epoch in (1, 2):
        await store.claim(f"writer {epoch}", claimed_at_ns=epoch)
        for number in range((epoch - 1) * 4, epoch * 4):
            await store.append(turn(number), written_at_ns=10 * number)
    for seq in checkpoints:
        await store.save_checkpoint(seq, b"state")


async def move(store: JournalStore, folder: Path, before_ns: int) -> list[Segment]:
    return await archive(store, folder, before_ns=before_ns, archived_at_ns=7)


async def test_archive_moves_batches_before_checkpoint(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "SEGMENT_RECORDS", 6)
    folder = tmp_path / "archive"
    async with open_journal(database_url) as store:
        await fill(store, 5, 17, 24)
        before = await verify_journal(store)
        segments = await move(store, folder, before_ns=60)
        # Batches 1 to 6 are old enough; their last checkpoint is in batch 6.
        assert [(s.first_seq, s.last_seq) for s in segments] == [(1, 6), (7, 12), (13, 15)]
        assert files_in(folder) == [s.file for s in segments]
        assert await store.archived() == segments[-1].head
        assert [s.record async for s in store.read(15)] == [*turn(5), *turn(6), *turn(7)]
        assert [s.batch.batch async for s in store.batches()] == [6, 7, 8]
        marks = await store.checkpoint_marks()
        assert [mark.seq for mark in marks] == [17, 24]
        after = await verify_journal(store, skip_archive=True)
        assert (after.head, after.records, after.archived_seq) == (before.head, 9, 15)
        both = await verify_journal(store, archive=folder)
        assert (both.head, both.records, both.archived_seq) == (before.head, 24, 0)
        # Appends continue.
        assert (await store.append(turn(8), written_at_ns=80, first_seq=25))[:2] == (25, 27)
        assert [s.segment for s in await move(store, folder, before_ns=1000)] == [4]
        assert (await verify_journal(store, archive=folder)).records == 27
        assert await move(store, folder, before_ns=1000) == []


async def test_read_of_archived_records_raises_error_with_remedy(
    database_url: str, tmp_path: Path
) -> None:
    async with open_journal(database_url) as store:
        await fill(store, 13)
        await move(store, tmp_path, before_ns=1000)
        for subject in (None, "pod/default/web-1"):
            with pytest.raises(
                ArchivedError, match=r"records 1 to 12 are archived: .*asched journal restore"
            ):
                assert [s async for s in store.read(subject=subject)] == []
        with pytest.raises(ArchivedError):
            assert [s async for s in store.read(11)] == []
        assert [s.seq async for s in store.read(12)] == list(range(13, 25))
        assert [s.seq async for s in store.read(12, subject="pod/default/web-1")] == [
            15,
            18,
            21,
            24,
        ]
        with pytest.raises(
            ArchivedError, match="checkpoint at record 12: records 1 to 12 are archived"
        ):
            await store.save_checkpoint(12, b"")


async def test_restore_reproduces_journal(database_url: str, tmp_path: Path) -> None:
    whole = tmp_path / "whole.db"
    async with open_journal(database_url) as store:
        await fill(store, 13)
        async with open_journal(str(whole)) as target:
            await move(store, tmp_path, before_ns=1000)
            assert await restore(store, tmp_path, target) == await store.head()
            expected: list[AnyRecord] = [r for n in range(BATCHES) for r in turn(n)]
            assert [s.record async for s in target.read()] == expected
            assert await target.writers() == await store.writers()
            verified = await verify_journal(store, archive=tmp_path)
            assert (await verify_journal(target)).head == verified.head
            with pytest.raises(ConflictError, match="not empty"):
                await restore(store, tmp_path, target)
        with pytest.raises(JournalError, match="cannot restore into a journal in memory"):
            await restore(store, tmp_path, MemoryStore())


async def test_archive_without_checkpoint_raises_error(tmp_path: Path) -> None:
    async with open_journal(str(tmp_path / "journal.db")) as store:
        await fill(store)
        with pytest.raises(JournalError, match="has no checkpoint"):
            await move(store, tmp_path, before_ns=1000)
        await store.save_checkpoint(2, b"in the first batch")
        assert await move(store, tmp_path, before_ns=1000) == []
    with pytest.raises(JournalError, match="in memory"):
        await move(MemoryStore(), tmp_path, before_ns=1)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a journal and its archive."""
    folder = tmp_path_factory.mktemp("archived")

    async def write() -> None:
        async with open_journal(str(folder / "journal.db")) as store:
            await fill(store, 7, 16)
            await move(store, folder / "archive", before_ns=30)
            await move(store, folder / "archive", before_ns=1000)

    anyio.run(write)
    return folder


@pytest.fixture
def archived(original: Path, tmp_path: Path) -> Path:
    """The file of a journal with two segments in the directory ``archive`` next to it."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path / "journal.db"


async def fault(path: Path) -> str:
    async with open_journal(str(path), read_only=True) as store:
        with pytest.raises(JournalCorruptError) as raised:
            await verify_journal(store, archive=path.parent / "archive")
    return str(raised.value)


async def test_altered_or_missing_file_is_reported(archived: Path) -> None:
    first, second = sorted((archived.parent / "archive").glob("segment-*"))
    kept = second.read_bytes()
    lines = gzip.decompress(kept).replace(b"node-3", b"node-4")
    for content in (gzip.compress(lines), kept[:-9], b"", kept + b"\0"):
        second.write_bytes(content)
        assert await fault(archived) == f"{second} was altered: its SHA-256 does not match"
    shutil.copy(first, second)
    assert f"{second} was altered" in await fault(archived)
    second.unlink()
    assert await fault(archived) == f"{second} is missing: it holds records 7 to 15"


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "UPDATE journal_segment SET hash = '' WHERE segment = 1",
            r"segment 1 .* differs from statement 3",
        ),
        (
            "UPDATE journal_segment SET last_seq = 5 WHERE segment = 1",
            r"segment 1 .* differs from statement 3",
        ),
        (
            "UPDATE journal_segment SET first_seq = 2 WHERE segment = 1",
            r"segment 1 .* differs from",
        ),
        (
            "UPDATE journal_segment SET previous_hash = 'x' WHERE segment = 2",
            r"segment 2 .* differs from statement 4",
        ),
        ("UPDATE journal_segment SET segment = 3 WHERE segment = 2", "segment 3 .* was inserted"),
        ("UPDATE journal_segment SET file_sha256 = '' WHERE segment = 2", "segment 2 .* differs"),
        ("UPDATE journal_segment SET file = 'x' WHERE segment = 2", "segment 2 .* differs"),
        ("DELETE FROM journal_segment WHERE segment = 2", "batch 6 .* does not follow batch 2"),
        ("DELETE FROM journal_segment WHERE segment = 1", "segment 1 is missing"),
    ],
)
async def test_altered_segment_is_reported(archived: Path, statement: str, message: str) -> None:
    await tamper(str(archived), statement)
    async with open_journal(str(archived), read_only=True) as store:
        with pytest.raises(JournalCorruptError, match=message):
            await verify_journal(store, archive=archived.parent / "archive")


async def test_trusted_heads_within_archive(archived: Path) -> None:
    folder = archived.parent / "archive"
    async with open_journal(str(archived), read_only=True) as store:
        heads = [
            TrustedHead(s.batch.last_seq, s.batch.hash) async for s in all_batches(store, folder)
        ]
        for head in heads:
            await verify_journal(store, trusted=head, archive=folder)
        end = heads[4]
        assert end.seq == (await store.archived()).seq
        await verify_journal(store, trusted=end, skip_archive=True)
        with pytest.raises(JournalCorruptError, match="the archive ends with"):
            await verify_journal(store, trusted=end._replace(hash="0" * 64), skip_archive=True)
        with pytest.raises(JournalCorruptError, match="is in the archive: give its directory"):
            await verify_journal(store, trusted=heads[0], skip_archive=True)


async def test_interrupted_run_is_completed_by_next_run(archived: Path, tmp_path: Path) -> None:
    """Rows of a segment that were not deleted yet are ignored, and deleted."""
    copied = "SELECT 1, 1, 'Bound', 1, '', '{}'"
    await tamper(str(archived), f"INSERT INTO journal_record {copied}")
    folder = tmp_path / "archive"
    async with open_journal(str(archived)) as store:
        assert (await verify_journal(store, archive=folder)).records == 24
        assert [s.seq async for s in store.read(15, 16)] == [16]
        assert await move(store, folder, before_ns=1000) == []
        assert (await verify_journal(store, archive=folder)).records == 24


async def test_checkpoint_within_segment_is_rejected_before_deletion(
    database_url: str, tmp_path: Path
) -> None:
    """``asched checkpoint --every`` may fold records that are archived meanwhile."""
    async with open_journal(database_url) as store, open_journal(database_url) as reader:
        assert isinstance(store, SqlStore)
        await fill(store, 5, 16)
        await record_segment(store, tmp_path)
        for saving in (store, reader):
            for seq in (1, 5, 6):
                with pytest.raises(ArchivedError, match=f"checkpoint at record {seq}: "):
                    await saving.save_checkpoint(seq, b"too late")
        await reader.save_checkpoint(7, b"of what stays")
        assert [mark.seq for mark in await store.checkpoint_marks()] == [7, 16]
        await store.delete_archived()
        assert (await verify_journal(store, archive=tmp_path)).checkpoints == 2


async def test_checkpoint_that_a_daemon_deletes_meanwhile_moves_nothing(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "archive"
    async with open_journal(database_url) as store, open_journal(database_url) as daemon:
        await fill(store, 5, 17, 24)
        segments = SqlStore.segments

        async def after_the_choice(self: SqlStore) -> Sequence[Segment]:
            await daemon.drop_checkpoints([17])
            return await segments(self)

        monkeypatch.setattr(SqlStore, "segments", after_the_choice)
        with pytest.raises(JournalBusyError, match="repeat the command"):
            await move(store, folder, before_ns=60)
        assert (await store.archived(), files_in(folder)) == (GENESIS, [])
        monkeypatch.setattr(SqlStore, "segments", segments)
        assert [s.last_seq for s in await move(store, folder, before_ns=60)] == [3]
        assert [mark.seq for mark in await store.checkpoint_marks()] == [5, 24]


async def test_verification_during_a_run_is_no_corruption(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_journal(database_url) as store, open_journal(database_url) as archiver:
        await fill(store, 17)
        ranges = SqlStore.batch_ranges

        async def archived_meanwhile(
            self: SqlStore, after_batch: int = 0
        ) -> AsyncIterator[BatchRange]:
            monkeypatch.undo()
            await move(archiver, tmp_path, before_ns=60)
            async for batches in ranges(self, after_batch):
                yield batches

        monkeypatch.setattr(SqlStore, "batch_ranges", archived_meanwhile)
        with pytest.raises(JournalBusyError, match="archived meanwhile"):
            await verify_journal(store)
        assert (await verify_journal(store, archive=tmp_path)).records == 24


async def record_segment(store: SqlStore, folder: Path) -> None:
    """Archive the first two batches as a run that is killed before it deletes their rows."""
    batches = [sealed async for sealed in store.batches()][:2]
    await store.record_segment(files.write_segment(folder, 1, GENESIS, batches, archived_at_ns=1))


async def test_unwritable_directory_moves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with open_journal(str(tmp_path / "journal.db")) as store:
        await fill(store, 13)
        with pytest.raises(JournalIOError, match="cannot write"):
            await move(store, tmp_path / "file", before_ns=1000)
        assert (await verify_journal(store)).records == 24


async def test_concurrent_archive_run_is_rejected(database_url: str, tmp_path: Path) -> None:
    """In the same directory or, as from another machine, in another one."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    async with open_journal(database_url) as store, open_journal(database_url) as other:
        assert isinstance(store, SqlStore)
        await fill(store, 13)
        async with store.archiving():
            with pytest.raises(JournalBusyError, match=r"another process is archiving .*journal"):
                await move(other, elsewhere, before_ns=1000)
        with (
            held_exclusively(here, "held"),
            pytest.raises(JournalBusyError, match=f"is archiving into {here}$"),
        ):
            await move(other, here, before_ns=1000)
        assert (await verify_journal(store)).records == 24
        assert files_in(here) == files_in(elsewhere) == []
        # The daemon continues during a run, and a rejected run can be repeated.
        async with store.archiving():
            assert (await store.append(turn(8), written_at_ns=80))[:2] == (25, 27)
        assert [s.last_seq for s in await move(other, here, before_ns=1000)] == [12]
        assert (await verify_journal(store, archive=here)).records == 27


async def test_one_of_two_concurrent_runs_moves_all(database_url: str, tmp_path: Path) -> None:
    moved: list[list[Segment]] = []
    rejected: list[JournalBusyError] = []

    async def run(store: JournalStore) -> None:
        try:
            moved.append(await move(store, tmp_path / "archive", before_ns=1000))
        except JournalBusyError as error:
            rejected.append(error)

    async with open_journal(database_url) as store, open_journal(database_url) as other:
        await fill(store, 13)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, store)
            tasks.start_soon(run, other)
        assert len(rejected) == 1
        assert [[s.last_seq for s in segments] for segments in moved] == [[12]]
        assert files_in(tmp_path / "archive") == [moved[0][0].file]
        assert (await verify_journal(store, archive=tmp_path / "archive")).records == 24


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b""])
async def test_rows_are_kept_if_file_differs(
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[bytes], bytes],
) -> None:
    """The disk loses data just before it confirms that it is durable."""
    sync = files._sync_folder

    def lossy(folder: Path) -> None:
        for path in folder.iterdir():
            path.write_bytes(damage(path.read_bytes()))
        sync(folder)

    async with open_journal(database_url) as store:
        await fill(store, 13)
        monkeypatch.setattr(files, "_sync_folder", lossy)
        with pytest.raises(JournalCorruptError, match="was altered"):
            await move(store, tmp_path / "archive", before_ns=1000)
        assert await store.segments() == []
        assert (await verify_journal(store)).records == 24
        monkeypatch.undo()
        assert [s.last_seq for s in await move(store, tmp_path / "archive", before_ns=1000)] == [12]


async def test_partial_files_of_killed_run_are_removed(tmp_path: Path) -> None:
    """Killed while it wrote the file, or before it stored the segment."""
    folder = tmp_path / "archive"
    async with open_journal(str(tmp_path / "journal.db")) as store:
        await fill(store, 13)
        batches = [sealed async for sealed in store.batches()][:4]
        whole = folder / files.write_segment(folder, 1, GENESIS, batches, archived_at_ns=1).file
        (folder / f"{whole.name}.0123.partial").write_bytes(b"half")
        (folder / "notes.partial").write_text("a user's file")
        assert [s.file for s in await move(store, folder, before_ns=1000)] == [whole.name]
        assert files_in(folder) == ["notes.partial", whole.name]
        assert (await verify_journal(store, archive=folder)).records == 24


async def test_files_of_another_journal_are_not_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    async with open_journal(str(tmp_path / "theirs.db")) as theirs:
        await theirs.claim("theirs", claimed_at_ns=1)
        for number in range(BATCHES):
            await theirs.append(turn(number), written_at_ns=10 * number + 1)
        await theirs.save_checkpoint(13, b"state")
        (segment,) = await move(theirs, folder, before_ns=1000)
        async with open_journal(str(tmp_path / "journal.db")) as store:
            await fill(store, 13)
            with pytest.raises(JournalError, match="use another directory"):
                await move(store, folder, before_ns=1000)
            assert (await verify_journal(store)).records == 24
        assert files_in(folder) == [segment.file]
        assert (await verify_journal(theirs, archive=folder)).records == 24


async def test_wrong_date_does_not_end_the_archive(tmp_path: Path) -> None:
    """The clock was in 2040 for a while."""
    async with open_journal(str(tmp_path / "journal.db")) as store:
        await store.claim("test", claimed_at_ns=1)
        await store.append(turn(1), written_at_ns=10)
        stepped: list[AnyRecord] = [TurnStarted(2), ClockStepped(10**9)]
        await store.append(stepped, written_at_ns=10**9)
        back: list[AnyRecord] = [TurnStarted(3), ClockStepped(0)]
        await store.append(back, written_at_ns=30)
        await store.append(turn(4), written_at_ns=40)
        await store.append(turn(5), written_at_ns=50)
        await store.save_checkpoint(8, b"state")
        (segment,) = await move(store, tmp_path / "archive", before_ns=45)
        assert (segment.first_seq, segment.last_seq) == (1, 7)
