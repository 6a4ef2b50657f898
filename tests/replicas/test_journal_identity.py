"""The Lease names the leader's journal."""

from __future__ import annotations

from pathlib import Path

import anyio
from structlog.testing import capture_logs

from asched.daemon.ha.lease import JOURNAL_ANNOTATION
from asched.journal.memory import MemoryJournal, MemoryStore
from asched.journal.statistics import journal_id
from asched.journal.store import JournalStore
from tests.daemon.world import World, world
from tests.journal.samples import turn
from tests.replicas.single_replica import LEASE, LEASES, running

ANOTHER = "11111111-2222-3333-4444-555555555555"


def lease_annotations(w: World) -> dict[str, str]:
    lease = w.cluster.get(LEASES, LEASE.name, namespace=LEASE.namespace)
    found: dict[str, str] = lease["metadata"].get("annotations", {})
    return found


def create_lease(w: World, holder: str, journal: str) -> None:
    metadata = {
        "name": LEASE.name,
        "namespace": LEASE.namespace,
        "annotations": {JOURNAL_ANNOTATION: journal, "other": "kept"},
    }
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 3600}
    w.cluster.create(LEASES, {"metadata": metadata, "spec": spec}, namespace=LEASE.namespace)


async def claimed() -> JournalStore:
    """A journal of an earlier leader."""
    journal = MemoryJournal()
    store = MemoryStore(journal)
    await store.claim("earlier", claimed_at_ns=1)
    await store.append(turn(1)[:1], written_at_ns=1)
    return MemoryStore(journal)


async def test_identity_comes_with_first_claim_and_stays(tmp_path: Path) -> None:
    store = MemoryStore()
    assert await journal_id(store) == ""
    await store.claim("one", claimed_at_ns=1)
    own = await journal_id(store)
    await store.claim("two", claimed_at_ns=2)
    assert await journal_id(store) == own
    other = MemoryStore()
    await other.claim("one", claimed_at_ns=3)
    assert len({own, await journal_id(other), ""}) == 3


async def test_leader_writes_identity_to_lease(tmp_path: Path) -> None:
    for shared in (False, True):
        store = await claimed()
        (tmp_path / str(shared)).mkdir()
        async with world(tmp_path / str(shared), nodes=1) as w:
            w.faults.on_request = lambda verb, resource, w=w: w.touch()  # type: ignore[misc]
            w.cluster.listen(LEASES, lambda _, w=w: w.touch())  # type: ignore[misc]
            async with running(w, store, shared=shared) as it:
                await it.leadership.acquired.wait()
                own = await journal_id(store)
                await w.until(lambda: lease_annotations(w).get(JOURNAL_ANNOTATION) == own)  # noqa: B023


async def test_next_leader_with_another_journal_warns_and_leads(tmp_path: Path) -> None:
    store = await claimed()
    async with world(tmp_path, nodes=1) as w:
        create_lease(w, "", ANOTHER)
        w.add_pod("p")
        w.cluster.listen(LEASES, lambda _: w.touch())
        with capture_logs() as logs:
            async with running(w, store, shared=True):
                await w.until(lambda: w.node_of("p") == "n0")
                own = await journal_id(store)
                await w.until(lambda: lease_annotations(w)[JOURNAL_ANNOTATION] == own)
        assert lease_annotations(w)["other"] == "kept"
    (warning,) = [line for line in logs if "last leader used another journal" in line["event"]]
    assert (warning["last_journal"], warning["journal"]) == (ANOTHER, own)


async def test_separate_journals_differ_without_warning(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        create_lease(w, "", ANOTHER)
        w.add_pod("p")
        with capture_logs() as logs:
            async with running(w, await claimed(), shared=False):
                await w.until(lambda: w.node_of("p") == "n0")
    assert not [line for line in logs if "journal" in line["event"] and line["log_level"] != "info"]


async def test_standby_of_another_journal_is_not_ready(tmp_path: Path) -> None:
    store = await claimed()
    async with world(tmp_path, nodes=1) as w:
        create_lease(w, "leader", ANOTHER)
        async with running(w, store, shared=True) as it:
            await it.replica.synced.wait()
            own = await journal_id(store)
            expected = (
                f"the leader leader uses journal {ANOTHER}, this replica {own}: journal.url of all"
                " replicas must name one database"
            )
            while expected not in [check.problem() for check in it.replica.checks()]:
                await anyio.wait_all_tasks_blocked()
