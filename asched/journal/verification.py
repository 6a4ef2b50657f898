"""Verifies that a journal is complete and unaltered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from asched.journal.archive import all_batch_ranges
from asched.journal.chain import GENESIS, Batch, BatchRange, Head, verify_range
from asched.journal.chain_reader import ExpectedRoots
from asched.journal.errors import JournalBusyError, JournalCorruptError, JournalError
from asched.journal.sealing import batch_leaf, checked, log_of
from asched.journal.signatures import (
    AnchoredHead,
    SignedState,
    check_final,
    check_writers,
    signed_state,
)
from asched.journal.store import CheckpointMark, JournalStore
from asched.proof.heads import TreeHead
from asched.proof.merkle import Frontier
from asched.proof.statements import Position

Progress = Callable[[int], None]
"""Receives the sequence number up to which the journal is verified."""


HEAD_DIGITS = 48
"""Hexadecimal digits of a trusted head: 192 bits, for which no other history is found."""


class TrustedHead(NamedTuple):
    """A head that was stored elsewhere, where a change of the journal cannot change it."""

    seq: int
    hash: str

    @classmethod
    def parse(cls, text: str) -> TrustedHead:
        """Parse ``SEQ:HASH``, the form that a verification prints. Raises ValueError.

        The beginning of a hash is sufficient, as the metrics have it.
        """
        seq, _, digest = text.partition(":")
        hexadecimal = not set(digest) - set("0123456789abcdef")
        if not (seq.isdecimal() and hexadecimal and HEAD_DIGITS <= len(digest) <= 64):
            raise ValueError(
                f"{text!r} is not SEQ:HASH with {HEAD_DIGITS} to 64 hexadecimal digits of a hash"
            )
        return cls(int(seq), digest)

    def is_of(self, batch: Batch) -> bool:
        """Whether it is the head of a journal that ends with ``batch``."""
        return self.seq == batch.last_seq and batch.hash.startswith(self.hash)

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


class VerifiedPosition(msgspec.Struct, frozen=True):
    """The end of what was verified, from which a later verification continues."""

    position: Position
    epoch: int
    """Of the last batch; 0 without batches."""


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
    keys: tuple[str, ...]
    """Fingerprints of the keys that signed the journal, in their order."""
    trusted: bool
    """Whether one of the keys is trusted."""
    signed_seq: int
    """Records up to this one are signed; 0 without a signature."""
    anchors: int
    """Number of anchored heads that it matches."""
    anchored_seq: int
    """Records up to this one are covered by an anchored head; 0 without one."""
    position: VerifiedPosition
    resumed_seq: int = 0
    """Records up to this one were verified before and not read again; 0 if there are none."""


class NotVerifiedError(JournalError):
    """A part of the journal is in the archive, which was not given."""


class _ExpectedHeads:
    """The heads that the chain must contain: those of checkpoints, and a trusted head."""

    def __init__(self, marks: Sequence[CheckpointMark], trusted: TrustedHead | None) -> None:
        self._marks: dict[int, list[CheckpointMark]] = {}
        for mark in marks:
            if mark.batch < 1:
                raise JournalCorruptError(
                    f"the checkpoint at record {mark.seq} was inserted: it is of no batch"
                )
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
        if not trusted.is_of(batch):
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
    skip_archive: bool = False,
    anchored: Sequence[AnchoredHead] = (),
    after: VerifiedPosition | None = None,
    progress: Progress | None = None,
) -> VerificationResult:
    """Check every batch, record, writer, checkpoint, segment, statement and signature, and then the
    tables, indexes and triggers of the database.

    ``archive`` is the directory of the archive's files. ``skip_archive``: start at its end, as the
    statement about the last segment has it. ``trusted`` and ``anchored``: heads that were stored
    elsewhere. ``after``: continue an earlier verification, if the journal still has its last batch.

    Raises :class:`JournalCorruptError` naming the first that is wrong, :class:`NotVerifiedError` if
    a part is archived and neither is given, and :class:`JournalBusyError` if an archive run moves
    records meanwhile.
    """
    archived = await store.archived()
    try:
        return await _verified(
            store, trusted, archive, anchored, after, progress, skip_archive=skip_archive
        )
    except JournalCorruptError:
        if await store.archived() != archived:
            raise JournalBusyError("records were archived meanwhile: verify again") from None
        raise


async def _verified(
    store: JournalStore,
    trusted: TrustedHead | None,
    archive: Path | None,
    anchored: Sequence[AnchoredHead],
    after: VerifiedPosition | None,
    progress: Progress | None,
    *,
    skip_archive: bool,
) -> VerificationResult:
    state = await signed_state(store, anchored)
    resumed = await _resumed(store, state, after)
    start = resumed or await _start(store, state, archive, skip_archive=skip_archive)
    if trusted is not None and 0 < trusted.seq <= start.seq:
        _check_archived(trusted, start.head)
        trusted = None
    marks = [m for m in await store.checkpoint_marks() if not 1 <= m.batch <= start.batch]
    heads, end = _ExpectedHeads(marks, trusted), _End(start.head, start.epoch)
    ranges = store.batch_ranges(start.batch) if resumed else all_batch_ranges(store, archive)
    async for batches in ranges:
        end = _verify_range(batches, end, start.tree, state.roots)
        heads.check(batches)
        if progress is not None:
            progress(end.head.seq)
    writers = await _verify_rest(store, state, anchored, heads, end)
    return VerificationResult(
        head=TrustedHead(end.head.seq, end.head.hash),
        batches=end.head.batch - start.batch,
        records=end.head.seq - start.seq,
        archived_seq=start.archived_seq,
        writers=writers,
        checkpoints=len(marks),
        keys=tuple(key.id for key in state.log.keys),
        trusted=bool(set(store.keys.all_trusted) & set(state.log.keys)),
        signed_seq=0 if state.signed is None else state.signed.seq,
        anchors=len(anchored),
        anchored_seq=max((anchor.signed.head.seq for anchor in anchored), default=0),
        position=VerifiedPosition(Position.of(end.head.seq, end.head.hash, start.tree), end.epoch),
        resumed_seq=0 if resumed is None else resumed.seq,
    )


class _Start(NamedTuple):
    """Where a verification begins."""

    head: Head
    tree: Frontier
    archived_seq: int = 0
    """The last record of the archive, if that is not verified."""
    epoch: int = 0

    @property
    def seq(self) -> int:
        return self.head.seq

    @property
    def batch(self) -> int:
        return self.head.batch


async def _start(
    store: JournalStore, state: SignedState, archive: Path | None, *, skip_archive: bool
) -> _Start:
    archived = await store.archived()
    if archive is not None or not archived.seq:
        state.roots.check(Frontier(), 0)
        return _Start(GENESIS, Frontier())
    if not skip_archive:
        raise NotVerifiedError(
            f"records 1 to {archived.seq} are in the archive: give its directory with --archive"
            " DIR, or verify only what follows with --skip-archive"
        )
    position = await state.archive_end(store)
    state.roots.forget_before(position.batch)
    state.roots.check(position.tree, position.seq)
    return _Start(archived, position.tree, archived.seq)


async def _resumed(
    store: JournalStore, state: SignedState, after: VerifiedPosition | None
) -> _Start | None:
    """Where to continue; None if the journal does not have that batch, or has archived it."""
    if after is None:
        return None
    position, archived = after.position, await store.archived()
    if not archived.batch < position.batch:
        return None
    head = Head(position.seq, position.batch, position.hash)
    async for found in store.batch_ranges(position.batch - 1):
        batch = Batch(*found.batches[0])
        if Head(batch.last_seq, batch.batch, batch.hash) != head:
            return None
        state.roots.forget_before(position.batch)
        state.roots.check(position.tree, position.seq)
        return _Start(head, position.tree, archived.seq, after.epoch)
    return None


class _End(NamedTuple):
    head: Head
    epoch: int
    """Of the last batch; 0 without batches."""


def _verify_range(batches: BatchRange, before: _End, tree: Frontier, roots: ExpectedRoots) -> _End:
    head = verify_range(batches, before.head)
    epoch = _check_epochs(batches, before.epoch)
    for batch in batches.batches:
        tree.append(batch_leaf(batch[-1]))
        roots.check(tree, batch[2])
    return _End(head, epoch)


async def _verify_rest(
    store: JournalStore,
    state: SignedState,
    anchored: Sequence[AnchoredHead],
    heads: _ExpectedHeads,
    end: _End,
) -> int:
    """Check what is no part of the chain. Returns the number of writers."""
    await _check_all_chained(store, end.head)
    heads.check_complete(end.head)
    state.roots.check_complete(end.head)
    writers = await _verify_writers(store, end.epoch, state.heads)
    await _verify_checkpoints(store)
    if state.latest is not None and state.latest.final and end.head.seq > state.latest.seq:
        # A writer may have started during the verification.
        check_final((await signed_state(store, anchored)).latest, end.head)
    await store.check_definitions()
    return writers


async def _check_all_chained(store: JournalStore, head: Head) -> None:
    unchained = await store.find_unchained(head)
    if unchained is not None:
        raise JournalCorruptError(
            f"{unchained} was inserted: it belongs to no batch of the journal"
        )


async def _verify_writers(store: JournalStore, epoch: int, heads: Sequence[TreeHead]) -> int:
    """Their number. Read last, because more may claim the journal during the verification."""
    writers = await store.writers()
    check_writers(writers, heads)
    if epoch > len(writers):
        raise JournalCorruptError(f"the writer of epoch {epoch} is missing from the journal")
    return len(writers)


async def _verify_checkpoints(store: JournalStore) -> None:
    """Compare the content of each checkpoint with the statement about it.

    A daemon may save more of them meanwhile, so the statements are read after the checkpoints.
    """
    digests = await store.checkpoint_digests()
    log = log_of(await store.statements())
    for digest in digests:
        statement = log.checkpoint(digest.seq)
        if statement is None:
            raise JournalCorruptError(
                f"the checkpoint at record {digest.seq} was inserted: no statement is about it"
            )
        if checked(log, statement).about != digest:
            raise JournalCorruptError(
                f"the checkpoint at record {digest.seq} was altered: its SHA-256 differs from that"
                f" in statement {statement.number}"
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
    if trusted.seq != end.seq:
        raise JournalCorruptError(
            f"the head {trusted} is in the archive: give its directory with --archive"
        )
    if not end.hash.startswith(trusted.hash):
        raise JournalCorruptError(f"the archive ends with {end}, not with the head {trusted}")
