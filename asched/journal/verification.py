"""Verifies that a journal is complete and unaltered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from asched.journal.archive import all_batch_ranges
from asched.journal.chain import GENESIS, Batch, BatchRange, Head, verify_range, verify_writers
from asched.journal.errors import JournalCorruptError
from asched.journal.store import CheckpointMark, JournalStore

Progress = Callable[[int], None]
"""Receives the sequence number up to which the journal is verified."""


class TrustedHead(NamedTuple):
    """A head that was stored elsewhere, where a change of the journal cannot change it."""

    seq: int
    hash: str

    @classmethod
    def parse(cls, text: str) -> TrustedHead:
        """Parse ``SEQ:HASH``, the form that a verification prints. Raises ValueError."""
        seq, _, digest = text.partition(":")
        if not seq.isdecimal() or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise ValueError(f"{text!r} is not SEQ:HASH with a hash of 64 hexadecimal digits")
        return cls(int(seq), digest)

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


class VerificationResult(NamedTuple):
    """What was verified."""

    head: TrustedHead
    """Stored elsewhere, it detects later changes and truncation of everything up to it."""
    batches: int
    records: int
    archived_seq: int
    """Records up to this one are in the archive and were not verified; 0 if there are none."""
    writers: int
    checkpoints: int


class _ExpectedHeads:
    """The heads that the chain must contain: those of checkpoints, and a trusted head."""

    def __init__(self, marks: Sequence[CheckpointMark], trusted: TrustedHead | None) -> None:
        self._marks: dict[int, list[CheckpointMark]] = {}
        for mark in marks:
            self._marks.setdefault(mark.batch, []).append(mark)
        self._trusted = trusted

    def check(self, verified: BatchRange) -> None:
        """Compare verified batches with the expected heads. Raises :class:`JournalCorruptError`."""
        first, (last, _, last_seq, *_) = verified.batches[0][0], verified.batches[-1]
        for number in [number for number in self._marks if number <= last]:
            self._check_marks(Batch(*verified.batches[number - first]))
        if self._trusted is not None and last_seq >= self._trusted.seq > 0:
            ending = next(b for b in verified.batches if b[2] >= self._trusted.seq)
            self._check_trusted(Batch(*ending), self._trusted)
            self._trusted = None

    def _check_marks(self, batch: Batch) -> None:
        for mark in self._marks.pop(batch.batch):
            in_it = batch.first_seq <= mark.seq <= batch.last_seq
            if mark.batch_hash != batch.hash or not in_it:
                raise JournalCorruptError(
                    f"batch {batch.batch} (records {batch.first_seq} to {batch.last_seq}) differs"
                    f" from the one before the checkpoint at record {mark.seq}"
                )

    def _check_trusted(self, batch: Batch, trusted: TrustedHead) -> None:
        if TrustedHead(batch.last_seq, batch.hash) != trusted:
            raise JournalCorruptError(
                f"batch {batch.batch} (records {batch.first_seq} to {batch.last_seq}) does not"
                f" have the trusted head {trusted}"
            )

    def check_complete(self, head: Head) -> None:
        """Check that the chain contained all expected heads; ``head`` is its end.

        Raises :class:`JournalCorruptError` if the journal was longer before.
        """
        beyond = [mark.seq for marks in self._marks.values() for mark in marks]
        if self._trusted is not None and self._trusted.seq > 0:
            beyond.append(self._trusted.seq)
        if beyond:
            raise JournalCorruptError(
                f"the journal ends at record {head.seq}, but it once had record {max(beyond)}:"
                f" records from {head.seq + 1} on were cut off"
            )


async def verify_journal(
    store: JournalStore,
    *,
    trusted: TrustedHead | None = None,
    archive: Path | None = None,
    progress: Progress | None = None,
) -> VerificationResult:
    """Check every batch, record, writer and checkpoint in the database.

    With ``archive``, the directory of the archive's files, these are verified, too. Without it
    the chain starts at the end of the archive.

    Raises :class:`JournalCorruptError` naming the first wrong batch, record or writer.
    """
    archived = await store.archived()
    start = archived if archive is None else GENESIS
    if trusted is not None and 0 < trusted.seq <= start.seq:
        _check_archived(trusted, start)
        trusted = None
    marks = [mark for mark in await store.checkpoint_marks() if mark.batch > start.batch]
    heads = _ExpectedHeads(marks, trusted)
    head, epoch = start, 0
    async for batches in all_batch_ranges(store, archive):
        head = verify_range(batches, head)
        epoch = _check_epochs(batches, epoch)
        heads.check(batches)
        if progress is not None:
            progress(head.seq)
    # Read last, because more writers may claim the journal during the verification.
    writers = await store.writers()
    verify_writers(writers)
    if epoch > len(writers):
        raise JournalCorruptError(f"the writer of epoch {epoch} is missing from the journal")
    unchained = await store.find_unchained(head)
    if unchained is not None:
        raise JournalCorruptError(
            f"{unchained} was inserted: it belongs to no batch of the journal"
        )
    heads.check_complete(head)
    return VerificationResult(
        head=TrustedHead(head.seq, head.hash),
        batches=head.batch - start.batch,
        records=head.seq - start.seq,
        archived_seq=start.seq,
        writers=len(writers),
        checkpoints=len(marks),
    )


def _check_epochs(verified: BatchRange, epoch: int) -> int:
    """Check that epochs never decrease. Returns the epoch of the last batch."""
    for batch in verified.batches:
        if batch[3] != epoch:
            if batch[3] < epoch:
                raise JournalCorruptError(
                    f"batch {batch[0]} is of epoch {batch[3]}, after one of epoch {epoch}"
                )
            epoch = batch[3]
    return epoch


def _check_archived(trusted: TrustedHead, archived: Head) -> None:
    """Compare with the end of the archive; its files are not read."""
    end = TrustedHead(archived.seq, archived.hash)
    if trusted.seq == end.seq and trusted != end:
        raise JournalCorruptError(f"the archive ends with {end}, not with the head {trusted}")
    if trusted != end:
        raise JournalCorruptError(
            f"the head {trusted} is in the archive: give its directory with --archive"
        )
