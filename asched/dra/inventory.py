"""Devices that drivers publish, classes of devices, and what allocated claims use.

Every change costs as much as the object that changes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from asched.dra.devices import NodeView, PooledDevice, PoolID, Usage, UsedDevice
from asched.dra.pools import (
    Bits,
    NodeTraits,
    PoolView,
    SliceDevices,
    build_view,
    is_relevant,
    node_traits,
)
from asched.dra.selectors import SelectorAnswers, SelectorCompiler
from asched.model.resource_claims import (
    AllocationResult,
    Device,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)

_KEPT: Final = 10_000


ChangeT = TypeVar("ChangeT", bound=Hashable)


class SliceChange(NamedTuple):
    """The pool of a slice, and its node; empty if the slice is not for one node."""

    pool_id: PoolID
    node_name: str


class InventoryChanges(Generic[ChangeT]):
    """The latest changes in order. Positions count all changes ever made."""

    def __init__(self) -> None:
        self._first = 0
        self._changes: list[ChangeT] = []

    @property
    def position(self) -> int:
        """The position after the latest change."""
        return self._first + len(self._changes)

    def add(self, change: ChangeT) -> None:
        self._changes.append(change)
        if len(self._changes) > 2 * _KEPT:
            del self._changes[:_KEPT]
            self._first += _KEPT

    def since(self, position: int) -> set[ChangeT] | None:
        """The changes after a position; None if they are no longer known."""
        if position < self._first:
            return None
        return set(self._changes[position - self._first :])


class ContentNumbers:
    """Numbers equal contents equally, so that comparing them is cheap.

    A number is never used again for another content.
    """

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._uses: dict[int, tuple[bytes, int]] = {}
        self._next = 0
        self._encoder = msgspec.msgpack.Encoder(order="deterministic")
        self.released = 0
        """How many contents are no longer in use."""

    def __len__(self) -> int:
        return len(self._numbers)

    def acquire(self, content: object) -> int:
        """The number of a content, which stays until it is released as often."""
        encoded = self._encoder.encode(content)
        number = self._numbers.get(encoded)
        if number is None:
            number = self._numbers[encoded] = self._next
            self._next += 1
        self._uses[number] = (encoded, self._uses.get(number, (encoded, 0))[1] + 1)
        return number

    def release(self, number: int) -> None:
        """Undo one :meth:`acquire`."""
        encoded, uses = self._uses[number]
        if uses > 1:
            self._uses[number] = (encoded, uses - 1)
            return
        del self._uses[number]
        del self._numbers[encoded]
        self.released += 1


_KEPT_VIEWS: Final = 10_000
"""Nodes that are gone leave views behind. They are dropped once there are many."""

_Names = tuple[str, ...]


_UNUSED_CONTENTS: Final = 10_000


def _visible(driver: str, device: Device) -> object:
    """What selectors see of a device."""
    return (driver, device.attributes, device.capacity, device.allow_multiple_allocations)


class _Pool:
    """The slices of a pool, and the views of it that nodes have."""

    def __init__(self) -> None:
        self.slices: dict[str, SliceDevices] = {}
        self.bases: dict[_Names, PoolView | None] = {}
        """By relevant slices, for nodes that can use all devices of those."""
        self.views: dict[tuple[_Names, Bits], PoolView] = {}
        """By relevant slices and devices that are not for the nodes."""
        self.selected_by: NodeTraits | None = None

    def traits(self) -> NodeTraits:
        """What of a node decides which slices and devices it sees."""
        if self.selected_by is None:
            self.selected_by = node_traits(self.slices.values())
        return self.selected_by

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
        self._unexamined: dict[PoolID, None] = {}
        """Those of them that may no longer be where the next attributes have them."""
        self._everywhere: dict[PoolID, None] = {}
        """Those that matter to several nodes."""
        self._confined: dict[PoolID, str] = {}
        """Those that matter to one node only, which is named."""
        self._confined_to: dict[str, dict[PoolID, None]] = {}
        """The same by node."""
        self._shared_views: dict[tuple[str | None, ...], tuple[PoolView, ...]] = {}
        """The views of those pools, by what decides which ones a node has."""
        self._shared_by: NodeTraits | None = None
        self.slice_changes: InventoryChanges[SliceChange] = InventoryChanges()
        self.usage_changes: InventoryChanges[UsedDevice] = InventoryChanges()
        self.answers_version = 0
        """Changes if answers about requests are to be forgotten."""
        self._contents = ContentNumbers()
        self._serial = 0
        self._claims: dict[str, AllocationResult] = {}
        self._assumed: dict[str, AllocationResult] = {}

    # -- slices -----------------------------------------------------------------------------------

    def put_slice(self, item: ResourceSlice) -> None:
        """Add or replace a slice."""
        pool_id = PoolID(item.spec.driver, item.spec.pool.name)
        # Before the old ones are removed, so that unchanged devices keep the numbers of contents.
        devices = tuple(
            PooledDevice(
                device,
                item,
                self._contents.acquire(_visible(item.spec.driver, device)),
                self._contents.acquire(device.capacity),
            )
            for device in item.spec.devices
        )
        self.remove_slice(item.key)
        pool = self._pools.setdefault(pool_id, _Pool())
        pool.slices[item.key] = SliceDevices(item, devices)
        self._slices[item.key] = pool_id
        index = self._index(item)
        index[pool_id] = index.get(pool_id, 0) + 1
        self._slice_changed(pool, item)

    def remove_slice(self, key: str) -> None:
        """Remove a slice, if it exists."""
        pool_id = self._slices.pop(key, None)
        if pool_id is None:
            return
        pool = self._pools[pool_id]
        removed = pool.slices.pop(key)
        item = removed.resource_slice
        for device in removed.devices:
            self._contents.release(device.content)
            self._contents.release(device.capacity_content)
        if not pool.slices:
            del self._pools[pool_id]
        index = self._index(item)
        index[pool_id] -= 1
        if not index[pool_id]:
            del index[pool_id]
            if not index and index is not self._shared:
                del self._local[item.spec.node_name]
        self._slice_changed(pool, item)
        if self._contents.released > len(self._contents) + _UNUSED_CONTENTS:
            self._contents.released = 0
            self.forget_selectors()

    def forget_selectors(self) -> None:
        """Forget all answers of selectors."""
        self.selectors.clear()
        self.answers_version += 1

    def _slice_changed(self, pool: _Pool, item: ResourceSlice) -> None:
        pool.bases.clear()
        pool.views.clear()
        pool.selected_by = None
        pool_id = PoolID(item.spec.driver, item.spec.pool.name)
        node_name = "" if pool_id in self._everywhere else item.spec.node_name
        self.slice_changes.add(SliceChange(pool_id, node_name))
        if pool_id in self._shared or pool_id in self._everywhere or pool_id in self._confined:
            self._unexamined[pool_id] = None

    def _examine(self) -> None:
        """Find out which nodes the changed ones of the shared pools matter to."""
        while self._unexamined:
            pool_id, _ = self._unexamined.popitem()
            everywhere = pool_id in self._everywhere
            self._everywhere.pop(pool_id, None)
            before = self._confined.pop(pool_id, "")
            if before:
                del self._confined_to[before][pool_id]
                if not self._confined_to[before]:
                    del self._confined_to[before]
            name = self._only_node(pool_id) if pool_id in self._shared else ""
            if name:
                self._confined[pool_id] = name
                self._confined_to.setdefault(name, {})[pool_id] = None
            elif pool_id in self._shared:
                everywhere = True
                self._everywhere[pool_id] = None
            if everywhere:
                self._shared_views.clear()
                self._shared_by = None

    def _only_node(self, pool_id: PoolID) -> str:
        """The node that a pool matters to; empty if there may be several.

        All nodes see the counters of a pool. Without devices they matter only if they are invalid.
        """
        slices = self._pools[pool_id].sorted_slices()
        names = {item.resource_slice.spec.node_name for item in slices}
        if len(names) != 1 or "" in names:
            return ""
        counters = [item for item in slices if item.resource_slice.spec.shared_counters]
        elsewhere = build_view(pool_id, self._next_serial(), counters, slices)
        return names.pop() if elsewhere is None or elsewhere.usable else ""

    @staticmethod
    def _is_shared(item: ResourceSlice) -> bool:
        return not item.spec.node_name or bool(item.spec.shared_counters)

    def _index(self, item: ResourceSlice) -> dict[PoolID, int]:
        if self._is_shared(item):
            return self._shared
        return self._local.setdefault(item.spec.node_name, {})

    def nodes_of(self, pool_id: PoolID) -> frozenset[str] | None:
        """The nodes that a pool may matter to; None for all nodes."""
        self._examine()
        if pool_id in self._everywhere:
            return None
        pool = self._pools.get(pool_id)
        items = pool.slices.values() if pool is not None else ()
        return frozenset(item.resource_slice.spec.node_name for item in items)

    def pools_of(self, node: NodeView) -> tuple[PoolView, ...]:
        """The pools that a node sees, in the order in which they are tried."""
        self._examine()
        shared = self._shared_pools(node)
        local = [
            *(pool_id for pool_id in self._local.get(node.name, ()) if pool_id not in self._shared),
            *self._confined_to.get(node.name, ()),
        ]
        if not local:
            return shared
        views = [self._view(pool_id, node) for pool_id in local]
        found = [*shared, *(view for view in views if view is not None)]
        return tuple(sorted(found, key=lambda view: view.order))

    def devices_for(self, node: NodeView) -> Iterator[PooledDevice]:
        """The devices of all slices for a node, also those of outdated slices, and of pools that
        are incomplete or invalid."""
        self._examine()
        own = (*self._local.get(node.name, ()), *self._confined_to.get(node.name, ()))
        for pool_id in {*own, *self._everywhere}:
            for item in self._pools[pool_id].slices.values():
                yield from item.devices_for(node)

    def _shared_pools(self, node: NodeView) -> tuple[PoolView, ...]:
        if not self._everywhere:
            return ()
        selected_by = self._shared_by
        if selected_by is None:
            selected_by = self._shared_by = NodeTraits.of_all(
                self._pools[pool_id].traits() for pool_id in self._everywhere
            )
        traits = selected_by.read(node)
        views = self._shared_views.get(traits)
        if views is None:
            found = [self._view(pool_id, node) for pool_id in self._everywhere]
            views = tuple(
                sorted((view for view in found if view is not None), key=lambda view: view.order)
            )
            if len(self._shared_views) >= _KEPT_VIEWS:
                self._shared_views.clear()
            self._shared_views[traits] = views
        return views

    def _view(self, pool_id: PoolID, node: NodeView) -> PoolView | None:
        pool = self._pools[pool_id]
        slices = pool.sorted_slices()
        relevant = [item for item in slices if is_relevant(item, node)]
        if not relevant:
            return None
        names = tuple(item.resource_slice.key for item in relevant)
        if names not in pool.bases:
            pool.bases[names] = build_view(pool_id, self._next_serial(), relevant, slices)
        base = pool.bases[names]
        elsewhere = 0 if base is None else base.elsewhere_for(node)
        if base is None or not elsewhere:
            return base
        view = pool.views.get((names, elsewhere))
        if view is None:
            view = base.without(elsewhere, self._next_serial())
            if len(pool.views) >= _KEPT_VIEWS:
                pool.views.clear()
            pool.views[names, elsewhere] = view
        return view

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    # -- classes ----------------------------------------------------------------------------------

    def put_class(self, item: DeviceClass) -> None:
        """Add or replace a class."""
        self.classes[item.name] = item
        self.answers_version += 1

    def remove_class(self, name: str) -> None:
        """Remove a class, if it exists."""
        if self.classes.pop(name, None) is not None:
            self.answers_version += 1

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

    def allocations(self) -> dict[str, AllocationResult]:
        """Everything that counts as in use, by claim."""
        return {**self._assumed, **self._claims}

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
        changed: set[UsedDevice] = set()
        if before is not None:
            changed |= self.usage.remove(before)
        if after is not None:
            changed |= self.usage.add(after)
        for device in sorted(changed):
            self.usage_changes.add(device)
