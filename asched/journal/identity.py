"""The identity of a journal: a UUID that comes with its first claim and never changes.

It follows from the hash of the first writer, so it is stored in the journal, protected by the chain
of writers, and the same in copies and restored archives.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID, uuid5

from asched.journal.store import JournalStore

_NAMESPACE: Final = UUID("5e2f7f0c-6d0b-4c38-9c1e-0b6a6f6f3f0a")


async def journal_id(journal: JournalStore) -> str:
    """The identity; empty if the journal was never claimed.

    Raises :class:`~asched.journal.errors.JournalError`.
    """
    writers = await journal.writers()
    return str(uuid5(_NAMESPACE, writers[0].hash)) if writers else ""
