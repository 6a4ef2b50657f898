"""Batches and writers, and their hash chains.

:mod:`asched.proof.merkle` defines the hash of a batch.

Writers have a chain of their own. A writer's hash is the SHA-256 of the hash of the previous writer
and a newline, one line ``asched-writer-1 epoch claimed_at_ns L``, and the name, L code points long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice, starmap
from typing import NamedTuple

from asched.journal.codec import EncodedRecord
from asched.journal.errors import JournalCorruptError
from asched.proof.merkle import BatchHeader, header_hash, root_of, row_leaf

GENESIS_HASH = "0" * 64
"""The previous hash of the first batch."""


class Head(NamedTuple):
    """The end of a journal: its last record, batch and hash."""

    seq: int
    batch: int
    hash: str


GENESIS = Head(0, 0, GENESIS_HASH)
"""The head of an empty journal."""


class Batch(NamedTuple):
    """One append, without its rows. The fields are the columns, in order."""

    batch: int
    first_seq: int
    last_seq: int
    epoch: int
    """Epoch of the writer."""
    written_at_ns: int
    """The writer's clock, nanoseconds since the Unix epoch."""
    previous_hash: str
    hash: str


class JournalRow(NamedTuple):
    """A stored record. The fields are the columns, in order."""

    seq: int
    batch: int
    kind: str
    version: int
    subject: str
    payload: str


class Writer(NamedTuple):
    """A claim of the journal. The fields are the columns, in order."""

    epoch: int
    writer: str
    claimed_at_ns: int
    """The writer's clock, nanoseconds since the Unix epoch."""
    hash: str


class Segment(NamedTuple):
    """Batches in one file of the archive. The fields are the columns, in order."""

    segment: int
    first_batch: int
    last_batch: int
    first_seq: int
    last_seq: int
    previous_hash: str
    """Hash of the batch before the first."""
    hash: str
    """Hash of the last batch."""
    file: str
    """File name without the directory, so that archives can be moved."""
    file_sha256: str
    archived_at_ns: int

    @property
    def head(self) -> Head:
        """The head of a journal that ends with this segment."""
        return Head(self.last_seq, self.last_batch, self.hash)


class SealedBatch(NamedTuple):
    """A batch with its hash and its rows."""

    batch: Batch
    rows: Sequence[JournalRow]

    @property
    def head(self) -> Head:
        """The head of a journal that ends with this batch."""
        return Head(self.batch.last_seq, self.batch.batch, self.batch.hash)


class BatchRange(NamedTuple):
    """Consecutive batches with their rows, as the database returns them.

    Plain tuples in the order of :class:`Batch` and :class:`JournalRow`: for millions of rows,
    creating named tuples would take a third of the time.
    """

    batches: Sequence[tuple[int, int, int, int, int, str, str]]
    """At least one."""
    rows: Sequence[tuple[int, int, str, int, str, str]]
    """By sequence number."""

    @classmethod
    def of(cls, sealed: SealedBatch) -> BatchRange:
        return cls((sealed.batch,), sealed.rows)

    def split(self) -> Iterator[SealedBatch]:
        """Each batch with its rows."""
        begin, stored = 0, len(self.rows)
        for batch in starmap(Batch, self.batches):
            end = begin + batch.last_seq - batch.first_seq + 1
            # Rows of later batches: a record is missing.
            while end > begin and (end > stored or self.rows[end - 1][0] > batch.last_seq):
                end -= 1
            yield SealedBatch(batch, list(starmap(JournalRow, self.rows[begin:end])))
            begin = end


def seal(
    head: Head, records: Sequence[EncodedRecord], epoch: int, written_at_ns: int
) -> SealedBatch:
    """The batch of ``records`` that follows ``head``."""
    number, first_seq = head.batch + 1, head.seq + 1
    rows = [JournalRow(seq, number, *record) for seq, record in enumerate(records, first_seq)]
    batch = Batch(
        batch=number,
        first_seq=first_seq,
        last_seq=head.seq + len(rows),
        epoch=epoch,
        written_at_ns=written_at_ns,
        previous_hash=head.hash,
        hash="",
    )
    return SealedBatch(Batch(*batch[:-1], batch_hash(batch, rows)), rows)


def batch_hash(batch: Batch, rows: Sequence[JournalRow]) -> str:
    """The hash over ``rows`` and the other fields of ``batch``, in hex digits."""
    leaves = [
        row_leaf(seq, version, kind, subject, payload)
        for seq, _, kind, version, subject, payload in rows
    ]
    return header_hash(BatchHeader(*batch[:-1]), root_of(leaves))


def next_writer(before: Writer | None, name: str, claimed_at_ns: int) -> Writer:
    """The writer that fences ``before``, or the first one."""
    epoch, previous_hash = (1, GENESIS_HASH) if before is None else (before.epoch + 1, before.hash)
    text = f"{previous_hash}\nasched-writer-1 {epoch} {claimed_at_ns} {len(name)}\n{name}"
    return Writer(epoch, name, claimed_at_ns, sha256(text.encode()).hexdigest())


def verify_writers(writers: Sequence[Writer]) -> None:
    """Check that no writer was altered, removed or inserted.

    Raises :class:`JournalCorruptError` naming the first wrong epoch.
    """
    before: Writer | None = None
    for number, stored in enumerate(writers, 1):
        if stored.epoch != number:
            raise JournalCorruptError(f"the writer of epoch {number} is missing from the journal")
        if next_writer(before, stored.writer, stored.claimed_at_ns) != stored:
            raise JournalCorruptError(
                f"the writer of epoch {number} was altered: its hash does not match"
            )
        before = stored


def verify(sealed: SealedBatch, before: Head) -> Head:
    """Check that a stored batch is complete, unaltered and follows ``before``; return its head.

    Raises :class:`JournalCorruptError` naming the batch and, if possible, the record.
    """
    batch, rows = sealed
    if len(rows) > batch.last_seq - batch.first_seq + 1:
        raise JournalCorruptError(_fault(sealed, before))
    return verify_range(BatchRange.of(sealed), before)


def verify_range(batches: BatchRange, before: Head) -> Head:
    """As :func:`verify`, for consecutive batches, optimized for many rows; return the last head."""
    head, rows, end = before, batches.rows, 0
    for index, batch in enumerate(batches.batches):
        number, first_seq, last_seq, _, _, previous_hash, stored_hash = batch
        begin, end = end, end + last_seq - first_seq + 1
        in_batch = True
        leaves: list[bytes] = []
        for row_seq, row_batch, kind, version, subject, payload in rows[begin:end]:
            leaves.append(row_leaf(row_seq, version, kind, subject, payload))
            if row_batch != number:
                in_batch = False
        # A record in another place has another leaf hash, so the root covers their number.
        if not (
            in_batch
            and number == head.batch + 1
            and first_seq == head.seq + 1
            and previous_hash == head.hash
            and header_hash(BatchHeader(*batch[:-1]), root_of(leaves)) == stored_hash
        ):
            sealed = next(islice(batches.split(), index, None))
            raise JournalCorruptError(_fault(sealed, head))
        head = Head(last_seq, number, stored_hash)
    return head


def _fault(sealed: SealedBatch, before: Head) -> str:
    """Describe what is wrong with a batch that fails verification."""
    batch, rows = sealed
    name = f"batch {batch.batch} (records {batch.first_seq} to {batch.last_seq})"
    if (batch.batch, batch.first_seq) != (before.batch + 1, before.seq + 1):
        return f"{name} does not follow batch {before.batch}, which ends at record {before.seq}"
    if batch.previous_hash != before.hash:
        return f"{name} is not chained to batch {before.batch} as it is stored"
    for seq, row in zip(range(batch.first_seq, batch.last_seq + 1), rows, strict=False):
        if row.seq != seq or row.batch != batch.batch:
            return f"record {seq} is missing or out of place in {name}"
    if len(rows) != batch.last_seq - batch.first_seq + 1:
        return f"{name} has {len(rows)} records"
    return f"{name} was altered: its hash does not match"
