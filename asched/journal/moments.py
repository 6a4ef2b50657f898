"""Where in a journal a moment lies."""

from __future__ import annotations

from asched.journal.store import JournalStore


async def last_seq_at(journal: JournalStore, at_ns: int) -> int:
    """The last record that was written at that time or before; 0 where there is none, and the last
    archived one where it lies in the archive.

    Looked for by halves, as batches are written in order of time. Raises
    :class:`~asched.journal.errors.JournalError`.
    """
    low, high = (await journal.archived()).seq, (await journal.head()).seq
    while low < high:
        middle = (low + high + 1) // 2
        async for stored in journal.read(middle - 1, middle):
            if stored.written_at_ns <= at_ns:
                low = middle
            else:
                high = middle - 1
    return low
