"""The journal: everything asched saw and decided, numbered, append-only, chained by hash.

:func:`~asched.journal.opening.open_journal` is the way in;
:class:`~asched.journal.store.JournalStore` is what it gives.
"""

from asched.journal.errors import JournalError
from asched.journal.opening import open_journal
from asched.journal.store import Appended, Checkpoint, JournalStore, StoredRecord

__all__ = ["Appended", "Checkpoint", "JournalError", "JournalStore", "StoredRecord", "open_journal"]
