"""Checkpoints in a journal: the nearest one opens the state at any record without folding it all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from asched.framework.runtime.profile import PluginLoader
from asched.journal.archive import archived_records
from asched.journal.errors import (
    ArchivedError,
    IncompleteStateError,
    archived_message,
    incomplete_message,
)
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.state.absent import why_incomplete
from asched.state.checkpoint import CheckpointError, checkpoint_of, restore
from asched.state.cluster import ClusterState
from asched.state.fold import Fold

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

SPACING: Final = 64
"""Two checkpoints may be as far apart as a sixty-fourth of what was recorded since the first of them."""


class Opened(NamedTuple):
    """A fold of the records up to ``seq``."""

    fold: Fold
    seq: int


async def nearest(
    journal: JournalStore, load: PluginLoader, at_or_before_seq: int | None = None
) -> Opened:
    """The fold kept by the latest usable checkpoint, not beyond that record if one is given; an
    empty fold where there is none.

    One that this asched cannot read is passed over with a line in the log. Raises
    :class:`~asched.journal.errors.JournalError`.
    """
    while at_or_before_seq is None or at_or_before_seq > 0:
        found = await journal.load_checkpoint(at_or_before_seq)
        if found is None:
            break
        try:
            return Opened(restore(found.blob, load), found.seq)
        except CheckpointError as error:
            log.warning("a checkpoint is passed over", record=found.seq, reason=str(error))
        at_or_before_seq = found.seq - 1
    return Opened(Fold(ClusterState(), load), 0)


async def write_checkpoints(
    journal: JournalStore,
    load: PluginLoader,
    *,
    every: int | None = None,
    archive: Path | None = None,
) -> list[int]:
    """Keep the state at the journal's head, and every so many records on the way there from the
    latest usable checkpoint. Returns the numbers of the records at which it was kept.

    Where no checkpoint is usable and the beginning of the journal was archived, it is folded from
    the files in the folder ``archive``; then every ``every`` records counts from where the journal
    begins now. On the way there, none is written while a profile's plugin is missing here: the
    state would not be that of who has it.

    Raises :class:`~asched.journal.errors.IncompleteStateError` where that is so at the head, any
    other :class:`~asched.journal.errors.JournalError`, and FoldError for a journal that contradicts
    itself.
    """
    return await _write_up_to((await journal.head()).seq, journal, load, every, archive)


async def keep_boundary(journal: JournalStore, load: PluginLoader, before_ns: int) -> int:
    """Keep the state after the last record that was written before that time, so that all before
    it can be archived. Returns that record's number, 0 where there is none.

    Raises as :func:`write_checkpoints`.
    """
    seq = await last_seq_at(journal, before_ns - 1)
    archived = await journal.archived()
    if seq > archived.seq:
        await _write_up_to(seq, journal, load, None, None)
    return seq


async def _write_up_to(
    last_seq: int,
    journal: JournalStore,
    load: PluginLoader,
    every: int | None,
    archive: Path | None,
) -> list[int]:
    fold, begin = await nearest(journal, load, last_seq)
    last, archived = begin, await journal.archived()
    if begin < archived.seq:
        if archive is None:
            raise ArchivedError(archived_message(archived.seq))
        async for record in archived_records(journal, archive):
            fold.apply(record)
        begin = archived.seq
    kept: list[int] = []
    seq = begin
    async for stored in journal.read(begin, last_seq):
        fold.apply(stored.record)
        seq = stored.seq
        due = every is not None and seq - last >= every
        if due and not why_incomplete(fold.state.profiles):
            await journal.save_checkpoint(seq, checkpoint_of(fold.state))
            kept.append(seq)
            last = seq
    if seq > last:
        reason = why_incomplete(fold.state.profiles)
        if reason:
            raise IncompleteStateError(incomplete_message(seq, reason))
        await journal.save_checkpoint(seq, checkpoint_of(fold.state))
        kept.append(seq)
    return kept


def superfluous(seqs: Sequence[int]) -> list[int]:
    """Of checkpoints at these records, in order, those that may be deleted.

    They stand the closer together the newer they are: any record is then at most a sixty-fourth of its
    distance from the end away from one. The first stays, because what it was made from may be in the
    archive, and so does the last.
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
    """Delete the checkpoints that are :func:`superfluous`. Returns where they were.

    Raises :class:`~asched.journal.errors.JournalError`.
    """
    dropped = superfluous([mark.seq for mark in await journal.checkpoint_marks()])
    if dropped:
        await journal.drop_checkpoints(dropped)
    return dropped
