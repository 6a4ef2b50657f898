"""Checkpoints in a journal: the nearest one opens the state at any record without folding it all."""

from __future__ import annotations

from typing import NamedTuple

import structlog

from asched.framework.profile import PluginLoader
from asched.journal.store import JournalStore
from asched.state.checkpoint import CheckpointError, checkpoint_of, restore
from asched.state.cluster import ClusterState
from asched.state.fold import Fold

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


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
    journal: JournalStore, load: PluginLoader, *, every: int | None = None
) -> list[int]:
    """Keep the state at the journal's head, and every so many records on the way there from the
    latest checkpoint. Returns the numbers of the records at which it was kept.

    Raises :class:`~asched.journal.errors.JournalError`, and FoldError for a journal that contradicts
    itself.
    """
    head = await journal.head()
    fold, begin = await nearest(journal, load, head.seq)
    kept: list[int] = []
    seq = last = begin
    async for stored in journal.read(begin, head.seq):
        fold.apply(stored.record)
        seq = stored.seq
        if every is not None and seq - last >= every:
            await journal.save_checkpoint(seq, checkpoint_of(fold.state))
            kept.append(seq)
            last = seq
    if seq > last:
        await journal.save_checkpoint(seq, checkpoint_of(fold.state))
        kept.append(seq)
    return kept
