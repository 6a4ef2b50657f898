"""Reads records in order, and verifies the hash chain on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from asched.journal.chain import (
    GENESIS,
    BatchRange,
    Head,
    SealedBatch,
    verify,
    verify_range,
)
from asched.journal.codec import CODEC
from asched.journal.errors import (
    VERIFY_ADVICE,
    ArchivedError,
    JournalCorruptError,
    archived_message,
)
from asched.journal.sealing import batch_leaf, checked, log_of
from asched.journal.store import JournalStore, StoredRecord
from asched.proof.heads import TreeHead
from asched.proof.merkle import Frontier
from asched.proof.statements import Position


class _ExpectedRoot(NamedTuple):
    root: str
    seq: int
    what: str


class ExpectedRoots:
    """Merkle roots that the journal must have at certain sizes."""

    def __init__(self) -> None:
        self._by_size: dict[int, list[_ExpectedRoot]] = {}

    def add_head(self, head: TreeHead, what: str) -> None:
        self._add(head.size, _ExpectedRoot(head.root, head.seq, what))

    def add_position(self, position: Position, what: str) -> None:
        """Raises :class:`ProofError`."""
        root = position.tree.root.hex()
        self._add(position.batch, _ExpectedRoot(root, position.seq, what))

    def _add(self, size: int, expected: _ExpectedRoot) -> None:
        self._by_size.setdefault(size, []).append(expected)

    def check(self, tree: Frontier, seq: int) -> None:
        """Compare the tree of all batches up to record ``seq``.

        Raises :class:`JournalCorruptError`.
        """
        for expected in self._by_size.pop(tree.size, ()):
            if (expected.root, expected.seq) != (tree.root.hex(), seq):
                raise JournalCorruptError(
                    f"the journal up to batch {tree.size} (record {seq}) is not the one of"
                    f" {expected.what}: it was altered"
                )

    def check_complete(self, head: Head) -> None:
        """Raises :class:`JournalCorruptError` if the journal was longer before."""
        beyond = [expected for of_size in self._by_size.values() for expected in of_size]
        if beyond:
            last = max(beyond, key=lambda expected: expected.seq)
            raise JournalCorruptError(
                f"the journal ends at record {head.seq}, but {last.what} is at record {last.seq}:"
                f" records from {head.seq + 1} on were cut off"
            )

    def forget_before(self, size: int) -> None:
        """Do not expect roots of smaller trees."""
        self._by_size = {n: roots for n, roots in self._by_size.items() if n >= size}


class ChainReader:
    """Reads what follows a position. What it returned before is part of the chain, so a later
    change of it is detected with the next batch."""

    def __init__(
        self, journal: JournalStore, head: Head, tree: Frontier, roots: ExpectedRoots | None = None
    ) -> None:
        """``tree``: of all batches up to ``head``, which are not read. ``roots`` are compared from
        there on, also while reading.

        Raises :class:`JournalCorruptError` if ``tree`` is not the expected one.
        """
        self.head = head
        self.tree = tree
        self._journal = journal
        self._roots = roots or ExpectedRoots()
        self._roots.forget_before(tree.size)
        self._roots.check(tree, head.seq)
        self._rest: list[StoredRecord] = []
        """Records of the batch at the start that are to be read, too."""

    @classmethod
    def from_beginning(
        cls, journal: JournalStore, roots: ExpectedRoots | None = None
    ) -> ChainReader:
        return cls(journal, GENESIS, Frontier(), roots)

    @classmethod
    def after(
        cls, journal: JournalStore, position: Position, roots: ExpectedRoots | None = None
    ) -> ChainReader:
        """A reader of what follows the batch at a position."""
        head = Head(position.seq, position.batch, position.hash)
        return cls(journal, head, position.tree, roots)

    @classmethod
    async def after_checkpoint(
        cls, journal: JournalStore, seq: int, roots: ExpectedRoots | None = None
    ) -> ChainReader:
        """A reader of the records after a checkpoint's record; of all records for 0.

        Raises :class:`JournalCorruptError` if the checkpoint is of another history.
        """
        if seq == 0:
            return cls.from_beginning(journal, roots)
        log = log_of(await journal.statements())
        statement = log.checkpoint(seq)
        if statement is None:
            raise JournalCorruptError(f"no statement is about the checkpoint at record {seq}")
        reader = cls.after(journal, checked(log, statement).position, roots)
        await reader.start_within_batch(seq)
        return reader

    async def start_within_batch(self, seq: int) -> None:
        """Check the batch at the start, and read its records after ``seq``, too.

        Raises :class:`JournalCorruptError`, also if record ``seq`` is not of this batch.
        """
        last = await self.check_start()
        first_seq = self.head.seq if last is None else last.batch.first_seq
        if not first_seq <= seq <= self.head.seq:
            raise JournalCorruptError(f"record {seq} is not of batch {self.head.batch}")
        if last is not None:
            self._rest = [stored for stored in _decoded(last) if stored.seq > seq]

    @property
    def position(self) -> Position:
        return Position.of(self.head.seq, self.head.hash, self.tree)

    async def check_start(self) -> SealedBatch | None:
        """Check that the journal has the batch at the head. Returns it unless it is archived.

        Raises :class:`JournalCorruptError`.
        """
        if self.head == await self._journal.archived():
            return None
        number = self.head.batch
        async for sealed in self._journal.batches(number - 1):
            first, previous_hash = sealed.batch.first_seq, sealed.batch.previous_hash
            if sealed.head != self.head:
                raise JournalCorruptError(
                    f"batch {sealed.batch.batch} (records {first} to {sealed.batch.last_seq})"
                    f" is not the one that a statement is about: it was altered"
                )
            verify(sealed, Head(first - 1, number - 1, previous_hash))
            return sealed
        raise JournalCorruptError(
            f"the journal ends before record {self.head.seq}, which a statement is about: records"
            " were cut off"
        )

    async def read(self) -> AsyncIterator[StoredRecord]:
        """The records up to the end of the journal; a repeated call returns those since.

        Raises :class:`ArchivedError` if they are in the archive, :class:`JournalCorruptError`
        naming a wrong batch.
        """
        rest, self._rest = self._rest, []
        for stored in rest:
            yield stored
        async for batches in self.ranges():
            for sealed in batches.split():
                for stored in _decoded(sealed):
                    yield stored

    async def ranges(self) -> AsyncIterator[BatchRange]:
        """As :meth:`read`, batches that are not decoded."""
        await self._check_not_archived()
        async for batches in self._journal.batch_ranges(self.head.batch):
            try:
                self.head = verify_range(batches, self.head)
            except JournalCorruptError as error:
                # An archive run may have deleted them meanwhile.
                await self._check_not_archived()
                raise JournalCorruptError(f"{error}; {VERIFY_ADVICE}") from None
            for batch in batches.batches:
                self.tree.append(batch_leaf(batch[-1]))
                self._roots.check(self.tree, batch[2])
            yield batches

    async def _check_not_archived(self) -> None:
        archived = await self._journal.archived()
        if self.head.seq < archived.seq:
            raise ArchivedError(archived_message(archived.seq))


def _decoded(sealed: SealedBatch) -> Sequence[StoredRecord]:
    written_at_ns = sealed.batch.written_at_ns
    return [
        StoredRecord(
            row.seq,
            written_at_ns,
            CODEC.decode(row.seq, row.kind, row.version, row.subject, row.payload),
        )
        for row in sealed.rows
    ]
