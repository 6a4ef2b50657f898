"""ResourceClaims in a simulated cluster: generated, allocated, reserved and released.

Does the work of PreBind and of the ResourceClaim controller. Drivers are not simulated: devices
with binding conditions are ready at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from asched.framework.devices import is_special_claim
from asched.framework.interface import ReleasedClaim
from asched.model.meta import ObjectMeta, OwnerReference
from asched.model.pod import Pod, PodResourceClaimStatus
from asched.model.resource_claims import (
    AllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from asched.model.resources import AnyObject
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.dynamic_resources.reservation import DeviceReservation
from asched.plugins.dynamic_resources.special_claim import in_memory_claim
from asched.simulator.pods import api_time
from asched.state.cluster import ClusterState
from asched.state.records import AnyRecord, Assigned, ClaimReleaseEnded, ObjectDeleted, Rejected

_replace: Final = msgspec.structs.replace


class SimulatedClaims:
    """The claims of a simulation."""

    def __init__(
        self,
        state: ClusterState,
        observe: Callable[[AnyObject], bool],
        record: Callable[[AnyRecord], None],
    ) -> None:
        self._state = state
        self._observe = observe
        self._record = record
        self._written: dict[str, list[str]] = {}
        """Keys of the claims that are reserved for a pod, by its UID."""
        self.templates: dict[str, ResourceClaim] = {}
        """By ``namespace/name``: claims as they are generated, without owner."""

    @property
    def _claims(self) -> Mapping[str, ResourceClaim]:
        return self._state.objects(ResourceClaim)

    # -- claims of the trace ----------------------------------------------------------------------

    def observed_form(
        self, claim: ResourceClaim, is_bound: Callable[[str], bool]
    ) -> ResourceClaim | None:
        """The claim with its status in this simulation; None to ignore it.

        In a recorded trace the status is the one that the recorded scheduler wrote. It counts for
        pods that are bound at the start.
        """
        known = self._claims.get(claim.key)
        if known is not None and known.uid == claim.uid:
            return _replace(claim, status=known.status)
        if any(is_bound(consumer.uid) for consumer in claim.status.reserved_for):
            return claim
        recorded = any(consumer.uid for consumer in claim.status.reserved_for)
        if is_special_claim(claim):
            return None
        return _replace(claim, status=ResourceClaimStatus()) if recorded else claim

    def generated(self, pod: Pod) -> dict[str, ResourceClaimSpec]:
        """The specs of claims that were generated for a pod, by their names in the pod."""
        return {name: claim.spec for name, claim in self._generated(pod)}

    def of_others(self, pod: Pod) -> dict[str, ResourceClaimSpec]:
        """Those that were generated for another pod, which this one replaces in the simulation."""
        return {
            name: claim.spec
            for name, claim in self._generated(pod)
            if not any(owner.uid == pod.uid for owner in claim.metadata.owner_references)
        }

    def _generated(self, pod: Pod) -> Iterator[tuple[str, ResourceClaim]]:
        for status in pod.status.resource_claim_statuses:
            claim = self._claims.get(f"{pod.namespace}/{status.resource_claim_name}")
            if claim is not None and claim.metadata.controller is not None:
                yield status.name, claim

    def generate(self, pod: Pod, earlier: Mapping[str, ResourceClaimSpec] | None = None) -> Pod:
        """Create the claims of the pod's templates. Returns the pod with their names.

        ``earlier``: what the pod that this one replaces had. A journal has no templates.
        """
        earlier = earlier or {}
        statuses = {s.name: s for s in pod.status.resource_claim_statuses if s.name not in earlier}
        for reference in pod.spec.resource_claims:
            template = self.templates.get(
                f"{pod.namespace}/{reference.resource_claim_template_name}"
            )
            spec = earlier.get(reference.name) if template is None else template.spec
            if spec is None or reference.name in statuses:
                continue
            name = f"{pod.name}-{reference.name}"
            self._observe(
                ResourceClaim(
                    metadata=ObjectMeta(
                        name=name,
                        namespace=pod.namespace,
                        uid=f"claim-{pod.uid}-{reference.name}",
                        owner_references=(_owner(pod),),
                    ),
                    spec=spec,
                )
            )
            statuses[reference.name] = PodResourceClaimStatus(
                name=reference.name, resource_claim_name=name
            )
        if not earlier and len(statuses) == len(pod.status.resource_claim_statuses):
            return pod
        status = _replace(pod.status, resource_claim_statuses=tuple(statuses.values()))
        return _replace(pod, status=status)

    # -- pods -------------------------------------------------------------------------------------

    def bind(self, pod: Pod, assignment: Assigned | None, at_ns: int) -> None:
        """Write what the pod got, as PreBind does."""
        for reservation in () if assignment is None else assignment.reservations:
            if reservation.plugin == DynamicResources.name:
                self._bind(pod, DeviceReservation.from_record(reservation.value), at_ns)

    def _bind(self, pod: Pod, reservation: DeviceReservation, at_ns: int) -> None:
        for claim in reservation.claims:
            present = self._claims.get(f"{pod.namespace}/{claim.name}")
            if present is not None and present.uid == claim.uid:
                self._reserve(present, claim.allocation, pod, at_ns)
        special = reservation.special
        if special is not None:
            new = in_memory_claim(pod, special.spec)
            name = special.name or f"{pod.name}-extended-resources"
            metadata = _replace(new.metadata, name=name, uid=f"claim-{pod.uid}")
            self._reserve(_replace(new, metadata=metadata), special.allocation, pod, at_ns)

    def _reserve(
        self, claim: ResourceClaim, allocation: AllocationResult | None, pod: Pod, at_ns: int
    ) -> None:
        self._written.setdefault(pod.uid, []).append(claim.key)
        status = claim.status
        if allocation is not None:
            dated = _replace(allocation, allocation_timestamp=api_time(at_ns))
            status = _replace(status, allocation=dated)
        consumer = ResourceClaimConsumerReference(resource="pods", name=pod.name, uid=pod.uid)
        if all(each.uid != pod.uid for each in status.reserved_for):
            status = _replace(status, reserved_for=(*status.reserved_for, consumer))
        self._observe(_replace(claim, status=status))

    def release(self, pod: Pod) -> None:
        """The pod is gone: its claims lose the reservation, those without one their devices, and
        those that it owns are deleted."""
        keys = dict.fromkeys(self._written.pop(pod.uid, ()))
        for reference in pod.spec.resource_claims:
            keys[f"{pod.namespace}/{reference.resource_claim_name}"] = None
        for status in pod.status.resource_claim_statuses:
            keys[f"{pod.namespace}/{status.resource_claim_name}"] = None
        for key in keys:
            claim = self._claims.get(key)
            if claim is None:
                continue
            owner = claim.metadata.controller
            if owner is not None and owner.uid == pod.uid:
                # As Kubernetes does: rejected pods are requeued by the update, not by the deletion.
                self._unreserve(claim, pod.uid)
                self._record(ObjectDeleted("ResourceClaim", key, claim.uid))
            else:
                self._unreserve(claim, pod.uid)

    def _unreserve(self, claim: ResourceClaim, pod_uid: str) -> None:
        left = tuple(c for c in claim.status.reserved_for if c.uid != pod_uid)
        if len(left) == len(claim.status.reserved_for):
            return
        status = _replace(claim.status, reserved_for=left) if left else ResourceClaimStatus()
        self._observe(_replace(claim, status=status))

    # -- PostFilter -------------------------------------------------------------------------------

    def end_release(self, decision: Rejected, released: ReleasedClaim) -> None:
        """Write the claim that a rejection releases."""
        ref = released.claim
        self._record(ClaimReleaseEnded(decision.key, decision.uid, ref.uid))
        claim = self._claims.get(ref.key)
        if claim is None or claim.uid != ref.uid:
            return
        if released.delete:
            self._record(ObjectDeleted("ResourceClaim", claim.key, claim.uid))
        else:
            self._observe(_replace(claim, status=ResourceClaimStatus()))


def _owner(pod: Pod) -> OwnerReference:
    return OwnerReference(api_version="v1", kind="Pod", name=pod.name, uid=pod.uid, controller=True)
