"""Folds of stored records, and checkpoints in a journal, which make folds to any record short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final, NamedTuple, Protocol

import structlog

from asched.framework.runtime.profile import PluginLoader, ProfileError
from asched.journal.archive import archived_records
from asched.journal.chain_reader import ChainReader
from asched.journal.errors import (
    ArchivedError,
    ContradictionError,
    IncompleteStateError,
    archived_message,
    contradiction_message,
)
from asched.journal.signatures import SignedState, signed_state
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore, StoredRecord
from asched.state.checkpoint import CheckpointError, checkpoint_with_versions, restore
from asched.state.cluster import ClusterState
from asched.state.fold import Fold, FoldError
from asched.state.plugins import missing_plugin
from asched.state.records import AnyRecord

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

FOLD_ERRORS: Final = (AssertionError, LookupError, TypeError, ValueError, AttributeError)
"""What a fold raises for a record that no engine can have recorded there: a FoldError where the
fold checks it, otherwise the error of the statement that fails."""


class AppliesRecords(Protocol):
    """A fold, or what contains one."""

    def apply(self, record: AnyRecord, /) -> object: ...


def apply_stored(fold: AppliesRecords, stored: StoredRecord) -> None:
    """Apply one record. Raises :class:`ContradictionError`, which names it, and ProfileError."""
    try:
        fold.apply(stored.record)
    except FOLD_ERRORS as error:
        raise _named(stored.seq, stored.record, error) from error


@contextmanager
def folding(stored: StoredRecord) -> Iterator[None]:
    """As :func:`apply_stored`, for a block that folds the record."""
    try:
        yield
    except FOLD_ERRORS as error:
        raise _named(stored.seq, stored.record, error) from error


def _named(seq: int, record: AnyRecord, error: Exception) -> Exception:
    if isinstance(error, ProfileError):
        return error
    return ContradictionError(
        contradiction_message(seq, type(record).__name__, contradiction_reason(error))
    )


def contradiction_reason(error: BaseException) -> str:
    """Why a record cannot be folded."""
    return str(error) if isinstance(error, FoldError) else repr(error)


SPACING: Final = 64
"""The gap after a checkpoint is at most 1/64 of the records since that checkpoint."""


class RestoredFold(NamedTuple):
    """A fold of the records up to ``seq``."""

    fold: Fold
    seq: int


async def nearest(
    journal: JournalStore, load: PluginLoader, at_or_before_seq: int | None = None
) -> RestoredFold:
    """The fold of the latest readable checkpoint at or before a record; empty if there is none.

    Unreadable checkpoints are skipped and logged. Raises
    :class:`~asched.journal.errors.JournalError`.
    """
    while at_or_before_seq is None or at_or_before_seq > 0:
        found = await journal.load_checkpoint(at_or_before_seq)
        if found is None:
            break
        try:
            return RestoredFold(restore(found.blob, load, found.known), found.seq)
        except CheckpointError as error:
            log.warning("checkpoint skipped", record=found.seq, reason=str(error))
        at_or_before_seq = found.seq - 1
    return RestoredFold(Fold(ClusterState(), load), 0)


async def write_checkpoints(
    journal: JournalStore,
    load: PluginLoader,
    *,
    every: int | None = None,
    archive: Path | None = None,
) -> list[int]:
    """Save a checkpoint at the head, and one every ``every`` records since the latest readable one.

    Returns the numbers of their records. Without a readable checkpoint, an archived beginning is
    folded from the files in ``archive``. Intermediate checkpoints are omitted while a profile's
    plugin is missing here, because the state would differ from that with the plugin.

    Raises :class:`~asched.journal.errors.IncompleteStateError` if a plugin is missing at the head,
    and any other :class:`~asched.journal.errors.JournalError`.
    """
    return await _write_up_to((await journal.head()).seq, journal, load, every, archive)


async def checkpoint_before(journal: JournalStore, load: PluginLoader, before_ns: int) -> int:
    """Save a checkpoint at the last record before a time, so that earlier records can be archived.

    Returns that record's number, 0 if there is none. Raises as :func:`write_checkpoints`.
    """
    seq = await last_seq_at(journal, before_ns - 1)
    archived = await journal.archived()
    if seq > archived.seq:
        await _write_up_to(seq, journal, load, None, None)
    return seq


async def _reader_after(
    seq: int, fold: Fold, journal: JournalStore, state: SignedState, archive: Path | None
) -> ChainReader:
    """A reader of the records that ``fold`` lacks, the fold of a checkpoint at record ``seq``. The
    rest of an archived beginning is folded from its files."""
    archived = await journal.archived()
    if seq >= archived.seq:
        return await ChainReader.after_checkpoint(journal, seq, state.roots)
    if archive is None:
        raise ArchivedError(archived_message(archived.seq))
    async for record in archived_records(journal, archive):
        fold.apply(record)
    return ChainReader.after(journal, await state.archive_end(journal), state.roots)


async def _write_up_to(
    last_seq: int,
    journal: JournalStore,
    load: PluginLoader,
    every: int | None,
    archive: Path | None,
) -> list[int]:
    state, (fold, last) = await signed_state(journal), await nearest(journal, load, last_seq)
    if last == last_seq:
        return []
    reader = await _reader_after(last, fold, journal, state, archive)
    # Statements are made only when everything is verified, and checkpoints may be large.
    with TemporaryFile() as file:
        made: list[tuple[int, int]] = []
        seq = last

        def keep() -> None:
            made.append((seq, file.write(checkpoint_with_versions(fold.state))))

        async for stored in reader.read():
            if stored.seq > last_seq:
                break
            apply_stored(fold, stored)
            seq = stored.seq
            due = every is not None and seq - last >= every
            if due and not missing_plugin(fold.state.profiles):
                keep()
                last = seq
        reason = missing_plugin(fold.state.profiles) if seq > last else ""
        if seq > last and not reason:
            keep()
        async for _ in reader.ranges():
            pass
        state.roots.check_complete(reader.head)
        file.seek(0)
        for number, size in made:
            await journal.save_checkpoint(number, file.read(size))
    if reason:
        raise IncompleteStateError(
            f"cannot save a checkpoint at record {seq}: a plugin of one of its profiles is"
            f" missing; install it, or run this command where it is installed: {reason}"
        )
    return [number for number, _ in made]


def redundant_checkpoints(seqs: Sequence[int]) -> list[int]:
    """The checkpoints at these sorted records that can be deleted.

    Gaps grow with the distance from the end, so a record is at most 1/64 of its distance from the
    end away from a checkpoint. The first stays, because the records before it may be archived, and
    so does the last.
    """
    dropped: list[int] = []
    before = seqs[0] if seqs else 0
    for seq, after in pairwise(seqs[1:]):
        if (after - before) * SPACING <= seqs[-1] - before:
            dropped.append(seq)
        else:
            before = seq
    return dropped


async def prune_checkpoints(journal: JournalStore) -> list[int]:
    """Delete the :func:`redundant_checkpoints`. Returns the numbers of their records.

    Raises :class:`~asched.journal.errors.JournalError`.
    """
    dropped = redundant_checkpoints([mark.seq for mark in await journal.checkpoint_marks()])
    if dropped:
        await journal.drop_checkpoints(dropped)
    return dropped
