"""A standby follows a journal with a database that loses its last commits in a failover."""

from __future__ import annotations

import pytest

from asched.config.registry import PluginRegistry
from asched.daemon.ha.follower import JournalFollower
from asched.journal.chain_reader import ChainReader
from asched.journal.errors import JournalReplacedError
from asched.journal.memory import MemoryJournal, MemoryStore
from asched.kube.timing import SystemClock
from asched.model.meta import ObjectMeta
from asched.model.node import Node
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import ObjectObserved


class Setup:
    """A journal of two batches, and a follower that has read both."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.store = MemoryStore(self.journal)
        fold = Fold(ClusterState(), PluginRegistry.discover().load)
        reader = ChainReader.from_beginning(self.store)
        self.follower = JournalFollower(reader, fold, 0, SystemClock())

    async def begin(self) -> None:
        await self.store.claim("leader", claimed_at_ns=1)
        await self.append(1, written_at_ns=1)
        await self.append(2, written_at_ns=2)
        await self.follower.catch_up()
        assert self.follower.seq == self.journal.head.seq

    async def append(self, number: int, *, written_at_ns: int) -> None:
        node = ObjectObserved(Node(metadata=ObjectMeta(name=f"node-{number}")))
        await self.store.append([node], written_at_ns=written_at_ns)

    def set_back(self) -> None:
        """Lose the last batch."""
        del self.journal.batches[-1], self.journal.last_seqs[-1]


@pytest.fixture
async def setup() -> Setup:
    created = Setup()
    await created.begin()
    return created


@pytest.mark.parametrize("batches", [0, 1])
async def test_growing_journal_is_followed(setup: Setup, batches: int) -> None:
    for number in range(batches):
        await setup.append(3 + number, written_at_ns=3)
    await setup.follower.check_not_set_back()
    await setup.follower.catch_up()
    assert setup.follower.seq == setup.journal.head.seq


@pytest.mark.parametrize("batches", [0, 1, 2], ids=["shorter", "as long", "longer"])
async def test_journal_that_lost_what_was_read_is_replaced(setup: Setup, batches: int) -> None:
    setup.set_back()
    for number in range(batches):
        await setup.append(2 + number, written_at_ns=99)
    with pytest.raises(JournalReplacedError, match="record 2 is lost or differs"):
        await setup.follower.check_not_set_back()
