"""The journal on a SQL database. What differs between databases is behind :class:`Database`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import anyio
from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from asched.journal.chain import GENESIS, Batch, Head, Row, SealedBatch, seal
from asched.journal.codec import CODEC, Encoded
from asched.journal.errors import (
    ConflictError,
    FencedError,
    JournalCorruptError,
    JournalError,
    conflict_message,
    fenced_message,
    unknown_seq_message,
)
from asched.journal.schema import (
    JOURNAL_BATCH,
    JOURNAL_CHECKPOINT,
    JOURNAL_RECORD,
    JOURNAL_WRITER,
)
from asched.journal.store import Appended, Checkpoint, StoredRecord
from asched.state.records import AnyRecord

_CHUNK_ROWS = 1000


class Database(Protocol):
    """One kind of SQL database, open, with the tables of the newest revision."""

    def read(self) -> AbstractAsyncContextManager[AsyncConnection]: ...

    def write(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection in a transaction that commits at the end; not cancelled inside."""
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
            next_epoch = select(func.coalesce(func.max(JOURNAL_WRITER.c.epoch), 0) + 1)
            values = {
                "epoch": next_epoch.scalar_subquery(),
                "writer": writer,
                "claimed_at_ns": claimed_at_ns,
            }
            claim = insert(JOURNAL_WRITER).values(values).returning(JOURNAL_WRITER.c.epoch)
            async with self._database.write() as connection:
                epoch: int = (await connection.execute(claim)).scalar_one()
            self._epoch = epoch
            return epoch

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
            await self._database.append(sealed)
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
            select(record.seq, batch.written_at_ns, record.kind, record.version, record.payload)
            .join(JOURNAL_BATCH)
            .order_by(record.seq)
            .limit(_CHUNK_ROWS)
        )
        if subject is not None:
            query = query.where(record.subject == subject)
        while after_seq < last_seq:
            chunk = query.where(record.seq > after_seq, record.seq <= last_seq)
            async with self._database.read() as connection:
                rows = (await connection.execute(chunk)).all()
            if subject is None:
                _check_gapless([row.seq for row in rows], after_seq)
            for seq, written_at_ns, kind, version, payload in rows:
                yield StoredRecord(seq, written_at_ns, CODEC.decode(seq, kind, version, payload))
            if not rows:
                return
            after_seq = rows[-1].seq

    async def batches(self, after_batch: int = 0) -> AsyncIterator[SealedBatch]:
        record = JOURNAL_RECORD.c
        while True:
            following = select(JOURNAL_BATCH).where(JOURNAL_BATCH.c.batch == after_batch + 1)
            async with self._database.read() as connection:
                found = (await connection.execute(following)).one_or_none()
                if found is None:
                    return
                batch = Batch(*found)
                rows = select(JOURNAL_RECORD).where(
                    record.seq.between(batch.first_seq, batch.last_seq)
                )
                stored = (await connection.execute(rows.order_by(record.seq))).all()
            yield SealedBatch(batch, [Row(*row) for row in stored])
            after_batch = batch.batch

    async def save_checkpoint(self, seq: int, blob: bytes) -> None:
        holding = (
            select(JOURNAL_BATCH.c.batch, JOURNAL_BATCH.c.hash)
            .where(JOURNAL_BATCH.c.first_seq <= seq, JOURNAL_BATCH.c.last_seq >= seq)
            .order_by(JOURNAL_BATCH.c.first_seq.desc())
            .limit(1)
        )
        async with self._database.read() as connection:
            batch = (await connection.execute(holding)).one_or_none()
        if batch is None:
            raise JournalError(unknown_seq_message(seq))
        values = {"seq": seq, "batch": batch.batch, "batch_hash": batch.hash, "blob": blob}
        async with self._database.write() as connection:
            await connection.execute(delete(JOURNAL_CHECKPOINT).filter_by(seq=seq))
            await connection.execute(insert(JOURNAL_CHECKPOINT).values(values))

    async def load_checkpoint(self, at_or_before_seq: int | None = None) -> Checkpoint | None:
        checkpoint = JOURNAL_CHECKPOINT.c
        query = select(checkpoint.seq, checkpoint.blob).order_by(checkpoint.seq.desc()).limit(1)
        if at_or_before_seq is not None:
            query = query.where(checkpoint.seq <= at_or_before_seq)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else Checkpoint(*row)

    async def close(self) -> None:
        await self._database.close()


def _check_gapless(seqs: Sequence[int], after_seq: int) -> None:
    """``seqs`` is a chunk read in order: within a chunk numbers cannot repeat, so count them."""
    if not seqs or seqs[-1] - after_seq != len(seqs):
        present = set(seqs)
        missing = next(
            s for s in range(after_seq + 1, after_seq + 2 + len(seqs)) if s not in present
        )
        raise JournalCorruptError(f"record {missing} is missing from the journal")
