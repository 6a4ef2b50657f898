"""Checkpoints: permission to write, pruning, archived journals, and missing plugins."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.audit.explain import explain
from asched.audit.lookup import PodName, fold_before
from asched.audit.replay import replay
from asched.config.registry import PluginRegistry
from asched.framework.interface import PreEnqueuePlugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.journal.archive import archive
from asched.journal.checkpoints import (
    SPACING,
    checkpoint_before,
    nearest,
    prune_checkpoints,
    redundant_checkpoints,
    write_checkpoints,
)
from asched.journal.errors import (
    ArchivedError,
    FencedError,
    IncompleteStateError,
    JournalCorruptError,
)
from asched.journal.opening import open_journal
from asched.journal.store import JournalStore
from asched.journal.verification import verify_journal
from asched.state.checkpoint import checkpoint_of
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import AnyRecord, ProfilesLoaded, TurnStarted
from tests.audit.recording import REGISTRY
from tests.audit.test_explain import busy_history
from tests.cycle.scheduling import Scheduling
from tests.journal.conftest import OpenStore
from tests.journal.samples import turn
from tests.state.description import describe
from tests.state.objects import a_node, a_pod
from tests.state.profiles import DEFAULT, ESSENTIAL, profile_of

# -- permission to write --------------------------------------------------------------------------


async def test_fenced_writer_cannot_change_checkpoints(open_store: OpenStore) -> None:
    old, new, reader = await open_store(), await open_store(), await open_store()
    await old.claim("old", claimed_at_ns=1)
    await old.append(turn(1), written_at_ns=1)
    await old.save_checkpoint(3, b"of the old")
    await new.claim("new", claimed_at_ns=2)
    with pytest.raises(FencedError, match="epoch 2 fenced epoch 1"):
        await old.save_checkpoint(3, b"of a history that is not this one")
    with pytest.raises(FencedError):
        await old.save_checkpoint(2, b"")
    with pytest.raises(FencedError):
        await old.drop_checkpoints([3])
    assert [mark.seq for mark in await new.checkpoint_marks()] == [3]
    kept = await new.load_checkpoint()
    assert kept is not None
    assert kept.blob == b"of the old"
    # A reader may save checkpoints, as ``asched checkpoint`` does.
    await reader.save_checkpoint(1, b"read")
    await new.save_checkpoint(2, b"new")
    assert [mark.seq for mark in await old.checkpoint_marks()] == [1, 2, 3]


async def test_drop_checkpoints(store: JournalStore) -> None:
    await store.append(turn(1, 8), written_at_ns=1)
    for seq in (2, 4, 6):
        await store.save_checkpoint(seq, b"")
    await store.drop_checkpoints([4, 5, 6])
    assert [mark.seq for mark in await store.checkpoint_marks()] == [2]
    await store.drop_checkpoints([])
    assert [mark.seq for mark in await store.checkpoint_marks()] == [2]


# -- pruning --------------------------------------------------------------------------------------


@given(st.sets(st.integers(1, 10**8), max_size=60).map(sorted))
def test_pruning_keeps_ends_and_bounds_gaps(seqs: list[int]) -> None:
    left = [seq for seq in seqs if seq not in redundant_checkpoints(seqs)]
    assert left[:1] == seqs[:1]
    assert left[-1:] == seqs[-1:]
    for before, after in pairwise(left):
        new_gap = after - before
        assert (new_gap * SPACING <= seqs[-1] - before) or seqs[seqs.index(before) + 1] == after
    assert redundant_checkpoints(left) == redundant_checkpoints([*left])


def test_pruning_keeps_few_checkpoints_of_long_journal() -> None:
    """Prune after each checkpoint, as a daemon does."""
    every, kept = 50_000, []
    for seq in range(every, 100_000_000, every):
        kept.append(seq)
        dropped = {*redundant_checkpoints(kept)}
        kept = [s for s in kept if s not in dropped]
        assert len(kept) < 500
        if seq == 1_000_000:
            # Every record of a million is near a checkpoint.
            assert max(b - a for a, b in pairwise(kept)) <= 2 * every
    assert kept[0] == every
    assert [kept[-1] - s for s in kept[-8:]] == [every * n for n in range(7, -1, -1)]
    assert all(b - a == every or (b - a) * SPACING <= kept[-1] - a for a, b in pairwise(kept))


async def test_pruning_keeps_other_checkpoints(store: JournalStore) -> None:
    await store.append(turn(1, 299), written_at_ns=1)
    for seq in range(1, 301):
        await store.save_checkpoint(seq, b"")
    dropped = await prune_checkpoints(store)
    marks = [mark.seq for mark in await store.checkpoint_marks()]
    assert sorted([*dropped, *marks]) == [*range(1, 301)]
    assert {1, 300} <= {*marks}
    assert dropped
    assert len(marks) < 230
    await verify_journal(store)


# -- archived journals ----------------------------------------------------------------------------


async def fill(store: JournalStore) -> list[AnyRecord]:
    """Append a batch per turn, written at the turn's time. Returns all records."""
    records = busy_history(Random(8)).records
    await store.claim("test", claimed_at_ns=0)
    batch: list[AnyRecord] = []
    now_ns = 0
    for record in records:
        if isinstance(record, TurnStarted):
            if batch:
                await store.append(batch, written_at_ns=now_ns)
                batch = []
            now_ns = record.now_ns
        batch.append(record)
    await store.append(batch, written_at_ns=now_ns)
    return records


async def half_time_ns(store: JournalStore) -> int:
    times = [sealed.batch.written_at_ns async for sealed in store.batches()]
    return times[len(times) // 2]


async def test_records_after_archive_boundary_can_be_folded(
    database_url: str, tmp_path: Path
) -> None:
    async with open_journal(database_url) as store:
        records = await fill(store)
        before_ns = await half_time_ns(store)
        boundary = await checkpoint_before(store, REGISTRY.load, before_ns)
        assert await checkpoint_before(store, REGISTRY.load, before_ns) == boundary
        assert [mark.seq for mark in await store.checkpoint_marks()] == [boundary]
        assert await archive(store, tmp_path, before_ns=before_ns, archived_at_ns=1)
        archived = (await store.archived()).seq
        assert 0 < archived < boundary < len(records)

        whole = Fold(ClusterState(), REGISTRY.load)
        for seq, record in enumerate(records, 1):
            if seq > boundary:
                opened = await fold_before(store, REGISTRY.load, seq)
                assert describe(opened.state) == describe(whole.state)
            whole.apply(record)
        for first in range(boundary + 1, len(records) + 1):
            report = await replay(store, REGISTRY, first_seq=first)
            assert (report.equal, report.last_seq) == (True, len(records))
        late = next(key for key in reversed(whole.state.pods))
        assert await explain(store, PodName.parse(late), REGISTRY.load) is not None
        with pytest.raises(ArchivedError):
            await replay(store, REGISTRY, first_seq=1)
        # Without an archive, it starts at the first stored record.
        report = await replay(store, REGISTRY)
        assert (report.equal, report.first_seq) == (True, boundary + 1)
        # A daemon starts.
        fold, kept_seq = await nearest(store, REGISTRY.load)
        async for stored in store.read(kept_seq):
            fold.apply(stored.record)
        assert describe(fold.state) == describe(whole.state)
        await verify_journal(store, archive=tmp_path)


async def test_checkpoint_before_first_record_is_none(database_url: str, tmp_path: Path) -> None:
    async with open_journal(database_url) as store:
        await fill(store)
        assert await checkpoint_before(store, REGISTRY.load, 0) == 0
        assert await store.checkpoint_marks() == []


async def test_unreadable_checkpoints_are_recreated_from_archive(
    database_url: str, tmp_path: Path
) -> None:
    async with open_journal(database_url) as store:
        records = await fill(store)
        before_ns = await half_time_ns(store)
        boundary = await checkpoint_before(store, REGISTRY.load, before_ns)
        await archive(store, tmp_path, before_ns=before_ns, archived_at_ns=1)
        await store.save_checkpoint(boundary, b"asched-checkpoint 0\n")
        with pytest.raises(ArchivedError, match=r"asched checkpoint --archive DIR"):
            await write_checkpoints(store, REGISTRY.load)
        kept = await write_checkpoints(store, REGISTRY.load, every=20, archive=tmp_path)
        assert kept[0] == (await store.archived()).seq + 1
        assert kept[-1] == len(records)
        whole = Fold(ClusterState(), REGISTRY.load)
        for record in records:
            whole.apply(record)
        fold, seq = await nearest(store, REGISTRY.load)
        assert (describe(fold.state), seq) == (describe(whole.state), len(records))
        assert (await replay(store, REGISTRY)).equal
        assert await write_checkpoints(store, REGISTRY.load, archive=tmp_path) == []


async def test_altered_archive_creates_no_checkpoint(tmp_path: Path) -> None:
    async with open_journal(str(tmp_path / "journal.db")) as store:
        await fill(store)
        before_ns = await half_time_ns(store)
        await checkpoint_before(store, REGISTRY.load, before_ns)
        [segment] = await archive(store, tmp_path, before_ns=before_ns, archived_at_ns=1)
        await store.drop_checkpoints([mark.seq for mark in await store.checkpoint_marks()])
        (tmp_path / segment.file).write_bytes(b"")
        with pytest.raises(JournalCorruptError, match="was altered"):
            await write_checkpoints(store, REGISTRY.load, archive=tmp_path)
        assert await store.checkpoint_marks() == []


async def test_checkpoint_is_state_at_its_record(store: JournalStore) -> None:
    records = busy_history(Random(8)).records
    await store.append(records, written_at_ns=1)
    [seq] = await write_checkpoints(store, REGISTRY.load)
    found = await store.load_checkpoint(seq)
    assert found is not None
    whole = Fold(ClusterState(), REGISTRY.load)
    for record in records:
        whole.apply(record)
    assert found.blob == checkpoint_of(whole.state)


# -- missing plugins ------------------------------------------------------------------------------


class Doorkeeper(PreEnqueuePlugin):
    """Rejects pods with the label ``closed`` at PreEnqueue."""

    name: ClassVar[str] = "Doorkeeper"
    api_version: ClassVar[int] = 1

    def pre_enqueue(self, pod: PodInfo) -> Status:
        return Status.unresolvable("closed") if "closed" in pod.labels else SUCCESS


WITHOUT = PluginRegistry().including(*ESSENTIAL, *DEFAULT)
WITH = WITHOUT.including(Doorkeeper)


def guarded_history() -> Scheduling:
    """A plugin that was installed at that time rejected ``secret``."""
    history = Scheduling(*DEFAULT, Doorkeeper)
    history.see(a_node("n0"), a_pod("secret", labels={"closed": "1"}))
    history.decide()
    history.see(a_pod("other"))
    history.decide()
    history.pass_time(1)
    return history


async def test_checkpoint_without_plugin_is_rejected(store: JournalStore) -> None:
    """Without the plugin ``secret`` is in the active queue, which differs from the real state."""
    history = guarded_history()
    await store.append(history.records, written_at_ns=1)
    for every in (None, 2):
        with pytest.raises(IncompleteStateError, match=r"install it, .*: unknown plugin .Doorkeep"):
            await write_checkpoints(store, WITHOUT.load, every=every)
    with pytest.raises(IncompleteStateError):
        await checkpoint_before(store, WITHOUT.load, 2)
    # Records before the profile need no plugin.
    assert [mark.seq for mark in await store.checkpoint_marks()] == []

    assert await write_checkpoints(store, WITH.load) == [len(history.records)]
    fold, _ = await nearest(store, WITH.load)
    assert [*fold.state.queue.gated] == ["default/secret"]
    assert describe(fold.state) == describe(history.state)
    # The checkpoint exists, so the plugin is not needed.
    assert await checkpoint_before(store, WITHOUT.load, 2) == len(history.records)
    assert await write_checkpoints(store, WITHOUT.load) == []


async def test_checkpoint_is_saved_with_complete_profiles(store: JournalStore) -> None:
    """A missing plugin prevents checkpoints only while a profile uses it."""
    history = Scheduling(*DEFAULT)
    history.see(a_node("n0"))
    before = len(history.records)
    lost = profile_of(*DEFAULT, Doorkeeper)
    later: list[AnyRecord] = [ProfilesLoaded((lost,)), *map(TurnStarted, range(1, 8))]
    history.records.extend(later)
    history.records.append(ProfilesLoaded((profile_of(*DEFAULT),)))
    await store.append(history.records, written_at_ns=1)
    last = len(history.records)
    assert await write_checkpoints(store, WITHOUT.load, every=2) == [before - 1, last]
