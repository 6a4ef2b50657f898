"""Notices while the engine is idle that its journal is no longer its own, or the clock was set.

An append would notice, too, but an idle daemon appends nothing: it would appear healthy next to the
daemon that replaced it.
"""

from __future__ import annotations

from typing import Final, Protocol

from asched.journal.errors import (
    JournalBusyError,
    JournalError,
    JournalFullError,
    JournalIOError,
)
from asched.journal.store import JournalStore
from asched.kube.timing import Clock

INTERVAL_S: Final = 2.0

_TRANSIENT: Final = (JournalBusyError, JournalFullError, JournalIOError)


class IdleLoop(Protocol):
    """What is to be told to an idle loop of turns."""

    def fail(self, error: JournalError) -> None:
        """Nothing can be committed any longer."""

    def check_clock(self) -> None:
        """Notice a step of the wall clock."""


async def watch_journal(journal: JournalStore, clock: Clock, loop: IdleLoop) -> None:
    """Check journal and clock periodically. Ends ``loop`` if the journal was claimed by another
    process, removed or replaced. Appends report an unavailable journal."""
    while True:
        await clock.sleep(INTERVAL_S)
        loop.check_clock()
        try:
            await journal.check_writer()
        except _TRANSIENT:
            continue
        except JournalError as error:
            loop.fail(error)
            return
