"""Appends to the journal, and checkpoints of the state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import anyio
import anyio.lowlevel
import structlog

from asched.daemon.process import Runtime
from asched.daemon.telemetry.metrics import Metrics
from asched.journal.checkpoints import prune_checkpoints
from asched.journal.errors import (
    JournalBusyError,
    JournalError,
    JournalFullError,
    JournalIOError,
    reason_of,
)
from asched.journal.store import AppendResult, JournalStore
from asched.kube.timing import Clock
from asched.model.quantity import NS_PER_S
from asched.state.checkpoint import compress, encode
from asched.state.cluster import ClusterState
from asched.state.plugins import missing_plugin
from asched.state.records import AnyRecord
from asched.state.seen_versions import VersionsSection
from asched.state.stored_form import Steps, run

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


_RETRY_S = 1.0


class JournalAppender:
    """Appends to the journal, with retries while it is unavailable. The only writer of a daemon."""

    def __init__(
        self,
        journal: JournalStore,
        clock: Clock,
        metrics: Metrics,
        *,
        next_seq: int,
        timeout_s: Callable[[], float] | None = None,
        appended: Callable[[AppendResult], None] | None = None,
    ) -> None:
        """``next_seq``: number of the next record. ``timeout_s``: how long one append is attempted
        in all, evaluated after each failure; None for no limit. ``appended``: called with each
        stored batch."""
        self.error = ""
        """Why the journal cannot be written; empty while it can."""
        self._reason = ""
        """The same without paths and hosts."""
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._next_seq = next_seq
        self._timeout_s = timeout_s
        self._appended = appended

    @property
    def last_seq(self) -> int:
        """The last stored record."""
        return self._next_seq - 1

    def unwritable(self) -> str:
        """The text of a failed check, without paths and hosts; empty while it can be written."""
        return f"the journal cannot be written: {self._reason}" if self.error else ""

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
                self._report_error(error)
                if self._timeout_s is not None and self._since_s(began_ns) > self._timeout_s():
                    raise
                await self._clock.sleep(_RETRY_S)
                continue
            break
        if self.error:
            self.error = ""
            log.info("journal writable again")
        self._next_seq = appended.last_seq + 1
        if self._appended is not None:
            self._appended(appended)
        self._metrics.engine.appended(len(batch), appended.last_seq, self._since_s(began_ns))
        return appended.last_seq

    def _since_s(self, began_ns: int) -> float:
        return (self._clock.monotonic_ns() - began_ns) / NS_PER_S

    def _report_error(self, error: JournalError) -> None:
        """Log each new reason once."""
        self._metrics.engine.append_failed()
        self._reason = reason_of(error)
        if str(error) != self.error:
            self.error = str(error)
            log.error("journal not writable, decisions paused", error=self.error)


# -- checkpoints ---------------------------------------------------------------------------------

_STEP_DELAY_S = 0.001
"""As long as a step, so that encoding takes half of an otherwise idle event loop."""


class _Due(NamedTuple):
    seq: int
    content: Steps[list[bytes]]
    """Of the state at that record; see :func:`encode`."""
    versions: VersionsSection


class Checkpoints:
    """Writes checkpoints to the journal while the engine runs.

    A turn of the engine only takes a snapshot (some milliseconds for 200,000 pods). Encoding
    and writing happen between later turns, in small steps. A failed checkpoint is logged and
    dropped: it would only save time.
    """

    def __init__(
        self,
        journal: JournalStore,
        cluster: ClusterState,
        runtime: Runtime,
        *,
        every: int,
        last_seq: int,
        sign: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
    ) -> None:
        """``every``: records between two checkpoints, 0 for none. ``last_seq``: record of the
        latest checkpoint. ``sign``: signs the head of the journal."""
        self._journal = journal
        self._cluster = cluster
        self._runtime = runtime
        self._every = every
        self._sign = sign
        self._last_seq = last_seq
        self._seq = last_seq
        self._due: _Due | None = None
        self._woken = anyio.Event()

    def committed(self, seq: int) -> None:
        """The journal holds the records up to ``seq``, and the state was folded from them. At most
        one checkpoint is written at a time."""
        self._seq = seq
        if not self._every or self._due is not None or seq - self._last_seq < self._every:
            return
        # All checkpoints of a large cluster together stay smaller than its records.
        if seq - self._last_seq >= self._cluster.nodes.cluster_size + len(self._cluster.pods):
            self._due = self._snapshot()
            self._last_seq = seq
            if self._due is not None:
                self._woken.set()

    async def run(self) -> None:
        """Write checkpoints until cancelled."""
        while True:
            await self._woken.wait()
            self._woken = anyio.Event()
            if self._due is not None:
                await self._save(self._due.seq, await self._encode(self._due))
                self._due = None

    async def write_last(self) -> None:
        """Write a checkpoint of a stopping daemon, so that the next start folds nothing."""
        if self._every and self._seq > self._last_seq:
            due = self._snapshot()
            if due is not None:
                encoded = await self._runtime.run_in_thread(
                    lambda: compress(run(due.content), due.versions.content())
                )
                await self._save(due.seq, encoded)

    def _snapshot(self) -> _Due | None:
        """None if a plugin is missing: with it the same records lead to another state."""
        reason = missing_plugin(self._cluster.profiles)
        if reason:
            log.warning("checkpoint skipped", record=self._seq, reason=reason)
            return None
        versions = VersionsSection(self._cluster.seen)
        return _Due(self._seq, encode(self._cluster, versions), versions)

    async def _encode(self, due: _Due) -> bytes:
        while True:
            try:
                next(due.content)
            except StopIteration as end:
                versions = due.versions.content()
                return await self._runtime.run_in_thread(partial(compress, end.value, versions))
            await self._runtime.clock.sleep(_STEP_DELAY_S)

    async def _save(self, seq: int, blob: bytes) -> None:
        try:
            # A start compares the journal with the signed head from a checkpoint before it on.
            await self._sign()
            await self._journal.save_checkpoint(seq, blob)
            await prune_checkpoints(self._journal)
        except JournalError as error:
            log.warning("checkpoint not written", record=seq, error=str(error))
        else:
            log.debug("checkpoint written", record=seq, bytes=len(blob))
