"""A simulation's records, kept in a journal as a daemon would keep them."""

from __future__ import annotations

from asched.cli.errors import BadInput
from asched.journal.store import JournalStore
from asched.sim.virtual.loop import Turn
from asched.state.records import AnyRecord

BATCH = 64
"""Records that are committed together, where a turn does not have more. A batch carries the virtual
time of its last turn, so this is also how finely ``explain --at`` can tell times apart."""


class JournalWriter:
    """Appends turns to a new journal, some at a time."""

    def __init__(self, journal: JournalStore) -> None:
        self._journal = journal
        self._pending: list[AnyRecord] = []
        self._now_ns = 0

    @classmethod
    async def claim(cls, journal: JournalStore, begin_ns: int) -> JournalWriter:
        """Raises BadInput where the journal holds something already."""
        if (await journal.head()).seq:
            raise BadInput("asched: the journal is not empty; a simulation writes a new one")
        await journal.claim("asched simulate", claimed_at_ns=begin_ns)
        return cls(journal)

    async def add(self, turn: Turn) -> None:
        self._pending += turn.records
        self._now_ns = turn.now_ns
        if len(self._pending) >= BATCH:
            await self.flush()

    async def flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, []
            await self._journal.append(pending, written_at_ns=self._now_ns)
