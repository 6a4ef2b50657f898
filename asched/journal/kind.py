"""Whether a journal is a scheduler's or a shadow's."""

from __future__ import annotations

from asched.journal.errors import JournalKindError
from asched.journal.store import JournalStore
from asched.state.records import EngineStarted


async def require_kind(journal: JournalStore, *, shadow: bool) -> None:
    """Raise :class:`JournalKindError` if a shadow's journal is used for scheduling or vice versa.

    The decisions in a shadow's journal are another scheduler's, those in a scheduler's journal are
    to be carried out. An empty journal is of either kind. One with archived records is a
    scheduler's, because ``asched journal archive`` rejects the others.
    """
    archived = (await journal.archived()).seq > 0
    if archived and shadow:
        raise JournalKindError("a scheduler wrote the journal; give another one")
    if archived:
        return
    async for stored in journal.read():
        if isinstance(stored.record, EngineStarted):
            if stored.record.shadow and not shadow:
                raise JournalKindError("a shadow wrote the journal; give another one")
            if shadow and not stored.record.shadow:
                raise JournalKindError("a scheduler wrote the journal; give another one")
            return
