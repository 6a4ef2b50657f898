"""Replicas with separate journals; one journal cannot be written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.daemon.daemon import Daemon, running_daemon
from asched.daemon.ha.election import LeaseTiming
from asched.daemon.ha.leadership import candidate
from asched.daemon.ha.lease import LeaderElector, LeaseName
from asched.daemon.startup import DaemonContext
from asched.journal.errors import JournalFullError
from asched.journal.memory import MemoryStore
from asched.journal.store import AppendResult, JournalStore
from asched.kube.connection import connect
from asched.state.records import AnyRecord
from tests.daemon.world import TIMEOUT_S, World, failed_checks, world

LEASES = "leases.coordination.k8s.io"
LEASE = LeaseName("kube-system", "asched")
SHORT = LeaseTiming(3, 2, 0.2)


class FullStore(MemoryStore):
    """A journal on a disk that can be full."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.refusals = 0
        self.refused = anyio.Event()

    async def until_refused(self, times: int) -> None:
        """Until that many more appends were refused."""
        enough = self.refusals + times
        with anyio.fail_after(TIMEOUT_S):
            while self.refusals < enough:
                await self.refused.wait()

    async def claim(self, writer: str, *, claimed_at_ns: int) -> int:
        if self.full:
            raise JournalFullError("no room")
        return await super().claim(writer, claimed_at_ns=claimed_at_ns)

    async def append(
        self, records: Sequence[AnyRecord], *, written_at_ns: int, first_seq: int | None = None
    ) -> AppendResult:
        if self.full:
            self.refusals += 1
            self.refused.set()
            self.refused = anyio.Event()
            raise JournalFullError("no room")
        return await super().append(records, written_at_ns=written_at_ns, first_seq=first_seq)


@asynccontextmanager
async def replica(w: World, name: str, store: JournalStore) -> AsyncIterator[Daemon]:
    registry = PluginRegistry.discover()
    async with (
        connect(w.kubeconfig) as client,
        connect(w.kubeconfig) as lease_client,
        candidate(LeaderElector(lease_client, LEASE, name, SHORT)) as leadership,
        running_daemon(
            DaemonContext(
                parse("", "test", registry, empty_is_defaults=True), registry, client, store
            ),
            leadership=leadership,
        ) as daemon,
    ):
        yield daemon


def holder(w: World) -> str:
    lease = w.cluster.get(LEASES, LEASE.name, namespace=LEASE.namespace)
    found: str = lease["spec"]["holderIdentity"]
    return found


async def until_it_fails(w: World, store: FullStore) -> None:
    """A leader that gives up once its journal is full."""
    with pytest.RaisesGroup(
        pytest.RaisesExc(JournalFullError, match="no room"), flatten_subgroups=True
    ):
        async with replica(w, "a", store) as daemon:
            w.add_pod("first")
            await w.until(lambda: bool(w.node_of("first")))
            store.full = True
            w.add_pod("second")
            await store.until_refused(2)
            assert failed_checks(daemon.checks()) == [
                "the journal cannot be written: the disk is full"
            ]
            await anyio.sleep_forever()


async def test_leader_without_journal_releases_the_lease(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        with anyio.fail_after(TIMEOUT_S):
            store = FullStore()
            await until_it_fails(w, store)
            assert holder(w) == ""
            assert not w.node_of("second")
            async with anyio.create_task_group() as tasks:

                async def come_back() -> None:
                    async with replica(w, "a", store):
                        raise AssertionError("it claimed a journal that it cannot write")

                tasks.start_soon(come_back)
                async with replica(w, "b", MemoryStore()):
                    await w.until(lambda: bool(w.node_of("second")))
                assert holder(w) == ""
                tasks.cancel_scope.cancel()


async def test_stopping_leader_without_journal_ends_without_error(
    tmp_path: Path,
) -> None:
    store = FullStore()
    async with world(tmp_path, nodes=1) as w:
        with anyio.fail_after(TIMEOUT_S):
            async with replica(w, "a", store):
                w.add_pod("first")
                await w.until(lambda: bool(w.node_of("first")))
                store.full = True
                w.add_pod("second")
                await store.until_refused(1)
        assert holder(w) == ""
        assert not w.node_of("second")


async def test_standby_without_journal_is_no_candidate(tmp_path: Path) -> None:
    store = FullStore()
    async with world(tmp_path, nodes=1) as w:
        spec = {"holderIdentity": "another", "leaseDurationSeconds": 3600}
        lease = {"metadata": {"name": LEASE.name, "namespace": LEASE.namespace}, "spec": spec}
        w.cluster.create(LEASES, lease, namespace=LEASE.namespace)
        async with replica(w, "b", store) as standby:
            await standby.engine.synced.wait()
            store.full = True
            w.add_pod("p")
            await store.until_refused(2)
            free = {"spec": {"holderIdentity": ""}}
            w.cluster.patch(LEASES, LEASE.name, free, namespace=LEASE.namespace)
            # However long that lasts: a standby has nothing to give up.
            await store.until_refused(4)
            assert holder(w) == ""
            store.full = False
            await w.until(lambda: bool(w.node_of("p")))
