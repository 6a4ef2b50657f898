"""What every journal store does; :mod:`tests.journal.test_contract` says the same in code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from asched.journal.chain import BatchRange, Head, SealedBatch, Segment, Writer
from asched.state.records import AnyRecord


class Appended(NamedTuple):
    """The sequence numbers that a batch received."""

    first_seq: int
    last_seq: int


class StoredRecord(NamedTuple):
    seq: int
    written_at_ns: int
    """When its batch was written, by the writer's clock, nanoseconds since the Unix epoch."""
    record: AnyRecord


class Checkpoint(NamedTuple):
    """A caller's fold of everything up to ``seq``, as bytes that only the caller understands."""

    seq: int
    blob: bytes


class CheckpointMark(NamedTuple):
    """What a checkpoint remembers of the chain: a batch that was there when it was saved."""

    seq: int
    """The record that the checkpoint is a fold up to."""
    batch: int
    """The batch that holds this record."""
    batch_hash: str


class JournalStore(Protocol):
    """An append-only, numbered list of records.

    Sequence numbers start at 1 and have no gaps. Batches are atomic. One writer at a time: the one
    that claimed last. Any number of readers, also while the writer writes.

    Every method may raise a :class:`~asched.journal.errors.JournalError`.
    """

    async def claim(self, writer: str, *, claimed_at_ns: int) -> int:
        """Become the one writer, deposing the one before; the new epoch (1, 2, ...).

        ``writer`` names the process for those who read the journal later.
        """
        ...

    async def append(
        self, records: Sequence[AnyRecord], *, written_at_ns: int, first_seq: int | None = None
    ) -> Appended:
        """Store ``records`` as one batch. When this returns they survive a loss of power.

        ``first_seq`` is the number that the caller expects the first record to get. With it the
        call can be repeated when its outcome is unknown: if those very records were stored there
        at ``written_at_ns``, the answer is the same and nothing is stored twice.

        Not cancelled half-way: cancellation is delivered when the outcome is known.

        Raises :class:`FencedError` if another writer claimed since, or this one never did;
        :class:`ConflictError` if ``first_seq`` is neither next nor a repetition;
        :class:`JournalFullError` with nothing stored; ValueError if ``records`` is empty.
        """
        ...

    async def head(self) -> Head:
        """Where the journal ends now."""
        ...

    def read(
        self, after_seq: int = 0, up_to: int | None = None, *, subject: str | None = None
    ) -> AsyncIterator[StoredRecord]:
        """The records after ``after_seq`` up to and with ``up_to`` (or the head at the first step).

        ``subject`` leaves only one object's history, see :func:`asched.journal.codec.subject_of`.
        Fetches a chunk at a time and holds nothing open between chunks, so an iteration may be as
        slow as its consumer and may be abandoned.

        Raises :class:`ArchivedError` if some of them were moved to the archive, whatever their
        subject: start after :meth:`archived`, from a checkpoint.
        """
        ...

    async def subjects(self, kind: str) -> Sequence[str]:
        """Every object of that kind (``pod``, ``node``) that records here speak of, each once, in
        order, as :func:`asched.journal.codec.subject_of` names it; not those that only records in
        the archive do, even where these have not been deleted yet."""
        ...

    def batches(self, after_batch: int = 0) -> AsyncIterator[SealedBatch]:
        """The batches as they are stored, neither decoded nor verified: for proof and archive.

        Those that were archived are passed over.
        """
        ...

    def stretches(self, after_batch: int = 0) -> AsyncIterator[BatchRange]:
        """The same batches, many at a time: for reading millions of them."""
        ...

    async def archived(self) -> Head:
        """The head of what was moved to the archive: the first record here is the one after it."""
        ...

    async def segments(self) -> Sequence[Segment]:
        """What was moved to the archive, oldest first."""
        ...

    async def writers(self) -> Sequence[Writer]:
        """All that ever claimed this journal, by epoch; for :func:`chain.verify_writers`."""
        ...

    async def stray(self, head: Head) -> str | None:
        """Something stored outside of the batches up to ``head``, in words; None if nothing is.

        It was not :meth:`append` that put it there. Whole batches after ``head`` are none: the
        journal may have grown since.
        """
        ...

    async def checkpoint_marks(self) -> Sequence[CheckpointMark]:
        """Where the chain was at each checkpoint, by sequence number."""
        ...

    async def save_checkpoint(self, seq: int, blob: bytes) -> None:
        """Keep ``blob`` as the fold up to ``seq``, which must be stored. Replaces an earlier one.

        Raises :class:`FencedError` for a writer that was deposed: what it folded may be another
        history than what is stored. Who never claimed the journal may save what it read there.
        :class:`ArchivedError` where that record was moved to the archive, be it meanwhile: nobody
        could fold on from there.
        """
        ...

    async def drop_checkpoints(self, seqs: Sequence[int]) -> None:
        """Delete the checkpoints at these records, where there are any. Raises
        :class:`FencedError` as :meth:`save_checkpoint`."""
        ...

    async def load_checkpoint(self, at_or_before_seq: int | None = None) -> Checkpoint | None:
        """The latest checkpoint not beyond ``at_or_before_seq`` (or of all), if any."""
        ...

    async def close(self) -> None:
        """Release the journal. Idempotent."""
        ...
