"""The ResourceClaims of a pod, as kubelets and the controller of claims see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from asched.apiserver.dra.strategy import CLAIMS
from asched.apiserver.errors import Object

if TYPE_CHECKING:
    from asched.apiserver.api import ObjectApi


class PodClaimRef(NamedTuple):
    """An entry of ``spec.resourceClaims`` with its claim."""

    entry: Object
    claim_name: str | None
    """None if no claim is needed; empty if it was not generated yet."""
    generated: bool


def claim_refs(pod: Object) -> Iterator[PodClaimRef]:
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    generated = {each["name"]: each.get("resourceClaimName") for each in statuses}
    for entry in pod["spec"].get("resourceClaims") or ():
        if entry.get("resourceClaimName"):
            yield PodClaimRef(entry, entry["resourceClaimName"], generated=False)
        elif entry.get("resourceClaimTemplateName"):
            yield PodClaimRef(entry, generated.get(entry["name"], ""), generated=True)


def is_done(pod: Object) -> bool:
    """Whether the pod no longer runs, or never will (``isPodDone``)."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return True
    return bool(pod["metadata"].get("deletionTimestamp")) and not pod["spec"].get("nodeName")


def owner_uid(claim: Object) -> str:
    """The UID of the pod that controls the claim; empty if none does."""
    for owner in claim["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == "Pod":
            return str(owner.get("uid") or "")
    return ""


def is_reserved_for(claim: Object, uid: str) -> bool:
    consumers = (claim.get("status") or {}).get("reservedFor") or ()
    return any(consumer.get("uid") == uid for consumer in consumers)


def claims_are_ready(api: ObjectApi, pod: Object) -> bool:
    """Whether the pod may start: its claims are allocated, and reserved for it."""
    metadata = pod["metadata"]
    names = [ref.claim_name for ref in claim_refs(pod) if ref.claim_name is not None]
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus")
    if extended:
        names.append(extended.get("resourceClaimName") or "")
    for name in names:
        stored = api.find(CLAIMS, metadata["namespace"], name)
        if stored is None or not (stored.obj.get("status") or {}).get("allocation"):
            return False
        if not is_reserved_for(stored.obj, metadata["uid"]):
            return False
    return True


def unreported_devices(claim: Object) -> list[Object]:
    """The allocated devices with binding conditions that their driver has not reported."""
    status = claim.get("status") or {}
    reported = {_identity(device) for device in status.get("devices") or ()}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    return [r for r in results if r.get("bindingConditions") and _identity(r) not in reported]


def with_reported_devices(claim: Object, now: str) -> Object:
    """The claim with all binding conditions true, as its drivers report them."""
    status = claim["status"]
    devices = [*(status.get("devices") or ())]
    for result in unreported_devices(claim):
        conditions = [
            {
                "type": condition,
                "status": "True",
                "reason": "Attached",
                "message": "",
                "lastTransitionTime": now,
            }
            for condition in result["bindingConditions"]
        ]
        device = {field: result[field] for field in _IDENTITY if field in result}
        devices.append({**device, "conditions": conditions})
    return {**claim, "status": {**status, "devices": devices}}


_IDENTITY = ("driver", "pool", "device", "shareID")


def _identity(device: Object) -> tuple[Any, ...]:
    return tuple(device.get(field) for field in _IDENTITY)
