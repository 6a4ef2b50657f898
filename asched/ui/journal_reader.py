"""Answers questions about an open journal that is followed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import structlog

from asched.audit.entries import PodTimeline
from asched.audit.lookup import AuditError, fold_before
from asched.audit.timeline import time_of
from asched.audit.timeline_log import joined
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.state.cluster import ClusterState
from asched.ui.cluster import ClusterPicture, NodeDetail, node_of, picture_of
from asched.ui.columns import OutsideError
from asched.ui.errors import BeforeBeginningError
from asched.ui.follower import FollowerSettings, IndexFollower
from asched.ui.fork_host import WorkerSettings
from asched.ui.index_file import DAMAGE
from asched.ui.journal_progress import Moment
from asched.ui.plugin_history import PluginFacts
from asched.ui.workers import Workers

T = TypeVar("T")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class JournalReader(IndexFollower):
    """Reads one open journal. All methods run in the thread that owns it."""

    def __init__(
        self,
        store: JournalStore,
        settings: FollowerSettings,
        workers: WorkerSettings,
        progress: Callable[[int], None],
    ) -> None:
        """``progress`` receives the records that are followed and verified; it may raise."""
        super().__init__(store, settings, progress)
        self._workers = Workers(workers)

    def use_states(self, path: Path) -> None:
        self._workers.use_states(path)

    def close(self) -> None:
        """Save the index and end the worker processes."""
        super().close()
        self._workers.stop()

    def start_workers(self) -> None:
        """Start the worker processes, so that the first question does not wait for it."""
        self._workers.start()

    async def seq_of(self, moment: Moment) -> int:
        """The last record of the moment.

        Raises :class:`AuditError` for a moment before the beginning or after the end, and what the
        journal's problem is for the newest record of a journal that cannot be followed.
        """
        archived = (await self.store.archived()).seq
        if moment.at_ns is not None:
            seq = await last_seq_at(self.store, moment.at_ns)
        elif moment.seq is not None:
            seq = moment.seq
        elif self.problem is not None:
            raise self.problem
        else:
            return self.indexed_seq or (await self.store.head()).seq
        if seq <= archived or seq < 1:
            raise BeforeBeginningError(await self._beginning(archived))
        head = (await self.store.head()).seq
        if seq > head:
            raise AuditError(f"there is no record {seq}: the journal ends at record {head}")
        self._marks.furthest_seq = max(self._marks.furthest_seq, seq)
        return seq

    async def _beginning(self, archived_seq: int) -> str:
        async for stored in self.store.read(archived_seq, archived_seq + 1):
            at = f"{time_of(stored.written_at_ns):%Y-%m-%dT%H:%M:%SZ}"
            archived = f"; records 1 to {archived_seq} are in the archive" if archived_seq else ""
            return f"the journal begins at {at} with record {stored.seq}{archived}"
        return "the journal has no records"

    async def on_state(self, seq: int, compute: Callable[[ClusterState], T]) -> T:
        """The result of ``compute`` on the state after a record.

        ``compute`` must not change or keep the state. A past state is folded in this thread:
        :meth:`at` lets other queries go on. Raises :class:`JournalError`, ProfileError.
        """
        if self.live is not None and self.live.seq == seq:
            return compute(self.live.fold.state)
        return compute((await fold_before(self.store, self.load, seq + 1)).state)

    async def at(self, seq: int, function: Callable[..., T], *arguments: Any) -> T:
        """``function(state, seq, *arguments)`` on the state after a record, a past one in a worker
        process.

        The function is one of a module that declares what it returns, a type that msgspec knows;
        the arguments can be hashed and pickled. Raises as :meth:`on_state`.
        """
        if self.live is not None and self.live.seq == seq:
            return function(self.live.fold.state, seq, *arguments)
        return await self._workers.at(seq, function, *arguments)

    async def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """``function(journal, *arguments)`` in a worker process; the journal is a
        :class:`~asched.ui.past.PastStates`. Functions and arguments are as those of :meth:`at`."""
        return await self._workers.call(function, *arguments)

    # -- the past, from the index -----------------------------------------------------------------

    def picture(self, seq: int) -> ClusterPicture | None:
        """The nodes after an indexed record, without a fold; None if the index does not have it."""
        indexes = self.indexes
        return self._indexed(
            seq,
            lambda: picture_of(
                indexes.cluster.at(seq), indexes.facts.table(seq), indexes.devices.at(seq), seq
            ),
        )

    def node(self, seq: int, name: str) -> NodeDetail | None:
        """A node with its pods, as :meth:`picture`. Raises AuditError for an unknown node."""
        indexes = self.indexes
        return self._indexed(
            seq,
            lambda: node_of(
                indexes.cluster.at(seq),
                indexes.facts.table(seq),
                indexes.devices.of_node(name, seq),
                indexes.placements.at(name, seq),
                seq,
                name,
            ),
        )

    def plugins(self, seq: int) -> tuple[PluginFacts, int] | None:
        """Profiles and circuits, and the time, as :meth:`picture`."""
        indexes = self.indexes

        def found() -> tuple[PluginFacts, int]:
            facts = indexes.plugins.at(seq)
            if facts is None:
                raise OutsideError
            return facts, indexes.cluster.date_ns(seq)

        return self._indexed(seq, found)

    def date_ns(self, seq: int) -> int | None:
        """The time of a record's turn, as :meth:`picture`."""
        return self._indexed(seq, lambda: self.indexes.cluster.date_ns(seq))

    def timelines(self, key: str, seq: int) -> list[PodTimeline] | None:
        """The timelines of a key up to a record, as :meth:`picture`."""
        file = self._file

        def found() -> list[PodTimeline]:
            stored = [] if file is None else file.history.timeline(key, seq)
            return joined(key, [*stored, *self.indexes.timeline_parts(key)], seq)

        return self._indexed(seq, found)

    def _indexed(self, seq: int, answer: Callable[[], T]) -> T | None:
        """None if the index does not have the record, or is damaged."""
        if seq > self.indexed_seq or not self._stored:
            return None
        try:
            return answer()
        except OutsideError:
            return None
        except DAMAGE as error:
            log.warning("index is damaged", seq=seq, reason=str(error))
            return None
