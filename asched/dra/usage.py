"""What allocated claims use of the devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from asched.dra.devices import PoolID
from asched.dra.quantities import amount
from asched.model.resource_claims import AllocationResult, DeviceRequestAllocationResult


@dataclass(slots=True)
class DeviceUse:
    """Allocations of one device."""

    exclusive: int = 0
    """Allocations of the whole device."""
    shares: int = 0
    """Allocations of a part of its capacity."""
    capacity_shares: int = 0
    """Those of the shares that consume capacity."""
    consumed: dict[str, int] = field(default_factory=dict)
    """Capacity that the shares consume, in billionths."""

    @property
    def is_empty(self) -> bool:
        return not self.exclusive and not self.shares


@dataclass(slots=True)
class PoolUse:
    """The devices of a pool that are in use, by name."""

    devices: dict[str, DeviceUse] = field(default_factory=dict)
    version: int = 0
    """Changes whenever :attr:`devices` does."""


_UNUSED = DeviceUse()


class UsedDevice(NamedTuple):
    """A device in use. It need not exist in any slice."""

    pool_id: PoolID
    device: str


class Usage:
    """Devices in use, by pool. Devices need not exist in any slice."""

    def __init__(self) -> None:
        self._pools: dict[PoolID, PoolUse] = {}
        self._version = 0

    def of(self, pool: PoolID, device: str) -> DeviceUse:
        """The use of one device. The result must not be changed."""
        use = self._pools.get(pool)
        return _UNUSED if use is None else use.devices.get(device, _UNUSED)

    def devices(self, pool: PoolID) -> Mapping[str, DeviceUse]:
        """The devices of a pool that are in use."""
        use = self._pools.get(pool)
        return {} if use is None else use.devices

    def version(self, pool: PoolID) -> int:
        """Differs if what is in use in the pool may differ; 0 if nothing is."""
        use = self._pools.get(pool)
        return 0 if use is None else use.version

    def add(self, allocation: AllocationResult) -> set[UsedDevice]:
        """Count the devices of an allocation. Returns the devices that changed."""
        return self._change(allocation, 1)

    def remove(self, allocation: AllocationResult) -> set[UsedDevice]:
        """Undo :meth:`add`."""
        return self._change(allocation, -1)

    def _change(self, allocation: AllocationResult, sign: int) -> set[UsedDevice]:
        changed: set[UsedDevice] = set()
        for result in allocation.devices.results:
            if result.admin_access:
                continue
            pool = PoolID(result.driver, result.pool)
            use = self._pools.setdefault(pool, PoolUse())
            _change_device(use.devices, result, sign)
            changed.add(UsedDevice(pool, result.device))
        for pool in {device.pool_id for device in changed}:
            self._version += 1
            self._pools[pool].version = self._version
            if not self._pools[pool].devices:
                del self._pools[pool]
        return changed

    def snapshot(self) -> dict[PoolID, dict[str, DeviceUse]]:
        """Everything in use, for comparisons."""
        return {pool: dict(use.devices) for pool, use in self._pools.items() if use.devices}


def _change_device(
    devices: dict[str, DeviceUse], result: DeviceRequestAllocationResult, sign: int
) -> None:
    use = devices.setdefault(result.device, DeviceUse())
    if result.share_id is None:
        use.exclusive += sign
    else:
        use.shares += sign
        if result.consumed_capacity:
            use.capacity_shares += sign
            _accumulate(use.consumed, result.consumed_capacity.items(), sign)
    if use.is_empty:
        del devices[result.device]


def _accumulate(
    total: dict[str, int], parts: Iterable[tuple[str, str | int | float]], sign: int
) -> None:
    for name, quantity in parts:
        total[name] = total.get(name, 0) + sign * amount(quantity)
        if total[name] == 0:
            del total[name]
