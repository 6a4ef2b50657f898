"""The Lease holds the newest signed head of the leader's journal."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import msgspec
import pytest

from asched.daemon.signing.start import annotation_for
from asched.journal import open_journal
from asched.journal.errors import JournalError
from asched.journal.verification import verify_journal
from asched.proof.anchors import ANNOTATION, read_anchors
from asched.proof.keys import JournalKeys, SigningKey
from tests.daemon.world import World, world
from tests.replicas.single_replica import LEASE, LEASES, running

KEY = SigningKey.generate()
KEYS = JournalKeys(KEY)


async def lead(w: World, pod: str, *, shared: bool) -> None:
    """Lead until a pod is bound, and stop."""
    async with (
        open_journal(str(w.journal), keys=KEYS) as store,
        running(w, store, shared=shared),
    ):
        w.add_pod(pod)
        await w.until(lambda: bool(w.node_of(pod)))


def leaf_errors(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaf_errors(inner)]
    return [error]


@pytest.mark.parametrize("shared", [False, True])
async def test_leader_compares_its_journal_with_the_lease(tmp_path: Path, shared: bool) -> None:
    async with world(tmp_path, nodes=1) as w:
        await lead(w, "a", shared=shared)
        shutil.copy(w.journal, tmp_path / "earlier.db")
        await lead(w, "b", shared=shared)

        lease = w.cluster.get(LEASES, LEASE.name, namespace=LEASE.namespace)
        saved = tmp_path / "lease.json"
        saved.write_bytes(msgspec.json.encode(lease))
        (anchored,) = read_anchors(saved)
        async with open_journal(str(w.journal), read_only=True) as store:
            signed = await store.signed_head()
            verified = await verify_journal(store)
        assert signed is not None
        assert anchored.head.seq <= signed.head.seq == verified.head.seq
        assert anchored.head.final

        shutil.copy(tmp_path / "earlier.db", w.journal)
        with pytest.raises((JournalError, BaseExceptionGroup)) as raised, anyio.fail_after(30):
            await lead(w, "c", shared=shared)
        (error,) = leaf_errors(raised.value)
        assert isinstance(error, JournalError)
        assert "lease kube-system/asched" in str(error)
        assert not w.node_of("c")
        # The evidence stays for the next attempt.
        lease = w.cluster.get(LEASES, LEASE.name, namespace=LEASE.namespace)
        assert anchored.line in lease["metadata"]["annotations"].values()


def test_annotation_names_are_valid() -> None:
    assert annotation_for("host_1", shared=True) == ANNOTATION
    assert annotation_for("asched-0_17", shared=False) == "asched.dev/journal-head.asched-0"
    long = annotation_for(f"{'a' * 49}-.{'b' * 20}_1", shared=False)
    name = long.partition("/")[2]
    assert len(name) <= 63
    assert name[-1].isalnum()
    assert annotation_for("ho st_x_1", shared=False).endswith(".ho-st-x")
