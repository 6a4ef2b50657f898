"""What a daemon finds when it starts again, however the one before it ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import anyio
import pytest

from asched.daemon.daemon import Daemon
from asched.daemon.effects import reconciler
from asched.framework.cluster import Victim
from asched.framework.cycle_state import CycleState
from asched.framework.interface import NodeToStatus, PostFilterPlugin, PostFilterResult
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.journal import open_journal
from asched.state.cluster import PodPhase
from asched.state.records import Assigned, BindFailed, LeadershipGained
from tests.daemon.world import KUBE, World, world

NEVER_S = 3600.0
"""A delay that outlasts any test."""
BINDING = "pods/binding"


READS = ("get", "list", "watch")


async def crash(w: World, when: Callable[[Daemon], bool], config: str = "") -> Daemon:
    """Run a daemon until ``when`` says so after a change or an effect that was asked for (so what it
    follows from is durable), then end it at once: nothing is drained, no answer is awaited."""
    w.faults.on_request = lambda verb, resource: None if verb in READS else w.touch()
    with anyio.CancelScope() as scope:
        async with w.daemon(config, *PLUGINS) as daemon:
            await w.until(lambda: when(daemon))
            scope.cancel()
    w.faults.on_request = lambda verb, resource: None
    w.faults.clear()
    return daemon


async def recorded(w: World) -> dict[str, str]:
    """The node that the journal last assigned to each pod."""
    async with open_journal(str(w.journal), read_only=True) as store:
        found = [s.record async for s in store.read() if isinstance(s.record, Assigned)]
    return {record.key.partition("/")[2]: record.node for record in found}


def decided(count: int) -> Callable[[Daemon], bool]:
    """As many pods were decided and their bindings are under way, unanswered."""
    return lambda daemon: daemon.engine.stats.assigned == count and daemon.engine.stats.turns > 0


async def test_a_clean_restart_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:
        for epoch in (1, 2, 3):
            async with w.daemon() as daemon:
                w.add_pods(10, f"life-{epoch}")
                await w.until(lambda: not w.unbound())
            assert daemon.engine.stats.assigned == daemon.engine.stats.bound == 10
            assert daemon.cluster.epoch == epoch
        assert len(w.placements.order) == 30
        async with open_journal(str(w.journal), read_only=True) as store:
            records = [s.record async for s in store.read()]
        assert [r.epoch for r in records if isinstance(r, LeadershipGained)] == [1, 2, 3]


async def test_since_when_a_pod_is_unscheduled_outlives_the_daemon(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w:
        w.add_pod("big", "3")
        long_ago = "2020-01-01T00:00:00Z"
        unscheduled = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/7 nodes are available.", "lastTransitionTime": long_ago,
        }  # fmt: skip
        status = {"conditions": [unscheduled]}
        w.cluster.patch(
            "pods", "big", {"status": status}, namespace="default", subresource="status"
        )
        async with w.daemon():
            await w.until(lambda: w.message("big").startswith("0/1 nodes"))
        assert w.condition("big")["lastTransitionTime"] == long_ago


async def test_bindings_decided_but_never_posted_are_posted_as_decided(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=5) as w:
        w.faults.delay(NEVER_S, count=100, verb="create", resource=BINDING)
        w.add_pods(20, "p")
        await crash(w, decided(20))
        assert len(w.unbound()) == 20
        async with w.daemon() as daemon:
            await w.until(lambda: not w.unbound())
            await daemon.engine.synced.wait()
        assert {name: w.node_of(name) for name in await recorded(w)} == await recorded(w)
        assert (daemon.engine.stats.assigned, daemon.engine.stats.bound) == (0, 20)


async def test_bindings_that_went_through_unheard_are_confirmed_by_the_list(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, nodes=3) as w:
        w.faults.delay(NEVER_S, count=100, verb="create", resource=BINDING)
        w.add_pods(3, "p")
        await crash(w, decided(3))
        nodes = await recorded(w)
        w.cluster.bind("default", "p-0", nodes["p-0"])
        elsewhere = next(name for name in ("n0", "n1", "n2") if name != nodes["p-1"])
        w.cluster.bind("default", "p-1", elsewhere)
        async with w.daemon() as daemon:
            await w.until(lambda: not w.unbound())
            await daemon.engine.synced.wait()
        assert w.node_of("p-0") == nodes["p-0"]
        assert daemon.cluster.pods["default/p-1"].node == w.node_of("p-1") == elsewhere
        assert w.node_of("p-2") == nodes["p-2"]
        assert all(entry.phase is PodPhase.BOUND for entry in daemon.cluster.pods.values())
        assert (daemon.engine.stats.assigned, daemon.engine.stats.bound) == (0, 1)


async def test_pods_and_nodes_that_vanished_while_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long a binding that was sent before may still arrive, which is a minute in earnest.
    monkeypatch.setattr(reconciler, "MAX_REQUEST_AGE_S", 0.2)
    async with world(tmp_path, nodes=2, cpu="1") as w:
        w.faults.delay(NEVER_S, count=100, verb="create", resource=BINDING)
        w.add_pods(2, "p", "800m")
        await crash(w, decided(2))
        nodes = await recorded(w)
        w.cluster.delete("pods", "p-0", namespace="default", grace_period_s=0)
        w.cluster.delete("nodes", nodes["p-1"])
        async with w.daemon() as daemon:
            # The vanished pod gave back its room, which the pod of the vanished node gets.
            await w.until(lambda: w.node_of("p-1") == nodes["p-0"])
        assert daemon.cluster.pods.keys() == {"default/p-1"}
        assert daemon.cluster.nodes.cluster_size == 1
        async with open_journal(str(w.journal), read_only=True) as store:
            failures = [s.record async for s in store.read() if isinstance(s.record, BindFailed)]
        assert [failure.message for failure in failures] == [
            f"node {nodes['p-1']} was removed after the pod was assigned"
        ]


async def test_a_profile_that_vanished_leaves_its_pods_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "MAX_REQUEST_AGE_S", 0.2)
    config = KUBE + "profiles: [{schedulerName: a}, {schedulerName: b}]\n"
    async with world(tmp_path, nodes=1, cpu="1") as w:
        w.faults.delay(NEVER_S, count=100, verb="create", resource=BINDING)
        w.add_pod("of-a", schedulerName="a")
        w.add_pod("of-b", "800m", schedulerName="b")
        await crash(w, decided(2), config)
        async with w.daemon(KUBE + "profiles: [{schedulerName: a}]\n") as daemon:
            w.add_pod("later", "800m", schedulerName="a")
            # It gets the room, when that is given up.
            await w.until(lambda: w.unbound() == ["of-b"] and w.node_of("later") == "n0")
            assert daemon.cluster.pods["default/of-b"].phase is PodPhase.PENDING
        assert w.condition("of-b") == {}


class Usurper(PostFilterPlugin):
    """Evicts the pod named ``victim`` for the pod named ``heir``."""

    name: ClassVar[str] = "Usurper"
    api_version: ClassVar[int] = 1

    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeToStatus
    ) -> PostFilterResult:
        nodes = self.handle.cluster.nodes
        row = nodes.row_of("n0")
        found = () if row is None else nodes.pods(row)
        victims = tuple(Victim(p.key, p.uid) for p in found if p.name == "victim")
        if pod.name != "heir" or not victims:
            return PostFilterResult(Status.unschedulable())
        return PostFilterResult(SUCCESS, "n0", victims)


PLUGINS = (Usurper,)
USURPER = KUBE + "profiles:\n- plugins:\n    postFilter:\n      enabled: [{name: Usurper}]\n"


async def test_evictions_go_on_after_a_crash(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w:
        w.add_pod("victim", "800m", terminationGracePeriodSeconds=0)
        async with w.daemon(USURPER, *PLUGINS):
            await w.until(lambda: w.node_of("victim") == "n0")
        w.faults.delay(NEVER_S, count=100, verb="delete", resource="pods")
        w.add_pod("heir", "800m")
        await crash(w, lambda _: w.faults.injected > 0 and bool(w.message("heir")), config=USURPER)
        conditions = w.pod("victim")["status"]["conditions"]
        reasons = [c["reason"] for c in conditions if c["type"] == "DisruptionTarget"]
        assert reasons == ["PreemptionByScheduler"]
        assert w.pod("heir")["status"]["nominatedNodeName"] == "n0"
        async with w.daemon(USURPER, *PLUGINS) as daemon:
            assert len(daemon.cluster.evictions) == 1
            await w.until(lambda: w.unbound() == [])
            await w.until(lambda: bool(w.events("victim")))
        assert w.node_of("heir") == "n0"
        assert ("Preempted", "n0") in [
            (reason, note.rpartition(" ")[2]) for reason, note in w.events("victim")
        ]
