"""Past states from checkpoints equal those from the start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from asched.audit.lookup import fold_before
from asched.audit.replay import replay
from asched.cli.main import app
from asched.journal.checkpoints import write_checkpoints
from asched.journal.memory import MemoryStore
from asched.journal.opening import open_journal
from asched.journal.store import StoredRecord
from asched.state.checkpoint import checkpoint_of
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from tests.audit.recording import BEGIN_NS, REGISTRY
from tests.audit.test_explain import busy_history
from tests.state.description import describe


class CountingStore(MemoryStore):
    """Counts the records read."""

    def __init__(self) -> None:
        super().__init__()
        self.records_read = 0

    async def read(
        self, after_seq: int = 0, up_to: int | None = None, *, subject: str | None = None
    ) -> AsyncIterator[StoredRecord]:
        async for stored in super().read(after_seq, up_to, subject=subject):
            self.records_read += 1
            yield stored


async def a_journal() -> tuple[CountingStore, int]:
    store = CountingStore()
    recording = busy_history(Random(8))
    await store.claim("test", claimed_at_ns=BEGIN_NS)
    await store.append(recording.records, written_at_ns=BEGIN_NS)
    return store, len(recording.records)


async def test_state_from_checkpoint_equals_state_from_start() -> None:
    store, last = await a_journal()
    records = [stored.record async for stored in store.read()]
    kept = await write_checkpoints(store, REGISTRY.load, every=20)
    assert kept == [*range(20, last, 20), *([last] if last % 20 else [])]
    whole = Fold(ClusterState(), REGISTRY.load)
    for seq in range(1, last + 2):
        store.records_read = 0
        opened = await fold_before(store, REGISTRY.load, seq)
        assert store.records_read < 20
        assert describe(opened.state) == describe(whole.state)
        if seq <= last:
            whole.apply(records[seq - 1])


async def test_replay_starts_at_the_nearest_checkpoint() -> None:
    store, last = await a_journal()
    await write_checkpoints(store, REGISTRY.load, every=20)
    store.records_read = 0
    report = await replay(store, REGISTRY, first_seq=last - 5)
    assert report.equal
    assert store.records_read < 26


async def test_checkpoints_are_not_duplicated() -> None:
    store, last = await a_journal()
    assert await write_checkpoints(store, REGISTRY.load) == [last]
    store.records_read = 0
    assert await write_checkpoints(store, REGISTRY.load) == []
    assert store.records_read == 0


@pytest.mark.parametrize("blob", [b"", b"asched-checkpoint 0\n...", b"asched-checkpoint 1\n..."])
async def test_unusable_checkpoint_is_skipped(
    blob: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store, last = await a_journal()
    before = (await fold_before(store, REGISTRY.load, last + 1)).state
    good = (await fold_before(store, REGISTRY.load, 11)).state
    await store.save_checkpoint(10, checkpoint_of(good))
    await store.save_checkpoint(20, blob)
    await store.save_checkpoint(30, blob)
    store.records_read = 0
    opened = await fold_before(store, REGISTRY.load, last + 1)
    assert describe(opened.state) == describe(before)
    assert store.records_read == last - 10


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    async with open_journal(str(path)) as store:
        await busy_history(Random(8)).store_in(store)
    return path


def test_the_command(journal: Path) -> None:
    def run(*args: str) -> str:
        result = CliRunner().invoke(
            app, [*args, "--journal", str(journal)], prog_name="asched", catch_exceptions=False
        )
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout

    before = run("explain", "p7-0", "-o", "json")
    assert "checkpoint(s) written, the last one at record" in run("checkpoint", "--every", "25")
    assert run("checkpoint") == "the journal has a checkpoint at its end\n"
    assert run("explain", "p7-0", "-o", "json") == before
    assert "all identical" in run("replay", "--verify")
