"""A replica with its own journal leads again: decisions of its previous term are abandoned."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import anyio
import pytest

from asched.config.file import parse
from asched.daemon.daemon import Daemon, running_daemon
from asched.daemon.effects import reconciler
from asched.daemon.ha.election import LeaseTiming
from asched.daemon.ha.leadership import candidate
from asched.daemon.ha.lease import LeaderElector, LeaseName
from asched.daemon.startup import DaemonContext
from asched.framework.cycle_state import CycleState
from asched.framework.interface import PermitResult, Plugin, WaitingPodReviewer
from asched.framework.pod_info import PodInfo
from asched.framework.status import Code, Status
from asched.journal import open_journal
from asched.kube.connection import connect
from asched.state.records import BindFailed, LeadershipGained, LeadershipLost
from tests.daemon.world import KUBE, World, registry_with, world

LEASE = LeaseName("kube-system", "asched")
CONFIG = KUBE + "podInitialBackoffSeconds: 1\npodMaxBackoffSeconds: 1\n"


@pytest.fixture(autouse=True)
def what_was_sent_arrives_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never within the test; a minute in production."""
    monkeypatch.setattr(reconciler, "MAX_REQUEST_AGE_S", 0.2)


class Gate(WaitingPodReviewer):
    """Makes pods wait on Permit until it is opened, then allows all of them."""

    name: ClassVar[str] = "Gate"
    api_version: ClassVar[int] = 1
    is_open: ClassVar[bool] = False

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult() if self.is_open else PermitResult(Status(Code.WAIT), 900.0)

    def review_waiting_pods(self) -> None:
        if self.is_open:
            for held in self.handle.waiting_pods():
                held.allow(self.name)


@asynccontextmanager
async def replica(w: World, config: str = CONFIG, *plugins: type[Plugin]) -> AsyncIterator[Daemon]:
    """A replica with the journal of this world, until it has released the lease."""
    registry = registry_with(*plugins)
    async with (
        open_journal(str(w.journal)) as store,
        connect(w.kubeconfig) as client,
        connect(w.kubeconfig) as lease_client,
        candidate(LeaderElector(lease_client, LEASE, "it", LeaseTiming())) as leadership,
        running_daemon(
            DaemonContext(parse(config, "test", registry), registry, client, store),
            leadership=leadership,
        ) as daemon,
    ):
        yield daemon


async def left_behind(w: World) -> None:
    """A pod is assigned to the only node, and the leader ends before it binds the pod."""
    tried = anyio.Event()

    def on_request(verb: str, resource: str) -> None:
        if resource == "pods/binding":
            tried.set()

    w.faults.on_request = on_request
    # Nor can it be read whether it was.
    w.faults.respond(503, count=1_000, resource="pods/binding")
    w.faults.respond(503, count=1_000, resource="pods", verb="get")
    w.add_pod("old", "3")
    async with replica(w):
        with anyio.fail_after(60):
            await tried.wait()
    w.faults.clear()
    assert w.node_of("old") == ""


async def test_abandoned_binding_may_find_its_node_full(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="4") as w:
        await left_behind(w)
        # Another leader gave the room away.
        w.add_pod("new", "3", nodeName="n0")
        async with replica(w):
            await w.until(lambda: "Insufficient cpu" in w.message("old"))
            w.add_node("n1")
            await w.until(lambda: w.node_of("old") == "n1")
        await check_records(w)


async def test_abandoned_decisions_are_repeated(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="4") as w:
        await left_behind(w)
        async with replica(w):
            await w.until(lambda: w.node_of("old") == "n0")
        await check_records(w)


async def test_abandoned_waiting_pod_may_find_its_node_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither bound when Permit allows it, nor kept until no request can arrive."""
    monkeypatch.setattr(reconciler, "MAX_REQUEST_AGE_S", 3600.0)
    monkeypatch.setattr(Gate, "is_open", False)
    config = CONFIG + "profiles: [{plugins: {multiPoint: {enabled: [{name: Gate}]}}}]\n"
    async with world(tmp_path, nodes=1, cpu="4") as w:
        w.add_pod("old", "3")
        async with replica(w, config, Gate) as daemon:
            # This pod is rejected after the one before it waits on Permit.
            w.add_pod("big", "5")
            await w.until(lambda: "Insufficient cpu" in w.message("big"))
            assert "default/old" in daemon.cluster.waiting
        w.add_pod("new", "3", nodeName="n0")
        monkeypatch.setattr(Gate, "is_open", True)
        async with replica(w, config, Gate):
            await w.until(lambda: "Insufficient cpu" in w.message("old"))
            w.add_node("n1")
            await w.until(lambda: w.node_of("old") == "n1")
        await check_records(w)


async def check_records(w: World) -> None:
    """The journal holds both terms, and the decision of the first was abandoned."""
    async with open_journal(str(w.journal), read_only=True) as store:
        records = [stored.record async for stored in store.read()]
    terms = [type(r) for r in records if isinstance(r, LeadershipGained | LeadershipLost)]
    assert terms == [LeadershipGained, LeadershipLost] * 2
    given_up = [r for r in records if isinstance(r, BindFailed)]
    assert [(r.key, r.node) for r in given_up] == [("default/old", "n0")]
    assert "previous term" in given_up[0].message
