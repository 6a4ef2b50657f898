"""Reserve: the devices that a pod gets on its node, as the decision records them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from asched.framework.cluster import Handle
from asched.framework.devices import PendingAllocation
from asched.model.meta import ApiStruct
from asched.model.pod import ContainerExtendedResourceRequest
from asched.model.resource_claims import AllocationResult, ResourceClaimSpec
from asched.plugins.dynamic_resources.node_filter import NodeAllocation, PodDevices
from asched.plugins.dynamic_resources.special_claim import IN_MEMORY_NAME


class ReservedClaim(ApiStruct):
    """A claim to be reserved for the pod."""

    name: str = ""
    uid: str = ""
    allocation: AllocationResult | None = None
    """None for a claim that was allocated before."""


class ReservedSpecialClaim(ApiStruct):
    """The claim for extended resources."""

    name: str = ""
    """Empty for a claim that has to be created."""
    uid: str = ""
    spec: ResourceClaimSpec = ResourceClaimSpec()
    mappings: tuple[ContainerExtendedResourceRequest, ...] = ()
    allocation: AllocationResult | None = None


class DeviceReservation(ApiStruct):
    """The claims of a pod, in order."""

    claims: tuple[ReservedClaim, ...] = ()
    special: ReservedSpecialClaim | None = None
    shown: tuple[str, ...] = ()
    """Keys of the pending allocations that claims have shown since. A claim that another client
    deallocates before the pod is bound shows its allocation no longer."""

    def recorded(self) -> dict[str, Any]:
        """The JSON values that the decision records."""
        value: dict[str, Any] = msgspec.to_builtins(self)
        return value

    @classmethod
    def from_record(cls, value: dict[str, Any]) -> DeviceReservation:
        """The reservation that :meth:`recorded` wrote."""
        return msgspec.convert(value, cls)

    def pending(self, namespace: str) -> list[PendingAllocation]:
        """The allocations that the API server does not have yet."""
        found = [
            PendingAllocation(f"{namespace}/{claim.name}", claim.uid, claim.allocation)
            for claim in self.claims
            if claim.allocation is not None
        ]
        special = self.special
        if special is not None and special.allocation is not None:
            key = f"{namespace}/{special.name}" if special.name else ""
            found.append(PendingAllocation(key, special.uid, special.allocation))
        return found


_HALF = 2**64


def share_ids(handle: Handle, pod_uid: str, node_name: str) -> Callable[[], str]:
    """New share IDs: UUIDs (version 4) that are the same in a replay."""
    numbers = count(1)

    def new() -> str:
        text = f"share/{handle.cluster.now_ns}/{pod_uid}/{node_name}/{next(numbers)}"
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
