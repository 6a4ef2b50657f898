"""Opening the journal and appending to it, with retries while it is unavailable."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import structlog

from asched.daemon.telemetry.metrics import Metrics
from asched.journal.errors import (
    JournalBusyError,
    JournalFullError,
    JournalIOError,
    JournalUnreachableError,
)
from asched.journal.opening import open_journal, redacted
from asched.journal.store import JournalStore
from asched.kube.timing import Backoff, Clock, RetryPolicy
from asched.model.quantity import NS_PER_S
from asched.state.records import AnyRecord

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Commits:
    """Appends to the journal. The only writer of a daemon."""

    def __init__(
        self,
        journal: JournalStore,
        clock: Clock,
        metrics: Metrics,
        *,
        next_seq: int,
        retry_s: float = 1.0,
        timeout_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """``next_seq``: number of the next record. ``retry_s``: delay between attempts.
        ``timeout_s``: how long one append is attempted in all, evaluated after each failure."""
        self.error = ""
        """Why the journal cannot be written; empty while it can."""
        self.failures = 0
        """Number of failed attempts."""
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._next_seq = next_seq
        self._retry_s = retry_s
        self._timeout_s = timeout_s

    def unwritable(self) -> str:
        """:attr:`error` as the text of a failed check."""
        return f"the journal cannot be written: {self.error}" if self.error else ""

    async def append(self, batch: Sequence[AnyRecord], now_ns: int) -> int:
        """Append the batch and return the number of its last record; the batch is durable then.

        A full or unreachable disk delays the append, which is idempotent. Raises a
        :class:`~asched.journal.errors.JournalError` if the journal is unusable, and the last error
        after the timeout.
        """
        began_ns = self._clock.monotonic_ns()
        while True:
            try:
                appended = await self._journal.append(
                    batch, written_at_ns=now_ns, first_seq=self._next_seq
                )
            except (JournalFullError, JournalBusyError, JournalIOError) as error:
                self._report_error(str(error))
                if self._since_s(began_ns) > self._timeout_s():
                    raise
                await self._clock.sleep(self._retry_s)
                continue
            break
        if self.error:
            self.error = ""
            log.info("journal writable again")
        self._next_seq = appended.last_seq + 1
        self._metrics.engine.appended(len(batch), appended.last_seq, self._since_s(began_ns))
        return appended.last_seq

    def _since_s(self, began_ns: int) -> float:
        return (self._clock.monotonic_ns() - began_ns) / NS_PER_S

    def _report_error(self, error: str) -> None:
        """Log each new reason once."""
        self.failures += 1
        self._metrics.engine.append_failed()
        if error != self.error:
            self.error = error
            log.error("journal not writable, no decisions until it is", error=error)


_RETRY = RetryPolicy(initial_s=0.2, max_s=5.0)
_LOG_INTERVAL_S = 60.0


@asynccontextmanager
async def journal_when_reachable(
    url: str, clock: Clock, random: Random
) -> AsyncIterator[JournalStore]:
    """Open the journal at ``url``, and close it at the end of the block.

    Waits for a database that does not answer or cannot be written during a failover: after a power
    failure everything starts at once. Raises any other
    :class:`~asched.journal.errors.JournalError`.
    """
    async with AsyncExitStack() as stack:
        yield await _opened(stack, url, clock, Backoff(_RETRY, random))


async def _opened(stack: AsyncExitStack, url: str, clock: Clock, backoff: Backoff) -> JournalStore:
    logged_at_s = -_LOG_INTERVAL_S
    while True:
        try:
            return await stack.enter_async_context(open_journal(url, daemon=True))
        except JournalUnreachableError as error:
            now_s = clock.monotonic_s()
            if now_s - logged_at_s >= _LOG_INTERVAL_S:
                logged_at_s = now_s
                log.warning(
                    "journal not reachable, retrying", journal=redacted(url), error=str(error)
                )
        await clock.sleep(backoff.next_s())
