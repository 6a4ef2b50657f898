"""Devices that drivers publish, classes of devices, and what allocated claims use.

Every change costs as much as the object that changes.
"""

from __future__ import annotations

import msgspec

from asched.dra.devices import NodeView, PooledDevice, PoolID
from asched.dra.pools import PoolView, SliceDevices, build_view, devices_elsewhere, is_relevant
from asched.dra.selectors import SelectorAnswers, SelectorCompiler
from asched.dra.usage import Usage
from asched.model.resource_claims import (
    AllocationResult,
    Device,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)

_ViewKey = tuple[tuple[str, ...], frozenset[PooledDevice]]


class _Pool:
    """The slices of a pool, and the views of it that nodes have."""

    def __init__(self) -> None:
        self.slices: dict[str, SliceDevices] = {}
        self.views: dict[_ViewKey, PoolView | None] = {}

    def sorted_slices(self) -> list[SliceDevices]:
        return [self.slices[name] for name in sorted(self.slices)]


class Inventory:
    """What can be allocated, updated object by object."""

    def __init__(self, compile_selector: SelectorCompiler) -> None:
        self.selectors = SelectorAnswers(compile_selector)
        self.usage = Usage()
        self.classes: dict[str, DeviceClass] = {}
        self._pools: dict[PoolID, _Pool] = {}
        self._slices: dict[str, PoolID] = {}
        self._local: dict[str, dict[PoolID, int]] = {}
        """Pools with slices of one node only, by node name, with the number of those slices."""
        self._shared: dict[PoolID, int] = {}
        """Pools with slices that several nodes may see, with the number of those slices."""
        self._contents: dict[bytes, int] = {}
        self._serial = 0
        self._claims: dict[str, AllocationResult] = {}
        self._assumed: dict[str, AllocationResult] = {}
        self._encoder = msgspec.msgpack.Encoder(order="deterministic")

    # -- slices -----------------------------------------------------------------------------------

    def put_slice(self, item: ResourceSlice) -> None:
        """Add or replace a slice."""
        self.remove_slice(item.key)
        pool_id = PoolID(item.spec.driver, item.spec.pool.name)
        devices = tuple(
            PooledDevice(
                device,
                item,
                self._content(item.spec.driver, device),
                self._intern(device.capacity),
            )
            for device in item.spec.devices
        )
        pool = self._pools.setdefault(pool_id, _Pool())
        pool.slices[item.key] = SliceDevices(item, devices)
        pool.views.clear()
        self._slices[item.key] = pool_id
        index = self._index(item)
        index[pool_id] = index.get(pool_id, 0) + 1

    def remove_slice(self, key: str) -> None:
        """Remove a slice, if it exists."""
        pool_id = self._slices.pop(key, None)
        if pool_id is None:
            return
        pool = self._pools[pool_id]
        item = pool.slices.pop(key).resource_slice
        pool.views.clear()
        if not pool.slices:
            del self._pools[pool_id]
        index = self._index(item)
        index[pool_id] -= 1
        if not index[pool_id]:
            del index[pool_id]

    def _index(self, item: ResourceSlice) -> dict[PoolID, int]:
        if item.spec.node_name and not item.spec.shared_counters:
            return self._local.setdefault(item.spec.node_name, {})
        return self._shared

    def _content(self, driver: str, device: Device) -> int:
        return self._intern(
            (driver, device.attributes, device.capacity, device.allow_multiple_allocations)
        )

    def _intern(self, content: object) -> int:
        return self._contents.setdefault(self._encoder.encode(content), len(self._contents))

    def pools_of(self, node: NodeView) -> tuple[PoolView, ...]:
        """The pools that a node sees, in the order in which they are tried."""
        candidates = {*self._local.get(node.name, ()), *self._shared}
        views = (self._view(pool_id, node) for pool_id in candidates)
        return tuple(
            sorted((view for view in views if view is not None), key=lambda view: view.order)
        )

    def _view(self, pool_id: PoolID, node: NodeView) -> PoolView | None:
        pool = self._pools[pool_id]
        slices = pool.sorted_slices()
        relevant = [item for item in slices if is_relevant(item, node)]
        if not relevant:
            return None
        elsewhere = devices_elsewhere(relevant, node)
        key = (tuple(item.resource_slice.key for item in relevant), elsewhere)
        if key not in pool.views:
            self._serial += 1
            view = build_view(pool_id, self._serial, relevant, slices)
            pool.views[key] = None if view is None else view.without(elsewhere)
        return pool.views[key]

    # -- classes ----------------------------------------------------------------------------------

    def put_class(self, item: DeviceClass) -> None:
        """Add or replace a class."""
        self.classes[item.name] = item

    def remove_class(self, name: str) -> None:
        """Remove a class, if it exists."""
        self.classes.pop(name, None)

    # -- use --------------------------------------------------------------------------------------

    def put_claim(self, claim: ResourceClaim) -> None:
        """Count what a claim's allocation uses, instead of what it used before."""
        self._replace(claim.key, self._claims, claim.status.allocation)

    def remove_claim(self, key: str) -> None:
        """Stop counting what a claim uses."""
        self._replace(key, self._claims, None)

    def assume(self, claim_key: str, allocation: AllocationResult) -> None:
        """Count an allocation that is being written, until the claim itself has one."""
        self._replace(claim_key, self._assumed, allocation)

    def forget(self, claim_key: str) -> None:
        """Undo :meth:`assume`."""
        self._replace(claim_key, self._assumed, None)

    def is_assumed(self, claim_key: str) -> bool:
        """Whether an allocation of the claim is being written."""
        return claim_key in self._assumed

    def _in_use(self, key: str) -> AllocationResult | None:
        return self._claims.get(key) or self._assumed.get(key)

    def _replace(
        self, key: str, target: dict[str, AllocationResult], allocation: AllocationResult | None
    ) -> None:
        before = self._in_use(key)
        if allocation is None:
            target.pop(key, None)
        else:
            target[key] = allocation
        after = self._in_use(key)
        if before == after:
            return
        if before is not None:
            self.usage.remove(before)
        if after is not None:
            self.usage.add(after)
