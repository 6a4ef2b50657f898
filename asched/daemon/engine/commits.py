"""Appending to the journal, for as long as it takes.

Opening the journal of a daemon, for as long as it takes.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import structlog

from asched.daemon.engine.clock import EngineClock
from asched.daemon.telemetry.metrics import Metrics
from asched.journal.errors import (
    JournalBusyError,
    JournalFullError,
    JournalIOError,
    JournalUnreachableError,
)
from asched.journal.opening import open_journal, shown
from asched.journal.store import JournalStore
from asched.kube.timing import Backoff, Clock, RetryPolicy
from asched.model.quantity import NS_PER_S
from asched.state.records import AnyRecord

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Commits:
    """The one place of a daemon that appends."""

    def __init__(
        self,
        journal: JournalStore,
        clock: EngineClock,
        metrics: Metrics,
        *,
        next_seq: int,
        retry_s: float = 1.0,
        patience_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """``next_seq`` is where the journal goes on; ``retry_s`` the pause before an append that
        failed is tried again, ``patience_s`` how long one may be tried in all, as it is then."""
        self.error = ""
        """Why the journal cannot be written now; empty while it can."""
        self.failures = 0
        """Appends that had to be repeated."""
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._next_seq = next_seq
        self._retry_s = retry_s
        self._patience_s = patience_s

    def unwritable(self) -> str:
        """The same as what a check says of it."""
        return f"the journal cannot be written: {self.error}" if self.error else ""

    async def append(self, batch: Sequence[AnyRecord], now_ns: int) -> int:
        """Append the batch; it is durable on return. Returns the number of its last record.

        A full or unreachable disk holds everything up and loses nothing: the same batch is tried
        until it is stored, and it cannot be stored twice. Raises a
        :class:`~asched.journal.errors.JournalError` where the journal cannot be gone on with, and the
        last one when patience ends.
        """
        began_ns = self._clock.monotonic_ns()
        while True:
            try:
                appended = await self._journal.append(
                    batch, written_at_ns=now_ns, first_seq=self._next_seq
                )
            except (JournalFullError, JournalBusyError, JournalIOError) as error:
                self._report_error(str(error))
                if self._since_s(began_ns) > self._patience_s():
                    raise
                await self._clock.sleep(self._retry_s)
                continue
            break
        if self.error:
            self.error = ""
            log.info("journal: written again")
        self._next_seq = appended.last_seq + 1
        self._metrics.engine.appended(len(batch), appended.last_seq, self._since_s(began_ns))
        return appended.last_seq

    def _since_s(self, began_ns: int) -> float:
        return (self._clock.monotonic_ns() - began_ns) / NS_PER_S

    def _report_error(self, error: str) -> None:
        """Of a journal that cannot be written: once for each new reason."""
        self.failures += 1
        self._metrics.engine.append_failed()
        if error != self.error:
            self.error = error
            log.error("journal: nothing is decided until it can be written", error=error)


_RETRY = RetryPolicy(initial_s=0.2, max_s=5.0)
_COMPLAIN_EVERY_S = 60.0


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
