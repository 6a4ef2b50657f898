"""The open journal of the browser interface: follows it, and answers queries in a thread.

One thread with an event loop of its own owns the journal, the fold that follows it and the index.
So the server stays responsive while a query folds records, and no query sees a half-applied record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import anyio
import msgspec
import structlog
from anyio.from_thread import BlockingPortal, start_blocking_portal

from asched.audit.visibility import Sealed
from asched.framework.runtime.profile import ProfileError
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
from asched.journal.opening import journal_file, open_journal, open_trusted, redacted
from asched.proof.keys import NO_KEYS, JournalKeys
from asched.ui.errors import BusyError, FollowError, StartingError
from asched.ui.follower import FollowerSettings
from asched.ui.fork_host import WorkerSettings
from asched.ui.journal_progress import JournalProgress, one_line
from asched.ui.journal_reader import JournalReader

T = TypeVar("T")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

POLL_S: Final = 0.25
PUBLISH_S: Final = 0.5
"""How often the progress of a long catch-up is published."""
RETRY_S: Final = 2.0
VERIFY_EVERY_S: Final = 600.0
WORKERS_AFTER_S: Final = 1.0
"""Worker processes are started this long after the journal was opened: pages come first."""
ANSWER_TIMEOUT_S: Final = 60.0
MAX_QUERIES: Final = 32
_PERMANENT: Final = (ArchivedError, JournalCorruptError, RecordError, ProfileError, FollowError)
"""What following the journal cannot get past."""


Query = Callable[[JournalReader], Awaitable[T]]


class JournalView:
    """The journal as the server sees it. Made by :func:`open_view`."""

    def __init__(self, url: str, keys: JournalKeys, settings: FollowerSettings) -> None:
        self.name = redacted(url)
        self.registry = settings.registry
        self.prices = settings.prices
        self.progress = JournalProgress()
        self._settings = settings
        self._opened = WorkerSettings(url, settings.registry, keys)
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
                url, _, keys = self._opened
                async with open_trusted(url, keys) as store:
                    reader = JournalReader(
                        store, self._settings, self._opened, self._report_progress
                    )
                    self._reader, self._problem, self._caught_up = reader, None, False
                    loop = asyncio.get_running_loop()
                    starting = loop.call_later(WORKERS_AFTER_S, reader.start_workers)
                    try:
                        await self._follow(reader)
                    finally:
                        starting.cancel()
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
        file = _FileIdentity.of(journal_file(self._opened.url))
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
                verified = reader.verifier.report
                outdated = verified is None or verified.seq != reader.head.seq
                if outdated and time.monotonic() >= verify_at_s:
                    verify_at_s = time.monotonic() + VERIFY_EVERY_S
                    await reader.verifier.verify()
                    self._publish(reader.progress)
            except (JournalReplaced, JournalBusyError, _StoppedError):
                raise  # a file that was opened as immutable is opened again
            except Exception as error:  # noqa: BLE001  pages show it, and answer about the past
                problem = reader.problem = _shown(error)
                reader.settled.set()
                self._report(problem, reader.progress)
                if isinstance(problem, _PERMANENT):
                    await reader.discard_partial_record()
                    await self._stopping.wait()
                pause_s = RETRY_S
            await self._pause(pause_s)

    def _report(self, error: Exception, progress: JournalProgress | None = None) -> None:
        if str(error) != str(self._problem):
            log.warning("journal cannot be followed", error=str(error))
        self._problem = error
        known = progress or self.progress
        self._publish(msgspec.structs.replace(known, problem=one_line(error)))

    def _publish(self, progress: JournalProgress) -> None:
        self._loop.call_soon_threadsafe(self._show, progress)

    def _show(self, progress: JournalProgress) -> None:
        self.progress = progress
        self._changed.set()
        self._changed = asyncio.Event()


@asynccontextmanager
async def open_view(
    url: str,
    settings: FollowerSettings,
    keys: JournalKeys = NO_KEYS,
) -> AsyncIterator[JournalView]:
    """A view of the journal at ``url``, which is followed until the end of the block.

    A journal that cannot be read at present is opened later; until then queries raise the reason.
    """
    view = JournalView(url, keys, settings)
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


def _shown(error: Exception) -> Exception:
    """The error for pages; a bug is logged."""
    if isinstance(error, JournalError | ProfileError):
        return error
    log.error("following failed", exc_info=error)
    return FollowError("internal error while following the journal")


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
