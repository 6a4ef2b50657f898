"""What a pod got on its node, as the decision records it."""

from __future__ import annotations

from typing import Any

import msgspec

from asched.framework.devices import PendingAllocation
from asched.model.meta import ApiStruct
from asched.model.pod import ContainerExtendedResourceRequest
from asched.model.resource_claims import AllocationResult, ResourceClaimSpec


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

    def recorded(self) -> dict[str, Any]:
        """As JSON values."""
        value: dict[str, Any] = msgspec.to_builtins(self)
        return value

    @classmethod
    def from_record(cls, value: dict[str, Any]) -> DeviceReservation:
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
