"""The devices of the cluster, which the plugins of all profiles share.

``Handle.shared(SharedDevices)`` returns them. Not part of the public API.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from asched.dra.allocator import Allocator, SearchLimits
from asched.dra.extended import ExtendedResources
from asched.dra.inventory import Inventory
from asched.dra.selectors import CompiledSelector
from asched.framework.class_devices import ClassDeviceCounts, ClassDevices
from asched.framework.cluster import Cluster
from asched.framework.cycle_state import StateKey
from asched.model.meta import Object
from asched.model.resource_claims import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice

ObjectT = TypeVar("ObjectT", bound=Object)

LONG_SEARCH: StateKey[int] = StateKey("devices/long-search")
"""The steps of the longest search for devices on a node, if it is a long one."""

TRUE = "true"
"""The value of the annotation that marks a special claim."""


def _cel_selector(expression: str) -> CompiledSelector:
    """The compiled form of an expression. A process without selectors does not import CEL."""
    from asched.dra.cel_selectors import cel_selector

    return cel_selector(expression)


def is_special_claim(claim: ResourceClaim) -> bool:
    """Whether the claim serves the extended resources of a pod."""
    return claim.metadata.annotations.extended_resource_claim == TRUE


def special_claim_owner(claim: ResourceClaim) -> str:
    """The UID of the pod that a special claim serves; empty for other claims."""
    if not is_special_claim(claim):
        return ""
    owner = claim.metadata.controller
    return "" if owner is None else owner.uid


class PendingAllocation(NamedTuple):
    """An allocation that a pod got and that the API server does not show yet."""

    key: str
    """``namespace/name`` of the claim; empty for a special claim that is not created yet."""
    uid: str
    allocation: AllocationResult


class SharedDevices:
    """What drivers publish, what claims use, and what pods got that are being bound.

    A pending allocation counts from Reserve until the pod is bound and its claims have shown
    theirs, the pod is gone, or its reservation is undone. It does not count while the claim itself
    shows an allocation or no longer exists. So it counts once at any time.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._inventory = Inventory(_cel_selector)
        self._allocators: dict[SearchLimits, Allocator] = {}
        self._class_devices: dict[str, ClassDeviceCounts] = {}
        self._extended = ExtendedResources()
        self._extended_version = 0
        self._slices = _Changes(cluster, ResourceSlice)
        self._classes = _Changes(cluster, DeviceClass)
        self._claims = _Changes(cluster, ResourceClaim)
        self._pending: dict[str, tuple[PendingAllocation, ...]] = {}
        """By UID of the pod."""
        self._pods_of_claim: dict[str, dict[str, PendingAllocation]] = {}
        """By key of the claim, then by UID of the pod."""
        self._special_claims: dict[str, dict[str, ResourceClaim]] = {}
        """By UID of the owner, then by key."""

    # -- extended resources -----------------------------------------------------------------------

    def classes_version(self) -> int:
        """Grows when any class changes."""
        return self._cluster.objects_version(DeviceClass)

    @property
    def extended(self) -> ExtendedResources:
        """The extended resources that classes provide."""
        version = self.classes_version()
        if version != self._extended_version:
            self._extended = ExtendedResources(self._cluster.objects(DeviceClass).values())
            self._extended_version = version
        return self._extended

    def special_claim(self, owner_uid: str) -> ResourceClaim | None:
        """The special claim of a pod. If there are several, the one with the lowest key."""
        self._refresh_claims()
        owned = self._special_claims.get(owner_uid)
        return None if not owned else owned[min(owned)]

    # -- inventory --------------------------------------------------------------------------------

    @property
    def inventory(self) -> Inventory:
        """Up-to-date devices and what is in use."""
        inventory = self._inventory
        self._slices.apply(inventory.put_slice, inventory.remove_slice)
        self._classes.apply(inventory.put_class, inventory.remove_class)
        self._refresh_claims()
        return inventory

    def allocator(self, limits: SearchLimits) -> Allocator:
        """Allocates the devices of :attr:`inventory`; profiles with equal limits share answers."""
        inventory = self.inventory
        if limits not in self._allocators:
            self._allocators[limits] = Allocator(inventory, limits)
        return self._allocators[limits]

    def devices_version(self) -> int:
        """Grows when any device or class changes, or what is in use."""
        published = self._cluster.objects_version(ResourceSlice, DeviceClass)
        return published + self.inventory.usage_changes.position

    def class_devices(self, class_name: str) -> ClassDevices:
        """How many devices of a class each node has, for scores."""
        inventory = self.inventory
        counts = self._class_devices.get(class_name)
        if counts is None:
            counts = self._class_devices[class_name] = ClassDeviceCounts(inventory, class_name)
        published = self._cluster.objects_version(ResourceSlice, DeviceClass)
        return counts.count(self._cluster.nodes, published)

    def _refresh_claims(self) -> None:
        self._claims.apply(self._put_claim, self._remove_claim)

    def _put_claim(self, claim: ResourceClaim) -> None:
        former_owner = self._unlist_special(claim.key)
        owner = special_claim_owner(claim)
        if owner:
            self._special_claims.setdefault(owner, {})[claim.key] = claim
        self._inventory.put_claim(claim)
        self._count_pending(claim.key)
        self._count_special(owner)
        if former_owner != owner:
            self._count_special(former_owner)

    def _remove_claim(self, key: str) -> None:
        owner = self._unlist_special(key)
        self._inventory.remove_claim(key)
        self._count_pending(key)
        self._count_special(owner)

    def _unlist_special(self, key: str) -> str:
        old = self._claims.seen.get(key)
        owner = "" if old is None else special_claim_owner(old)
        if owner and owner in self._special_claims:
            self._special_claims[owner].pop(key, None)
            if not self._special_claims[owner]:
                del self._special_claims[owner]
        return owner

    # -- pending allocations ----------------------------------------------------------------------

    @property
    def pods_with_pending_allocations(self) -> Collection[str]:
        """UIDs of the pods with a reservation."""
        return self._pending.keys()

    def is_pending(self, claim: ResourceClaim) -> bool:
        """Whether the claim is being allocated for a pod."""
        pods = self._pods_of_claim.get(claim.key)
        return pods is not None and any(p.uid == claim.uid for p in pods.values())

    def holders(self, claim: ResourceClaim) -> list[str]:
        """UIDs of the pods with pending allocations that the claim may show."""
        pods = [*self._pods_of_claim.get(claim.key, ())]
        owner = special_claim_owner(claim)
        return [*pods, owner] if owner in self._pending else pods

    def shown_by(self, claim: ResourceClaim, pod_uid: str) -> str | None:
        """The key of the pod's pending allocation that the claim shows, if any."""
        for pending in self._pending.get(pod_uid, ()):
            if pending.key:
                of_claim = (pending.key, pending.uid) == (claim.key, claim.uid)
            else:
                of_claim = special_claim_owner(claim) == pod_uid
            if of_claim and _devices(claim.status.allocation) == _devices(pending.allocation):
                return pending.key
        return None

    def shows_allocations(self, pod_uid: str, shown: Collection[str] = ()) -> bool:
        """Whether the claims of a pod that still exist show its allocations, or have shown them:
        those with the keys ``shown``."""
        self._refresh_claims()
        claims = self._cluster.objects(ResourceClaim)
        for pending in self._pending.get(pod_uid, ()):
            if pending.key in shown:
                continue
            if pending.key:
                claim = claims.get(pending.key)
                shows = claim is None or claim.uid != pending.uid or bool(claim.status.allocation)
            else:
                owned = self._special_claims.get(pod_uid, {}).values()
                shows = any(each.status.allocation for each in owned)
            if not shows:
                return False
        return True

    def reserve(self, pod_uid: str, allocations: Sequence[PendingAllocation]) -> None:
        """The pod got these allocations. Replaces what it had."""
        self.release(pod_uid)
        if not allocations:
            return
        self._refresh_claims()
        self._pending[pod_uid] = tuple(allocations)
        for pending in allocations:
            if pending.key:
                self._pods_of_claim.setdefault(pending.key, {})[pod_uid] = pending
                self._count_pending(pending.key)
        self._count_special(pod_uid)

    def release(self, pod_uid: str) -> None:
        """The pod is gone, or its reservation was undone."""
        self._inventory.forget(_special_key(pod_uid))
        for pending in self._pending.pop(pod_uid, ()):
            if pending.key and pending.key in self._pods_of_claim:
                pods = self._pods_of_claim[pending.key]
                pods.pop(pod_uid, None)
                if not pods:
                    del self._pods_of_claim[pending.key]
                self._count_pending(pending.key)

    @contextmanager
    def without_pending(self, claim: ResourceClaim) -> Iterator[None]:
        """Within the block, no pod has a pending allocation of the claim: a hypothesis."""
        owner = special_claim_owner(claim)
        uids = [owner] if owner else [*self._pods_of_claim.get(claim.key, ())]
        held = {uid: self._pending[uid] for uid in uids if uid in self._pending}
        dropped_key = "" if owner else claim.key
        for uid, allocations in held.items():
            self.reserve(uid, [each for each in allocations if each.key != dropped_key])
        try:
            yield
        finally:
            for uid, allocations in held.items():
                self.reserve(uid, allocations)

    def _count_pending(self, key: str) -> None:
        """Count the pending allocation of a claim if the claim exists. The inventory ignores it
        while the claim has an allocation of its own."""
        pods = self._pods_of_claim.get(key)
        claim = self._cluster.objects(ResourceClaim).get(key)
        valid = [p for p in (pods or {}).values() if claim is not None and p.uid == claim.uid]
        if valid:
            self._inventory.assume(key, valid[-1].allocation)
        else:
            self._inventory.forget(key)

    def _count_special(self, pod_uid: str) -> None:
        """Count the pending allocation of a special claim until the claim is created and shows
        it."""
        key = _special_key(pod_uid)
        pending = [p for p in self._pending.get(pod_uid, ()) if not p.key]
        owned = self._special_claims.get(pod_uid, {})
        if pending and not any(each.status.allocation for each in owned.values()):
            self._inventory.assume(key, pending[0].allocation)
        elif pod_uid:
            self._inventory.forget(key)


def _devices(allocation: AllocationResult | None) -> list[tuple[str, str, str, str | None]]:
    """What an allocation contains, without values that the API server may write differently."""
    results = allocation.devices.results if allocation is not None else ()
    return [(each.driver, each.pool, each.device, each.share_id) for each in results]


def _special_key(pod_uid: str) -> str:
    # Not a key that a claim in the API server can have.
    return f"<extended-resources>/{pod_uid}"


class _Changes(Generic[ObjectT]):
    """Objects of a kind that changed since the last look."""

    def __init__(self, cluster: Cluster, kind: type[ObjectT]) -> None:
        self._cluster = cluster
        self._kind = kind
        self._version = 0
        self._cursor = -1
        self.seen: dict[str, ObjectT] = {}

    def apply(self, put: Callable[[ObjectT], None], remove: Callable[[str], None]) -> None:
        version = self._cluster.objects_version(self._kind)
        if version == self._version:
            return
        self._version = version
        self._cursor, keys = self._cluster.object_changes(self._kind, self._cursor)
        present: Mapping[str, ObjectT] = self._cluster.objects(self._kind)
        for key in [*self.seen, *present] if keys is None else keys:
            item = present.get(key)
            if item is self.seen.get(key):
                continue
            if item is None:
                remove(key)
                del self.seen[key]
            else:
                put(item)
                self.seen[key] = item
