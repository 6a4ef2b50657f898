"""Devices of ResourceSlices as the allocator reads them: taints, counters, and what is in use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from asched.dra.capacity import amount
from asched.model.resource_claims import (
    AllocationResult,
    Device,
    DeviceRequestAllocationResult,
    DeviceTaint,
    DeviceToleration,
    ResourceSlice,
    ResourceSliceSpec,
)
from asched.model.selectors import NodeSelectorTerm

PREVENTING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
"""Taints with other effects are ignored."""


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Whether a toleration covers a taint. ``tolerationSeconds`` does not matter here."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case _:
            return False


def untolerated(
    taints: Iterable[DeviceTaint], tolerations: Sequence[DeviceToleration]
) -> DeviceTaint | None:
    """The first of :attr:`PooledDevice.taints` that these tolerations do not cover."""
    for taint in taints:
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


class PoolID(NamedTuple):
    """A pool of a driver."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class NodeView(NamedTuple):
    """What the allocator reads of a node."""

    name: str
    labels: Mapping[str, str]


class CounterUse(NamedTuple):
    """What a device takes of one counter."""

    counter_set: str
    counter: str
    amount: int


class PooledDevice:
    """One device of one slice. Devices are compared by identity."""

    __slots__ = (
        "capacity_content",
        "content",
        "counters",
        "device",
        "multiple",
        "pool_id",
        "resource_slice",
        "taints",
    )

    def __init__(
        self, device: Device, resource_slice: ResourceSlice, content: int, capacity_content: int
    ) -> None:
        spec = resource_slice.spec
        self.device = device
        self.resource_slice = resource_slice
        self.pool_id = PoolID(spec.driver, spec.pool.name)
        self.content = content
        """Equal for devices that are the same to every selector and policy."""
        self.capacity_content = capacity_content
        """Equal for devices with equal capacities."""
        self.multiple = device.allow_multiple_allocations
        self.taints: tuple[DeviceTaint, ...] = tuple(
            taint for taint in device.taints if taint.effect in PREVENTING_EFFECTS
        )
        self.counters = tuple(
            CounterUse(consumed.counter_set, name, amount(counter.value))
            for consumed in device.consumes_counters
            for name, counter in consumed.counters.items()
        )

    @property
    def driver(self) -> str:
        return self.pool_id.driver

    @property
    def node_source(self) -> Device | ResourceSliceSpec:
        """What names the nodes on which the device can be used."""
        spec = self.resource_slice.spec
        return self.device if spec.per_device_node_selection else spec

    @property
    def selector_terms(self) -> tuple[NodeSelectorTerm, ...]:
        """Of the selector for nodes; more than one are not supported."""
        selector = self.node_source.node_selector
        return () if selector is None else selector.node_selector_terms

    @property
    def name(self) -> str:
        return self.device.name

    def __str__(self) -> str:
        return f"{self.pool_id}/{self.device.name}"


@dataclass(slots=True)
class DeviceUse:
    """How a device is used: as a whole, or in shares that consume capacity."""

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


_UNUSED = DeviceUse()


KEPT_SHARE_NUMBERS: Final = 10_000


class UsedDevice(NamedTuple):
    """The name of a device in use. The device need not exist in any slice."""

    pool_id: PoolID
    device: str


class Usage:
    """What allocated claims use, by pool. A device need not exist in any slice."""

    def __init__(self) -> None:
        self._pools: dict[PoolID, PoolUse] = {}
        self._latest: dict[PoolID, int] = {}
        """The version of the latest change of each pool, in this order."""
        self._share_numbers: dict[tuple[int, tuple[tuple[str, int], ...]], int] = {}
        self._next_share_number = 0
        self.version = 0
        """Grows with every change."""

    def changed_since(self, version: int) -> Iterator[PoolID]:
        """The pools in which something changed after a version."""
        for pool, changed in reversed(self._latest.items()):
            if changed <= version:
                return
            yield pool

    def share_number(self, use: DeviceUse) -> int:
        """Equal only for devices with shares that use equal amounts."""
        key = (use.capacity_shares, tuple(sorted(use.consumed.items())))
        number = self._share_numbers.get(key)
        if number is None:
            if len(self._share_numbers) >= KEPT_SHARE_NUMBERS:
                self._share_numbers.clear()
            number = self._share_numbers[key] = self._next_share_number
            self._next_share_number += 1
        return number

    def of(self, pool: PoolID, device: str) -> DeviceUse:
        """The use of one device. The result must not be changed."""
        use = self._pools.get(pool)
        return _UNUSED if use is None else use.devices.get(device, _UNUSED)

    def devices(self, pool: PoolID) -> Mapping[str, DeviceUse]:
        """The devices of a pool that are in use."""
        use = self._pools.get(pool)
        return {} if use is None else use.devices

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
            self.version += 1
            self._latest.pop(pool, None)
            self._latest[pool] = self.version
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
