"""Notices while the engine is idle that its journal is no longer its own.

An append would notice, too, but an idle daemon appends nothing: it would appear healthy next to the
daemon that replaced it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

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


async def watch_journal(
    journal: JournalStore, clock: Clock, fail: Callable[[JournalError], None]
) -> None:
    """Check the journal periodically. Calls ``fail`` once if it was claimed by another process,
    removed or replaced. Appends report an unavailable journal."""
    while True:
        await clock.sleep(INTERVAL_S)
        try:
            await journal.check_writer()
        except _TRANSIENT:
            continue
        except JournalError as error:
            fail(error)
            return
