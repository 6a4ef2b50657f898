"""The journal on a SQL database. What differs between databases is behind :class:`Database`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, cast

import anyio
from sqlalchemy import Select, delete, func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from asched.journal.chain import (
    GENESIS,
    Batch,
    BatchRange,
    Head,
    SealedBatch,
    Segment,
    Writer,
    enrol,
    seal,
    verify,
)
from asched.journal.codec import CODEC, Encoded
from asched.journal.errors import (
    ArchivedError,
    ConflictError,
    FencedError,
    JournalCorruptError,
    JournalError,
    archived_message,
    archived_seq_message,
    conflict_message,
    fenced_message,
    unknown_seq_message,
)
from asched.journal.schema import (
    JOURNAL_BATCH,
    JOURNAL_CHECKPOINT,
    JOURNAL_RECORD,
    JOURNAL_SEGMENT,
    JOURNAL_WRITER,
)
from asched.journal.store import Appended, Checkpoint, CheckpointMark, StoredRecord
from asched.state.records import AnyRecord

_CHUNK_ROWS = 1000
_CHUNK_BATCHES = 2000
_CHUNK_BATCH_ROWS = 2000
"""Batches are fetched so many at a time that they have about so many records together: few enough
that what is made of them stays in the processor's caches."""

_BatchColumns = tuple[int, int, int, int, int, str, str]
_RowColumns = tuple[int, int, str, int, str, str]


class Database(Protocol):
    """One kind of SQL database, open, with the tables of the newest revision."""

    def read(self) -> AbstractAsyncContextManager[AsyncConnection]: ...

    def write(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection in a transaction that commits at the end; not cancelled inside."""
        ...

    async def fetch(self, query: Select[Any]) -> Sequence[tuple[Any, ...]]:
        """All rows of a query as the driver gives them: for very many rows, which the names that
        SQLAlchemy gives to columns would cost as much again."""
        ...

    def archiving(self) -> AbstractAsyncContextManager[None]:
        """Keeps all others out who would archive this journal, on whatever machine.

        Raises :class:`JournalBusyError` at once where somebody does.
        """
        ...

    async def depose(self) -> None:
        """Before a claim: nobody who sleeps is to keep it waiting."""
        ...

    async def append(self, sealed: SealedBatch) -> None:
        """Insert a batch atomically, durable on return; not cancelled half-way.

        Raises :class:`FencedError` or :class:`ConflictError` where the database refuses it.
        """
        ...

    async def close(self) -> None: ...


class SqlStore:
    """A :class:`~asched.journal.store.JournalStore` on a :class:`Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._epoch = 0
        self._head: Head | None = None
        """The head as this writer left it; None when that is unknown."""
        self._appending = anyio.Lock()

    async def claim(self, writer: str, *, claimed_at_ns: int) -> int:
        async with self._appending:
            self._head = None
            await self._database.depose()
            newest = select(JOURNAL_WRITER).order_by(JOURNAL_WRITER.c.epoch.desc()).limit(1)
            async with self._database.write() as connection:
                row = (await connection.execute(newest)).one_or_none()
                enrolled = enrol(None if row is None else Writer(*row), writer, claimed_at_ns)
                await connection.execute(insert(JOURNAL_WRITER).values(enrolled._asdict()))
            self._epoch = enrolled.epoch
            return enrolled.epoch

    async def append(
        self, records: Sequence[AnyRecord], *, written_at_ns: int, first_seq: int | None = None
    ) -> Appended:
        if not records:
            raise ValueError("a batch holds at least one record")
        if self._epoch == 0:
            raise FencedError(fenced_message(0, 0))
        encoded = [CODEC.encode(record) for record in records]
        async with self._appending:
            head = await self.head() if self._head is None else self._head
            if first_seq is not None and first_seq != head.seq + 1:
                return await self._as_stored(first_seq, encoded, written_at_ns, head)
            sealed = seal(head, encoded, self._epoch, written_at_ns)
            self._head = None
            try:
                await self._database.append(sealed)
            except ConflictError:
                if first_seq is None:
                    raise
                # It may be itself that came in between: a first try that was given up as lost, and
                # that the server was still carrying out when the head was read.
                return await self._as_stored(first_seq, encoded, written_at_ns, await self.head())
            self._head = sealed.head
        return Appended(sealed.batch.first_seq, sealed.batch.last_seq)

    async def _as_stored(
        self, first_seq: int, encoded: Sequence[Encoded], written_at_ns: int, head: Head
    ) -> Appended:
        """The answer that a repeated append got, or would have got, the first time."""
        found = select(JOURNAL_BATCH).where(JOURNAL_BATCH.c.first_seq == first_seq)
        async with self._database.read() as connection:
            newest = (await connection.execute(select(func.max(JOURNAL_WRITER.c.epoch)))).scalar()
            row = (await connection.execute(found)).one_or_none()
        if newest != self._epoch:
            raise FencedError(fenced_message(self._epoch, newest or 0))
        if row is not None:
            stored = Batch(*row)
            before = Head(first_seq - 1, stored.batch - 1, stored.previous_hash)
            if seal(before, encoded, stored.epoch, written_at_ns).batch == stored:
                return Appended(stored.first_seq, stored.last_seq)
        raise ConflictError(conflict_message(first_seq, head.seq))

    async def head(self) -> Head:
        columns = (JOURNAL_BATCH.c.last_seq, JOURNAL_BATCH.c.batch, JOURNAL_BATCH.c.hash)
        newest = select(*columns).order_by(JOURNAL_BATCH.c.batch.desc()).limit(1)
        async with self._database.read() as connection:
            row = (await connection.execute(newest)).one_or_none()
        return GENESIS if row is None else Head(*row)

    async def read(
        self, after_seq: int = 0, up_to: int | None = None, *, subject: str | None = None
    ) -> AsyncIterator[StoredRecord]:
        head = await self.head()
        last_seq = head.seq if up_to is None else min(up_to, head.seq)
        record, batch = JOURNAL_RECORD.c, JOURNAL_BATCH.c
        query = (
            select(
                record.seq,
                batch.written_at_ns,
                record.kind,
                record.version,
                record.subject,
                record.payload,
            )
            .join(JOURNAL_BATCH, record.batch == batch.batch)
            .order_by(record.seq)
            .limit(_CHUNK_ROWS)
        )
        if subject is not None:
            query = query.where(record.subject == subject)
        while after_seq < last_seq:
            chunk = query.where(record.seq > after_seq, record.seq <= last_seq)
            async with self._database.read() as connection:
                archived_seq = (await connection.execute(_ARCHIVED)).one_or_none()
                rows = (await connection.execute(chunk)).all()
            if archived_seq is not None and archived_seq.last_seq > after_seq:
                raise ArchivedError(archived_message(archived_seq.last_seq))
            if subject is None:
                _check_gapless([row.seq for row in rows], after_seq)
            for seq, written_at_ns, *stored in rows:
                yield StoredRecord(seq, written_at_ns, CODEC.decode(seq, *stored))
            if not rows:
                return
            after_seq = rows[-1].seq

    async def subjects(self, kind: str) -> Sequence[str]:
        subject = JOURNAL_RECORD.c.subject
        # The character after the slash ends the range: both ends are found in the index.
        of_kind = select(subject).where(subject >= f"{kind}/", subject < f"{kind}0").distinct()
        # What is in the archive is deleted bit by bit.
        stayed = of_kind.where(JOURNAL_RECORD.c.seq > (await self.archived()).seq)
        found = {row[0] for row in await self._database.fetch(stayed)}
        # PostgreSQL's order is that of its collation.
        return sorted(text for text in found if text.startswith(f"{kind}/"))

    async def batches(self, after_batch: int = 0) -> AsyncIterator[SealedBatch]:
        async for stretch in self.stretches(after_batch):
            for sealed in stretch.sealed():
                yield sealed

    async def stretches(self, after_batch: int = 0) -> AsyncIterator[BatchRange]:
        after_batch = max(after_batch, (await self.archived()).batch)
        record, batch = JOURNAL_RECORD.c, JOURNAL_BATCH.c
        following = select(JOURNAL_BATCH).order_by(batch.batch).limit(_CHUNK_BATCHES)
        while True:
            found = await self._database.fetch(following.where(batch.batch > after_batch))
            batches = _first_few(cast("Sequence[_BatchColumns]", found))
            if not batches:
                return
            spanned = record.seq.between(batches[0][1], batches[-1][2])
            rows = await self._database.fetch(
                select(JOURNAL_RECORD).where(spanned).order_by(record.seq)
            )
            yield BatchRange(batches, cast("Sequence[_RowColumns]", rows))
            after_batch = batches[-1][0]

    async def archived(self) -> Head:
        async with self._database.read() as connection:
            row = (await connection.execute(_ARCHIVED)).one_or_none()
        return GENESIS if row is None else Head(*row)

    async def segments(self) -> Sequence[Segment]:
        query = select(JOURNAL_SEGMENT).order_by(JOURNAL_SEGMENT.c.segment)
        async with self._database.read() as connection:
            return list(map(Segment._make, (await connection.execute(query)).all()))

    async def writers(self) -> Sequence[Writer]:
        query = select(JOURNAL_WRITER).order_by(JOURNAL_WRITER.c.epoch)
        async with self._database.read() as connection:
            return list(map(Writer._make, (await connection.execute(query)).all()))

    async def stray(self, head: Head) -> str | None:
        record, batch = JOURNAL_RECORD.c, JOURNAL_BATCH.c
        homeless = (
            select(func.min(record.seq))
            .select_from(JOURNAL_RECORD.outerjoin(JOURNAL_BATCH, record.batch == batch.batch))
            .where(record.seq > head.seq, or_(batch.batch.is_(None), record.batch <= head.batch))
        )
        strays: tuple[tuple[str, Select[tuple[int | None]]], ...] = (
            ("record", select(func.min(record.seq)).where(record.seq < 1)),
            ("batch", select(func.min(batch.batch)).where(batch.batch < 1)),
            ("record", homeless),
        )
        async with self._database.read() as connection:
            for what, query in strays:
                number = (await connection.execute(query)).scalar()
                if number is not None:
                    return f"{what} {number}"
        return None

    async def save_checkpoint(self, seq: int, blob: bytes) -> None:
        holding = (
            select(JOURNAL_BATCH.c.batch, JOURNAL_BATCH.c.hash)
            .where(JOURNAL_BATCH.c.first_seq <= seq, JOURNAL_BATCH.c.last_seq >= seq)
            .order_by(JOURNAL_BATCH.c.first_seq.desc())
            .limit(1)
        )
        async with self._database.write() as connection:
            await connection.execute(delete(JOURNAL_CHECKPOINT).filter_by(seq=seq))
            await self._refuse_deposed(connection)
            # Asked here, because an archive run may put that batch away at any moment before.
            archived = (await connection.execute(_ARCHIVED)).one_or_none()
            if archived is not None and seq <= archived.last_seq:
                raise ArchivedError(archived_seq_message(seq, archived.last_seq))
            batch = (await connection.execute(holding)).one_or_none()
            if batch is None:
                raise JournalError(unknown_seq_message(seq))
            values = {"seq": seq, "batch": batch.batch, "batch_hash": batch.hash, "blob": blob}
            await connection.execute(insert(JOURNAL_CHECKPOINT).values(values))

    async def drop_checkpoints(self, seqs: Sequence[int]) -> None:
        dropped = delete(JOURNAL_CHECKPOINT).where(JOURNAL_CHECKPOINT.c.seq.in_(seqs))
        async with self._database.write() as connection:
            await connection.execute(dropped)
            await self._refuse_deposed(connection)

    async def _refuse_deposed(self, connection: AsyncConnection) -> None:
        """To be asked after the transaction has written: from then on nobody else can claim until
        it ends."""
        newest = (await connection.execute(select(func.max(JOURNAL_WRITER.c.epoch)))).scalar() or 0
        if self._epoch not in (0, newest):
            raise FencedError(fenced_message(self._epoch, newest))

    async def load_checkpoint(self, at_or_before_seq: int | None = None) -> Checkpoint | None:
        checkpoint = JOURNAL_CHECKPOINT.c
        query = select(checkpoint.seq, checkpoint.blob).order_by(checkpoint.seq.desc()).limit(1)
        if at_or_before_seq is not None:
            query = query.where(checkpoint.seq <= at_or_before_seq)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else Checkpoint(*row)

    async def checkpoint_marks(self) -> Sequence[CheckpointMark]:
        checkpoint = JOURNAL_CHECKPOINT.c
        query = select(checkpoint.seq, checkpoint.batch, checkpoint.batch_hash)
        async with self._database.read() as connection:
            rows = (await connection.execute(query.order_by(checkpoint.seq))).all()
        return list(map(CheckpointMark._make, rows))

    def archiving(self) -> AbstractAsyncContextManager[None]:
        """To be held around :meth:`put_away` and :meth:`delete_archived`, and around what leads to
        them: two runs would write the same segments.

        Raises :class:`JournalBusyError` at once while another run holds it.
        """
        return self._database.archiving()

    async def put_away(self, segment: Segment) -> None:
        """Take note of a segment whose file is durable; its rows may then be deleted.

        Checkpoints within go at once: nobody could fold on from them. Raises
        :class:`ConflictError` unless it is the next segment and what is stored.
        """
        within = JOURNAL_CHECKPOINT.c.batch <= segment.last_batch
        async with self._database.write() as connection:
            await connection.execute(insert(JOURNAL_SEGMENT).values(segment._asdict()))
            await connection.execute(delete(JOURNAL_CHECKPOINT).where(within))

    async def delete_archived(self) -> None:
        """Delete the rows of all segments, a few at a time: the writer gets its turn in between.

        Checkpoints there may be still, from a time when they could be saved into a segment.
        """
        end = await self.archived()
        oldest = select(func.min(JOURNAL_RECORD.c.seq))
        while True:
            async with self._database.write() as connection:
                first_seq = (await connection.execute(oldest)).scalar()
                if first_seq is None or first_seq > end.seq:
                    break
                last_seq = min(first_seq + _CHUNK_BATCH_ROWS, end.seq)
                chunk = JOURNAL_RECORD.c.seq.between(first_seq, last_seq)
                await connection.execute(delete(JOURNAL_RECORD).where(chunk))
        async with self._database.write() as connection:
            for column in (JOURNAL_CHECKPOINT.c.batch, JOURNAL_BATCH.c.batch):
                await connection.execute(delete(column.table).where(column <= end.batch))

    async def restore(self, batches: AsyncIterator[SealedBatch], writers: Sequence[Writer]) -> Head:
        """Store another journal's batches, with their hashes, in this one, which is empty.

        Raises :class:`ConflictError` if it is not empty, :class:`JournalCorruptError` where a batch
        does not verify.
        """
        head = GENESIS
        enrolled = 0
        async for sealed in batches:
            head = verify(sealed, head)
            newest = max(enrolled, sealed.batch.epoch)
            await self._enrol(writers[enrolled:newest])
            enrolled = newest
            await self._database.append(sealed)
        await self._enrol(writers[enrolled:])
        return head

    async def _enrol(self, writers: Sequence[Writer]) -> None:
        for writer in writers:
            async with self._database.write() as connection:
                await connection.execute(insert(JOURNAL_WRITER).values(writer._asdict()))

    async def close(self) -> None:
        await self._database.close()


_ARCHIVED = (
    select(JOURNAL_SEGMENT.c.last_seq, JOURNAL_SEGMENT.c.last_batch, JOURNAL_SEGMENT.c.hash)
    .order_by(JOURNAL_SEGMENT.c.segment.desc())
    .limit(1)
)
"""The head of the archive, where there is one."""


def _first_few(batches: Sequence[_BatchColumns]) -> Sequence[_BatchColumns]:
    """As many as make a chunk, but at least one, and none after a gap: their records are fetched by
    one range of numbers."""
    before = 0
    for index, (_, first_seq, last_seq, *_) in enumerate(batches):
        if index and (first_seq != before + 1 or last_seq - batches[0][1] >= _CHUNK_BATCH_ROWS):
            return batches[:index]
        before = last_seq
    return batches


def _check_gapless(seqs: Sequence[int], after_seq: int) -> None:
    """``seqs`` is a chunk read in order: within a chunk numbers cannot repeat, so count them."""
    if not seqs or seqs[-1] - after_seq != len(seqs):
        present = set(seqs)
        missing = next(
            s for s in range(after_seq + 1, after_seq + 2 + len(seqs)) if s not in present
        )
        raise JournalCorruptError(f"record {missing} is missing from the journal")
