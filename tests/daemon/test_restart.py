"""Restarts of the daemon after a clean stop or a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import anyio
import pytest

from asched.daemon.daemon import Daemon
from asched.daemon.effects import reconciler
from asched.framework.cluster import PodRef
from asched.framework.cycle_state import CycleState
from asched.framework.interface import NodeToStatus, PostFilterPlugin, PostFilterResult
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.journal import open_journal
from asched.state.cluster import PlacementState
from asched.state.records import Assigned, BindFailed, LeadershipGained
from tests.daemon.world import KUBE, World, world

NEVER_S = 3600.0
"""A delay longer than any test."""
BINDING = "pods/binding"
READS = ("get", "list", "watch")


async def crash(w: World, when: Callable[[Daemon], bool], config: str = "") -> Daemon:
    """Run a daemon until ``when`` is true, then cancel it without draining.

    The condition is checked after changes and at requests, so its cause is durable.
    """
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
    """Whether ``count`` pods are assigned, with unanswered bindings."""
    return lambda daemon: daemon.engine.stats.assigned == count and daemon.engine.stats.turns > 0


async def test_clean_restart_continues(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:
        for epoch in (1, 2, 3):
            async with w.daemon() as daemon:
                w.add_pods(10, f"run-{epoch}")
                await w.until(lambda: not w.unbound())
            assert daemon.engine.stats.assigned == daemon.engine.stats.bound == 10
            assert daemon.cluster.engine.epoch == epoch
        assert len(w.placements.order) == 30
        async with open_journal(str(w.journal), read_only=True) as store:
            records = [s.record async for s in store.read()]
        assert [r.epoch for r in records if isinstance(r, LeadershipGained)] == [1, 2, 3]


async def test_restart_keeps_transition_time_of_condition(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w:
        w.add_pod("big", "3")
        long_ago = "2020-01-01T00:00:00Z"
        unscheduled = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/7 nodes are available.",
            "lastTransitionTime": long_ago,
        }
        status = {"conditions": [unscheduled]}
        w.cluster.patch(
            "pods", "big", {"status": status}, namespace="default", subresource="status"
        )
        async with w.daemon():
            await w.until(lambda: w.message("big").startswith("0/1 nodes"))
        assert w.condition("big")["lastTransitionTime"] == long_ago


async def test_restart_posts_unsent_bindings_as_decided(tmp_path: Path) -> None:
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


async def test_restart_confirms_unanswered_bindings_from_list(
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
        assert all(
            entry.placement_state is PlacementState.BOUND for entry in daemon.cluster.pods.values()
        )
        assert (daemon.engine.stats.assigned, daemon.engine.stats.bound) == (0, 1)


async def test_restart_handles_pods_and_nodes_deleted_while_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The time in which an earlier binding may still take effect; one minute by default.
    monkeypatch.setattr(reconciler, "MAX_REQUEST_AGE_S", 0.2)
    async with world(tmp_path, nodes=2, cpu="1") as w:
        w.faults.delay(NEVER_S, count=100, verb="create", resource=BINDING)
        w.add_pods(2, "p", "800m")
        await crash(w, decided(2))
        nodes = await recorded(w)
        w.cluster.delete("pods", "p-0", namespace="default", grace_period_s=0)
        w.cluster.delete("nodes", nodes["p-1"])
        async with w.daemon() as daemon:
            # The deleted pod's node has room for the pod of the deleted node.
            await w.until(lambda: w.node_of("p-1") == nodes["p-0"])
        assert daemon.cluster.pods.keys() == {"default/p-1"}
        assert daemon.cluster.nodes.cluster_size == 1
        async with open_journal(str(w.journal), read_only=True) as store:
            failures = [s.record async for s in store.read() if isinstance(s.record, BindFailed)]
        assert [failure.message for failure in failures] == [
            f"node {nodes['p-1']} was removed after the pod was assigned"
        ]


async def test_restart_without_profile_releases_its_pods(
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
            # Scheduled when the assignment of of-b is released.
            await w.until(lambda: w.unbound() == ["of-b"] and w.node_of("later") == "n0")
            assert daemon.cluster.pods["default/of-b"].placement_state is PlacementState.PENDING
        assert w.condition("of-b") == {}


class EvictVictim(PostFilterPlugin):
    """Evicts the pod ``victim`` for the pod ``preemptor``."""

    name: ClassVar[str] = "EvictVictim"
    api_version: ClassVar[int] = 1

    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeToStatus
    ) -> PostFilterResult:
        nodes = self.handle.cluster.nodes
        row = nodes.row_of("n0")
        found = () if row is None else nodes.pods(row)
        victims = tuple(PodRef(p.key, p.uid) for p in found if p.name == "victim")
        if pod.name != "preemptor" or not victims:
            return PostFilterResult(Status.unschedulable())
        return PostFilterResult(SUCCESS, "n0", victims)


PLUGINS = (EvictVictim,)
EVICT_VICTIM = (
    KUBE + "profiles:\n- plugins:\n    postFilter:\n      enabled: [{name: EvictVictim}]\n"
)


async def test_restart_continues_evictions(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w:
        w.add_pod("victim", "800m", terminationGracePeriodSeconds=0)
        async with w.daemon(EVICT_VICTIM, *PLUGINS):
            await w.until(lambda: w.node_of("victim") == "n0")
        w.faults.delay(NEVER_S, count=100, verb="delete", resource="pods")
        w.add_pod("preemptor", "800m")
        await crash(
            w, lambda _: w.faults.injected > 0 and bool(w.message("preemptor")), config=EVICT_VICTIM
        )
        conditions = w.pod("victim")["status"]["conditions"]
        reasons = [c["reason"] for c in conditions if c["type"] == "DisruptionTarget"]
        assert reasons == ["PreemptionByScheduler"]
        assert w.pod("preemptor")["status"]["nominatedNodeName"] == "n0"
        async with w.daemon(EVICT_VICTIM, *PLUGINS) as daemon:
            assert len(daemon.cluster.evictions) == 1
            await w.until(lambda: w.unbound() == [])
            await w.until(lambda: bool(w.events("victim")))
        assert w.node_of("preemptor") == "n0"
        assert ("Preempted", "n0") in [
            (reason, note.rpartition(" ")[2]) for reason, note in w.events("victim")
        ]
