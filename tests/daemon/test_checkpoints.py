"""Checkpoints that a daemon writes, from which the next one starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
from structlog.testing import capture_logs

from asched.audit.replay import replay
from asched.config.registry import PluginRegistry
from asched.daemon.engine.journaling import Checkpoints
from asched.daemon.process import Runtime
from asched.framework.runtime.profile import PluginWeight, ProfileSpec
from asched.journal import open_journal
from asched.journal.checkpoints import nearest
from asched.journal.memory import MemoryJournal, MemoryStore
from asched.journal.store import AppendResult
from asched.state.checkpoint import checkpoint_of
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import AnyRecord, ProfilesLoaded, TurnStarted
from tests.cycle.default_profile import default_profiles
from tests.daemon.world import OWN, TIMEOUT_S, World, world

REGISTRY = PluginRegistry.discover()
T = TypeVar("T")


async def test_clean_stop_writes_checkpoint_of_head(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:
        for number in range(3):
            async with w.daemon():
                w.add_pods(10, f"run-{number}")
                await w.until(lambda: not w.unbound())
            async with open_journal(str(w.journal), read_only=True) as store:
                opened = await nearest(store, REGISTRY.load)
                assert opened.seq == (await store.head()).seq
                whole = Fold(ClusterState(), REGISTRY.load)
                async for stored in store.read():
                    whole.apply(stored.record)
                assert checkpoint_of(opened.fold.state) == checkpoint_of(whole.state)
                assert (await replay(store, REGISTRY)).equal


async def marks_of(w: World) -> list[int]:
    """The records up to which the checkpoints of the journal are."""
    async with open_journal(str(w.journal), read_only=True) as store:
        return [mark.seq for mark in await store.checkpoint_marks()]


async def test_running_daemon_writes_checkpoints_periodically(tmp_path: Path) -> None:
    every = OWN + "journal: {checkpointEvery: 20}\n"
    async with world(tmp_path, nodes=20) as w:
        async with w.daemon(every):
            # A checkpoint is written while others are decided: it may cover several waves.
            with anyio.fail_after(TIMEOUT_S):
                for wave in count():
                    w.add_pods(10, f"wave-{wave}", cpu="10m")
                    await w.until(lambda: not w.unbound())
                    if len(await marks_of(w)) > 2:
                        break
        marks = await marks_of(w)
        assert all(later - mark >= 20 for mark, later in pairwise(marks[:-1]))
        async with open_journal(str(w.journal), read_only=True) as store:
            whole = Fold(ClusterState(), REGISTRY.load)
            async for stored in store.read():
                whole.apply(stored.record)
                if stored.seq in marks:
                    opened = await nearest(store, REGISTRY.load, stored.seq)
                    assert opened.seq == stored.seq
                    assert checkpoint_of(opened.fold.state) == checkpoint_of(whole.state)


@pytest.mark.parametrize("pods", [0, 30])
async def test_zero_interval_writes_no_checkpoint(tmp_path: Path, pods: int) -> None:
    async with world(tmp_path, nodes=2) as w:
        async with w.daemon(OWN + "journal: {checkpointEvery: 0}\n"):
            w.add_pods(pods, "wave")
            await w.until(lambda: not w.unbound())
        async with open_journal(str(w.journal), read_only=True) as store:
            assert await store.load_checkpoint() is None


class StuckStore(MemoryStore):
    """A journal that blocks appends once ``stuck`` is set."""

    def __init__(self) -> None:
        super().__init__(MemoryJournal())
        self.stuck = False
        self.append_started = anyio.Event()

    async def append(
        self, records: Sequence[AnyRecord], *, written_at_ns: int, first_seq: int | None = None
    ) -> AppendResult:
        if self.stuck:
            self.append_started.set()
            await anyio.sleep_forever()
        return await super().append(records, written_at_ns=written_at_ns, first_seq=first_seq)


async def test_records_outside_journal_are_not_in_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records were folded but never stored, so the next start must not know them."""
    monkeypatch.setattr("asched.daemon.daemon.DRAIN_S", 0.05)
    store = StuckStore()
    async with world(tmp_path, nodes=1) as w:
        async with w.daemon_on(store):
            w.add_pods(3, "stored")
            await w.until(lambda: not w.unbound())
            store.stuck = True
            w.add_pods(3, "lost")
            await store.append_started.wait()
        assert not await store.checkpoint_marks()
        opened = await nearest(store, REGISTRY.load)
        assert opened.seq == 0


class BlockingCheckpointStore(MemoryStore):
    """A journal that never stores a checkpoint."""

    async def save_checkpoint(self, seq: int, blob: bytes) -> None:
        await anyio.sleep_forever()


async def test_stop_limits_wait_for_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asched.daemon.daemon.DRAIN_S", 0.05)
    monkeypatch.setattr("asched.daemon.daemon.LAST_CHECKPOINT_S", 0.05)
    journal = MemoryJournal()
    store = BlockingCheckpointStore(journal)
    async with world(tmp_path, nodes=1) as w:
        with capture_logs() as logs:
            async with w.daemon_on(store):
                w.add_pods(3, "stored")
                await w.until(lambda: not w.unbound())
        assert "last checkpoint not written: timeout" in [log["event"] for log in logs]
        assert not await store.checkpoint_marks()
        async with w.daemon_on(MemoryStore(journal)):
            w.add_pods(3, "later")
            await w.until(lambda: not w.unbound())


async def test_last_checkpoint_may_use_the_time_for_effects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asched.daemon.daemon.LAST_CHECKPOINT_S", 0.0)
    store = MemoryStore(MemoryJournal())
    async with world(tmp_path, nodes=1) as w:
        async with w.daemon_on(store):
            w.add_pods(3, "stored")
            await w.until(lambda: not w.unbound())
        assert await store.checkpoint_marks()


async def test_state_with_missing_plugin_is_not_checkpointed() -> None:
    """With the plugin, the same records fold to another state."""
    incomplete = ProfileSpec("default-scheduler", {"preEnqueue": (PluginWeight("Missing"),)})
    fold = Fold(ClusterState(), REGISTRY.load)
    records: list[AnyRecord] = [ProfilesLoaded((incomplete,)), TurnStarted(1)]
    fold.apply_all(records)
    store = MemoryStore(MemoryJournal())
    await store.claim("test", claimed_at_ns=0)
    await store.append(records, written_at_ns=1)
    for every in (1, 1000):  # periodically, and at the end
        checkpoints = Checkpoints(store, fold.state, RUNTIME, every=every, last_seq=0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(checkpoints.run)
            checkpoints.committed(2)
            await anyio.wait_all_tasks_blocked()
            await checkpoints.write_last()
            tasks.cancel_scope.cancel()
        assert await store.checkpoint_marks() == []

    complete = ProfilesLoaded(default_profiles())
    fold.apply(complete)
    await store.append([complete], written_at_ns=2)
    checkpoints.committed(3)
    await checkpoints.write_last()
    assert [mark.seq for mark in await store.checkpoint_marks()] == [3]


async def run_directly(compute: Callable[[], T]) -> T:
    return compute()


RUNTIME = Runtime.of_this_process()._replace(run_in_thread=run_directly)
