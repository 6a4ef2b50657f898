"""The open journal of the browser interface: follows it, and answers queries in a thread.

One thread with an event loop of its own owns the journal, the fold that follows it and the index.
So the server stays responsive while a query folds records, and no query sees a half-applied record.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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
from asched.journal.chain import GENESIS
from asched.journal.checkpoints import RestoredFold, apply_stored
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
from asched.journal.statistics import JournalStatistics, last_seq_at, statistics
from asched.journal.store import JournalStore
from asched.journal.verification import verify_journal
from asched.proof.keys import NO_KEYS, JournalKeys
from asched.state.cluster import ClusterState
from asched.ui.errors import BeforeBeginningError, BusyError, StartingError
from asched.ui.index import JournalIndex
from asched.ui.logs import FollowedLogs
from asched.ui.series import queue_lengths
from asched.ui.visibility import Sealed

T = TypeVar("T")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

POLL_S: Final = 0.25
RETRY_S: Final = 2.0
VERIFY_EVERY_S: Final = 600.0
ANSWER_TIMEOUT_S: Final = 60.0
MAX_QUERIES: Final = 32
_KEPT_FOLDS: Final = 3
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


class JournalReader:
    """Reads one open journal. All methods run in the thread that owns it."""

    def __init__(
        self, store: JournalStore, registry: PluginRegistry, progress: Callable[[int], None]
    ) -> None:
        """``progress`` receives the records that are followed and verified; it may raise."""
        self.store = store
        self._progress = progress
        self.registry = registry
        self.load = registry.load
        self.index = JournalIndex()
        self.logs = FollowedLogs()
        self.live: RestoredFold | None = None
        """The fold that follows the journal."""
        self.problem: Exception | None = None
        self.verification: VerificationReport | None = None
        self.first_at: datetime | None = None
        self.archived_seq = 0
        self.head = GENESIS
        self._caught_up = False
        self._furthest_seq = 0
        """The newest record that a query asked for."""
        self._folds: OrderedDict[int, RestoredFold] = OrderedDict()

    # -- following --------------------------------------------------------------------------------

    async def catch_up(self) -> bool:
        """Fold and index new records. Returns whether there were any.

        Raises :class:`JournalError`, ProfileError.
        """
        if self.live is None:
            self.archived_seq = (await self.store.archived()).seq
            self.live = await fold_for(self.store, self.load, ALWAYS)
            self.index.begin(self.live.seq, self.live.fold.state)
        self.head = await self.store.head()
        before = self.live.seq
        if self.head.seq <= before:
            self._caught_up = True
            return False
        async for stored in self.store.read(before, self.head.seq):
            if self.first_at is None:
                self.first_at = time_of(stored.written_at_ns)
            apply_stored(self.live.fold, stored)
            self.index.apply(stored.seq, stored.record, self.live.fold.state)
            self.logs.apply(stored.seq, stored.record, self.live.fold.state)
            self.live = RestoredFold(self.live.fold, stored.seq)
            self._progress(stored.seq)
        self._caught_up = True
        return True

    @property
    def namespaces(self) -> frozenset[str] | None:
        """All namespaces that an answer can name; None while they are not known."""
        if not self._caught_up or self.live is None or self._furthest_seq > self.live.seq:
            return None
        return self.index.namespaces

    def following(self) -> RestoredFold:
        """The newest state and its record. Raises :class:`StartingError` before there is one, and
        what the journal's problem is."""
        if self.live is None:
            raise self.problem or StartingError("the journal is being opened")
        return self.live

    async def discard_partial_record(self) -> None:
        """Restore the state before a record that contradicts it."""
        if self.live is not None and self.live.seq > self.archived_seq:
            seq = self.live.seq
            self.live = RestoredFold(await fold_before(self.store, self.load, seq + 1), seq)

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
        live = self.live
        if live is None:
            return JournalProgress(JournalHead(*self.head), problem=_line(self.problem))
        state = live.fold.state
        return JournalProgress(
            head=JournalHead(*self.head),
            indexed_seq=live.seq,
            at=time_of(state.date_ns) if state.date_ns else None,
            first_seq=self.archived_seq + 1,
            first_at=self.first_at,
            counts=dict(self.index.totals),
            queues=queue_lengths(state),
            problem=_line(self.problem),
        )

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
            return (await self.store.head()).seq if self.live is None else self.live.seq
        if seq <= archived or seq < 1:
            raise BeforeBeginningError(await self._beginning(archived))
        head = (await self.store.head()).seq
        if seq > head:
            raise AuditError(f"there is no record {seq}: the journal ends at record {head}")
        self._furthest_seq = max(self._furthest_seq, seq)
        return seq

    async def _beginning(self, archived_seq: int) -> str:
        async for stored in self.store.read(archived_seq, archived_seq + 1):
            at = f"{time_of(stored.written_at_ns):%Y-%m-%dT%H:%M:%SZ}"
            archived = f"; records 1 to {archived_seq} are in the archive" if archived_seq else ""
            return f"the journal begins at {at} with record {stored.seq}{archived}"
        return "the journal has no records"

    async def on_state(self, seq: int, compute: Callable[[ClusterState], T]) -> T:
        """The result of ``compute`` on the state after a record.

        ``compute`` must not change or keep the state. Raises :class:`JournalError`, ProfileError.
        """
        if self.live is not None and self.live.seq == seq:
            return compute(self.live.fold.state)
        start = await self._nearest(seq)
        fold, begin = start
        if begin < seq:
            async for stored in self.store.read(begin, seq):
                apply_stored(fold, stored)
        result = compute(fold.state)
        self._folds[seq] = RestoredFold(fold, seq)
        while len(self._folds) > _KEPT_FOLDS:
            self._folds.popitem(last=False)
        return result

    async def _nearest(self, seq: int) -> RestoredFold:
        """The nearest kept fold, which is removed, or that of a checkpoint."""
        kept = max((known for known in self._folds if known <= seq), default=-1)
        marks = await self.store.checkpoint_marks()
        if kept >= max((mark.seq for mark in marks if mark.seq <= seq), default=0):
            taken = self._folds.pop(kept, None)
            if taken is not None:
                return taken
        return RestoredFold(await fold_before(self.store, self.load, seq + 1), seq)


Query = Callable[[JournalReader], Awaitable[T]]


class JournalView:
    """The journal as the server sees it. Made by :func:`open_view`."""

    def __init__(self, url: str, registry: PluginRegistry, keys: JournalKeys = NO_KEYS) -> None:
        self.name = redacted(url)
        self.registry = registry
        self.progress = JournalProgress()
        self._url = url
        self._keys = keys
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
        while self.progress.indexed_seq < seq:
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
                async with open_journal(self._url, read_only=True, keys=self._keys) as store:
                    self._reader = JournalReader(store, self.registry, self._check_stop)
                    self._problem = None
                    await self._follow(self._reader)
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

    def _check_stop(self, _: int) -> None:
        """Raises :class:`_StoppedError` after :meth:`stop`."""
        if self._stopping.is_set():
            raise _StoppedError

    async def _pause(self, pause_s: float) -> None:
        with anyio.move_on_after(pause_s):
            await self._stopping.wait()

    async def _follow(self, reader: JournalReader) -> None:
        """Follow an open journal. Raises :class:`JournalOpenError` if its file is replaced."""
        file = _FileIdentity.of(journal_file(self._url))
        verify_at_s = 0.0
        while not self._stopping.is_set():
            pause_s = POLL_S
            try:
                file.check()
                grown = await reader.catch_up()
                recovered, reader.problem = reader.problem is not None, None
                if grown or recovered or not self.progress.first_at:
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
    url: str, registry: PluginRegistry, keys: JournalKeys = NO_KEYS
) -> AsyncIterator[JournalView]:
    """A view of the journal at ``url``, which is followed until the end of the block.

    A journal that cannot be read at present is opened later; until then queries raise the reason.
    """
    view = JournalView(url, registry, keys)
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
