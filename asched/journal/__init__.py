"""The journal: an append-only, hash-chained log of numbered records.

:func:`~asched.journal.opening.open_journal` opens a
:class:`~asched.journal.store.JournalStore`.
"""

from asched.journal.errors import JournalError
from asched.journal.opening import open_journal
from asched.journal.store import AppendResult, Checkpoint, JournalStore, StoredRecord

__all__ = [
    "AppendResult",
    "Checkpoint",
    "JournalError",
    "JournalStore",
    "StoredRecord",
    "open_journal",
]
