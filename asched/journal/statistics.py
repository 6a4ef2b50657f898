"""Statistics of a journal, its identity, and the record at a time.

The identity follows from the hash of the first writer, so it is stored in the journal, protected by
the chain of writers, and the same in copies and restored archives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID, uuid5

import msgspec

from asched.journal.chain import Batch, JournalRow, Writer
from asched.journal.codec import CLOCK_SUBJECT
from asched.journal.store import JournalStore


class KindStatistics(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    records: int
    payload_bytes: int


class WriterStatistics(msgspec.Struct, frozen=True, rename="camel"):
    epoch: int
    writer: str
    claimed_at_ns: int
    batches: int
    records: int


class JournalStatistics(msgspec.Struct, frozen=True, rename="camel"):
    """Statistics of the database, with totals of the archive.

    Times are nanoseconds since the Unix epoch, None without records.
    """

    journal_id: str
    """Empty if it was never claimed."""
    first_seq: int
    """The first record that is not archived."""
    last_seq: int
    records: int
    batches: int
    payload_bytes: int
    """In UTF-8, without the database's overhead."""
    first_written_at_ns: int | None
    last_written_at_ns: int | None
    archived_records: int
    archived_segments: int
    checkpoints: int
    kinds: tuple[KindStatistics, ...]
    """Sorted by bytes, descending."""
    writers: tuple[WriterStatistics, ...]


class RecordCounts(msgspec.Struct):
    """What :func:`statistics` counts, so that it can continue from there."""

    batch: int = 0
    """The last batch that is counted."""
    seq: int = 0
    archived_seq: int = 0
    records: dict[str, int] = {}
    """By kind."""
    payload_bytes: dict[str, int] = {}
    batches_of: dict[int, int] = {}
    """By epoch."""
    records_of: dict[int, int] = {}
    times_ns: list[int] = []
    """Of the first and of the last batch."""

    def add(self, batch: Batch, rows: Sequence[JournalRow]) -> None:
        self.batch, self.seq = batch.batch, batch.last_seq
        self.batches_of[batch.epoch] = self.batches_of.get(batch.epoch, 0) + 1
        self.records_of[batch.epoch] = self.records_of.get(batch.epoch, 0) + len(rows)
        self.times_ns = [*self.times_ns[:1], batch.written_at_ns]
        for row in rows:
            size_bytes = len(row.payload.encode())
            self.records[row.kind] = self.records.get(row.kind, 0) + 1
            self.payload_bytes[row.kind] = self.payload_bytes.get(row.kind, 0) + size_bytes


async def statistics(
    store: JournalStore,
    progress: Callable[[int], None] | None = None,
    counts: RecordCounts | None = None,
) -> JournalStatistics:
    """Read the whole journal. ``progress`` receives the number of the last record read.

    ``counts`` are those of an earlier call for the same journal, which are continued: then only
    newer records are read. If records were archived since, all others are counted again.
    """
    archived = await store.archived()
    counts = RecordCounts() if counts is None else counts
    if counts.archived_seq != archived.seq or not counts.batch:
        cleared = RecordCounts(archived.batch, archived.seq, archived.seq)
        for name in RecordCounts.__struct_fields__:
            setattr(counts, name, getattr(cleared, name))
    async for batch, rows in store.batches(counts.batch):
        counts.add(batch, rows)
        if progress is not None:
            progress(batch.last_seq)
    records, times_ns = counts.records, counts.times_ns

    def statistics_of(writer: Writer) -> WriterStatistics:
        epoch, name, claimed_at_ns, _ = writer
        made = counts.batches_of.get(epoch, 0), counts.records_of.get(epoch, 0)
        return WriterStatistics(epoch, name, claimed_at_ns, *made)

    return JournalStatistics(
        journal_id=await journal_id(store),
        first_seq=archived.seq + 1,
        last_seq=counts.seq,
        records=sum(records.values()),
        batches=sum(counts.batches_of.values()),
        payload_bytes=sum(counts.payload_bytes.values()),
        first_written_at_ns=times_ns[0] if times_ns else None,
        last_written_at_ns=times_ns[-1] if times_ns else None,
        archived_records=archived.seq,
        archived_segments=len(await store.segments()),
        checkpoints=len(await store.checkpoint_marks()),
        kinds=tuple(
            KindStatistics(kind, records[kind], size)
            for kind, size in Counter(counts.payload_bytes).most_common()
        ),
        writers=tuple(statistics_of(writer) for writer in await store.writers()),
    )


async def last_seq_at(journal: JournalStore, at_ns: int) -> int:
    """The last record written at or before a time, found by bisection.

    0 if there is none; the last archived record if it is in the archive. If the clock was set back,
    dates after that count: earlier records with later dates are included. Raises
    :class:`~asched.journal.errors.JournalError`.
    """
    first_seq, high = (await journal.archived()).seq, (await journal.head()).seq
    # Between two steps of the clock, dates increase. A step follows the start of its turn, which
    # has the new date already.
    steps = [s.seq - 2 async for s in journal.read(first_seq, high, subject=CLOCK_SUBJECT)]
    for begin in reversed([first_seq, *(seq for seq in steps if seq > first_seq)]):
        found = await _last_between(journal, begin, high, at_ns)
        if found > begin:
            return found
        high = begin
    return first_seq


async def _last_between(journal: JournalStore, low: int, high: int, at_ns: int) -> int:
    """The last record after ``low`` and up to ``high`` that was written at or before a time;
    ``low`` if there is none."""
    while low < high:
        middle = (low + high + 1) // 2
        async for stored in journal.read(middle - 1, middle):
            if stored.written_at_ns <= at_ns:
                low = middle
            else:
                high = middle - 1
    return low


_NAMESPACE: Final = UUID("5e2f7f0c-6d0b-4c38-9c1e-0b6a6f6f3f0a")


async def journal_id(journal: JournalStore) -> str:
    """The identity; empty if the journal was never claimed.

    Raises :class:`~asched.journal.errors.JournalError`.
    """
    writers = await journal.writers()
    return str(uuid5(_NAMESPACE, writers[0].hash)) if writers else ""
