"""A journal, or a period of it, as the input of planning."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeVar

import anyio

from asched.audit.replay import first_replayable
from asched.audit.times import TimeTextError, parse_time_ns
from asched.journal.opening import is_shared, open_trusted, redacted, sqlite_path
from asched.journal.store import JournalStore
from asched.model.quantity import NS_PER_S
from asched.planning.errors import PlanningError
from asched.planning.workloads import JournalPeriod
from asched.proof.keys import JournalKeys, trusted_keys

T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_DAY = 24 * 3600 * NS_PER_S


class History(NamedTuple):
    """A journal and a period. :func:`open` returns one, :meth:`between` limits it."""

    url: str
    since_ns: int = 0
    until_ns: int | None = None
    """Inclusive; None for the end of the journal."""

    def between(
        self, since: str | datetime | None = None, until: str | datetime | None = None
    ) -> History:
        """The part from ``since`` to ``until``: times such as ``2026-10-01`` or
        ``2026-10-01T12:00:00Z`` (UTC), or durations before now such as ``24h``.

        Raises PlanningError for other text.
        """
        return History(
            self.url,
            self.since_ns if since is None else _time_ns(since),
            self.until_ns if until is None else _time_ns(until),
        )

    def query(self, ask: Callable[[JournalStore], Awaitable[T]]) -> T:
        """The answer of ``ask`` to the open journal.

        Runs an event loop in a thread of its own, so that it also works where one runs already,
        as in a notebook. Raises JournalError and what ``ask`` raises.
        """

        async def opened() -> T:
            async with open_trusted(self.url, JournalKeys(None, trusted_keys())) as journal:
                return await ask(journal)

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(anyio.run, opened).result()

    @property
    def worker_url(self) -> str:
        """The URL with an absolute path: workers have other working directories."""
        if is_shared(self.url):
            return self.url
        return str(Path(sqlite_path(self.url)).resolve())

    def source(self, days: float | None = None) -> JournalPeriod:
        """The period up to the present end of the journal; its last ``days`` at most.

        Raises PlanningError for an empty journal and a period that is archived, and JournalError.
        """
        return self.query(lambda journal: self._planned(journal, days))

    def first_written_ns(self) -> int:
        """When the first record was written that is not archived. Raises JournalError."""

        return self.query(_first_written_ns)

    async def _planned(self, journal: JournalStore, days: float | None) -> JournalPeriod:
        head = await journal.head()
        written_ns = 0
        async for stored in journal.read(max(head.seq - 1, (await journal.archived()).seq)):
            written_ns = stored.written_at_ns
        if not written_ns:
            raise PlanningError(f"the journal {redacted(self.url)} has no records")
        until_ns = written_ns if self.until_ns is None else min(self.until_ns, written_ns)
        if until_ns < self.since_ns:
            raise PlanningError("the period has no records: it begins after the journal's end")
        if until_ns < await _first_written_ns(journal):
            raise PlanningError("the period has no records: it ends before the journal's begin")
        since_ns = self.since_ns
        if days is not None:
            since_ns = max(since_ns, until_ns - int(days * _NS_PER_DAY))
        await self._check_begin(journal, since_ns)
        return JournalPeriod(self.worker_url, head, since_ns, until_ns)

    async def _check_begin(self, journal: JournalStore, since_ns: int) -> None:
        """Raises PlanningError if the state at the begin of the period is archived."""
        archived = (await journal.archived()).seq
        if not archived:
            return
        first = await first_replayable(journal)
        async for stored in journal.read(first - 1, first):
            if since_ns < stored.written_at_ns:
                begin = _EPOCH + timedelta(seconds=-(-stored.written_at_ns // NS_PER_S))
                raise PlanningError(
                    f"records 1 to {archived} of {redacted(self.url)} are archived; let the period"
                    f" begin at {begin:%Y-%m-%dT%H:%M:%SZ} or later, or restore them (asched"
                    " journal restore)"
                )


async def _first_written_ns(journal: JournalStore) -> int:
    archived = (await journal.archived()).seq
    async for stored in journal.read(archived, archived + 1):
        return stored.written_at_ns
    return 0


def open_history(url: str | Path) -> History:
    """The history in the journal at ``url``: a path, or a URL (``docs/reference/journal.md``)."""
    return History(str(url))


def _time_ns(given: str | datetime) -> int:
    if isinstance(given, datetime):
        at = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        return (at - _EPOCH) // timedelta(microseconds=1) * 1000
    try:
        return parse_time_ns(given)
    except TimeTextError as error:
        raise PlanningError(str(error)) from None
