"""Opening the journal of a daemon, for as long as it takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import structlog

from asched.journal.errors import JournalUnreachableError
from asched.journal.opening import open_journal, shown
from asched.journal.store import JournalStore
from asched.kube.timing import Backoff, Clock, RetryPolicy

_RETRY = RetryPolicy(initial_s=0.2, max_s=5.0)
_COMPLAIN_EVERY_S = 60.0

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@asynccontextmanager
async def journal_when_reachable(
    url: str, clock: Clock, random: Random
) -> AsyncIterator[JournalStore]:
    """Open the journal at ``url`` once it can be, and close it at the end of the block.

    A database that does not answer yet, or cannot be written during a failover, is waited for, as the
    API server is: after a power failure everything starts at once. Raises
    another :class:`~asched.journal.errors.JournalError` where waiting changes nothing.
    """
    async with AsyncExitStack() as stack:
        yield await _opened(stack, url, clock, Backoff(_RETRY, random))


async def _opened(stack: AsyncExitStack, url: str, clock: Clock, backoff: Backoff) -> JournalStore:
    complained_at_s = -_COMPLAIN_EVERY_S
    while True:
        try:
            return await stack.enter_async_context(open_journal(url))
        except JournalUnreachableError as error:
            now_s = clock.monotonic_s()
            if now_s - complained_at_s >= _COMPLAIN_EVERY_S:
                complained_at_s = now_s
                log.warning(
                    "the journal cannot be opened; trying until it can",
                    journal=shown(url), error=str(error),
                )  # fmt: skip
        await clock.sleep(backoff.next_s())
