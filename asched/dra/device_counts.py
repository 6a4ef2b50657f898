"""Why the devices that a node sees do not serve a request: counts, for explanations.

A device counts for the first reason that applies. Counters and constraints depend on what else is
allocated, so a device that only they refuse counts as free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from asched.dra.allocator import AllocationRequest
from asched.dra.capacity import consumption, fits
from asched.dra.devices import NodeView, PooledDevice
from asched.dra.inventory import Inventory
from asched.dra.requests import ClaimError, RequestedDevices, requested_devices
from asched.dra.selectors import SelectorError
from asched.dra.taints import untolerated
from asched.model.resource_claims import ALL_DEVICES, DeviceSelector, ResourceClaim

OTHER_NODES = "for other nodes"
OTHER_CLASS = "not of the class"
NOT_SELECTED = "not selected"
SELECTOR_ERROR = "selector failed"
IN_USE = "in use"
TOO_SMALL = "capacity too small"
CAPACITY_IN_USE = "capacity in use"


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """How one request, or one alternative of a request, fares on a node."""

    claim: str
    """``namespace/name``."""
    request: str
    needed: int | None
    """The number of devices; None for all."""
    device_class: str
    seen: int
    """Devices that the node sees in pools that can be used."""
    free: int
    refused: dict[str, int] = field(default_factory=dict)
    """By reason, the most frequent first."""
    problem: str = ""
    """Why the request cannot be allocated anywhere."""


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """How the requests of a pod fare on a node."""

    requests: tuple[RequestCounts, ...]
    unusable_pools: tuple[str, ...] = ()
    """Pools without devices for now, with the reason."""


def node_counts(inventory: Inventory, request: AllocationRequest, node: NodeView) -> NodeCounts:
    """Counts for each request of the claims, alternatives included."""
    pools = inventory.pools_of(node)
    unusable = tuple(
        f"{pool.pool_id}: {pool.invalid or 'incomplete'}" for pool in pools if not pool.usable
    )
    devices = [
        (device, device in pool.elsewhere)
        for pool in pools
        if pool.usable
        for device in pool.devices
    ]
    counts = tuple(
        found
        for index, claim in enumerate(request.claims)
        for found in _of_claim(inventory, claim, index, devices)
    )
    return NodeCounts(counts, unusable)


def _of_claim(
    inventory: Inventory,
    claim: ResourceClaim,
    index: int,
    devices: Sequence[tuple[PooledDevice, bool]],
) -> Iterator[RequestCounts]:
    for number, request in enumerate(claim.spec.devices.requests):
        try:
            options = requested_devices(claim.spec, index, number, inventory.classes)
        except ClaimError as error:
            problem = error.describe((claim.key,) * (index + 1))
            yield RequestCounts(claim.key, request.name, 0, "", len(devices), 0, problem=problem)
            continue
        for wanted in options:
            yield _count(inventory, claim, wanted, devices)


def _count(
    inventory: Inventory,
    claim: ResourceClaim,
    wanted: RequestedDevices,
    devices: Sequence[tuple[PooledDevice, bool]],
) -> RequestCounts:
    reasons = Counter(
        OTHER_NODES if elsewhere else _reason(inventory, wanted, device)
        for device, elsewhere in devices
    )
    free = reasons.pop("", 0)
    return RequestCounts(
        claim=claim.key,
        request=wanted.reference,
        needed=None if wanted.mode == ALL_DEVICES else wanted.count,
        device_class=wanted.device_class.name,
        seen=len(devices),
        free=free,
        refused=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
    )


def _reason(inventory: Inventory, wanted: RequestedDevices, device: PooledDevice) -> str:
    """Why a request cannot have a device; empty if it can."""
    try:
        if not _all_match(inventory, wanted.device_class.spec.selectors, device):
            return OTHER_CLASS
        if not _all_match(inventory, wanted.selectors, device):
            return NOT_SELECTED
    except SelectorError:
        return SELECTOR_ERROR
    use = inventory.usage.of(device.pool_id, device.name)
    if not wanted.admin_access and (use.exclusive or (use.shares and not device.multiple)):
        return IN_USE
    needed = consumption(wanted.capacity, device.device.capacity)
    if needed is None:
        return TOO_SMALL
    if device.multiple and not fits(needed.amounts, device.device.capacity, use.consumed):
        return CAPACITY_IN_USE
    taint = untolerated(device.taints, wanted.tolerations)
    if taint is not None:
        label = f"{taint.key}={taint.value}" if taint.value else taint.key
        return f"taint {label}:{taint.effect}"
    return ""


def _all_match(
    inventory: Inventory, selectors: Sequence[DeviceSelector], device: PooledDevice
) -> bool:
    return all(
        inventory.selectors.matches(each.cel.expression if each.cel else "", device)
        for each in selectors
    )
