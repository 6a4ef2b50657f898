"""The journal on a SQL database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import starmap
from typing import Any, cast

import anyio
import structlog
from sqlalchemy import LargeBinary, Row, Select, delete, func, insert, or_, select
from sqlalchemy import cast as sql_cast

from asched.journal.chain import (
    GENESIS,
    Batch,
    BatchRange,
    Head,
    SealedBatch,
    Segment,
    Writer,
    next_writer,
    seal,
    verify,
)
from asched.journal.codec import CODEC, EncodedRecord
from asched.journal.database import SqlDatabase
from asched.journal.errors import (
    VERIFY_ADVICE,
    ArchivedError,
    ConflictError,
    FencedError,
    JournalBusyError,
    JournalCorruptError,
    JournalError,
    archived_message,
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
from asched.journal.sealing import (
    SqlProofs,
    add_statement,
    checkpoint_digest,
    checkpoint_fault,
    segment_digest,
    trusted_log,
)
from asched.journal.store import AppendResult, Checkpoint, CheckpointMark, StoredRecord
from asched.proof.heads import SignedHead
from asched.proof.keys import NO_KEYS, JournalKeys
from asched.proof.statements import CheckpointDigest, StatementLog, StatementRow
from asched.state.records import AnyRecord

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_CHUNK_ROWS = 1000
_CHUNK_BATCHES = 2000
_CHUNK_BATCH_ROWS = 2000
"""Approximate number of rows in a range of batches, few enough for the processor's caches."""

_BatchColumns = tuple[int, int, int, int, int, str, str]
_RowColumns = tuple[int, int, str, int, str, str]


class SqlStore(SqlProofs):
    """A :class:`~asched.journal.store.JournalStore` in a SQL database."""

    def __init__(self, database: SqlDatabase, keys: JournalKeys = NO_KEYS) -> None:
        super().__init__(database, keys)
        self._head: Head | None = None
        """The head after the last append of this writer; None if unknown."""
        # Without waiters, taking it costs no turn of the event loop.
        self._append_lock = anyio.Lock(fast_acquire=True)

    async def claim(self, writer: str, *, claimed_at_ns: int) -> int:
        async with self._append_lock:
            self._head = None
            await self._database.end_stuck_writers()
            newest = select(JOURNAL_WRITER).order_by(JOURNAL_WRITER.c.epoch.desc()).limit(1)
            async with self._database.write() as connection:
                row = (await connection.execute(newest)).one_or_none()
                before = None if row is None else Writer(*row)
                claimed = next_writer(before, writer, claimed_at_ns)
                await connection.execute(insert(JOURNAL_WRITER).values(claimed))
            self._epoch = claimed.epoch
            return claimed.epoch

    async def append(
        self, records: Sequence[AnyRecord], *, written_at_ns: int, first_seq: int | None = None
    ) -> AppendResult:
        if not records:
            raise ValueError("a batch holds at least one record")
        if self._epoch == 0:
            raise FencedError(fenced_message(0, 0))
        encoded = [CODEC.encode(record) for record in records]
        async with self._append_lock:
            head = await self.head() if self._head is None else self._head
            if first_seq is not None and first_seq != head.seq + 1:
                return await self._check_stored(first_seq, encoded, written_at_ns, head)
            sealed = seal(head, encoded, self._epoch, written_at_ns)
            self._head = None
            try:
                await self._database.append(sealed)
            except ConflictError:
                if first_seq is None:
                    raise
                # An earlier attempt of this append may have been committed after the head was read.
                return await self._check_stored(
                    first_seq, encoded, written_at_ns, await self.head()
                )
            self._head = sealed.head
        return AppendResult.of(sealed.batch)

    async def _check_stored(
        self, first_seq: int, encoded: Sequence[EncodedRecord], written_at_ns: int, head: Head
    ) -> AppendResult:
        """The result of a repeated append, if the stored batch has the same records."""
        found = select(JOURNAL_BATCH).where(JOURNAL_BATCH.c.first_seq == first_seq)
        async with self._database.read() as connection:
            newest = (await connection.execute(_NEWEST_EPOCH)).scalar()
            row = (await connection.execute(found)).one_or_none()
        if newest != self._epoch:
            raise FencedError(fenced_message(self._epoch, newest or 0))
        if row is not None:
            stored = Batch(*row)
            before = Head(first_seq - 1, stored.batch - 1, stored.previous_hash)
            if seal(before, encoded, stored.epoch, written_at_ns).batch == stored:
                return AppendResult.of(stored)
        raise ConflictError(conflict_message(first_seq, head.seq))

    async def check_writer(self) -> None:
        self._database.check_files()
        rows = await self._database.fetch(_NEWEST_EPOCH)
        newest = rows[0][0] or 0
        if self._epoch not in (0, newest):
            raise FencedError(fenced_message(self._epoch, newest))

    async def head(self) -> Head:
        columns = (JOURNAL_BATCH.c.last_seq, JOURNAL_BATCH.c.batch, JOURNAL_BATCH.c.hash)
        newest = select(*columns).order_by(JOURNAL_BATCH.c.batch.desc()).limit(1)
        row = await self._one(newest)
        return GENESIS if row is None else Head(*row)

    async def _one(self, query: Select[Any]) -> Sequence[Any] | None:
        async with self._database.read() as connection:
            row: Sequence[Any] | None = (await connection.execute(query)).one_or_none()
            return row

    async def _all(self, query: Select[Any]) -> Sequence[Row[Any]]:
        async with self._database.read() as connection:
            rows: Sequence[Row[Any]] = (await connection.execute(query)).all()
            return rows

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
                archived_head = (await connection.execute(_ARCHIVED)).one_or_none()
                rows = await self._database.fetch_on(connection, chunk)
            if archived_head is not None and archived_head.last_seq > after_seq:
                raise ArchivedError(archived_message(archived_head.last_seq))
            if subject is None:
                _check_gapless([row[0] for row in rows], after_seq)
            for seq, written_at_ns, *stored in rows:
                yield StoredRecord(seq, written_at_ns, CODEC.decode(seq, *stored))
            if not rows:
                return
            after_seq = rows[-1][0]

    async def subjects(self, kind: str) -> Sequence[str]:
        subject = JOURNAL_RECORD.c.subject
        # "0" follows "/", so the range can use the index.
        of_kind = select(subject).where(subject >= f"{kind}/", subject < f"{kind}0").distinct()
        # Archived rows are deleted in chunks and may still be present.
        present = of_kind.where(JOURNAL_RECORD.c.seq > (await self.archived()).seq)
        found = {row[0] for row in await self._database.fetch(present)}
        # PostgreSQL sorts by its collation.
        return sorted(text for text in found if text.startswith(f"{kind}/"))

    async def batches(self, after_batch: int = 0) -> AsyncIterator[SealedBatch]:
        async for batches in self.batch_ranges(after_batch):
            for sealed in batches.split():
                yield sealed

    async def batch_ranges(self, after_batch: int = 0) -> AsyncIterator[BatchRange]:
        after_batch = max(after_batch, (await self.archived()).batch)
        record, batch = JOURNAL_RECORD.c, JOURNAL_BATCH.c
        following = select(JOURNAL_BATCH).order_by(batch.batch).limit(_CHUNK_BATCHES)
        while True:
            found = await self._database.fetch(following.where(batch.batch > after_batch))
            batches = _first_chunk(cast("Sequence[_BatchColumns]", found))
            if not batches:
                return
            spanned = record.seq.between(batches[0][1], batches[-1][2])
            rows = await self._database.fetch(
                select(JOURNAL_RECORD).where(spanned).order_by(record.seq)
            )
            yield BatchRange(batches, cast("Sequence[_RowColumns]", rows))
            after_batch = batches[-1][0]

    async def archived(self) -> Head:
        row = await self._one(_ARCHIVED)
        return GENESIS if row is None else Head(*row)

    async def segments(self) -> Sequence[Segment]:
        query = select(JOURNAL_SEGMENT).order_by(JOURNAL_SEGMENT.c.segment)
        return list(starmap(Segment, await self._all(query)))

    async def writers(self) -> Sequence[Writer]:
        query = select(JOURNAL_WRITER).order_by(JOURNAL_WRITER.c.epoch)
        return list(starmap(Writer, await self._all(query)))

    async def find_unchained(self, head: Head) -> str | None:
        record, batch = JOURNAL_RECORD.c, JOURNAL_BATCH.c
        outside = (
            select(func.min(record.seq))
            .select_from(JOURNAL_RECORD.outerjoin(JOURNAL_BATCH, record.batch == batch.batch))
            .where(record.seq > head.seq, or_(batch.batch.is_(None), record.batch <= head.batch))
        )
        queries: tuple[tuple[str, Select[tuple[int | None]]], ...] = (
            ("record", select(func.min(record.seq)).where(record.seq < 1)),
            ("batch", select(func.min(batch.batch)).where(batch.batch < 1)),
            ("record", outside),
        )
        async with self._database.read() as connection:
            for what, query in queries:
                number = (await connection.execute(query)).scalar()
                if number is not None:
                    return f"{what} {number}"
        return None

    async def check_definitions(self) -> None:
        await self._database.check_definitions(indexes=True)

    async def save_checkpoint(self, seq: int, blob: bytes) -> None:
        holding = (
            select(JOURNAL_BATCH)
            .where(JOURNAL_BATCH.c.first_seq <= seq, JOURNAL_BATCH.c.last_seq >= seq)
            .order_by(JOURNAL_BATCH.c.first_seq.desc())
            .limit(1)
        )
        async with self._database.write() as connection:
            await connection.execute(delete(JOURNAL_CHECKPOINT).filter_by(seq=seq))
            await self._check_not_fenced(connection)
            # Checked here, because an archive run may move the batch until this transaction.
            archived = (await connection.execute(_ARCHIVED)).one_or_none()
            if archived is not None and seq <= archived.last_seq:
                raise ArchivedError(
                    f"cannot save a checkpoint at record {seq}: records 1 to {archived.last_seq}"
                    " are archived"
                )
            row = (await connection.execute(holding)).one_or_none()
            if row is None:
                raise JournalError(unknown_seq_message(seq))
            batch = Batch(*row)
            values = {"seq": seq, "batch": batch.batch, "batch_hash": batch.hash, "blob": blob}
            await connection.execute(insert(JOURNAL_CHECKPOINT).values(values))
            await add_statement(connection, checkpoint_digest(seq, blob), batch, self.keys)

    async def drop_checkpoints(self, seqs: Sequence[int]) -> None:
        dropped = delete(JOURNAL_CHECKPOINT).where(JOURNAL_CHECKPOINT.c.seq.in_(seqs))
        async with self._database.write() as connection:
            await connection.execute(dropped)
            await self._check_not_fenced(connection)

    async def load_checkpoint(self, at_or_before_seq: int | None = None) -> Checkpoint | None:
        statements: StatementLog | None = None
        checkpoint = JOURNAL_CHECKPOINT.c
        columns = (checkpoint.seq, checkpoint.batch, checkpoint.batch_hash, _BLOB)
        newest = select(*columns).order_by(checkpoint.seq.desc()).limit(1)
        while True:
            query = newest
            if at_or_before_seq is not None:
                query = newest.where(checkpoint.seq <= at_or_before_seq)
            row = await self._one(query)
            if row is None:
                return None
            if statements is None:
                statements = trusted_log(await self.statements(), self.keys)
            seq, batch, batch_hash, blob = row
            reason = checkpoint_fault(statements, CheckpointMark(seq, batch, batch_hash), blob)
            if not reason:
                return Checkpoint(seq, blob)
            log.warning("checkpoint skipped", record=seq, reason=reason)
            at_or_before_seq = seq - 1

    async def checkpoint_digests(
        self, first_seq: int = 0, last_seq: int | None = None
    ) -> Sequence[CheckpointDigest]:
        found = []
        for mark in await self.checkpoint_marks():
            if mark.seq < first_seq or (last_seq is not None and mark.seq > last_seq):
                continue
            blob = select(_BLOB).where(JOURNAL_CHECKPOINT.c.seq == mark.seq)
            row = await self._one(blob)
            if row is not None:
                found.append(checkpoint_digest(mark.seq, row[0]))
        return found

    async def checkpoint_marks(self) -> Sequence[CheckpointMark]:
        checkpoint = JOURNAL_CHECKPOINT.c
        size = func.length(checkpoint.blob)
        query = select(checkpoint.seq, checkpoint.batch, checkpoint.batch_hash, size)
        return list(starmap(CheckpointMark, await self._all(query.order_by(checkpoint.seq))))

    def archiving(self) -> AbstractAsyncContextManager[None]:
        """Must be held during an archive run: two runs would write the same segments.

        Raises :class:`JournalBusyError` immediately if another run holds it.
        """
        return self._database.archiving()

    async def record_segment(self, segment: Segment, checkpoint_batch: int | None = None) -> None:
        """Store a segment with a durable file, and delete the checkpoints within it.

        Its rows can be deleted afterwards. Raises :class:`ConflictError` unless it is the next
        segment and matches the stored batches; :class:`JournalBusyError` if ``checkpoint_batch``
        has no checkpoint: a daemon deletes some of them.
        """
        within = JOURNAL_CHECKPOINT.c.batch <= segment.last_batch
        kept = select(JOURNAL_CHECKPOINT.c.seq).filter_by(batch=checkpoint_batch)
        async with self._database.write() as connection:
            await connection.execute(insert(JOURNAL_SEGMENT).values(segment))
            if checkpoint_batch is not None and not (await connection.execute(kept)).first():
                raise JournalBusyError(
                    "the checkpoint after the archived batches was deleted meanwhile: repeat the"
                    " command"
                )
            await connection.execute(delete(JOURNAL_CHECKPOINT).where(within))
            last = select(JOURNAL_BATCH).where(JOURNAL_BATCH.c.batch == segment.last_batch)
            batch = Batch(*(await connection.execute(last)).one())
            await add_statement(connection, segment_digest(segment), batch, self.keys)

    async def delete_archived(self) -> None:
        """Delete the rows of all segments in chunks, so that the writer is not blocked."""
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
            archived = JOURNAL_BATCH.c.batch <= end.batch
            await connection.execute(delete(JOURNAL_BATCH).where(archived))

    # -- restoring --------------------------------------------------------------------------------

    async def restore(
        self,
        batches: AsyncIterator[SealedBatch],
        writers: Sequence[Writer],
        statements: Sequence[StatementRow] = (),
        signed: SignedHead | None = None,
    ) -> Head:
        """Store another journal's batches, with their hashes, in this empty one.

        Raises :class:`ConflictError` if it is not empty, :class:`JournalCorruptError` if a batch
        fails verification.
        """
        head = GENESIS
        added = 0
        async for sealed in batches:
            head = verify(sealed, head)
            newest = max(added, sealed.batch.epoch)
            await self._add_writers(writers[added:newest])
            added = newest
            await self._database.append(sealed)
        await self._add_writers(writers[added:])
        await self.restore_proofs(statements, signed)
        return head

    async def _add_writers(self, writers: Sequence[Writer]) -> None:
        for writer in writers:
            async with self._database.write() as connection:
                await connection.execute(insert(JOURNAL_WRITER).values(writer))

    async def close(self) -> None:
        await self._database.close()


_BLOB = sql_cast(JOURNAL_CHECKPOINT.c.blob, LargeBinary)
"""The bytes of a checkpoint. SQLite stores whatever it is given, such as text."""

_NEWEST_EPOCH = select(func.max(JOURNAL_WRITER.c.epoch))

_ARCHIVED = (
    select(JOURNAL_SEGMENT.c.last_seq, JOURNAL_SEGMENT.c.last_batch, JOURNAL_SEGMENT.c.hash)
    .order_by(JOURNAL_SEGMENT.c.segment.desc())
    .limit(1)
)
"""The head of the archive, if there is one."""


def _first_chunk(batches: Sequence[_BatchColumns]) -> Sequence[_BatchColumns]:
    """The first batches up to the chunk size, at least one, without gaps: one range query fetches
    their records."""
    before = 0
    for index, (_, first_seq, last_seq, *_) in enumerate(batches):
        if index and (first_seq != before + 1 or last_seq - batches[0][1] >= _CHUNK_BATCH_ROWS):
            return batches[:index]
        before = last_seq
    return batches


def _check_gapless(seqs: Sequence[int], after_seq: int) -> None:
    """Numbers in a sorted chunk are unique, so counting them finds gaps."""
    if not seqs or seqs[-1] - after_seq != len(seqs):
        present = set(seqs)
        missing = next(
            s for s in range(after_seq + 1, after_seq + 2 + len(seqs)) if s not in present
        )
        raise JournalCorruptError(f"record {missing} is missing from the journal; {VERIFY_ADVICE}")
