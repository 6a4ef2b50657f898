"""PreBind: write allocations, reserve claims for the pod, and wait for its devices.

Source: ``PreBind``, ``bindClaim`` and ``Unreserve`` of kube-scheduler 1.36.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from asched.dra.binding_conditions import (
    Readiness,
    failed_condition,
    has_binding_conditions,
    has_timed_out,
    readiness,
)
from asched.framework.binding import BindingClient, ClaimRef, Unavailable
from asched.framework.cluster import Cluster
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.model.quantity import NS_PER_S
from asched.model.resource_claims import ResourceClaim
from asched.plugins.dynamic_resources.reservation import (
    DeviceReservation,
    ReservedClaim,
    ReservedSpecialClaim,
)
from asched.plugins.dynamic_resources.special_claim import in_memory_claim

OBSERVATION_TIMEOUT_S = 660.0
"""How long a failed binding waits until the watch shows the allocations that it wrote. A silent
watch is detected earlier."""


@dataclass
class WrittenClaims:
    """The claims that a binding has written, or may have written."""

    reserved: dict[ClaimRef, None] = field(default_factory=dict)
    """In order; also a claim with a write that failed, because it may have been carried out."""
    special: ClaimRef | None = None


class ClaimBinding:
    """The claims of one pod in its binding cycle."""

    def __init__(
        self, cluster: Cluster, client: BindingClient, pod: PodInfo, reservation: DeviceReservation
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._pod = pod
        self._reservation = reservation
        self.written = WrittenClaims()

    @property
    def _claims(self) -> Mapping[str, ResourceClaim]:
        return self._cluster.objects(ResourceClaim)

    async def bind(self) -> Status:
        """Write and reserve all claims."""
        for claim in self._reservation.claims:
            status = await self._bind_claim(claim)
            if not status.is_success:
                return status
        special = self._reservation.special
        return SUCCESS if special is None else await self._bind_special(special)

    async def _bind_claim(self, claim: ReservedClaim) -> Status:
        ref = ClaimRef(self._pod.namespace, claim.name, claim.uid)
        if ref in self.written.reserved:
            return await self._bind_again(ref, claim)
        self.written.reserved[ref] = None
        # Even if the watch shows the reservation: an earlier attempt may have removed it since.
        return await self._client.allocate_claim(ref, claim.allocation, self._pod)

    async def _bind_again(self, ref: ClaimRef, claim: ReservedClaim) -> Status:
        """For a claim that the pod lists twice: an error if both entries got devices."""
        status = await self._client.allocate_claim(ref, claim.allocation, self._pod)
        if status.is_success and claim.allocation is not None:
            return Status.error(f"claim {ref.key} got allocated elsewhere in the meantime")
        return status

    async def _bind_special(self, special: ReservedSpecialClaim) -> Status:
        client, pod = self._client, self._pod
        ref = ClaimRef(pod.namespace, special.name, special.uid)
        if not special.name:
            wanted = in_memory_claim(pod.pod, special.spec)
            created = await client.create_special_claim(pod, wanted)
            if isinstance(created, Status):
                return created
            ref = ClaimRef.of(created)
        self.written.special = ref
        status = await client.allocate_claim(ref, special.allocation, pod)
        if not status.is_success:
            return status
        return await client.patch_extended_resource_status(pod, ref.name, special.mappings)

    # -- binding conditions -----------------------------------------------------------------------

    async def wait_for_devices(self, limit: timedelta) -> Status:
        """Wait until all devices with binding conditions are ready."""
        if not self._must_wait():
            return SUCCESS

        async def check() -> Status | None:
            return self._progress(limit)

        ended = await self._client.wait_until(check, limit.total_seconds())
        return ended or Status.error("device binding timeout: context deadline exceeded")

    def _must_wait(self) -> bool:
        special = self._reservation.special
        if special is not None and has_binding_conditions(special.allocation):
            return True
        for claim in self._reservation.claims:
            present = self._claims.get(f"{self._pod.namespace}/{claim.name}")
            allocation = claim.allocation
            if allocation is None and present is not None:
                allocation = present.status.allocation
            if has_binding_conditions(allocation):
                return True
        return False

    def _progress(self, limit: timedelta) -> Status | None:
        """Success if all claims are ready, an error if one cannot be, else None
        (``isPodReadyForBinding``)."""
        now = datetime.fromtimestamp(self._cluster.date_ns / NS_PER_S, UTC)
        for claim in self._reservation.claims:
            key = f"{self._pod.namespace}/{claim.name}"
            present = self._claims.get(key)
            if present is None:
                return Status.error(f'could not find ResourceClaim "{key}"')
            ended = _progress_of(present, now, limit)
            if ended is not SUCCESS:
                return ended
        if self.written.special is None:
            return SUCCESS
        present = self._claims.get(self.written.special.key)
        # The watch may show a new claim late.
        return None if present is None else _progress_of(present, now, limit)


def _progress_of(claim: ResourceClaim, now: datetime, limit: timedelta) -> Status | None:
    state = readiness(claim)
    if state is Readiness.READY:
        return SUCCESS
    if state is Readiness.FAILED:
        return Status.error(f"device binding failed: claim={claim.name}{_reason(claim)}")
    if has_timed_out(claim, now, limit):
        return Status.error(f"device binding timeout: claim={claim.name}")
    return None


def _reason(claim: ResourceClaim) -> str:
    condition = failed_condition(claim)
    if condition is None:
        return ""
    message = json.dumps(condition.message, ensure_ascii=False)
    return f", reason={condition.reason}, message={message}"


async def undo_binding(
    cluster: Cluster,
    left_over: ResourceClaim | None,
    client: BindingClient,
    pod: PodInfo,
    written: WrittenClaims,
) -> None:
    """Undo the reservations of a failed binding (``Unreserve``), and delete the special claim:
    ``left_over`` if this process did not write it.

    Allocations stay. Returns once the watch shows them, and the special claim is deleted, because
    the pod's reservation, which kept others from the devices, ends with the binding.
    """
    for ref in written.reserved:
        await client.release_claim(ref, pod)
    unread = list(written.reserved)
    unseen: list[ClaimRef] = []
    special = written.special
    if special is None and left_over is not None:
        special = ClaimRef.of(left_over)

    async def check() -> Status | None:
        nonlocal special
        if special is not None:
            if not (await client.delete_special_claim(special)).is_success:
                return None
            special = None
        while unread:
            allocated = await _is_allocated(client, unread[-1])
            if allocated is None:
                return None
            ref = unread.pop()
            if allocated:
                unseen.append(ref)
        claims = cluster.objects(ResourceClaim)
        for ref in unseen:
            present = claims.get(ref.key)
            if present is not None and present.uid == ref.uid and not present.status.allocation:
                return None
        return SUCCESS

    await client.wait_until(check, OBSERVATION_TIMEOUT_S)


async def _is_allocated(client: BindingClient, ref: ClaimRef) -> bool | None:
    """Whether the claim is allocated in the API server; None if that is unknown."""
    try:
        claim = await client.read_resource_claim(ref)
    except Unavailable:
        return None
    return claim is not None and claim.status.allocation is not None
