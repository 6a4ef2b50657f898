"""Statistics of a journal, its identity, and the record at a time.

The identity follows from the hash of the first writer, so it is stored in the journal, protected by
the chain of writers, and the same in copies and restored archives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final
from uuid import UUID, uuid5

import msgspec

from asched.journal.chain import Writer
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


async def statistics(
    store: JournalStore, progress: Callable[[int], None] | None = None
) -> JournalStatistics:
    """Read the whole journal. ``progress`` receives the number of the last record read."""
    archived = await store.archived()
    records: Counter[str] = Counter()
    payload_bytes: Counter[str] = Counter()
    batches_of: Counter[int] = Counter()
    records_of: Counter[int] = Counter()
    times_ns: list[int] = []
    last_seq = archived.seq
    async for batch, rows in store.batches():
        batches_of[batch.epoch] += 1
        records_of[batch.epoch] += len(rows)
        times_ns = [*times_ns[:1], batch.written_at_ns]
        last_seq = batch.last_seq
        for row in rows:
            records[row.kind] += 1
            payload_bytes[row.kind] += len(row.payload.encode())
        if progress is not None:
            progress(last_seq)

    def statistics_of(writer: Writer) -> WriterStatistics:
        epoch, name, claimed_at_ns, _ = writer
        return WriterStatistics(epoch, name, claimed_at_ns, batches_of[epoch], records_of[epoch])

    return JournalStatistics(
        journal_id=await journal_id(store),
        first_seq=archived.seq + 1,
        last_seq=last_seq,
        records=records.total(),
        batches=batches_of.total(),
        payload_bytes=payload_bytes.total(),
        first_written_at_ns=times_ns[0] if times_ns else None,
        last_written_at_ns=times_ns[-1] if times_ns else None,
        archived_records=archived.seq,
        archived_segments=len(await store.segments()),
        checkpoints=len(await store.checkpoint_marks()),
        kinds=tuple(
            KindStatistics(kind, records[kind], size) for kind, size in payload_bytes.most_common()
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
