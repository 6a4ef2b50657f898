"""Gangs with claims: volumes are reserved for all pods, and bound before the pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asched.state.records import Assigned
from asched.testing.invariants import check
from tests.batch_world.jobs import (
    BATCH,
    POD_GROUPS,
    add_member,
    bound,
    check_replay,
    prepare,
    recorded,
    unschedulable,
)
from tests.daemon.world import World, world
from tests.plugins.test_volume_binding_end_to_end import Storage, VolumeController, running


def add_gang_with_claims(w: World, name: str, size: int) -> None:
    spec = {"minMember": size, "queue": "default"}
    w.cluster.create(POD_GROUPS, {"metadata": {"name": name}, "spec": spec})
    for number in range(size):
        claim: dict[str, Any] = {"claimName": f"{name}-{number}"}
        volume = {"name": "v", "persistentVolumeClaim": claim}
        add_member(w, name, number, "1", volumes=[volume])


async def test_each_gang_member_gets_its_own_volume(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w, running(VolumeController(w.cluster)):
        prepare(w)
        storage = Storage(w)
        storage.add_class()
        for node in range(3):
            storage.add_volume(f"pv-{node}", f"n{node}")
            storage.add_claim(f"db-{node}")
        add_gang_with_claims(w, "db", 3)
        async with w.daemon(BATCH) as daemon:
            await w.until(lambda: bound(w, "db") == 3)
            check(daemon.cluster)
        nodes = {f"pv-{n}": f"n{n}" for n in range(3)}
        for number in range(3):
            [volume] = [pv for pv in nodes if storage.claimant(pv) == f"db-{number}"]
            assert w.node_of(f"db-{number}") == nodes[volume]
        placed = [r for r in await recorded(w) if isinstance(r, Assigned)]
        assert all(r.reservations for r in placed)
        assert await check_replay(w) > 0


async def test_gang_waits_for_all_its_volumes(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w, running(VolumeController(w.cluster)):
        prepare(w)
        storage = Storage(w)
        storage.add_class()
        storage.add_volume("pv-0", "n0")
        for number in range(2):
            storage.add_claim(f"db-{number}")
        add_gang_with_claims(w, "db", 2)
        async with w.daemon(BATCH):
            await w.until(lambda: bool(unschedulable(w, "db")))
            assert bound(w, "db") == 0
            assert storage.claimant("pv-0") == "", "nothing is kept for a gang that does not run"
            storage.add_volume("pv-1", "n1")
            await w.until(lambda: bound(w, "db") == 2)
        assert await check_replay(w) > 0
