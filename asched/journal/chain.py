"""Batches and the hash chain that binds them.

A batch's hash is the SHA-256 of, in UTF-8: the hash of the batch before (64 hex digits, zeros
before the first) and a newline; one line ``asched-batch-1 batch first_seq last_seq epoch
written_at_ns``; then for each row a line ``seq version K S P``, the kind, the subject, the payload
and a newline, K, S and P being the lengths of those three in code points. The lengths make the form
unambiguous: no two different batches have the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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


class Row(NamedTuple):
    """A stored record. The fields are the columns, in order."""

    seq: int
    batch: int
    kind: str
    version: int
    subject: str
    payload: str


class SealedBatch(NamedTuple):
    batch: Batch
    rows: Sequence[Row]

    @property
    def head(self) -> Head:
        """The head of a journal that ends with this batch."""
        return Head(self.batch.last_seq, self.batch.batch, self.batch.hash)


def seal(head: Head, records: Sequence[Encoded], epoch: int, written_at_ns: int) -> SealedBatch:
    """The batch that holds ``records`` and follows ``head``."""
    number, first_seq = head.batch + 1, head.seq + 1
    rows = [Row(seq, number, *record) for seq, record in enumerate(records, first_seq)]
    unsealed = Batch(
        number, first_seq, head.seq + len(rows), epoch, written_at_ns, head.hash, hash=""
    )
    return SealedBatch(unsealed._replace(hash=batch_hash(unsealed, rows)), rows)


def batch_hash(batch: Batch, rows: Sequence[Row]) -> str:
    """The hash over ``rows`` and all of ``batch`` but its own hash, in hex digits."""
    parts = [
        (
            f"{batch.previous_hash}\nasched-batch-1 {batch.batch} {batch.first_seq} {batch.last_seq}"
            f" {batch.epoch} {batch.written_at_ns}\n"
        )
    ]
    parts += [
        f"{seq} {version} {len(kind)} {len(subject)} {len(payload)}\n{kind}{subject}{payload}\n"
        for seq, _, kind, version, subject, payload in rows
    ]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def verify(sealed: SealedBatch, before: Head) -> Head:
    """Check that a stored batch is whole, unaltered and follows ``before``; the head after it.

    Raises :class:`JournalCorruptError` naming the batch, and the record where one can be named.
    """
    batch, rows = sealed
    name = f"batch {batch.batch} (records {batch.first_seq} to {batch.last_seq})"
    if (batch.batch, batch.first_seq) != (before.batch + 1, before.seq + 1):
        raise JournalCorruptError(
            f"{name} does not follow batch {before.batch}, which ends at record {before.seq}"
        )
    if batch.previous_hash != before.hash:
        raise JournalCorruptError(f"{name} is not chained to batch {before.batch} as it is stored")
    for seq, row in zip(range(batch.first_seq, batch.last_seq + 1), rows, strict=False):
        if row.seq != seq or row.batch != batch.batch:
            raise JournalCorruptError(f"record {seq} is missing or out of place in {name}")
    if len(rows) != batch.last_seq - batch.first_seq + 1:
        raise JournalCorruptError(f"{name} has {len(rows)} records")
    if batch_hash(batch, rows) != batch.hash:
        raise JournalCorruptError(f"{name} was altered: its hash does not match")
    return sealed.head
