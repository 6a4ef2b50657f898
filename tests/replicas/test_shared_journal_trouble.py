"""Standbys that share a journal and temporarily cannot reach it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import asyncpg
import pytest
import structlog
from sqlalchemy import make_url
from typer.testing import CliRunner

from asched.cli.errors import BadInput, as_command_error
from asched.cli.main import app
from asched.daemon.ha.replica import Replica
from asched.journal.chain import SealedBatch
from asched.journal.errors import JournalCorruptError, JournalError, JournalIOError
from asched.journal.memory import MemoryStore
from asched.journal.opening import open_journal
from asched.journal.store import JournalStore
from tests.daemon.processes import NO_HEALTH
from tests.daemon.test_run_command import KUBECONFIG
from tests.daemon.world import TIMEOUT_S, World, world
from tests.journal.postgres_server import PostgresServer
from tests.journal.samples import turn
from tests.journal.test_verification import tamper
from tests.replicas.single_replica import LEASE, LEASES, holder, running

STANDBY = f"{NO_HEALTH}leaderElection: {{leaseDuration: 15s}}\n"


class UnreachableStore(MemoryStore):
    """A journal with a database that can become unavailable."""

    def __init__(self) -> None:
        super().__init__()
        self.claim_error: JournalError | None = None
        self.away = False
        self.broken = False
        self.refusals = 0
        self.refused = anyio.Event()

    async def batches(self, after_batch: int = 0) -> AsyncIterator[SealedBatch]:
        if self.broken:
            raise JournalCorruptError("batch 1 was altered")
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
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = await postgres.new_database("idle_writer")
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


async def test_standby_starts_once_the_journal_can_be_read(tmp_path: Path) -> None:
    store = UnreachableStore()
    store.away = True
    async with world(tmp_path, nodes=1) as w, running(w, store, shared=True) as it:
        replica = it.replica
        await store.until_refused(2)
        assert [check.problem() for check in replica.checks() if check.problem()] == [
            "the journal cannot be read: the disk or the connection failed"
        ]
        assert replica.standby is None
        store.away = False
        with anyio.fail_after(TIMEOUT_S):
            await replica.synced.wait()
        w.add_pod("p")
        await w.until(lambda: bool(w.node_of("p")))


async def test_broken_chain_ends_a_standby_that_follows(tmp_path: Path) -> None:
    store = UnreachableStore()

    async def follow(w: World) -> None:
        async with standby(w, store):
            store.broken = True
            await anyio.sleep_forever()

    async with world(tmp_path, nodes=1) as w:
        with pytest.raises(BaseExceptionGroup) as raised:
            await follow(w)
    ended = as_command_error(raised.value)
    assert isinstance(ended, BadInput)
    assert ended.exit_code == 2
    assert ended.lines == ["asched: batch 1 was altered"]


def test_broken_chain_ends_the_start_of_a_standby(tmp_path: Path, postgres: PostgresServer) -> None:
    """With the exit code after which systemd does not restart it: a restart would not help."""

    async def write() -> str:
        url = await postgres.new_database("broken_chain")
        async with open_journal(url) as journal:
            await journal.claim("leader", claimed_at_ns=1)
            for number in range(2):
                await journal.append(turn(number), written_at_ns=number)
        await tamper(url, "UPDATE journal_record SET subject = 'pod/a/b' WHERE seq = 2")
        return url

    url = anyio.run(write)
    (tmp_path / "kubeconfig.yaml").write_text(KUBECONFIG)
    (tmp_path / "config.yaml").write_text(STANDBY)
    options = ["run", "--journal", url]
    for name in ("kubeconfig", "config"):
        options += [f"--{name}", str(tmp_path / f"{name}.yaml")]
    result = CliRunner().invoke(app, options, prog_name="asched")
    structlog.reset_defaults()
    lines = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (2, "")
    assert lines[-1].startswith("asched: batch 1 (records 1 to 3) was altered")


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
