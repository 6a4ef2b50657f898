"""Moving the old part of a journal into the archive, and putting it back together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio.lowlevel
from anyio import to_thread

from asched.journal.archive import read_archive, sweep, write_segment
from asched.journal.chain import GENESIS, Head, SealedBatch, Segment, Stretch, stretch_of, verify
from asched.journal.codec import CODEC
from asched.journal.errors import ConflictError, JournalError
from asched.journal.lock import folder_held
from asched.journal.sql import SqlStore
from asched.journal.store import JournalStore
from asched.state.records import AnyRecord

SEGMENT_RECORDS = 100_000
"""A segment ends with the batch that reaches so many records: what is held in memory at once."""

Progress = Callable[[int], None]


async def archive(
    store: JournalStore,
    folder: Path,
    *,
    before_ns: int,
    archived_at_ns: int,
    progress: Progress | None = None,
) -> list[Segment]:
    """Move batches that were all written before ``before_ns`` into files in ``folder``.

    What stays begins right before a checkpoint, because without one nobody could fold it: so it may
    be less than asked for, or nothing. The writer may go on meanwhile. What an interrupted run left
    undone is done first.

    Raises :class:`JournalError` where there is no checkpoint to begin from, or nothing but memory;
    :class:`JournalBusyError` while another run archives this journal, or anything into ``folder``.
    """
    if not isinstance(store, SqlStore):
        raise JournalError("a journal in memory has no archive")
    with folder_held(folder, f"another process is archiving into {folder}"):
        async with store.archiving():
            await to_thread.run_sync(sweep, folder)
            return await _archive(store, folder, before_ns, archived_at_ns, progress)


async def _archive(
    store: SqlStore, folder: Path, before_ns: int, archived_at_ns: int, progress: Progress | None
) -> list[Segment]:
    await store.delete_archived()
    last_batch = await _last_to_go(store, before_ns)
    head = await store.archived()
    number = len(await store.segments())
    segments: list[Segment] = []
    async for batches in _in_segments(store, last_batch):
        number += 1
        segment = await to_thread.run_sync(
            write_segment, folder, number, head, batches, archived_at_ns
        )
        await store.put_away(segment)
        await store.delete_archived()
        head = segment.head
        segments.append(segment)
        if progress is not None:
            progress(head.seq)
    return segments


async def _last_to_go(store: SqlStore, before_ns: int) -> int:
    """The last batch before the newest checkpoint that has only old batches before it; 0 if none."""
    marks = await store.checkpoint_marks()
    if not marks:
        raise JournalError(
            "nothing can be archived: the journal has no checkpoint, and what stays could not be"
            " read without one"
        )
    last_batch = 0
    old = 0
    starts = {mark.batch for mark in marks}
    async for sealed in store.batches():
        if sealed.batch.batch in starts:
            last_batch = old
        if sealed.batch.written_at_ns >= before_ns:
            break
        old = sealed.batch.batch
    return last_batch


async def _in_segments(store: SqlStore, last_batch: int) -> AsyncIterator[list[SealedBatch]]:
    gathered: list[SealedBatch] = []
    records = 0
    async for sealed in store.batches():
        if sealed.batch.batch > last_batch:
            break
        gathered.append(sealed)
        records += len(sealed.rows)
        if records >= SEGMENT_RECORDS:
            yield gathered
            gathered, records = [], 0
    if gathered:
        yield gathered


async def whole_journal(store: JournalStore, folder: Path | None) -> AsyncIterator[SealedBatch]:
    """All batches: those of the archive in ``folder``, if it is given, then those that stayed."""
    if folder is not None:
        for sealed in read_archive(folder, await store.segments()):
            await anyio.lowlevel.checkpoint()
            yield sealed
    async for sealed in store.batches():
        yield sealed


async def whole_chain(store: JournalStore, folder: Path | None) -> AsyncIterator[Stretch]:
    """As :func:`whole_journal`, many batches at a time."""
    if folder is not None:
        for sealed in read_archive(folder, await store.segments()):
            await anyio.lowlevel.checkpoint()
            yield stretch_of(sealed)
    async for stretch in store.stretches():
        yield stretch


async def archived_records(store: JournalStore, folder: Path) -> AsyncIterator[AnyRecord]:
    """The records in the archive in ``folder``, brought up to their present form.

    Raises :class:`JournalCorruptError` where a file or batch does not verify, and RecordError.
    """
    head = GENESIS
    for sealed in read_archive(folder, await store.segments()):
        await anyio.lowlevel.checkpoint()
        head = verify(sealed, head)
        for row in sealed.rows:
            yield CODEC.decode(row.seq, row.kind, row.version, row.subject, row.payload)


async def restore(store: JournalStore, folder: Path, target: JournalStore) -> Head:
    """Put the archive in ``folder`` and what stayed in ``store`` together into ``target``.

    Raises :class:`ConflictError` if ``target`` holds anything, :class:`JournalCorruptError` where
    something does not verify.
    """
    if not isinstance(target, SqlStore):
        raise JournalError("a journal is put back together into a database, not into memory")
    if await target.writers():
        raise ConflictError("the journal to put it into is not empty")
    return await target.restore(whole_journal(store, folder), await store.writers())
