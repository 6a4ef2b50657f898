"""A journal in memory, for tests, simulations and the demo."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Sequence

import anyio.lowlevel

from asched.journal.chain import (
    GENESIS,
    BatchRange,
    Head,
    SealedBatch,
    Segment,
    Writer,
    next_writer,
    seal,
)
from asched.journal.codec import CODEC
from asched.journal.errors import (
    ConflictError,
    FencedError,
    JournalError,
    conflict_message,
    fenced_message,
    longer_head_message,
    unknown_seq_message,
)
from asched.journal.sealing import (
    BEGINNING,
    batch_leaf,
    checkpoint_digest,
    log_of,
    signers_for,
)
from asched.journal.store import AppendResult, Checkpoint, CheckpointMark, StoredRecord
from asched.proof.heads import SignedHead
from asched.proof.keys import NO_KEYS, JournalKeys, SigningKey
from asched.proof.statements import (
    CheckpointDigest,
    KeyChange,
    Position,
    StatementRow,
    Subject,
    next_statement,
)
from asched.state.records import AnyRecord


class MemoryJournal:
    """The stored data, shared by any number of :class:`MemoryStore`."""

    def __init__(self) -> None:
        self.batches: list[SealedBatch] = []
        self.last_seqs: list[int] = []
        """The last sequence number of each batch, for bisection."""
        self.writers: list[Writer] = []
        self.checkpoints: dict[int, bytes] = {}
        self.statements: list[StatementRow] = []
        self.signed_head: SignedHead | None = None

    @property
    def epoch(self) -> int:
        return len(self.writers)

    @property
    def head(self) -> Head:
        return self.batches[-1].head if self.batches else GENESIS

    def head_before(self, first_seq: int) -> Head | None:
        """The head before the batch that starts at ``first_seq``, if there is one."""
        index = bisect_right(self.last_seqs, first_seq - 1)
        if index == len(self.batches) or self.batches[index].batch.first_seq != first_seq:
            return None
        return self.batches[index - 1].head if index else GENESIS


class MemoryStore:
    """A :class:`~asched.journal.store.JournalStore` over a :class:`MemoryJournal`.

    Records are encoded, so a record that cannot be stored on disk is rejected here, too.
    """

    def __init__(self, journal: MemoryJournal | None = None, keys: JournalKeys = NO_KEYS) -> None:
        self.keys = keys
        self._journal = MemoryJournal() if journal is None else journal
        self._epoch = 0

    async def claim(self, writer: str, *, claimed_at_ns: int) -> int:
        await anyio.lowlevel.checkpoint()
        writers = self._journal.writers
        writers.append(next_writer(writers[-1] if writers else None, writer, claimed_at_ns))
        self._epoch = self._journal.epoch
        return self._epoch

    async def append(
        self, records: Sequence[AnyRecord], *, written_at_ns: int, first_seq: int | None = None
    ) -> AppendResult:
        if not records:
            raise ValueError("a batch holds at least one record")
        await anyio.lowlevel.checkpoint()
        journal = self._journal
        if self._epoch == 0 or self._epoch != journal.epoch:
            raise FencedError(fenced_message(self._epoch, journal.epoch))
        encoded = [CODEC.encode(record) for record in records]
        head = journal.head
        if first_seq is not None and first_seq != head.seq + 1:
            before = journal.head_before(first_seq)
            if before is not None:
                stored = journal.batches[before.batch].batch
                again = seal(before, encoded, stored.epoch, written_at_ns).batch
                if again == stored:
                    return AppendResult.of(stored)
            raise ConflictError(conflict_message(first_seq, head.seq))
        sealed = seal(head, encoded, self._epoch, written_at_ns)
        journal.batches.append(sealed)
        journal.last_seqs.append(sealed.batch.last_seq)
        return AppendResult.of(sealed.batch)

    async def check_writer(self) -> None:
        await anyio.lowlevel.checkpoint()
        self._check_not_fenced()

    async def head(self) -> Head:
        await anyio.lowlevel.checkpoint()
        return self._journal.head

    async def read(
        self, after_seq: int = 0, up_to: int | None = None, *, subject: str | None = None
    ) -> AsyncIterator[StoredRecord]:
        journal = self._journal
        last_seq = journal.head.seq if up_to is None else min(up_to, journal.head.seq)
        end = len(journal.batches)
        for index in range(bisect_right(journal.last_seqs, after_seq), end):
            batch, rows = journal.batches[index]
            if batch.first_seq > last_seq:
                return
            await anyio.lowlevel.checkpoint()
            for row in rows:
                if after_seq < row.seq <= last_seq and subject in (None, row.subject):
                    record = CODEC.decode(row.seq, row.kind, row.version, row.subject, row.payload)
                    yield StoredRecord(row.seq, batch.written_at_ns, record)

    async def subjects(self, kind: str) -> Sequence[str]:
        await anyio.lowlevel.checkpoint()
        rows = (row for sealed in self._journal.batches for row in sealed.rows)
        return sorted({row.subject for row in rows if row.subject.startswith(f"{kind}/")})

    async def batches(self, after_batch: int = 0) -> AsyncIterator[SealedBatch]:
        for sealed in self._journal.batches[after_batch:]:
            await anyio.lowlevel.checkpoint()
            yield sealed

    async def batch_ranges(self, after_batch: int = 0) -> AsyncIterator[BatchRange]:
        async for sealed in self.batches(after_batch):
            yield BatchRange.of(sealed)

    async def archived(self) -> Head:
        await anyio.lowlevel.checkpoint()
        return GENESIS

    async def segments(self) -> Sequence[Segment]:
        await anyio.lowlevel.checkpoint()
        return ()

    async def writers(self) -> Sequence[Writer]:
        await anyio.lowlevel.checkpoint()
        return tuple(self._journal.writers)

    async def find_unchained(self, head: Head) -> str | None:
        await anyio.lowlevel.checkpoint()
        return None  # records are stored in their batches

    async def checkpoint_marks(self) -> Sequence[CheckpointMark]:
        await anyio.lowlevel.checkpoint()
        marks = []
        for seq, blob in sorted(self._journal.checkpoints.items()):
            batch = self._journal.batches[bisect_left(self._journal.last_seqs, seq)].batch
            marks.append(CheckpointMark(seq, batch.batch, batch.hash, len(blob)))
        return marks

    async def check_definitions(self) -> None:
        """There are none."""

    async def save_checkpoint(self, seq: int, blob: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        if not 1 <= seq <= self._journal.head.seq:
            raise JournalError(unknown_seq_message(seq))
        self._check_not_fenced()
        self._add_statement(checkpoint_digest(seq, blob), self._batches_to(seq))
        self._journal.checkpoints[seq] = blob

    def _batches_to(self, seq: int) -> int:
        return bisect_left(self._journal.last_seqs, seq) + 1

    def _add_statement(self, about: Subject, batches: int, *signers: SigningKey) -> None:
        """Add a statement about something at the end of that many batches."""
        log = log_of(self._journal.statements)
        before = [s.position for s in log.statements if s.position.batch <= batches]
        position = before[-1] if before else BEGINNING
        tree = position.tree
        for sealed in self._journal.batches[tree.size : batches]:
            tree.append(batch_leaf(sealed.batch.hash))
            position = Position.of(sealed.batch.last_seq, sealed.batch.hash, tree)
        row = next_statement(log.tip, position, about, signers or signers_for(log, self.keys))
        self._journal.statements.append(row)

    async def drop_checkpoints(self, seqs: Sequence[int]) -> None:
        await anyio.lowlevel.checkpoint()
        self._check_not_fenced()
        for seq in seqs:
            self._journal.checkpoints.pop(seq, None)

    def _check_not_fenced(self) -> None:
        if self._epoch not in (0, self._journal.epoch):
            raise FencedError(fenced_message(self._epoch, self._journal.epoch))

    async def load_checkpoint(self, at_or_before_seq: int | None = None) -> Checkpoint | None:
        await anyio.lowlevel.checkpoint()
        saved = self._journal.checkpoints
        limit = self._journal.head.seq if at_or_before_seq is None else at_or_before_seq
        seq = max((s for s in saved if s <= limit), default=None)
        return None if seq is None else Checkpoint(seq, saved[seq])

    async def checkpoint_digests(
        self, first_seq: int = 0, last_seq: int | None = None
    ) -> Sequence[CheckpointDigest]:
        await anyio.lowlevel.checkpoint()
        saved = self._journal.checkpoints
        last = self._journal.head.seq if last_seq is None else last_seq
        seqs = sorted(seq for seq in saved if first_seq <= seq <= last)
        return [checkpoint_digest(seq, saved[seq]) for seq in seqs]

    async def statements(self) -> Sequence[StatementRow]:
        await anyio.lowlevel.checkpoint()
        return tuple(self._journal.statements)

    async def statements_tip(self) -> StatementRow | None:
        await anyio.lowlevel.checkpoint()
        return self._journal.statements[-1] if self._journal.statements else None

    async def change_key(self, change: KeyChange, signers: Sequence[SigningKey]) -> None:
        await anyio.lowlevel.checkpoint()
        self._check_not_fenced()
        self._add_statement(change, len(self._journal.batches), *signers)

    async def signed_head(self) -> SignedHead | None:
        await anyio.lowlevel.checkpoint()
        return self._journal.signed_head

    async def save_signed_head(self, signed: SignedHead) -> None:
        await anyio.lowlevel.checkpoint()
        self._check_not_fenced()
        stored = self._journal.signed_head
        if stored is not None and stored.head.size > signed.head.size:
            raise ConflictError(longer_head_message(stored.head.size, signed.head.size))
        self._journal.signed_head = signed

    async def close(self) -> None:
        await anyio.lowlevel.checkpoint()
