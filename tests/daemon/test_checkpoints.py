"""A daemon keeps its state in the journal, and the next one begins from there."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from asched.audit.replay import replay
from asched.framework.registry import Registry
from asched.journal import open_journal
from asched.journal.checkpoints import nearest
from asched.state.checkpoint import checkpoint_of
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from tests.daemon.world import OWN, world

REGISTRY = Registry.discover()


async def test_at_a_clean_stop_all_is_kept_and_the_next_start_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:
        for life in range(3):
            async with w.daemon():
                w.add_pods(10, f"life-{life}")
                await w.until(lambda: not w.unbound())
            async with open_journal(str(w.journal), read_only=True) as store:
                opened = await nearest(store, REGISTRY.load)
                assert opened.seq == (await store.head()).seq
                whole = Fold(ClusterState(), REGISTRY.load)
                async for stored in store.read():
                    whole.apply(stored.record)
                assert checkpoint_of(opened.fold.state) == checkpoint_of(whole.state)
                assert (await replay(store, REGISTRY)).equal


async def test_now_and_then_while_it_runs(tmp_path: Path) -> None:
    every = OWN + "journal: {checkpointEvery: 20}\n"
    async with world(tmp_path, nodes=2) as w:
        async with w.daemon(every):
            for wave in range(6):
                w.add_pods(10, f"wave-{wave}")
                await w.until(lambda: not w.unbound())
        async with open_journal(str(w.journal), read_only=True) as store:
            marks = [mark.seq for mark in await store.checkpoint_marks()]
            assert len(marks) > 2
            assert all(later - mark >= 20 for mark, later in pairwise(marks[:-1]))
            whole = Fold(ClusterState(), REGISTRY.load)
            async for stored in store.read():
                whole.apply(stored.record)
                if stored.seq in marks:
                    opened = await nearest(store, REGISTRY.load, stored.seq)
                    assert opened.seq == stored.seq
                    assert checkpoint_of(opened.fold.state) == checkpoint_of(whole.state)


@pytest.mark.parametrize("pods", [0, 30])
async def test_none_where_none_are_wanted(tmp_path: Path, pods: int) -> None:
    async with world(tmp_path, nodes=2) as w:
        async with w.daemon(OWN + "journal: {checkpointEvery: 0}\n"):
            w.add_pods(pods, "wave")
            await w.until(lambda: not w.unbound())
        async with open_journal(str(w.journal), read_only=True) as store:
            assert await store.load_checkpoint() is None
