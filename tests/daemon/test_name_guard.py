"""A scheduler name that a live Lease of another scheduler covers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio

from asched.daemon.ha.election import LeaseRecord
from asched.daemon.ha.lease import ObservedLease
from tests.daemon.processes import NO_HEALTH, commands, running
from tests.daemon.test_run_command import arguments, stopped, until_logged
from tests.daemon.world import KUBE, OWN, World, world

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASES = "leases.coordination.k8s.io"


def lease(age_s: float, holder: str = "other") -> LeaseRecord:
    renewed = f"{NOW - timedelta(seconds=age_s):%Y-%m-%dT%H:%M:%S.%fZ}"
    return LeaseRecord(holder, 15, renewed, renewed, 0)


def test_lease_is_live_for_its_duration_after_it_changed() -> None:
    observed = ObservedLease()
    observed.observe(lease(5), 100.0, NOW)
    assert observed.live(100.0)
    assert observed.holder == "other"
    observed.observe(lease(5), 110.0, NOW)
    assert observed.live(114.9)
    assert not observed.live(115.0)
    observed.observe(lease(1), 120.0, NOW)
    assert observed.live(134.9)


def test_old_absent_or_released_lease_is_not_live() -> None:
    observed = ObservedLease()
    observed.observe(lease(16), 100.0, NOW)
    assert not observed.live(100.0)
    observed.observe(None, 100.0, NOW)
    observed.observe(lease(0, holder=""), 101.0, NOW)
    assert not observed.live(101.0)
    # A lease without a readable time counts as not renewed.
    unreadable = ObservedLease()
    unreadable.observe(LeaseRecord("other", 15, None, "yesterday", 0), 100.0, NOW)
    assert not unreadable.live(100.0)


def test_renewals_count_whatever_the_clocks_say() -> None:
    """The other machine's clock is an hour slow."""
    observed = ObservedLease()
    observed.observe(lease(3600), 100.0, NOW)
    assert not observed.live(100.0)
    observed.observe(lease(3598), 102.0, NOW)
    assert observed.live(116.0)


# -- with a daemon --------------------------------------------------------------------------------


def hold_lease(w: World, holder: str = "control-plane_1") -> None:
    """kube-scheduler renews its lease now, for longer than the test takes on a slow machine."""
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 900, "renewTime": now}
    metadata = {"name": "kube-scheduler", "namespace": "kube-system"}
    if not w.cluster.count(LEASES):
        w.cluster.create(LEASES, {"metadata": metadata, "spec": spec}, namespace="kube-system")
    else:
        w.cluster.patch(LEASES, "kube-scheduler", {"spec": spec}, namespace="kube-system")


async def test_nothing_is_bound_while_kube_scheduler_leads(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        hold_lease(w)
        w.add_pod("p")
        async with w.daemon() as daemon:
            await daemon.synced.wait()
            while not (problem := daemon.guard.check().problem()):
                await anyio.wait_all_tasks_blocked()
            assert problem.startswith(
                "control-plane_1 serves default-scheduler, as lease kube-system/kube-scheduler"
            )
            assert daemon.engine.stats.assigned == 0
            assert not w.placements.order
            hold_lease(w, holder="")
            await w.until(lambda: w.node_of("p") == "n0")
            assert not daemon.guard.check().problem()


async def test_other_names_are_served(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        hold_lease(w)
        w.add_pod("p", schedulerName="mine")
        async with w.daemon(KUBE + "profiles: [{schedulerName: mine}]\n"):
            await w.until(lambda: w.node_of("p") == "n0")


async def test_setting_takes_name_over(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        hold_lease(w)
        w.add_pod("p")
        async with w.daemon(OWN + "takeOverNames: true\n"):
            await w.until(lambda: w.node_of("p") == "n0")


async def test_unreadable_leases_prevent_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        hold_lease(w)
        w.faults.respond(403, count=1000, resource="leases")
        w.add_pod("p")
        async with w.daemon():
            await w.until(lambda: w.node_of("p") == "n0")


async def test_command_warns_and_flag_takes_name_over(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        hold_lease(w)
        w.add_pod("p")
        options = arguments(w, NO_HEALTH)
        async with running(runner, *options) as command:
            await until_logged(command, "no decisions while another scheduler serves the name")
            assert not w.placements.order
            assert await stopped(runner, command) == 0
        async with running(runner, *options, "--take-over-names") as command:
            await w.until(lambda: w.node_of("p") == "n0")
            assert await stopped(runner, command) == 0
