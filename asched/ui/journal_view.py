"""The open journal of the browser interface: follows it, and answers queries in a thread.

One thread with an event loop of its own owns the journal, the fold that follows it and the index.
So the server stays responsive while a query folds records, and no query sees a half-applied record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import anyio
import msgspec
import structlog
from anyio.from_thread import BlockingPortal, start_blocking_portal

from asched.audit.history import ALWAYS, fold_for
from asched.audit.lookup import AuditError, fold_before
from asched.audit.timeline import time_of
from asched.config.registry import PluginRegistry
from asched.framework.runtime.profile import ProfileError
from asched.journal.chain import GENESIS, Batch
from asched.journal.checkpoints import RestoredFold, apply_stored, nearest
from asched.journal.errors import (
    ArchivedError,
    JournalBusyError,
    JournalCorruptError,
    JournalError,
    JournalOpenError,
    JournalUnreachableError,
    JournalUrlError,
    RecordError,
)
from asched.journal.opening import journal_file, open_journal, redacted
from asched.journal.statistics import (
    JournalStatistics,
    journal_id,
    last_seq_at,
    statistics,
)
from asched.journal.store import JournalStore
from asched.journal.verification import verify_journal
from asched.model.node import Node
from asched.proof.keys import NO_KEYS, JournalKeys
from asched.state.checkpoint import checkpoint_of
from asched.state.cluster import ClusterState
from asched.state.plugins import missing_plugin
from asched.state.records import AnyRecord, ObjectDeleted, ObjectObserved
from asched.ui.cluster import ClusterPicture, picture_of
from asched.ui.columns import CHUNK_RECORDS, QUEUES, ClusterHistory, OutsideError
from asched.ui.errors import BeforeBeginningError, BusyError, StartingError
from asched.ui.index import JournalIndex
from asched.ui.index_file import DAMAGE, Indexes, IndexFile, IndexMark, StorageError, open_index
from asched.ui.logs import FollowedLogs
from asched.ui.node_facts import FactsHistory
from asched.ui.past import PastStates
from asched.ui.series import queue_lengths
from asched.ui.state_file import EVERY_RECORDS, StateFile, with_states
from asched.ui.visibility import Sealed
from asched.ui.workers import Workers, WorkerSettings

T = TypeVar("T")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

POLL_S: Final = 0.25
PUBLISH_S: Final = 0.5
"""How often the progress of a long catch-up is published."""
RETRY_S: Final = 2.0
VERIFY_EVERY_S: Final = 600.0
ANSWER_TIMEOUT_S: Final = 60.0
MAX_QUERIES: Final = 32
_PERMANENT: Final = (ArchivedError, JournalCorruptError, RecordError, ProfileError)
"""What following the journal cannot get past."""


class Moment(NamedTuple):
    """A point of the history: a record, a time, or the newest record."""

    seq: int | None = None
    at_ns: int | None = None


NOW: Final = Moment()


class JournalHead(msgspec.Struct, frozen=True, rename="camel"):
    """The end of the journal."""

    seq: int = 0
    """The newest record."""
    batch: int = 0
    hash: str = ""


class JournalProgress(msgspec.Struct, frozen=True, rename="camel"):
    """How far the journal is followed."""

    head: JournalHead = JournalHead()
    indexed_seq: int = 0
    at: datetime | None = None
    """Time of the last indexed turn."""
    first_seq: int = 1
    """The first record that is not archived."""
    first_at: datetime | None = None
    counts: dict[str, int] = {}
    """What happened since the start of the index: bound, rejected ..."""
    queues: dict[str, int] = {}
    problem: str = ""
    """Why the journal cannot be followed, in one line; empty if it can."""


class VerificationReport(msgspec.Struct, frozen=True, rename="camel"):
    """The last verification by this process."""

    verified_at: datetime
    seq: int = 0
    """Everything up to this record is verified; 0 if the verification failed."""
    head: str = ""
    records: int = 0
    archived_seq: int = 0
    """Records up to this one are in the archive and were not verified."""
    signed_seq: int = 0
    trusted: bool = False
    problem: str = ""
    """Why it failed; empty if it did not."""
    statistics: JournalStatistics | None = None


@dataclass
class _Marks:
    """Numbers of records."""

    saved_seq: int = 0
    """The last one in the stored index."""
    state_seq: int = 0
    """That of the newest kept state."""
    furthest_seq: int = 0
    """The newest one that a query asked for."""


class JournalReader(PastStates):
    """Reads one open journal. All methods run in the thread that owns it."""

    def __init__(
        self,
        store: JournalStore,
        settings: WorkerSettings,
        progress: Callable[[int], None],
        index_dir: Path | None = None,
    ) -> None:
        """``progress`` receives the records that are followed and verified; it may raise.

        ``index_dir`` is where the index is kept between starts.
        """
        super().__init__(store, settings.registry)
        self._progress = progress
        self._index_dir = index_dir
        self._workers = Workers(settings)
        self._file: IndexFile | None = None
        self._states: StateFile | None = None
        self.index = JournalIndex()
        self.logs = FollowedLogs()
        self.cluster = ClusterHistory()
        self.facts = FactsHistory()
        self.indexed_seq = 0
        """The last record of the four."""
        self.live: RestoredFold | None = None
        """The fold that follows the journal; None until it is where the index is."""
        self.problem: Exception | None = None
        self.settled = asyncio.Event()
        """Set once there is a live fold or a problem."""
        self.verification: VerificationReport | None = None
        self.first_at: datetime | None = None
        self.archived_seq = 0
        self.head = GENESIS
        self._caught_up = False
        self._marks = _Marks()

    # -- following --------------------------------------------------------------------------------

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
            apply_stored(self.live.fold, stored)
            self._index(stored.seq, stored.record, self.live.fold.state)
            self.live = RestoredFold(self.live.fold, stored.seq)
            if stored.seq - self._marks.saved_seq >= CHUNK_RECORDS:
                self.save()
            if stored.seq - self._marks.state_seq >= EVERY_RECORDS:
                self._keep_state(stored.seq, self.live.fold.state)
            self._progress(stored.seq)
        self._caught_up = True
        return True

    def _index(self, seq: int, record: AnyRecord, state: ClusterState) -> None:
        match record:
            case ObjectObserved(object=Node() as node):
                self.facts.observe(seq, node)
            case ObjectDeleted(kind="Node"):
                self.facts.delete(seq, record.key)
        self.index.apply(seq, record, state)
        self.logs.apply(seq, record, state)
        self.cluster.apply(seq, state)
        self.indexed_seq = seq

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
            log.warning("states not kept", file=str(path), reason=str(error))
            self._states = None
            return
        self._workers.use_states(path)

    def _keep_state(self, seq: int, state: ClusterState) -> None:
        """Save a checkpoint of the index, if the state does not lack a plugin."""
        self._marks.state_seq = seq
        if self._states is None or missing_plugin(state.profiles):
            return
        try:
            self._states.add(seq, checkpoint_of(state))
        except StorageError as error:
            log.warning("state not kept", seq=seq, reason=str(error))

    async def _begin(self) -> RestoredFold:
        """The fold of what is indexed."""
        store = self.store
        self.archived_seq, self.head = (await store.archived()).seq, await store.head()
        if self._file is None:
            self._file = open_index(self._index_dir, await journal_id(store))
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
            self.cluster.begin(seq, fold.state)
            return RestoredFold(fold, seq)
        fold, seq = await fold_for(store, self.load, ALWAYS)
        self.index.begin(seq, fold.state)
        self.facts.begin(seq, fold.state)
        self.cluster = ClusterHistory(self._file.load_chunk)
        self.cluster.begin(seq, fold.state)
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
        self.index, self.cluster, self.facts, self.logs = loaded
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
        if self.index.shadow.is_shadow:
            mark = (
                IndexMark()
            )  # comparisons of a shadow are not stored: the next start builds again
        try:
            file.save(Indexes(self.index, self.cluster, self.facts, self.logs), mark, first_at_ns)
        except StorageError as error:
            log.warning("index not saved", journal=file.journal_id, reason=str(error))
        self._marks.saved_seq = live.seq

    def close(self) -> None:
        """Save the index and end the worker processes."""
        self.save()
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._states is not None:
            self._states.close()
            self._states = None
        self._workers.stop()

    @property
    def namespaces(self) -> frozenset[str] | None:
        """All namespaces that an answer can name; None while they are not known."""
        if not self._caught_up or self._marks.furthest_seq > self.indexed_seq:
            return None
        return self.index.namespaces

    def following(self) -> RestoredFold:
        """The newest state and its record. Raises :class:`StartingError` before there is one, and
        what the journal's problem is."""
        if self.live is None:
            raise self.problem or StartingError("the journal is being opened")
        return self.live

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
            self.cluster.begin(seq, self.live.fold.state)

    async def verify(self) -> None:
        """Verify and measure the journal, and keep the result.

        Raises :class:`JournalError` if the journal cannot be read.
        """
        at = time_of(time.time_ns())
        try:
            found = await verify_journal(self.store, skip_archive=True, progress=self._progress)
        except JournalCorruptError as error:
            self.verification = VerificationReport(at, problem=str(error))
            return
        self.verification = VerificationReport(
            verified_at=at,
            seq=found.head.seq,
            head=str(found.head),
            records=found.records,
            archived_seq=found.archived_seq,
            signed_seq=found.signed_seq,
            trusted=found.trusted,
            statistics=await statistics(self.store, self._progress),
        )

    @property
    def progress(self) -> JournalProgress:
        head, problem = JournalHead(*self.head), _line(self.problem)
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

    # -- the past ---------------------------------------------------------------------------------

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
        return await super().on_state(seq, compute)

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
        :class:`PastStates`. Functions and arguments are as those of :meth:`at`."""
        return await self._workers.call(function, *arguments)

    def picture(self, seq: int) -> ClusterPicture | None:
        """The nodes after an indexed record, without a fold; None if the index does not have it."""
        try:
            return picture_of(self.cluster.at(seq), self.facts.table(seq), seq)
        except OutsideError:
            return None
        except DAMAGE as error:
            log.warning("index is damaged", seq=seq, reason=str(error))
            return None


Query = Callable[[JournalReader], Awaitable[T]]


class JournalView:
    """The journal as the server sees it. Made by :func:`open_view`."""

    def __init__(self, settings: WorkerSettings, index_dir: Path | None = None) -> None:
        self.name = redacted(settings.url)
        self.registry = settings.registry
        self.progress = JournalProgress()
        self._settings = settings
        self._index_dir = index_dir
        self._published_s = 0.0
        self._caught_up = False
        """Whether the state of the newest record was known once."""
        self._reader: JournalReader | None = None
        self._problem: Exception | None = None
        self.portal: BlockingPortal | None = None
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._stopping = anyio.Event()
        self._queries = 0

    @property
    def namespaces(self) -> frozenset[str] | None:
        """All namespaces that an answer can name; None while they are not known."""
        reader = self._reader
        return None if reader is None else reader.namespaces

    async def ask(self, query: Query[T]) -> Sealed[T]:
        """The answer of ``query``, which runs in the thread that owns the journal.

        Raises what the query raises; :class:`BusyError`, :class:`StartingError`, TimeoutError.
        """
        if self._queries >= MAX_QUERIES:
            raise BusyError(f"{self._queries} queries are in progress")
        if self.portal is None:
            raise StartingError("asched ui is stopping")
        self._queries += 1
        # Not cancelled after the timeout: a cancelled call would leave a connection that cannot be
        # closed. It counts until it ends.
        answer = asyncio.wrap_future(self.portal.start_task_soon(self._run, query))
        answer.add_done_callback(self._ended)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await asyncio.shield(answer)

    def _ended(self, answer: asyncio.Future[Any]) -> None:
        self._queries -= 1
        if not answer.cancelled():
            answer.exception()  # it was reported, or its request timed out

    async def changed(self) -> JournalProgress:
        """The progress after the next change."""
        await self._changed.wait()
        return self.progress

    async def indexed(self, seq: int) -> None:
        """Wait until the journal is followed up to a record."""
        while self.progress.indexed_seq < seq or not self._caught_up:
            await self.changed()

    # -- in the thread ----------------------------------------------------------------------------

    async def _run(self, query: Query[T]) -> Sealed[T]:
        reader = self._reader
        if reader is None:
            raise self._problem or StartingError("the journal is being opened")
        answer = await query(reader)
        return Sealed(answer, reader.namespaces)

    async def follow(self) -> None:
        """Open the journal and follow it until :meth:`stop`."""
        while not self._stopping.is_set():
            try:
                async with open_journal(
                    self._settings.url, read_only=True, keys=self._settings.keys
                ) as store:
                    reader = JournalReader(
                        store, self._settings, self._report_progress, self._index_dir
                    )
                    self._reader, self._problem, self._caught_up = reader, None, False
                    try:
                        await self._follow(reader)
                    finally:
                        reader.close()
            except _StoppedError:
                return
            except JournalError as error:
                self._report(error)
            finally:
                self._reader = None
            await self._pause(RETRY_S)

    def stop(self) -> None:
        """End :meth:`follow` after its current database call.

        A cancelled call would leave a connection that cannot be closed.
        """
        self._stopping.set()

    def _report_progress(self, _: int) -> None:
        """Raises :class:`_StoppedError` after :meth:`stop`."""
        if self._stopping.is_set():
            raise _StoppedError
        now_s = time.monotonic()
        if self._reader is not None and now_s >= self._published_s + PUBLISH_S:
            self._published_s = now_s
            self._publish(self._reader.progress)

    async def _pause(self, pause_s: float) -> None:
        with anyio.move_on_after(pause_s):
            await self._stopping.wait()

    async def _follow(self, reader: JournalReader) -> None:
        """Follow an open journal. Raises :class:`JournalOpenError` if its file is replaced."""
        file = _FileIdentity.of(journal_file(self._settings.url))
        verify_at_s = 0.0
        while not self._stopping.is_set():
            pause_s = POLL_S
            try:
                file.check()
                grown = await reader.catch_up()
                recovered, reader.problem = reader.problem is not None, None
                if grown or recovered or not (self._caught_up and self.progress.first_at):
                    self._caught_up = True
                    self._publish(reader.progress)
                verified = reader.verification
                outdated = verified is None or verified.seq != reader.head.seq
                if outdated and time.monotonic() >= verify_at_s:
                    verify_at_s = time.monotonic() + VERIFY_EVERY_S
                    await reader.verify()
                    self._publish(reader.progress)
            except (JournalReplaced, JournalBusyError):
                raise  # a file that was opened as immutable is opened again
            except (JournalError, ProfileError) as error:
                reader.problem = error
                reader.settled.set()
                self._report(error, reader.progress)
                if isinstance(error, _PERMANENT):
                    await reader.discard_partial_record()
                    await self._stopping.wait()
                pause_s = RETRY_S
            await self._pause(pause_s)

    def _report(self, error: Exception, progress: JournalProgress | None = None) -> None:
        if str(error) != str(self._problem):
            log.warning("journal cannot be followed", error=str(error))
        self._problem = error
        known = progress or self.progress
        self._publish(msgspec.structs.replace(known, problem=_line(error)))

    def _publish(self, progress: JournalProgress) -> None:
        self._loop.call_soon_threadsafe(self._show, progress)

    def _show(self, progress: JournalProgress) -> None:
        self.progress = progress
        self._changed.set()
        self._changed = asyncio.Event()


@asynccontextmanager
async def open_view(
    url: str,
    registry: PluginRegistry,
    keys: JournalKeys = NO_KEYS,
    index_dir: Path | None = None,
) -> AsyncIterator[JournalView]:
    """A view of the journal at ``url``, which is followed until the end of the block.

    The index is kept in ``index_dir`` between starts; without a folder, it is built again.

    A journal that cannot be read at present is opened later; until then queries raise the reason.
    """
    view = JournalView(WorkerSettings(url, registry, keys), index_dir)
    portals = start_blocking_portal(backend_options={"use_uvloop": False})
    portal = await asyncio.to_thread(portals.__enter__)
    view.portal = portal
    following = portal.start_task_soon(view.follow)
    try:
        yield view
    finally:
        view.portal = None
        portal.start_task_soon(_call, view.stop)
        await asyncio.wrap_future(following)
        await asyncio.to_thread(portals.__exit__, None, None, None)


async def check_journal(url: str, keys: JournalKeys = NO_KEYS) -> None:
    """Raises :class:`JournalError` if no journal can be at ``url``: an error of the user."""
    try:
        async with open_journal(url, read_only=True, keys=keys):
            pass
    except JournalUnreachableError:
        return  # opened as soon as it can be reached
    except (JournalUrlError, JournalOpenError):
        raise
    except JournalError:
        return  # the pages say what it is


class _StoppedError(Exception):
    """The view stops."""


async def _call(function: Callable[[], None]) -> None:
    function()


class JournalReplaced(JournalOpenError):  # noqa: N818  an event rather than an error
    """The file of the journal was removed or replaced."""


class _FileIdentity(NamedTuple):
    """The file that was opened; empty for a database server."""

    path: Path | None
    identity: tuple[int, int] | None

    @classmethod
    def of(cls, path: Path | None) -> _FileIdentity:
        return cls(path, None if path is None else _identity(path))

    def check(self) -> None:
        """Raises :class:`JournalReplaced`."""
        if self.path is None:
            return
        now = _identity(self.path)
        if now is None:
            raise JournalReplaced(f"cannot read {self.path}: the file was removed or moved")
        if now != self.identity:
            raise JournalReplaced(f"{self.path} was replaced by another file, which is opened now")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _line(error: Exception | None) -> str:
    return "" if error is None else " ".join(str(error).split())
