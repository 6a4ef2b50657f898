"""PostgreSQL in trouble in the middle of an append: no room, a failing disk, a server that goes
away.

The faults are raised inside the server, by triggers: while the batch is inserted, while its records
are, and at the commit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from enum import Enum

import anyio
import asyncpg
import pytest
from sqlalchemy import NullPool, insert, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from asched.daemon.engine.journaling import JournalAppender
from asched.daemon.telemetry.metrics import Metrics
from asched.journal import postgres
from asched.journal.chain import seal
from asched.journal.codec import CODEC
from asched.journal.database import READERS
from asched.journal.errors import (
    ConflictError,
    FencedError,
    JournalBusyError,
    JournalError,
    JournalFullError,
    JournalIOError,
)
from asched.journal.opening import open_journal
from asched.journal.schema import JOURNAL_BATCH, JOURNAL_RECORD
from asched.journal.sql import SqlStore
from asched.journal.store import JournalStore
from asched.kube.timing import SystemClock
from tests.journal.conftest import NewDatabase
from tests.journal.samples import turn, verified_head
from tests.journal.test_fencing import until_somebody_waits

TIMEOUT_S = 60.0


class Moment(Enum):
    """The statement at which the fault occurs."""

    BATCH = "BEFORE INSERT ON journal_batch FOR EACH ROW"
    RECORDS = "AFTER INSERT ON journal_record FOR EACH STATEMENT"
    COMMIT = "AFTER INSERT ON journal_batch DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
    CHECKPOINT = "BEFORE INSERT ON journal_checkpoint FOR EACH ROW"


OF_AN_APPEND = (Moment.BATCH, Moment.RECORDS, Moment.COMMIT)


class Faults:
    """Injects faults into a database, and removes them."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)

    async def _execute(self, *statements: str) -> None:
        connection = await asyncpg.connect(
            host=self._url.query["host"], user=self._url.username, database=self._url.database
        )
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def put(self, moment: Moment, what: str) -> None:
        """Have the server run ``what`` at the moment."""
        kind = "CONSTRAINT TRIGGER" if moment is Moment.COMMIT else "TRIGGER"
        await self._execute(
            f"CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$"
            f" BEGIN {what}; RETURN NEW; END $$",
            f"CREATE {kind} zz_fault {moment.value} EXECUTE FUNCTION fault()",
        )

    async def end_sessions(self) -> None:
        """As a restart of the server does."""
        await self._execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    async def take_out(self) -> None:
        await self._execute("DROP FUNCTION IF EXISTS fault() CASCADE")


def raising(sqlstate: str) -> str:
    return f"RAISE EXCEPTION 'no luck' USING ERRCODE = '{sqlstate}'"


KILL = "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(0)"
"""End the server process of the connection, as after a crash or by an administrator."""


@pytest.fixture
async def url(new_postgres_database: NewDatabase) -> str:
    return await new_postgres_database()


@pytest.fixture
async def store(url: str) -> AsyncIterator[JournalStore]:
    async with open_journal(url) as store:
        await store.claim("test", claimed_at_ns=1)
        await store.append(turn(1), written_at_ns=1, first_seq=1)
        yield store


async def until_stored(store: JournalStore, number: int) -> tuple[int, int]:
    """The same append again and again, as a daemon repeats it: idle connections that broke as well
    are found out one by one."""
    first_seq = 3 * number - 2
    with anyio.fail_after(TIMEOUT_S):
        while True:
            try:
                appended = await store.append(
                    turn(number), written_at_ns=number, first_seq=first_seq
                )
                return appended.first_seq, appended.last_seq
            except JournalIOError:
                continue


async def check(store: JournalStore, turns: int) -> None:
    """Each batch is stored once, and chained."""
    expected = [record for number in range(1, turns + 1) for record in turn(number)]
    assert [stored.record async for stored in store.read()] == expected
    assert await verified_head(store) == await store.head()
    assert await store.find_unchained(await store.head()) is None


@pytest.mark.parametrize("moment", OF_AN_APPEND)
@pytest.mark.parametrize(
    ("sqlstate", "error"),
    [
        ("53100", JournalFullError),  # disk_full
        ("53200", JournalFullError),  # out_of_memory
        ("58030", JournalIOError),  # io_error
        ("57014", JournalIOError),  # query_canceled
        ("40001", JournalIOError),  # serialization_failure
        ("55P03", JournalBusyError),  # lock_not_available
    ],
)
async def test_failed_statement_stores_nothing_and_is_repeatable(
    url: str, store: JournalStore, moment: Moment, sqlstate: str, error: type[JournalError]
) -> None:
    faults, head = Faults(url), await store.head()
    await faults.put(moment, raising(sqlstate))
    for _ in range(3):
        with pytest.raises(error, match="no luck"):
            await store.append(turn(2), written_at_ns=2, first_seq=4)
        assert await store.head() == head
    await check(store, 1)
    await faults.take_out()
    assert (await store.append(turn(2), written_at_ns=2, first_seq=4))[:2] == (4, 6)
    await check(store, 2)


@pytest.mark.parametrize("moment", OF_AN_APPEND)
async def test_ended_server_process_is_atomic(
    url: str, store: JournalStore, moment: Moment
) -> None:
    faults = Faults(url)
    await faults.put(moment, KILL)
    with pytest.raises(JournalIOError):
        await store.append(turn(2), written_at_ns=2, first_seq=4)
    await faults.take_out()
    assert await until_stored(store, 2) == (4, 6)
    assert (await store.append(turn(3), written_at_ns=3, first_seq=7))[:2] == (7, 9)
    await check(store, 3)


async def test_statement_on_ending_session_is_an_io_error(
    store: JournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ended the session between two statements, and the connection is still open."""
    original = asyncpg.Connection.copy_records_to_table

    async def ended(*_: object, **__: object) -> None:
        monkeypatch.setattr(asyncpg.Connection, "copy_records_to_table", original)
        raise asyncpg.InternalClientError(
            "cannot switch to state 15; another operation (2) is in progress"
        )

    monkeypatch.setattr(asyncpg.Connection, "copy_records_to_table", ended)
    with pytest.raises(JournalIOError, match="another operation"):
        await store.append(turn(2), written_at_ns=2, first_seq=4)
    appended = await store.append(turn(2), written_at_ns=2, first_seq=4)
    assert (appended.first_seq, appended.last_seq) == (4, 6)
    await check(store, 2)


async def test_idle_writer_is_checked_after_the_server_ended_all_sessions(
    url: str, store: JournalStore
) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(READERS):
            tasks.start_soon(store.check_writer)
    await Faults(url).end_sessions()
    for _ in range(READERS):  # an idle writer finds each of its sessions ended once
        with suppress(JournalIOError):
            await store.check_writer()
    await store.check_writer()
    async with open_journal(url) as successor:
        await successor.claim("successor", claimed_at_ns=2)
        with pytest.raises(FencedError):
            await store.check_writer()


@pytest.mark.parametrize("same", [True, False])
async def test_late_commit_of_first_attempt_is_detected(
    url: str, store: JournalStore, same: bool
) -> None:
    """The server has done everything except the COMMIT when the repetition begins."""
    stored = turn(2 if same else 3)
    sealed = seal(await store.head(), [CODEC.encode(record) for record in stored], 1, 2)

    async def repeat() -> None:
        if same:
            assert (await store.append(turn(2), written_at_ns=2, first_seq=4))[:2] == (4, 6)
            return
        with pytest.raises(ConflictError, match="append at record 4: the journal ends at record 6"):
            await store.append(turn(2), written_at_ns=2, first_seq=4)

    engine = create_async_engine(url, poolclass=NullPool)
    async with anyio.create_task_group() as tasks, engine.begin() as first:
        await first.execute(insert(JOURNAL_BATCH).values(sealed.batch._asdict()))
        await first.execute(insert(JOURNAL_RECORD), [row._asdict() for row in sealed.rows])
        tasks.start_soon(repeat)
        await until_somebody_waits(url)
    assert [found.record async for found in store.read(3)] == stored
    assert (await store.append(turn(4), written_at_ns=4, first_seq=7))[:2] == (7, 9)
    assert await verified_head(store) == await store.head()


async def test_archive_run_survives_lost_session(url: str, store: JournalStore) -> None:
    """The session is idle during a long run, and may be cut off."""
    assert isinstance(store, SqlStore)
    held = "locktype = 'advisory' AND classid = 1634952041"
    engine = create_async_engine(url, poolclass=NullPool)
    async with store.archiving(), engine.connect() as connection:
        ending = text(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE {held}")
        assert (await connection.execute(ending)).scalars().all() == [True]
    async with store.archiving(), engine.connect() as connection:
        count = text(f"SELECT count(*) FROM pg_locks WHERE {held} AND granted")
        assert (await connection.execute(count)).scalar_one() == 1


async def test_hanging_server_is_abandoned(
    url: str, store: JournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_CLOSE_TIMEOUT_S", 0.05)
    connection = await asyncpg.connect(
        make_url(url).set(drivername="postgresql").render_as_string(False)
    )
    sessions = await connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid()"
    )
    await connection.close()
    assert sessions
    for (pid,) in sessions:
        os.kill(pid, signal.SIGSTOP)
    try:
        # Not the timeout of a command: the store waits for more than one.
        with anyio.fail_after(TIMEOUT_S / 2):
            await store.close()
    finally:
        for (pid,) in sessions:
            os.kill(pid, signal.SIGCONT)


async def test_checkpoint_on_full_disk_changes_nothing(url: str, store: JournalStore) -> None:
    await store.save_checkpoint(3, b"before")
    faults = Faults(url)
    await faults.put(Moment.CHECKPOINT, raising("53100"))
    with pytest.raises(JournalFullError):
        await store.save_checkpoint(3, b"after")
    await faults.take_out()
    found = await store.load_checkpoint()
    assert found is not None
    assert found.blob == b"before"


class RepairingClock(SystemClock):
    """The disk has space again at the n-th delay of the daemon."""

    def __init__(self, faults: Faults, pauses: int) -> None:
        super().__init__()
        self._faults = faults
        self._left = pauses

    async def sleep(self, seconds: float) -> None:
        self._left -= 1
        if self._left == 0:
            await self._faults.take_out()


@pytest.mark.parametrize("what", [raising("53100"), KILL], ids=["no room", "ends"])
@pytest.mark.parametrize("moment", OF_AN_APPEND)
async def test_daemon_retries_and_continues(
    url: str, store: JournalStore, moment: Moment, what: str
) -> None:
    faults = Faults(url)
    await faults.put(moment, what)
    clock, metrics = RepairingClock(faults, pauses=3), Metrics()
    appender = JournalAppender(store, clock, metrics, next_seq=4)
    with anyio.fail_after(TIMEOUT_S):
        assert await appender.append(turn(2), 2) == 6
    assert (metrics.registry.get_sample_value("asched_journal_append_failures_total") or 0) >= 3
    assert appender.error == ""
    assert await appender.append(turn(3), 3) == 9
    await check(store, 3)
