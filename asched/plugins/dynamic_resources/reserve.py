"""Reserve: the devices that a pod gets on its node."""

from __future__ import annotations

from collections.abc import Callable

from asched.framework.cluster import Handle
from asched.model.resource_claims import AllocationResult
from asched.plugins.dynamic_resources.node_filter import NodeAllocation, PodDevices
from asched.plugins.dynamic_resources.reservation import (
    DeviceReservation,
    ReservedClaim,
    ReservedSpecialClaim,
)
from asched.plugins.dynamic_resources.special_claim import IN_MEMORY_NAME

_HALF = 2**64


def share_ids(handle: Handle, pod_uid: str, node_name: str) -> Callable[[], str]:
    """New share IDs: UUIDs (version 4) that are the same in a replay."""
    number = 0

    def new() -> str:
        nonlocal number
        number += 1
        text = f"share/{handle.cluster.now_ns}/{pod_uid}/{node_name}/{number}"
        high = handle.stable_random(f"{text}/high", _HALF)
        low = handle.stable_random(f"{text}/low", _HALF)
        high = high & ~0xF000 | 0x4000
        low = low & ~(0b11 << 62) | (0b10 << 62)
        digits = f"{high:016x}{low:016x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    return new


def reservation_of(
    data: PodDevices, found: NodeAllocation, node_name: str, new_share_id: Callable[[], str]
) -> DeviceReservation | None:
    """What the pod gets on the node; None if it needs nothing there."""
    results = iter(found.solution.results(node_name, new_share_id))
    claims = []
    for claim in data.claims:
        allocation: AllocationResult | None = None
        if claim.status.allocation is None:
            allocation = next(results)
        claims.append(ReservedClaim(name=claim.name, uid=claim.uid, allocation=allocation))
    special = None
    if found.special is not None:
        claim = found.special
        created = claim.name != IN_MEMORY_NAME
        special = ReservedSpecialClaim(
            name=claim.name if created else "",
            uid=claim.uid,
            spec=claim.spec,
            mappings=found.requests.mappings,
            allocation=next(results),
        )
    if not claims and special is None:
        return None
    return DeviceReservation(claims=tuple(claims), special=special)
