"""Repeated SIGKILL under load: no effect happens twice and none is lost."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

from asched.apiserver.storage import StoreChange
from asched.audit.replay import replay
from asched.config.registry import PluginRegistry
from asched.daemon.startup import fold_journal
from asched.journal import open_journal
from asched.journal.chain import GENESIS, verify
from asched.journal.chain_reader import ChainReader
from asched.state.cluster import ClusterState, PlacementState
from asched.state.fold import Fold
from tests.daemon.processes import NO_HEALTH, Command, commands, running
from tests.daemon.world import World, world

KILLS = 20
NODES = 20
PODS = 600
"""More than the connections to the API server, so that a kill leaves unsent bindings."""
MAX_MILLIS = 120
"""Largest request of a pod, at which nodes of 4 CPUs are 90 % full."""
RESUMED = "effects resumed"


class ProcessKiller:
    """Kills a daemon at its n-th request, before or after the request takes effect."""

    def __init__(self, w: World) -> None:
        self._left = 0
        self._kill: Callable[[], None] | None = None
        w.faults.on_request = lambda verb, resource: self._count()
        w.cluster.listen("pods", self._on_pod)

    def arm(self, command: Command, nth: int) -> None:
        self._left = nth
        self._kill = lambda: command.send(signal.SIGKILL)

    def _on_pod(self, change: StoreChange) -> None:
        if change.old is not None:
            self._count()

    def _count(self) -> None:
        if self._kill is None:
            return
        self._left -= 1
        if self._left <= 0:
            kill, self._kill = self._kill, None
            kill()


class Workload:
    """Replaces a part of the pods between two runs of the daemon."""

    def __init__(self, w: World, chance: random.Random) -> None:
        self._world = w
        self._chance = chance
        self._wave = 0

    def change(self) -> None:
        cluster = self._world.cluster
        bound = cluster.list("pods", fields="spec.nodeName!=")
        for pod in self._chance.sample(bound, max(0, len(bound) - PODS // 2)):
            name = pod["metadata"]["name"]
            cluster.delete("pods", name, namespace="default", grace_period_s=0)
        self._wave += 1
        millis = self._chance.randint(50, MAX_MILLIS)
        self._world.add_pods(PODS - cluster.count("pods"), f"wave-{self._wave}", f"{millis}m")


async def test_twenty_kills_under_load_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(20)
    resumed = 0
    async with world(tmp_path, nodes=NODES, cpu="4") as w, commands(tmp_path) as processes:
        killer, workload = ProcessKiller(w), Workload(w, chance)
        config = tmp_path / "config.yaml"
        config.write_text(NO_HEALTH)
        arguments = ["--kubeconfig", w.kubeconfig, "--journal", w.journal, "--config", config]
        for _ in range(KILLS):
            workload.change()
            async with running(processes, "run", *map(str, arguments)) as command:
                # Between the first lists and the binding of most pods.
                killer.arm(command, chance.randint(1, chance.choice((40, PODS))))
                assert await processes.ended(command) == -signal.SIGKILL, command.output
            resumed += RESUMED in command.output
            assert w.placements.violations == []
        async with w.daemon() as daemon:
            # Bindings that the last run did not observe are in the lists.
            await daemon.engine.synced.wait()
            await w.until(lambda: not w.unbound())
        await check_journal(w)
    assert resumed, "no kill left a decision without its effect"


async def check_journal(w: World) -> None:
    """The journal is complete and chained, and folds to the pods and nodes of the cluster."""
    fold = Fold(ClusterState(), PluginRegistry.discover().load)
    async with open_journal(str(w.journal), read_only=True) as store:
        head = GENESIS
        async for sealed in store.batches():
            head = verify(sealed, head)
        assert head == await store.head()
        await fold_journal(fold, ChainReader.from_beginning(store))
        replayed = await replay(store, PluginRegistry.discover())
    assert replayed.equal, replayed.divergence
    assert replayed.decisions
    # A late request of one run may kill the next run before it claims the journal.
    assert KILLS * 3 // 4 < fold.state.engine.epoch <= KILLS + 1
    assert all(entry.placement_state is PlacementState.BOUND for entry in fold.state.pods.values())
    known = {entry.info.uid: entry.node for entry in fold.state.pods.values()}
    alive = {pod["metadata"]["uid"] for pod in w.cluster.list("pods")}
    assert known == {uid: node for uid, node in w.placements.node_of.items() if uid in alive}
