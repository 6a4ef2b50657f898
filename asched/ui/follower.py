"""Follows an open journal: a fold, and the index that it extends record by record."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from asched.audit.history import ALWAYS, fold_for
from asched.audit.lookup import fold_before
from asched.audit.timeline import time_of
from asched.config.registry import PluginRegistry
from asched.journal.chain import GENESIS, Batch
from asched.journal.checkpoints import RestoredFold, apply_stored, folding, nearest
from asched.journal.statistics import journal_id
from asched.journal.store import JournalStore
from asched.pricing.prices import Prices
from asched.state.checkpoint import checkpoint_of
from asched.state.cluster import ClusterState
from asched.state.plugins import missing_plugin
from asched.ui.columns import CHUNK_RECORDS, QUEUES, ClusterHistory, OutsideError
from asched.ui.errors import StartingError
from asched.ui.index import JournalIndex
from asched.ui.index_file import DAMAGE, IndexFile, IndexMark, StorageError, open_index
from asched.ui.indexes import Indexes
from asched.ui.journal_progress import JournalHead, JournalProgress, one_line
from asched.ui.logs import FollowedLogs
from asched.ui.memory import return_free_memory
from asched.ui.series import queue_lengths
from asched.ui.state_file import EVERY_RECORDS, StateFile, with_states
from asched.ui.verifying import JournalVerifier

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_TRIM_EVERY_RECORDS: Final = 4096
_LONG_RECORDS: Final = 100_000
"""A catch-up that leaves much memory behind."""


@dataclass
class _Marks:
    """Numbers of records."""

    saved_seq: int = 0
    """The last one in the stored index."""
    state_seq: int = 0
    """That of the newest kept state."""
    furthest_seq: int = 0
    """The newest one that a query asked for."""


@dataclass(frozen=True)
class FollowerSettings:
    """How a journal is followed, and what answers need besides it."""

    registry: PluginRegistry
    index_dir: Path | None = None
    """Where the index is kept between starts."""
    verify_all: bool = False
    """Whether the first verification reads all records."""
    prices: Prices | None = None
    """Adds costs to answers."""


class IndexFollower:
    """The newest state of one open journal, and its index."""

    def __init__(
        self, store: JournalStore, settings: FollowerSettings, progress: Callable[[int], None]
    ) -> None:
        """``progress`` receives the records that are followed and verified; it may raise."""
        self.store = store
        self.registry = settings.registry
        self.load = settings.registry.load
        self.prices = settings.prices
        self.verifier = JournalVerifier(store, progress, verify_all=settings.verify_all)
        self._progress = progress
        self._index_dir = settings.index_dir
        self._file: IndexFile | None = None
        self._states: StateFile | None = None
        self.indexes = Indexes()
        self.indexed_seq = 0
        """The last record of the index."""
        self.live: RestoredFold | None = None
        """The fold that follows the journal; None until it is where the index is."""
        self.problem: Exception | None = None
        self.settled = asyncio.Event()
        """Set once there is a live fold or a problem."""
        self.first_at: datetime | None = None
        self.archived_seq = 0
        self.head = GENESIS
        self._caught_up = False
        self._stored = True
        """Whether everything indexed could be saved."""
        self._marks = _Marks()

    @property
    def index(self) -> JournalIndex:
        return self.indexes.names

    @property
    def logs(self) -> FollowedLogs:
        return self.indexes.logs

    @property
    def cluster(self) -> ClusterHistory:
        return self.indexes.cluster

    async def catch_up(self) -> bool:
        """Fold and index new records. Returns whether there were any.

        Raises :class:`JournalError`, ProfileError.
        """
        if self.live is None:
            self.live = await self._begin()
            self.settled.set()
        self.head = await self.store.head()
        before = self.live.seq
        if self.head.seq <= before:
            self._caught_up = True
            return False
        async for stored in self.store.read(before, self.head.seq):
            if self.first_at is None:
                self.first_at = time_of(stored.written_at_ns)
            with folding(stored):
                self.indexes.before(stored.seq, stored.record)
            apply_stored(self.live.fold, stored)
            self.indexes.after(stored.seq, stored.record, self.live.fold.state)
            self.indexed_seq = stored.seq
            self.live = RestoredFold(self.live.fold, stored.seq)
            if stored.seq - self._marks.saved_seq >= CHUNK_RECORDS:
                self.save()
            if stored.seq - self._marks.state_seq >= EVERY_RECORDS:
                self._keep_state(stored.seq, self.live.fold.state)
            if stored.seq % _TRIM_EVERY_RECORDS == 0:
                self.live.fold.state.nodes.trim_pod_log()
            self._progress(stored.seq)
        if self.live.seq - before >= _LONG_RECORDS:
            await self._restore_all()
        self._caught_up = True
        return True

    async def _restore_all(self) -> None:
        """Replace state and index after a long catch-up by restored ones, which are compact: most
        parts stay in stored form until a question needs them."""
        self.save()
        file = self._file
        if file is None or not self._stored:
            return
        self.settled.clear()
        # Both are freed first, so that the new ones use their memory.
        self.live, self.indexes = None, Indexes()
        # A state refers to itself. The collector would find it only after millions of allocations.
        gc.collect()
        return_free_memory()
        try:
            self.indexes, _ = file.load()
        except DAMAGE:
            # The damage is found again, and the index is built again.
            self.indexed_seq, self._marks = 0, _Marks(furthest_seq=self._marks.furthest_seq)
        self.live = await self._begin()
        self.settled.set()

    async def _open_states(self, file: IndexFile) -> None:
        """The checkpoints of the index. Those of other records are deleted before a worker can use
        them."""
        path = file.states
        if path is None or self._states is not None:
            return
        try:
            self._states = StateFile(path)
            self._states.drop_after(self.indexed_seq)
        except (OSError, *DAMAGE) as error:
            log.warning("states not saved", file=str(path), reason=str(error))
            self._states = None
            return
        self.use_states(path)

    def use_states(self, path: Path) -> None:
        """The checkpoints of the index are in this file from now on."""

    def _keep_state(self, seq: int, state: ClusterState) -> None:
        """Save a checkpoint of the index, if the state does not lack a plugin."""
        self._marks.state_seq = seq
        if self._states is None or missing_plugin(state.profiles):
            return
        try:
            self._states.add(seq, checkpoint_of(state))
        except StorageError as error:
            log.warning("state not saved", seq=seq, reason=str(error))

    async def _begin(self) -> RestoredFold:
        """The fold of what is indexed."""
        store = self.store
        self.archived_seq, self.head = (await store.archived()).seq, await store.head()
        if self._file is None:
            self._file = open_index(self._index_dir, await journal_id(store))
            self._file.prices = self.prices
        self.verifier.use(self._file)
        seq = self.indexed_seq or await self._restore_index(self._file)
        await self._open_states(self._file)
        if seq:
            kept = None if self._states is None else self._states.path
            fold, begin = await nearest(with_states(store, kept), self.load, seq)
            self._marks.state_seq = begin
            if begin < seq:
                async for stored in store.read(begin, seq):
                    apply_stored(fold, stored)
                    self._progress(stored.seq)
            self.indexes.resume(seq, fold)
            return RestoredFold(fold, seq)
        fold, seq = await fold_for(store, self.load, ALWAYS)
        self.indexes = self._file.empty()
        self.indexes.begin(seq, fold)
        self.indexed_seq = seq
        return RestoredFold(fold, seq)

    async def _restore_index(self, file: IndexFile) -> int:
        """Take over what is stored. Returns its last record; 0 if nothing fits this journal."""
        try:
            mark = file.mark()
            if not mark.seq:
                file.clear()
                return 0
            if not await self._holds(mark):
                raise ValueError("it was built from other records")
            loaded, first_at_ns = file.load()
        except DAMAGE as error:
            log.warning("index discarded", journal=file.journal_id, reason=str(error))
            file.clear()
            return 0
        self.indexes = loaded
        self.first_at = time_of(first_at_ns) if first_at_ns else None
        self.indexed_seq = self._marks.saved_seq = mark.seq
        self._progress(mark.seq)
        return mark.seq

    async def _holds(self, mark: IndexMark) -> bool:
        """Whether the journal continues what an index was built from."""
        archived = await self.store.archived()
        if archived.seq > mark.seq:
            return False
        if archived.batch == mark.batch:
            return archived.hash == mark.hash
        async for found in self.store.batch_ranges(mark.batch - 1):
            batch = Batch(*found.batches[0])
            return (batch.batch, batch.hash) == (mark.batch, mark.hash)
        return False

    def save(self) -> None:
        """Keep the index up to the followed record."""
        live, file = self.live, self._file
        if live is None or file is None or live.seq == self._marks.saved_seq:
            return
        self.index.series.measure(live.fold.state)
        self.cluster.end(live.seq, live.fold.state)
        first_at_ns = 0 if self.first_at is None else round(self.first_at.timestamp() * 1e6) * 1000
        mark = IndexMark(live.seq, self.head.batch, self.head.hash)
        try:
            file.save(self.indexes, mark, first_at_ns)
        except StorageError as error:
            self._stored = False
            log.warning("index not saved", journal=file.journal_id, reason=str(error))
        self._marks.saved_seq = live.seq

    def close(self) -> None:
        """Save the index."""
        self.save()
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._states is not None:
            self._states.close()
            self._states = None

    @property
    def namespaces(self) -> frozenset[str] | None:
        """All namespaces that an answer can name; None while they are not known."""
        if not self._caught_up or self._marks.furthest_seq > self.indexed_seq:
            return None
        return self.index.namespaces

    def following(self) -> RestoredFold:
        """The newest state and its record. Raises :class:`StartingError` before there is one, and
        what the journal's problem is."""
        self.check_indexed()
        if self.live is None:
            raise self.problem or StartingError("the journal is being opened")
        return self.live

    def check_indexed(self) -> None:
        """Raises what the journal's problem is, if that left no record to answer from."""
        if self.problem is not None and not self.indexed_seq:
            raise self.problem

    async def newest(self) -> RestoredFold:
        """As :meth:`following`, after waiting until the state is folded up to a restored index."""
        if self.indexed_seq:
            await self.settled.wait()
        return self.following()

    async def discard_partial_record(self) -> None:
        """Restore the state before a record that contradicts it."""
        if self.live is not None and self.live.seq > self.archived_seq:
            seq = self.live.seq
            self.live = RestoredFold(await fold_before(self.store, self.load, seq + 1), seq)
            self.indexes.resume(seq, self.live.fold)

    @property
    def progress(self) -> JournalProgress:
        head, problem = JournalHead(*self.head), one_line(self.problem)
        if not self.indexed_seq:
            return JournalProgress(head, problem=problem)
        date_ns, queues = self._newest()
        return JournalProgress(
            head=head,
            indexed_seq=self.indexed_seq,
            at=time_of(date_ns) if date_ns else None,
            first_seq=self.archived_seq + 1,
            first_at=self.first_at,
            counts=dict(self.index.totals),
            queues=queues,
            verified_at=None if self.verifier.report is None else self.verifier.report.verified_at,
            problem=problem,
        )

    def _newest(self) -> tuple[int, dict[str, int]]:
        """The date and the queues after the last indexed record."""
        if self.live is not None:
            return self.live.fold.state.date_ns, queue_lengths(self.live.fold.state)
        try:
            columns = self.cluster.at(self.indexed_seq)
        except (OutsideError, *DAMAGE):
            return 0, {}
        return columns.date_ns, dict(zip(QUEUES, columns.queues, strict=True))
