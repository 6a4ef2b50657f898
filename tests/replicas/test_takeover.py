"""Two real processes: the leader stops, is killed or is paused; the other takes over.

``python -m tests.replicas`` (`make takeover`) measures and limits the time after a kill.
"""

from __future__ import annotations

import signal
from pathlib import Path

from asched.config.registry import PluginRegistry
from asched.daemon.startup import fold_journal
from asched.journal import open_journal
from asched.journal.chain_reader import ChainReader
from asched.state.cluster import ClusterState, PlacementState
from asched.state.fold import Fold
from tests.daemon.world import world
from tests.replicas.pair import Journals, Pair, Replica, pair


async def test_takeover(journals: Journals, tmp_path: Path) -> None:
    async with world(tmp_path, nodes=4, cpu="16") as w, pair(w, tmp_path, journals) as p:
        first, second = p.replicas
        await p.start(first)
        await p.bind_all(20)
        await p.start(second)
        assert await statuses(first, second) == (1, 0)
        assert await first.readiness() == readiness("leading")
        assert await second.readiness() == readiness("standby")

        await after_a_release(p, first, second)
        await p.start(first)
        assert await statuses(second, first) == (1, 0)
        await after_a_kill(p, second, first)
        await p.start(second)
        assert await statuses(first, second) == (1, 0)
        await after_a_pause(p, first, second)
        assert await second.master_status() == 1

        await p.bind_all(10)
        second.process.send(signal.SIGTERM)
        assert await second.ended() == 0, second.process.output
        p.check()
        await check_journal(p, journals.b)


def readiness(role: str) -> list[str]:
    engine = ("caches", "journal", "engine-turn", "bindings", "scheduler-names")
    names = ("ping", "engine", *engine, role, "api-server", "plugins")
    return [f"[+]{name}" for name in names]


async def statuses(leader: Replica, standby: Replica) -> tuple[float, float]:
    return await leader.master_status(), await standby.master_status()


async def after_a_release(p: Pair, leader: Replica, standby: Replica) -> None:
    p.add(40)
    leader.process.send(signal.SIGTERM)
    assert await leader.ended() == 0, leader.process.output
    assert leader.has_said("leadership released")
    assert p.ledger.freed_at_s, "the lease is freed, so the standby need not wait for its end"
    await p.bind_all(20)
    assert p.leader is standby


async def after_a_kill(p: Pair, leader: Replica, standby: Replica) -> None:
    p.add(40)
    leader.process.send(signal.SIGKILL)
    await leader.ended()
    await p.bind_all(20)
    assert p.leader is standby


async def after_a_pause(p: Pair, leader: Replica, standby: Replica) -> None:
    p.add(40)
    leader.process.send(signal.SIGSTOP)
    p.add(40)
    await p.world.until(lambda: p.leader is standby)
    await p.bind_all(20)
    bound = dict(p.ledger.bindings)
    leader.process.send(signal.SIGCONT)
    assert await leader.ended() == 1, leader.process.output
    assert p.ledger.bindings == bound, "it went on when it woke"
    last = leader.process.lines[-1]
    assert last.startswith("asched: "), last
    assert "leadership lost" in last or "claimed" in last


async def check_journal(p: Pair, url: str) -> None:
    """It folds to the pods and nodes of the cluster."""
    fold = Fold(ClusterState(), PluginRegistry.discover().load)
    async with open_journal(url, read_only=True) as store:
        await fold_journal(fold, ChainReader.from_beginning(store))
    assert all(entry.placement_state is PlacementState.BOUND for entry in fold.state.pods.values())
    known = {entry.info.uid: entry.node for entry in fold.state.pods.values()}
    assert known == p.world.placements.node_of
