"""Standbys that share a journal and temporarily cannot reach it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import asyncpg
import pytest
from sqlalchemy import make_url

from asched.daemon.ha.replica import Replica
from asched.journal.chain import SealedBatch
from asched.journal.errors import JournalCorruptError, JournalError, JournalIOError
from asched.journal.memory import MemoryStore
from asched.journal.opening import open_journal
from asched.journal.store import JournalStore
from tests.daemon.world import TIMEOUT_S, World, world
from tests.journal.postgres_server import PostgresServer
from tests.replicas.single_replica import LEASE, LEASES, holder, running


class UnreachableStore(MemoryStore):
    """A journal with a database that can become unavailable."""

    def __init__(self) -> None:
        super().__init__()
        self.claim_error: JournalError | None = None
        self.away = False
        self.refusals = 0
        self.refused = anyio.Event()

    async def batches(self, after_batch: int = 0) -> AsyncIterator[SealedBatch]:
        if self.away:
            self.refusals += 1
            self.refused.set()
            self.refused = anyio.Event()
            raise JournalIOError("no response")
        async for sealed in super().batches(after_batch):
            yield sealed

    async def claim(self, writer: str, *, claimed_at_ns: int) -> int:
        if self.claim_error is not None:
            raise self.claim_error
        return await super().claim(writer, claimed_at_ns=claimed_at_ns)

    async def until_refused(self, times: int) -> None:
        """Until that many more reads were refused."""
        enough = self.refusals + times
        with anyio.fail_after(TIMEOUT_S):
            while self.refusals < enough:
                await self.refused.wait()


@asynccontextmanager
async def standby(w: World, store: JournalStore) -> AsyncIterator[Replica]:
    """A warm standby; its leader holds the lease for an hour."""
    spec = {"holderIdentity": "another", "leaseDurationSeconds": 3600}
    lease = {"metadata": {"name": LEASE.name, "namespace": LEASE.namespace}, "spec": spec}
    w.cluster.create(LEASES, lease, namespace=LEASE.namespace)
    async with running(w, store, shared=True) as it:
        await it.replica.synced.wait()
        yield it.replica


def free_lease(w: World) -> None:
    spec = {"spec": {"holderIdentity": ""}}
    w.cluster.patch(LEASES, LEASE.name, spec, namespace=LEASE.namespace)


async def end_all_connections(url: str) -> None:
    """As by a restart of the server."""
    parsed = make_url(url)
    connection = await asyncpg.connect(
        host=parsed.query["host"], user=parsed.username, database=parsed.database
    )
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    finally:
        await connection.close()


async def test_takeover_survives_broken_idle_connection(
    tmp_path: Path, replicas_postgres: PostgresServer
) -> None:
    url = await replicas_postgres.new_database("idle_writer")
    async with (
        world(tmp_path, nodes=1) as w,
        open_journal(url) as store,
        standby(w, store) as replica,
    ):
        await end_all_connections(url)
        w.add_pod("p")
        free_lease(w)
        await w.until(lambda: bool(w.node_of("p")))
        assert replica.daemon is not None


async def test_standby_that_cannot_read_the_journal_is_no_candidate(tmp_path: Path) -> None:
    store = UnreachableStore()
    async with world(tmp_path, nodes=1) as w, standby(w, store) as replica:
        store.away = True
        await store.until_refused(2)
        assert [check.name for check in replica.checks() if check.problem()] == ["journal"]
        free_lease(w)
        await store.until_refused(3)
        assert holder(w) == ""
        store.away = False
        w.add_pod("p")
        await w.until(lambda: bool(w.node_of("p")))
        assert holder(w) == "it"


async def test_takeover_waits_for_the_journal_and_reports_it(tmp_path: Path) -> None:
    store = UnreachableStore()
    async with world(tmp_path, nodes=1) as w, standby(w, store) as replica:
        store.claim_error = JournalIOError("no response")
        free_lease(w)
        w.add_pod("p")
        named = "the journal cannot be claimed: the disk or the connection failed"

        def on_request(verb: str, resource: str) -> None:
            # The lease is renewed meanwhile.
            if resource == "leases" and named in [check.problem() for check in replica.checks()]:
                store.claim_error = None

        w.faults.on_request = on_request
        await w.until(lambda: bool(w.node_of("p")))
        assert store.claim_error is None


async def test_failed_takeover_releases_the_lease(tmp_path: Path) -> None:
    store = UnreachableStore()
    async with world(tmp_path, nodes=1) as w:
        with (
            pytest.RaisesGroup(
                pytest.RaisesExc(JournalCorruptError, match="altered"), flatten_subgroups=True
            ),
            anyio.fail_after(TIMEOUT_S),
        ):
            async with standby(w, store):
                store.claim_error = JournalCorruptError("batch 1 was altered")
                free_lease(w)
                await anyio.sleep_forever()
        assert holder(w) == ""
