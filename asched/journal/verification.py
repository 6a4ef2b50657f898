"""Proof that a journal is whole and was not altered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from asched.journal.archive import whole_chain
from asched.journal.chain import GENESIS, Batch, BatchRange, Head, verify_stretch, verify_writers
from asched.journal.errors import JournalCorruptError
from asched.journal.store import CheckpointMark, JournalStore

Progress = Callable[[int], None]
"""Told the sequence number up to which all is well."""


class KeptHead(NamedTuple):
    """A head that was written down elsewhere, out of reach of who could alter the journal."""

    seq: int
    hash: str

    @classmethod
    def parse(cls, text: str) -> KeptHead:
        """From ``SEQ:HASH``, as a verification prints it. Raises ValueError."""
        seq, _, digest = text.partition(":")
        if not seq.isdecimal() or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise ValueError(f"{text!r} is no SEQ:HASH, with 64 hexadecimal digits of hash")
        return cls(int(seq), digest)

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


class Verified(NamedTuple):
    """What was proven."""

    head: KeptHead
    """Keep it elsewhere: nobody can cut off or alter anything up to it unseen by who has it."""
    batches: int
    records: int
    archived_seq: int
    """Records up to this one are in the archive and were not looked at; 0 if there are none."""
    writers: int
    checkpoints: int


class _Heads:
    """The heads that the chain must pass: those of checkpoints and those that were kept."""

    def __init__(self, marks: Sequence[CheckpointMark], kept: KeptHead | None) -> None:
        self._marks: dict[int, list[CheckpointMark]] = {}
        for mark in marks:
            self._marks.setdefault(mark.batch, []).append(mark)
        self._kept = kept

    def check(self, stretch: BatchRange) -> None:
        """To be asked of batches that are proven. Raises :class:`JournalCorruptError` where one of
        them is another than it was."""
        first, (last, _, last_seq, *_) = stretch.batches[0][0], stretch.batches[-1]
        for number in [number for number in self._marks if number <= last]:
            self._check_marks(Batch._make(stretch.batches[number - first]))
        if self._kept is not None and last_seq >= self._kept.seq > 0:
            ending = next(b for b in stretch.batches if b[2] >= self._kept.seq)
            self._check_kept(Batch._make(ending), self._kept)
            self._kept = None

    def _check_marks(self, batch: Batch) -> None:
        for mark in self._marks.pop(batch.batch):
            in_it = batch.first_seq <= mark.seq <= batch.last_seq
            if mark.batch_hash != batch.hash or not in_it:
                raise JournalCorruptError(
                    f"batch {batch.batch} (records {batch.first_seq} to {batch.last_seq}) is not the"
                    f" one that the checkpoint at record {mark.seq} was saved after"
                )

    def _check_kept(self, batch: Batch, kept: KeptHead) -> None:
        if KeptHead(batch.last_seq, batch.hash) != kept:
            raise JournalCorruptError(
                f"batch {batch.batch} (records {batch.first_seq} to {batch.last_seq}) does not"
                f" have the head {kept} that was kept"
            )

    def check_passed(self, head: Head) -> None:
        """All that was to be met was met before ``head``, where the journal ends.

        Raises :class:`JournalCorruptError` where the journal once was longer.
        """
        beyond = [mark.seq for marks in self._marks.values() for mark in marks]
        if self._kept is not None and self._kept.seq > 0:
            beyond.append(self._kept.seq)
        if beyond:
            raise JournalCorruptError(
                f"the journal ends at record {head.seq}, but it once had record {max(beyond)}:"
                f" records from {head.seq + 1} on were cut off"
            )


async def verify_journal(
    store: JournalStore,
    *,
    kept: KeptHead | None = None,
    archive: Path | None = None,
    progress: Progress | None = None,
) -> Verified:
    """Check every batch, record, writer and checkpoint in the database.

    With ``archive``, the folder of the archive's files, these come first. Without it the chain
    starts where they end.

    Raises :class:`JournalCorruptError` naming the first batch, record or writer that is not as it
    was written.
    """
    archived = await store.archived()
    start = archived if archive is None else GENESIS
    if kept is not None and 0 < kept.seq <= start.seq:
        _check_in_archive(kept, start)
        kept = None
    marks = [mark for mark in await store.checkpoint_marks() if mark.batch > start.batch]
    heads = _Heads(marks, kept)
    head, epoch = start, 0
    async for stretch in whole_chain(store, archive):
        head = verify_stretch(stretch, head)
        epoch = _checked_epochs(stretch, epoch)
        heads.check(stretch)
        if progress is not None:
            progress(head.seq)
    # Last, because there may have been more since the beginning.
    writers = await store.writers()
    verify_writers(writers)
    if epoch > len(writers):
        raise JournalCorruptError(f"the writer of epoch {epoch} is missing from the journal")
    stray = await store.stray(head)
    if stray is not None:
        raise JournalCorruptError(f"{stray} was put in: it belongs to no batch of the journal")
    heads.check_passed(head)
    return Verified(
        head=KeptHead(head.seq, head.hash),
        batches=head.batch - start.batch,
        records=head.seq - start.seq,
        archived_seq=start.seq,
        writers=len(writers),
        checkpoints=len(marks),
    )


def _checked_epochs(stretch: BatchRange, epoch: int) -> int:
    """That no writer wrote after it was deposed. Returns the epoch of the last batch."""
    for batch in stretch.batches:
        if batch[3] != epoch:
            if batch[3] < epoch:
                raise JournalCorruptError(
                    f"batch {batch[0]} is of epoch {batch[3]}, after one of epoch {epoch}"
                )
            epoch = batch[3]
    return epoch


def _check_in_archive(kept: KeptHead, archived: Head) -> None:
    """The archive's files are not looked at, so only its very end can be compared."""
    end = KeptHead(archived.seq, archived.hash)
    if kept.seq == end.seq and kept != end:
        raise JournalCorruptError(f"the archive ends with {end}, not with the head {kept} kept")
    if kept != end:
        raise JournalCorruptError(
            f"the head {kept} lies in the archive: give its folder with --archive"
        )
