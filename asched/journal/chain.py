"""Batches and writers, and the hash chains that bind them.

A batch's hash is the SHA-256 of, in UTF-8: the hash of the batch before (64 hex digits, zeros
before the first) and a newline; one line ``asched-batch-1 batch first_seq last_seq epoch
written_at_ns``; then for each row a line ``seq version K S P``, the kind, the subject, the payload
and a newline, K, S and P being the lengths of those three in code points. The lengths make the form
unambiguous: no two different batches have the same bytes.

Writers have a chain of their own: a writer's hash is the SHA-256 of the hash of the writer before and
a newline, one line ``asched-writer-1 epoch claimed_at_ns L``, and the name, L code points long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from asched.journal.codec import Encoded
from asched.journal.errors import JournalCorruptError

GENESIS_HASH = "0" * 64
"""Stands for the hash of the batch before the first."""


class Head(NamedTuple):
    """Where a journal ends."""

    seq: int
    batch: int
    hash: str


GENESIS = Head(0, 0, GENESIS_HASH)
"""The head of an empty journal."""


class Batch(NamedTuple):
    """What a transaction appended, without its rows. The fields are the columns, in order."""

    batch: int
    first_seq: int
    last_seq: int
    epoch: int
    """The epoch of the writer."""
    written_at_ns: int
    """The writer's clock, nanoseconds since the epoch of Unix."""
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
    """Who claimed the journal. The fields are the columns, in order."""

    epoch: int
    writer: str
    claimed_at_ns: int
    """The writer's clock, nanoseconds since the epoch of Unix."""
    hash: str


class Segment(NamedTuple):
    """Batches that were moved into a file of the archive. The fields are the columns, in order."""

    segment: int
    first_batch: int
    last_batch: int
    first_seq: int
    last_seq: int
    previous_hash: str
    """The hash of the batch before its first."""
    hash: str
    """The hash of its last batch."""
    file: str
    """The file's name, without its folder: archives may be moved."""
    file_sha256: str
    archived_at_ns: int

    @property
    def head(self) -> Head:
        """The head of a journal that ends with this segment."""
        return Head(self.last_seq, self.last_batch, self.hash)


class SealedBatch(NamedTuple):
    batch: Batch
    rows: Sequence[JournalRow]

    @property
    def head(self) -> Head:
        """The head of a journal that ends with this batch."""
        return Head(self.batch.last_seq, self.batch.batch, self.batch.hash)


class BatchRange(NamedTuple):
    """Batches that follow one another, with all their rows, as the database gives them.

    Plain tuples in the order of :class:`Batch` and :class:`JournalRow`: where millions are read, giving
    them names would take a third of the time.
    """

    batches: Sequence[tuple[int, int, int, int, int, str, str]]
    """At least one."""
    rows: Sequence[tuple[int, int, str, int, str, str]]
    """By sequence number."""

    def sealed(self) -> Iterator[SealedBatch]:
        """Each batch with its part of the rows."""
        begin, stored = 0, len(self.rows)
        for batch in map(Batch._make, self.batches):
            end = begin + batch.last_seq - batch.first_seq + 1
            # Past the batch only where a record is missing.
            while end > begin and (end > stored or self.rows[end - 1][0] > batch.last_seq):
                end -= 1
            yield SealedBatch(batch, list(map(JournalRow._make, self.rows[begin:end])))
            begin = end


def stretch_of(sealed: SealedBatch) -> BatchRange:
    """A single batch."""
    return BatchRange((sealed.batch,), sealed.rows)


def seal(head: Head, records: Sequence[Encoded], epoch: int, written_at_ns: int) -> SealedBatch:
    """The batch that holds ``records`` and follows ``head``."""
    number, first_seq = head.batch + 1, head.seq + 1
    rows = [JournalRow(seq, number, *record) for seq, record in enumerate(records, first_seq)]
    unsealed = Batch(
        number, first_seq, head.seq + len(rows), epoch, written_at_ns, head.hash, hash=""
    )
    return SealedBatch(unsealed._replace(hash=batch_hash(unsealed, rows)), rows)


def batch_hash(batch: Batch, rows: Sequence[JournalRow]) -> str:
    """The hash over ``rows`` and all of ``batch`` but its own hash, in hex digits."""
    return _form_hash(*batch[:6], rows)


def _form_hash(
    number: int,
    first_seq: int,
    last_seq: int,
    epoch: int,
    written_at_ns: int,
    previous_hash: str,
    rows: Sequence[JournalRow],
) -> str:
    parts = [
        (
            f"{previous_hash}\nasched-batch-1 {number} {first_seq} {last_seq} {epoch}"
            f" {written_at_ns}\n"
        )
    ]
    parts += [
        f"{seq} {version} {len(kind)} {len(subject)} {len(payload)}\n{kind}{subject}{payload}\n"
        for seq, _, kind, version, subject, payload in rows
    ]
    return sha256("".join(parts).encode()).hexdigest()


def enrol(before: Writer | None, writer: str, claimed_at_ns: int) -> Writer:
    """The writer that deposes ``before``, or the first one."""
    epoch, previous_hash = (1, GENESIS_HASH) if before is None else (before.epoch + 1, before.hash)
    form = f"{previous_hash}\nasched-writer-1 {epoch} {claimed_at_ns} {len(writer)}\n{writer}"
    return Writer(epoch, writer, claimed_at_ns, sha256(form.encode()).hexdigest())


def verify_writers(writers: Sequence[Writer]) -> None:
    """Check that no writer was altered, left out or put in.

    Raises :class:`JournalCorruptError` naming the first epoch that is wrong.
    """
    before: Writer | None = None
    for number, stored in enumerate(writers, 1):
        if stored.epoch != number:
            raise JournalCorruptError(f"the writer of epoch {number} is missing from the journal")
        if enrol(before, stored.writer, stored.claimed_at_ns) != stored:
            raise JournalCorruptError(
                f"the writer of epoch {number} was altered: its hash does not match"
            )
        before = stored


def verify(sealed: SealedBatch, before: Head) -> Head:
    """Check that a stored batch is whole, unaltered and follows ``before``; the head after it.

    Raises :class:`JournalCorruptError` naming the batch, and the record where one can be named.
    """
    number, first_seq, last_seq, epoch, written_at_ns, previous_hash, stored_hash = sealed.batch
    rows = sealed.rows
    if (
        number == before.batch + 1
        and first_seq == before.seq + 1
        and previous_hash == before.hash
        and len(rows) == last_seq - first_seq + 1
        and _form_hash(number, first_seq, last_seq, epoch, written_at_ns, previous_hash, rows)
        == stored_hash
        and {row[1] for row in rows} == {number}
    ):
        return Head(last_seq, number, stored_hash)
    raise JournalCorruptError(_fault(sealed, before))


def verify_stretch(stretch: BatchRange, before: Head) -> Head:
    """Check batches as :func:`verify` checks each; the head after them.

    Raises :class:`JournalCorruptError` as it does, for the first batch that is wrong.
    """
    head = _quickly_verified(stretch, before)
    if head is not None:
        return head
    head = before
    for sealed in stretch.sealed():
        head = verify(sealed, head)
    raise AssertionError("batches are wrong together, but none of them is")


def _quickly_verified(stretch: BatchRange, before: Head) -> Head | None:
    """The same with as little work for each row as may be; None where something is wrong."""
    seq, number, digest = before
    rows = stretch.rows
    end = 0
    for (
        batch,
        first_seq,
        last_seq,
        epoch,
        written_at_ns,
        previous_hash,
        stored_hash,
    ) in stretch.batches:
        begin, end = end, end + last_seq - first_seq + 1
        text = (
            f"{previous_hash}\nasched-batch-1 {batch} {first_seq} {last_seq} {epoch}"
            f" {written_at_ns}\n"
        )
        for row_seq, row_batch, kind, version, subject, payload in rows[begin:end]:
            text += (
                f"{row_seq} {version} {len(kind)} {len(subject)} {len(payload)}\n"
                f"{kind}{subject}{payload}\n"
            )
            if row_batch != batch:
                return None
        # That there are as many rows as there should be is in the hash.
        if (
            batch != number + 1
            or first_seq != seq + 1
            or previous_hash != digest
            or sha256(text.encode()).hexdigest() != stored_hash
        ):
            return None
        seq, number, digest = last_seq, batch, stored_hash
    return Head(seq, number, digest)


def _fault(sealed: SealedBatch, before: Head) -> str:
    """What is wrong with a batch that does not verify."""
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
