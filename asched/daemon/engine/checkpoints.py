"""Periodic checkpoints of the state.

A turn of the engine only takes a snapshot (some milliseconds for ten thousand pods). Encoding and
writing happen between later turns, in small steps. A failed checkpoint is logged and dropped: it
would only save time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import anyio
import structlog

from asched.daemon.engine.runtime import Runtime
from asched.journal.checkpoints import prune_checkpoints
from asched.journal.errors import JournalError
from asched.journal.store import JournalStore
from asched.state.checkpoint import compress, encode
from asched.state.cluster import ClusterState
from asched.state.plugins import missing_plugin
from asched.state.stored_form import Steps, run

_STEP_DELAY_S = 0.001
"""As long as a step, so that encoding takes half of an otherwise idle event loop."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Committed = Callable[[int], None]
"""Called with the number of the last record whenever the journal holds all folded records."""


class _Due(NamedTuple):
    seq: int
    content: Steps[list[bytes]]
    """Of the state at that record; see :func:`encode`."""


class Checkpoints:
    """Writes checkpoints to the journal while the engine runs."""

    def __init__(
        self,
        journal: JournalStore,
        cluster: ClusterState,
        runtime: Runtime,
        *,
        every: int,
        last_seq: int,
    ) -> None:
        """``every``: records between two checkpoints, 0 for none. ``last_seq``: record of the
        latest checkpoint."""
        self._journal = journal
        self._cluster = cluster
        self._runtime = runtime
        self._every = every
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
                await self._save(self._due.seq, await self._encode(self._due.content))
                self._due = None

    async def write_last(self) -> None:
        """Write a checkpoint of a stopping daemon, so that the next start folds nothing."""
        if self._every and self._seq > self._last_seq:
            due = self._snapshot()
            if due is not None:
                encoded = await self._runtime.run_in_thread(lambda: compress(run(due.content)))
                await self._save(due.seq, encoded)

    def _snapshot(self) -> _Due | None:
        """The state. None if a plugin is missing: with it the same records lead to another
        state."""
        reason = missing_plugin(self._cluster.profiles)
        if reason:
            log.warning("checkpoint skipped", record=self._seq, reason=reason)
            return None
        return _Due(self._seq, encode(self._cluster))

    async def _encode(self, steps: Steps[list[bytes]]) -> bytes:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return await self._runtime.run_in_thread(partial(compress, end.value))
            await self._runtime.clock.sleep(_STEP_DELAY_S)

    async def _save(self, seq: int, blob: bytes) -> None:
        try:
            await self._journal.save_checkpoint(seq, blob)
            await prune_checkpoints(self._journal)
        except JournalError as error:
            log.warning("checkpoint not written", record=seq, error=str(error))
        else:
            log.debug("checkpoint written", record=seq, bytes=len(blob))
