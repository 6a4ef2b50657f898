"""What a journal holds, in figures.

Where in a journal a moment lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from asched.journal.chain import Writer
from asched.journal.store import JournalStore


class KindFigures(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    records: int
    payload_bytes: int


class WriterFigures(msgspec.Struct, frozen=True, rename="camel"):
    epoch: int
    writer: str
    claimed_at_ns: int
    batches: int
    records: int


class JournalStatistics(msgspec.Struct, frozen=True, rename="camel"):
    """Figures of what is in the database; the archive's are only counted. Times are nanoseconds
    since the epoch of Unix, None where there are no records."""

    first_seq: int
    """The first record that is not in the archive."""
    last_seq: int
    records: int
    batches: int
    payload_bytes: int
    """UTF-8, without what the database adds."""
    first_written_at_ns: int | None
    last_written_at_ns: int | None
    archived_records: int
    archived_segments: int
    checkpoints: int
    kinds: tuple[KindFigures, ...]
    """Most bytes first."""
    writers: tuple[WriterFigures, ...]


async def statistics(
    store: JournalStore, progress: Callable[[int], None] | None = None
) -> JournalStatistics:
    """Read the whole journal and count. ``progress`` is told how far it has come (a record's
    number)."""
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

    def figures_of(writer: Writer) -> WriterFigures:
        epoch, name, claimed_at_ns, _ = writer
        return WriterFigures(epoch, name, claimed_at_ns, batches_of[epoch], records_of[epoch])

    return JournalStatistics(
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
            KindFigures(kind, records[kind], size) for kind, size in payload_bytes.most_common()
        ),
        writers=tuple(figures_of(writer) for writer in await store.writers()),
    )


async def last_seq_at(journal: JournalStore, at_ns: int) -> int:
    """The last record that was written at that time or before; 0 where there is none, and the last
    archived one where it lies in the archive.

    Looked for by halves, as batches are written in order of time. Raises
    :class:`~asched.journal.errors.JournalError`.
    """
    low, high = (await journal.archived()).seq, (await journal.head()).seq
    while low < high:
        middle = (low + high + 1) // 2
        async for stored in journal.read(middle - 1, middle):
            if stored.written_at_ns <= at_ns:
                low = middle
            else:
                high = middle - 1
    return low
