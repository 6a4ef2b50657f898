"""The leader is killed while it binds pods with ResourceClaims; the other replica takes over."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import anyio

from asched.apiserver.dra.controller import ResourceClaimController
from asched.apiserver.storage import StoreChange
from tests.daemon.world import World, world
from tests.plugins.dynamic_resources.devices import DeviceWorld
from tests.replicas.pair import Journals, pair

NODES, DEVICES_PER_NODE = 3, 4
DEVICES = NODES * DEVICES_PER_NODE


class ClaimLog:
    """What every change of a claim allocated, reserved and released."""

    def __init__(self, w: World) -> None:
        self.allocated: Counter[str] = Counter()
        self.deallocated: Counter[str] = Counter()
        self.shared: list[str] = []
        """Devices that two claims had at the same time."""
        self._holder: dict[tuple[str, str], str] = {}
        w.cluster.listen("resourceclaims.resource.k8s.io", self._on_claim)

    def _on_claim(self, change: StoreChange) -> None:
        name = change.new.obj["metadata"]["name"]
        before = {device for device, holder in self._holder.items() if holder == name}
        status = change.new.obj.get("status") or {}
        results = (status.get("allocation") or {}).get("devices", {}).get("results", [])
        devices = {(each["pool"], each["device"]) for each in results}
        if devices and not before:
            self.allocated[name] += 1
        if before and not devices:
            self.deallocated[name] += 1
        for device in before - devices:
            del self._holder[device]
        for device in devices - before:
            if device in self._holder:
                self.shared.append(f"{device}: {self._holder[device]} and {name}")
            self._holder[device] = name


async def test_devices_are_allocated_once_and_released_once(
    journals: Journals, tmp_path: Path
) -> None:
    async with (
        world(tmp_path, nodes=NODES, cpu="16") as w,
        pair(w, tmp_path, journals) as p,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(ResourceClaimController(w.cluster).run)
        d, log = DeviceWorld(w), ClaimLog(w)
        for number in range(NODES):
            d.add_slice(f"n{number}", DEVICES_PER_NODE)
        d.add_class()
        leader, standby = p.replicas
        await p.start(leader)
        await w.until(lambda: p.leader is leader)
        await p.start(standby)
        first = [f"first-{number}" for number in range(DEVICES)]
        for name in first:
            d.add_claim(name)
            d.add_pod(name, name, cpu="50m")
        await w.until(lambda: sum(log.allocated.values()) >= DEVICES // 3)
        leader.process.send(signal.SIGKILL)
        await leader.ended()
        await w.until(lambda: p.leader is standby and not w.unbound())
        assert log.allocated == dict.fromkeys(first, 1)
        assert all(d.consumers(name) == [name] for name in first)

        second = [f"second-{number}" for number in range(DEVICES)]
        for name in second:
            d.add_claim(name)
            d.add_pod(name, name, cpu="50m")
        for name in first:
            w.cluster.delete("pods", name, namespace="default", grace_period_s=0)
        await w.until(lambda: not w.unbound())
        assert log.deallocated == dict.fromkeys(first, 1)
        assert log.allocated == dict.fromkeys([*first, *second], 1)
        assert not log.shared
        p.check()
        tasks.cancel_scope.cancel()
