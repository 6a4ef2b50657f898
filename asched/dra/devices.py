"""Devices of ResourceSlices in the form in which the allocator reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from asched.dra.quantities import amount
from asched.dra.taints import PREVENTING_EFFECTS
from asched.model.resource_claims import Device, DeviceTaint, ResourceSlice


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
        """Equal for devices that no selector and no policy tells apart."""
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
    def name(self) -> str:
        return self.device.name

    def __str__(self) -> str:
        return f"{self.pool_id}/{self.device.name}"
