"""The port of journal stores; :mod:`tests.journal.test_contract` tests every implementation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from asched.journal.chain import Batch, BatchRange, Head, SealedBatch, Segment, Writer
from asched.proof.heads import SignedHead
from asched.proof.keys import JournalKeys, SigningKey
from asched.proof.statements import CheckpointDigest, KeyChange, StatementRow
from asched.state.records import AnyRecord

if TYPE_CHECKING:
    from asched.state.checkpoint import KnownObjects


class AppendResult(NamedTuple):
    """An appended batch."""

    first_seq: int
    last_seq: int
    batch: int
    hash: str

    @classmethod
    def of(cls, batch: Batch) -> AppendResult:
        return cls(batch.first_seq, batch.last_seq, batch.batch, batch.hash)

    @property
    def head(self) -> Head:
        """The head of a journal that ends with this batch."""
        return Head(self.last_seq, self.batch, self.hash)


class StoredRecord(NamedTuple):
    """A decoded record with its place in the journal."""

    seq: int
    written_at_ns: int
    """Write time of its batch: the writer's clock, nanoseconds since the Unix epoch."""
    record: AnyRecord


class Checkpoint(NamedTuple):
    """A serialized fold of all records up to ``seq``, opaque to the store."""

    seq: int
    blob: bytes
    known: KnownObjects | None = None
    """Objects that need not be decoded from it."""


class CheckpointMark(NamedTuple):
    """The batch that held a checkpoint's record when the checkpoint was saved."""

    seq: int
    """The last record that is folded."""
    batch: int
    batch_hash: str
    size: int = 0
    """Bytes of the checkpoint; 0 if unknown."""


class JournalStore(Protocol):
    """An append-only, numbered list of records.

    Sequence numbers start at 1 and have no gaps. Batches are atomic. The last process to claim the
    journal is the only writer. Any number of readers can read at the same time.

    Every method can raise a :class:`~asched.journal.errors.JournalError`.
    """

    async def claim(self, writer: str, *, claimed_at_ns: int) -> int:
        """Become the writer and fence the previous one. Returns the new epoch (1, 2, ...).

        ``writer`` identifies the process to readers.
        """
        ...

    async def append(
        self, records: Sequence[AnyRecord], *, written_at_ns: int, first_seq: int | None = None
    ) -> AppendResult:
        """Store ``records`` as one batch, durable on return.

        ``first_seq`` is the expected number of the first record. It makes the call idempotent: if
        the same records were stored there at ``written_at_ns``, the result is the same and nothing
        is stored twice. Cancellation is delivered after the commit or rollback.

        Raises :class:`FencedError` without a claim or after a newer one; :class:`ConflictError` if
        ``first_seq`` is neither next nor a repetition; :class:`JournalFullError` with nothing
        stored; ValueError if ``records`` is empty.
        """
        ...

    async def check_writer(self) -> None:
        """Verify that this writer's next append would be accepted and kept.

        An idle writer calls this periodically. Raises :class:`FencedError` after a newer claim,
        :class:`JournalReplacedError` if the journal's file is no longer the one that was opened.
        """
        ...

    async def head(self) -> Head:
        """The present end of the journal."""
        ...

    def read(
        self, after_seq: int = 0, up_to: int | None = None, *, subject: str | None = None
    ) -> AsyncIterator[StoredRecord]:
        """The records after ``after_seq`` up to and including ``up_to`` (default: the head).

        ``subject`` selects one object, see :func:`asched.journal.codec.subject_of`. Records are
        fetched in chunks with nothing held open in between, so a consumer may be slow or stop
        early.

        Raises :class:`ArchivedError` if any record of the range is archived: start after
        :meth:`archived`, from a checkpoint.
        """
        ...

    async def subjects(self, kind: str) -> Sequence[str]:
        """The sorted subjects of a kind (``pod``, ``node``) with records outside the archive."""
        ...

    def batches(self, after_batch: int = 0) -> AsyncIterator[SealedBatch]:
        """The stored batches that are not archived, neither decoded nor verified."""
        ...

    def batch_ranges(self, after_batch: int = 0) -> AsyncIterator[BatchRange]:
        """As :meth:`batches`, in ranges, which is faster for millions of records."""
        ...

    async def archived(self) -> Head:
        """The head of the archive; the first stored record follows it."""
        ...

    async def segments(self) -> Sequence[Segment]:
        """The segments of the archive, oldest first."""
        ...

    async def writers(self) -> Sequence[Writer]:
        """All writers by epoch; see :func:`asched.journal.chain.verify_writers`."""
        ...

    async def find_unchained(self, head: Head) -> str | None:
        """Describe a row that belongs to no batch of the chain; None if there is none.

        :meth:`append` never stores such rows. Complete batches after ``head`` are ignored, because
        the journal may have grown.
        """
        ...

    async def check_definitions(self) -> None:
        """Check the tables, indexes and triggers, and the content of indexes.

        Raises :class:`JournalCorruptError` if they are not those that asched creates, or an index
        does not contain all rows.
        """
        ...

    async def checkpoint_marks(self) -> Sequence[CheckpointMark]:
        """The batch of each checkpoint, by sequence number."""
        ...

    async def save_checkpoint(self, seq: int, blob: bytes) -> None:
        """Store ``blob`` as the fold up to the stored record ``seq``, replacing an earlier one.

        Raises :class:`FencedError` for a fenced writer: its state may differ from the stored
        records. A process that never claimed may save what it read. Raises :class:`ArchivedError`
        if that record is archived.
        """
        ...

    async def drop_checkpoints(self, seqs: Sequence[int]) -> None:
        """Delete the checkpoints at these records.

        Raises :class:`FencedError` as :meth:`save_checkpoint`.
        """
        ...

    async def load_checkpoint(self, at_or_before_seq: int | None = None) -> Checkpoint | None:
        """The latest checkpoint, or the latest not after ``at_or_before_seq``, if any.

        A checkpoint that differs from the statement about it, or has none, is skipped and logged.
        """
        ...

    async def checkpoint_digests(
        self, first_seq: int = 0, last_seq: int | None = None
    ) -> Sequence[CheckpointDigest]:
        """The SHA-256 of each checkpoint as it is stored, by sequence number: of those from
        ``first_seq`` to ``last_seq``, inclusive."""
        ...

    # -- statements and signatures ----------------------------------------------------------------

    @property
    def keys(self) -> JournalKeys:
        """The keys that the journal was opened with."""
        ...

    async def statements(self) -> Sequence[StatementRow]:
        """All statements about checkpoints, segments and keys, not verified."""
        ...

    async def statements_tip(self) -> StatementRow | None:
        """The last statement."""
        ...

    async def change_key(self, change: KeyChange, signers: Sequence[SigningKey]) -> None:
        """Add a statement that a key signs the journal from its present head on.

        Raises :class:`FencedError` as :meth:`save_checkpoint`.
        """
        ...

    async def signed_head(self) -> SignedHead | None:
        """The newest signed head, not verified."""
        ...

    async def save_signed_head(self, signed: SignedHead) -> None:
        """Replace the signed head by one of a longer journal.

        Raises :class:`FencedError` as :meth:`save_checkpoint`, :class:`ConflictError` if the stored
        one is longer.
        """
        ...

    async def close(self) -> None:
        """Release the journal. Idempotent."""
        ...
