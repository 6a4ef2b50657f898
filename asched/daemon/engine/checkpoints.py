"""Checkpoints written by the daemon, beside its work.

A turn of the engine only takes a picture of the state (some milliseconds for ten thousand pods).
Encoding it, a little at a time, and writing it down happen while the engine goes on. A checkpoint is
worth time, not truth: one that cannot be written is told of in the log and given up.
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
from asched.state.absent import why_incomplete
from asched.state.checkpoint_encoding import encode, encoding, sealed
from asched.state.checkpoint_image import Image, image_of_state
from asched.state.cluster import ClusterState

_BETWEEN_STEPS_S = 0.001
"""Of a step's length, so that a checkpoint takes half of an event loop that has nothing else to do."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Committed = Callable[[int], None]
"""Told the number of the last record, whenever the journal holds just what the state was made of."""


class _Due(NamedTuple):
    seq: int
    image: Image


class Checkpoints:
    """Keeps the state in the journal now and then."""

    def __init__(
        self,
        journal: JournalStore,
        cluster: ClusterState,
        machine: Runtime,
        *,
        every: int,
        last_seq: int,
    ) -> None:
        """``every`` is the number of records between two checkpoints, 0 for none at all;
        ``last_seq`` is where the state was kept last."""
        self._journal = journal
        self._cluster = cluster
        self._machine = machine
        self._every = every
        self._last_seq = last_seq
        self._seq = last_seq
        self._due: _Due | None = None
        self._woken = anyio.Event()

    def committed(self, seq: int) -> None:
        """The journal holds the records up to ``seq``, and the state is made of these. While one
        checkpoint is being written the next one waits."""
        self._seq = seq
        if not self._every or self._due is not None or seq - self._last_seq < self._every:
            return
        # Of a large cluster a checkpoint is large: all of them together stay smaller than the records.
        if seq - self._last_seq >= self._cluster.nodes.cluster_size + len(self._cluster.pods):
            self._due = self._picture()
            self._last_seq = seq
            if self._due is not None:
                self._woken.set()

    async def run(self) -> None:
        """Write what falls due, until cancelled."""
        while True:
            await self._woken.wait()
            self._woken = anyio.Event()
            if self._due is not None:
                await self._save(self._due.seq, await self._encoded(self._due.image))
                self._due = None

    async def write_last(self) -> None:
        """At a stop: keep the state as it is, so that the next start folds nothing."""
        if self._every and self._seq > self._last_seq:
            due = self._picture()
            if due is not None:
                await self._save(due.seq, await self._machine.run_in_thread(partial(encode, due.image)))

    def _picture(self) -> _Due | None:
        """The state as it is; None where a plugin is missing, because who has it makes another one
        of the same records."""
        reason = why_incomplete(self._cluster.profiles)
        if reason:
            log.warning("no checkpoint is written", record=self._seq, reason=reason)
            return None
        return _Due(self._seq, image_of_state(self._cluster))

    async def _encoded(self, image: Image) -> bytes:
        steps = encoding(image)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return await self._machine.run_in_thread(partial(sealed, end.value))
            await self._machine.clock.sleep(_BETWEEN_STEPS_S)

    async def _save(self, seq: int, blob: bytes) -> None:
        try:
            await self._journal.save_checkpoint(seq, blob)
            await prune_checkpoints(self._journal)
        except JournalError as error:
            log.warning("no checkpoint could be written", record=seq, error=str(error))
        else:
            log.debug("checkpoint written", record=seq, bytes=len(blob))
