"""A database that is unreachable or read-only for a while: the daemon survives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import asyncpg
import pytest
from sqlalchemy import make_url

from asched.daemon.engine.journaling import JournalAppender
from asched.daemon.startup import journal_when_reachable
from asched.daemon.telemetry.metrics import Metrics
from asched.journal.errors import JournalOpenError, JournalUnreachableError
from asched.journal.opening import open_journal
from asched.kube.timing import SystemClock
from tests.journal.conftest import NewDatabase
from tests.journal.samples import turn

Heal = Callable[[], Awaitable[None]]


class _Healing:
    """The failure ends at the third delay; delays take no time."""

    def __init__(self, heal: Heal) -> None:
        self.pauses = 0
        self._heal = heal

    async def sleep(self, delay_s: float) -> None:
        self.pauses += 1
        if self.pauses == 3:
            await self._heal()


class HealingEngineClock(_Healing, SystemClock):
    """The clock of an engine that waits to append."""


class HealingClock(_Healing, SystemClock):
    """The clock of a start that waits to open the journal."""


class Standby:
    """Makes a database read-only, and writable again, as a failover."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)

    async def demote(self) -> None:
        name = self._url.database
        await self._execute(
            f'ALTER DATABASE "{name}" SET default_transaction_read_only = on',
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )

    async def promote(self) -> None:
        """Existing sessions do not change: they belong to the demoted server."""
        name = self._url.database
        await self._execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')

    async def _execute(self, *statements: str) -> None:
        connection = await asyncpg.connect(
            host=self._url.query["host"], user=self._url.username, database=self._url.database,
            server_settings={"default_transaction_read_only": "off"},
        )  # fmt: skip
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()


@pytest.fixture
async def url(new_postgres_database: NewDatabase) -> str:
    return await new_postgres_database()


async def test_leader_waits_for_failover(url: str) -> None:
    database = Standby(url)
    clock = HealingEngineClock(database.promote)
    async with open_journal(url) as store:
        await store.claim("test", claimed_at_ns=1)
        metrics = Metrics()
        appender = JournalAppender(store, clock, metrics, next_seq=1)
        await appender.append(turn(1), 1)
        await database.demote()
        assert await appender.append(turn(2), 2) == 6
        # The broken connection, and then a new read-only one each time.
        failures = metrics.registry.get_sample_value("asched_journal_append_failures_total")
        assert failures == clock.pauses
        assert clock.pauses >= 3
        assert not appender.unwritable()
        assert [stored.record async for stored in store.read()] == [*turn(1), *turn(2)]


async def test_start_during_failover_waits(url: str) -> None:
    database = Standby(url)
    await database.demote()
    with pytest.raises(JournalUnreachableError, match="read-only transaction"):
        async with open_journal(url):
            pytest.fail("it opened")
    clock = HealingClock(database.promote)
    async with journal_when_reachable(url, clock, Random(1)) as store:
        assert await store.claim("test", claimed_at_ns=1) == 1
    assert clock.pauses == 3


async def test_start_before_database_waits(url: str, tmp_path: Path) -> None:
    parsed, sockets = make_url(url), tmp_path / "sockets"

    async def start() -> None:
        sockets.symlink_to(str(parsed.query["host"]))

    clock, later = HealingClock(start), parsed.update_query_dict({"host": str(sockets)})
    later_url = later.render_as_string(hide_password=False)
    async with journal_when_reachable(later_url, clock, Random(1)) as store:
        assert await store.claim("test", claimed_at_ns=1) == 1
    assert clock.pauses == 3


@pytest.mark.parametrize(("user", "database"), [("unknown", None), (None, "absent")])
async def test_permanent_error_is_not_retried(
    url: str, user: str | None, database: str | None
) -> None:
    async def no_help() -> None:
        pytest.fail("it was waited for")

    clock, wrong = HealingClock(no_help), make_url(url).set(username=user, database=database)
    with pytest.raises(JournalOpenError) as raised:
        async with journal_when_reachable(
            wrong.render_as_string(hide_password=False), clock, Random(1)
        ):
            pytest.fail("it opened")
    assert type(raised.value) is JournalOpenError
    assert clock.pauses == 0
