"""A standby follows a journal whose database loses its last commits in a failover."""

from __future__ import annotations

import pytest

from asched.config.registry import PluginRegistry
from asched.daemon.ha.follower import JournalFollower
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
        self.follower = JournalFollower(self.store, fold, 0, SystemClock())

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


@pytest.mark.parametrize("verify", [True, False])
async def test_growing_journal_is_followed(setup: Setup, verify: bool) -> None:
    await setup.append(3, written_at_ns=3)
    await setup.follower.catch_up(verify=verify)
    assert setup.follower.seq == setup.journal.head.seq


async def test_shorter_journal_is_replaced(setup: Setup) -> None:
    setup.set_back()
    with pytest.raises(JournalReplacedError, match="record 2 is lost or differs"):
        await setup.follower.catch_up()


async def test_other_records_in_the_same_place_are_a_replaced_journal(setup: Setup) -> None:
    setup.set_back()
    await setup.append(2, written_at_ns=99)
    with pytest.raises(JournalReplacedError, match="record 2 is lost or differs"):
        await setup.follower.catch_up()


@pytest.mark.parametrize("after", ["claim", "failed read"])
async def test_longer_journal_with_other_records_is_replaced(setup: Setup, after: str) -> None:
    setup.set_back()
    await setup.append(2, written_at_ns=99)
    await setup.append(3, written_at_ns=100)
    if after == "failed read":
        setup.follower.error = "connection refused"
    with pytest.raises(JournalReplacedError, match="record 2 is lost or differs"):
        await setup.follower.catch_up(verify=after == "claim")
