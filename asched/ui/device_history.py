"""The devices of each node by driver after any record, without a fold.

:class:`DeviceHistory` follows ResourceSlices and the allocations of ResourceClaims. Devices that
several nodes can use belong to no node, and are not counted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from asched.model.resource_claims import ResourceClaim, ResourceSlice
from asched.state import records as r
from asched.state.cluster import ClusterState

_KEEPS_PODS_AWAY: Final = ("NoSchedule", "NoExecute")


class DriverDevices(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The devices of a driver on a node."""

    devices: int
    allocated: int
    """By the status of ResourceClaims."""
    tainted: int
    """Not allocated, with a taint that keeps pods away."""
    free: int


DeviceUses = dict[str, DriverDevices]
"""By driver."""

_PoolID = tuple[str, str]
"""Driver and pool."""
_DeviceID = tuple[str, str, str]


class _NodeDevice(NamedTuple):
    """A device that only one node can use."""

    node: str
    device: _DeviceID
    tainted: bool


class _Slice(NamedTuple):
    pool: _PoolID
    generation: int
    devices: list[_NodeDevice]

    @classmethod
    def of(cls, item: ResourceSlice) -> _Slice:
        spec = item.spec
        found = [
            _NodeDevice(
                spec.node_name or device.node_name,
                (spec.driver, spec.pool.name, device.name),
                any(taint.effect in _KEEPS_PODS_AWAY for taint in device.taints),
            )
            for device in spec.devices
            if spec.node_name or device.node_name
        ]
        return cls((spec.driver, spec.pool.name), spec.pool.generation, found)


class DeviceTracker:
    """Slices and claims as they are. Each change returns nodes with devices that it may change."""

    def __init__(self) -> None:
        self._slices: dict[str, _Slice] = {}
        self._pools: dict[_PoolID, set[str]] = {}
        """The slices of each pool."""
        self._pools_of: dict[str, Counter[_PoolID]] = {}
        """By node: pools with devices there, and how many slices have them."""
        self._claims: dict[str, tuple[_DeviceID, ...]] = {}
        self._users: Counter[_DeviceID] = Counter()

    @classmethod
    def of(cls, state: ClusterState) -> DeviceTracker:
        tracker = cls()
        for item in state.objects(ResourceSlice).values():
            tracker.put_slice(item)
        for claim in state.objects(ResourceClaim).values():
            tracker.put_claim(claim)
        return tracker

    @property
    def nodes(self) -> Iterable[str]:
        """Those that have or had devices."""
        return self._pools_of.keys()

    def put_slice(self, item: ResourceSlice) -> set[str]:
        changed = self.remove_slice(item.key)
        new = self._slices[item.key] = _Slice.of(item)
        self._pools.setdefault(new.pool, set()).add(item.key)
        for node in {device.node for device in new.devices}:
            self._pools_of.setdefault(node, Counter())[new.pool] += 1
        return changed | self._nodes_of(new.pool)

    def remove_slice(self, key: str) -> set[str]:
        old = self._slices.get(key)
        if old is None:
            return set()
        # With its generation gone, an older one counts.
        changed = self._nodes_of(old.pool)
        del self._slices[key]
        self._pools[old.pool].discard(key)
        for node in {device.node for device in old.devices}:
            self._pools_of[node] -= Counter([old.pool])
        return changed

    def put_claim(self, claim: ResourceClaim) -> set[str]:
        changed = self.remove_claim(claim.key)
        allocation = claim.status.allocation
        if allocation is None:
            return changed
        devices = tuple(
            (one.driver, one.pool, one.device)
            for one in allocation.devices.results
            if not one.admin_access
        )
        self._claims[claim.key] = devices
        self._users.update(devices)
        return changed.union(*(self._nodes_of(device[:2]) for device in devices))

    def remove_claim(self, key: str) -> set[str]:
        devices = self._claims.pop(key, ())
        self._users -= Counter(devices)
        return set[str]().union(*(self._nodes_of(device[:2]) for device in devices))

    def _nodes_of(self, pool: _PoolID) -> set[str]:
        keys = self._pools.get(pool, ())
        return {device.node for key in keys for device in self._slices[key].devices}

    def uses(self, node: str) -> DeviceUses:
        """The devices of a node."""
        counts: dict[str, Counter[str]] = {}
        for pool in self._pools_of.get(node, ()):
            slices = [self._slices[key] for key in self._pools[pool]]
            generation = max(one.generation for one in slices)
            for one in slices:
                if one.generation == generation:
                    found = counts.setdefault(pool[0], Counter())
                    found.update(self._state(d) for d in one.devices if d.node == node)
        return {
            driver: DriverDevices(
                found.total(), found["allocated"], found["tainted"], found["free"]
            )
            for driver, found in sorted(counts.items())
            if found
        }

    def _state(self, device: _NodeDevice) -> str:
        if device.device in self._users:
            return "allocated"
        return "tainted" if device.tainted else "free"


class StoredDevices(NamedTuple):
    """A change of a node."""

    seq: int
    node: str
    uses: DeviceUses


class DeviceHistory:
    """The devices of all nodes by record."""

    def __init__(self) -> None:
        self.unsaved: list[StoredDevices] = []
        """Changes that were not saved yet. The owner of the file clears it."""
        self._seqs: dict[str, list[int]] = {}
        self._uses: dict[str, list[DeviceUses]] = {}
        self._tracker = DeviceTracker()

    def begin(self, seq: int, state: ClusterState) -> None:
        """Continue after record ``seq``; ``state`` is the one after it."""
        self._tracker = DeviceTracker.of(state)
        self._compare(seq, {*self._seqs, *self._tracker.nodes})

    def apply(self, seq: int, record: r.AnyRecord) -> None:
        """Add a record."""
        match record:
            case r.ObjectObserved(object=ResourceSlice() as item):
                self._compare(seq, self._tracker.put_slice(item))
            case r.ObjectObserved(object=ResourceClaim() as claim):
                self._compare(seq, self._tracker.put_claim(claim))
            case r.ObjectDeleted(kind="ResourceSlice"):
                self._compare(seq, self._tracker.remove_slice(record.key))
            case r.ObjectDeleted(kind="ResourceClaim"):
                self._compare(seq, self._tracker.remove_claim(record.key))

    def _compare(self, seq: int, nodes: Iterable[str]) -> None:
        for node in sorted(nodes):
            uses, known = self._tracker.uses(node), self._uses.get(node)
            if uses != (known[-1] if known else {}):
                self.unsaved.append(StoredDevices(seq, node, uses))
                self.add(self.unsaved[-1])

    def add(self, change: StoredDevices) -> None:
        """Add a change that is stored; changes of a node come in order."""
        self._seqs.setdefault(change.node, []).append(change.seq)
        self._uses.setdefault(change.node, []).append(change.uses)

    def at(self, seq: int) -> dict[str, DeviceUses]:
        """The devices of all nodes after a record."""
        return {node: self.of_node(node, seq) for node in self._seqs}

    def of_node(self, node: str, seq: int) -> DeviceUses:
        place = bisect_right(self._seqs.get(node, ()), seq) - 1
        return self._uses[node][place] if place >= 0 else {}
