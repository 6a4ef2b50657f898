"""The API server's ResourceClaims as PreBind sees and writes them, with kube-scheduler's requests.

kube-scheduler writes the claim that it has in its cache, and reads it again after a conflict.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from asched.framework.binding import BindingClient, ClaimRef, UnlimitedContext
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.model.pod import ContainerExtendedResourceRequest
from asched.model.resource_claims import AllocationResult, ResourceClaim
from asched.model.resources import Resource, decode
from asched.state.fold import Fold
from asched.state.records import ObjectDeleted, ObjectObserved
from tests.conformance.defaulting import (
    ApiObject,
    copied,
    default_allocation,
    default_resource_claim,
)

FINALIZER = "resource.kubernetes.io/delete-protection"
MAX_CONSUMERS = 256
NOW = "NOW"
_STORED_NOW = "2026-01-01T00:00:00Z"


def decoded(claim: ApiObject) -> ResourceClaim:
    return cast(ResourceClaim, decode(Resource.RESOURCE_CLAIMS, msgspec.json.encode(claim)))


def written(value: Any) -> Any:
    """A struct as the API server stores it."""
    plain = copied(value)
    if isinstance(value, AllocationResult):
        default_allocation(plain)
    return plain


class _WriteError(Exception):
    def __init__(self, message: str, *, by_server: bool = False) -> None:
        super().__init__(message)
        self.by_server = by_server


class _Allocation(NamedTuple):
    claim: ClaimRef
    allocation: ApiObject | None
    consumer: PodInfo


class RecordingClient:
    """A :class:`~asched.framework.binding.BindingClient` for one PreBind. The fold observes what it
    writes."""

    context = UnlimitedContext()

    def __init__(self, claims: Sequence[ApiObject], fold: Fold) -> None:
        self._fold = fold
        self._cached = {_key(claim): claim for claim in claims}
        """As the scheduler's cache has them: unchanged while PreBind runs."""
        self._stored = copied(self._cached)
        self._changed: dict[str, bool] = {}
        self.api_calls: list[str] = []
        self.reserved: dict[str, ApiObject] = {}
        """The allocations that were to be written, by claim."""
        self.created: set[str] = set()
        self.pod_patch: ApiObject | None = None
        self.rejected = False
        self.waited_s = 0.0

    # -- the client -----------------------------------------------------------------------------

    async def allocate_claim(
        self, claim: ClaimRef, allocation: AllocationResult | None, consumer: PodInfo
    ) -> Status:
        if _is_reserved(self._cached[claim.key], consumer.uid):
            return SUCCESS  # kube-scheduler believes its cache
        wanted = _Allocation(claim, None if allocation is None else written(allocation), consumer)
        try:
            # The cached claim is outdated if this PreBind has changed it.
            if not self._allocate(wanted, self._cached[claim.key]):
                self._allocate(wanted, self._stored[claim.key])
        except _WriteError as failure:
            self.rejected |= failure.by_server
            return Status.error(str(failure))
        return SUCCESS

    def _allocate(self, wanted: _Allocation, seen: ApiObject) -> bool:
        """Whether the claim was up to date."""
        key, name = wanted.claim.key, wanted.claim.name
        outdated = seen is not self._stored[key] and key in self._changed
        claim = copied(seen)
        status = claim.setdefault("status", {})
        if claim["metadata"].get("deletionTimestamp"):
            raise _WriteError(f"claim {key} got deleted in the meantime")
        if wanted.allocation is not None:
            if status.get("allocation"):
                raise _WriteError(f"claim {key} got allocated elsewhere in the meantime")
            finalizers = claim["metadata"].setdefault("finalizers", [])
            if FINALIZER not in finalizers:
                finalizers.append(FINALIZER)
                self.api_calls.append(f"update resourceclaims {name}")
                if outdated:
                    return False
                self._store(key, claim)
            status["allocation"] = copied(wanted.allocation)
            self.reserved.setdefault(key, wanted.allocation)
        if not status.get("allocation"):
            raise _WriteError(f"claim {key} got deallocated elsewhere in the meantime")
        pod = {"resource": "pods", "name": wanted.consumer.name, "uid": wanted.consumer.uid}
        status.setdefault("reservedFor", []).append(pod)
        status["allocation"].setdefault("allocationTimestamp", NOW)
        self.api_calls.append(f"update resourceclaims/status {name}")
        if outdated:
            return False
        self._validate(key, seen, claim, new=wanted.allocation is not None)
        self._store(key, claim)
        return True

    def _validate(self, key: str, before: ApiObject, claim: ApiObject, *, new: bool) -> None:
        what = "allocation and reservation" if new else "reservation"
        name = claim["metadata"]["name"]
        begin = f'add {what} to claim {key}: ResourceClaim.resource.k8s.io "{name}" is invalid: '
        old = before.get("status", {}).get("allocation")
        if old and old != claim["status"]["allocation"]:
            raise _WriteError(f"{begin}status.allocation: ...", by_server=True)
        count = len(claim["status"]["reservedFor"])
        if count > MAX_CONSUMERS:
            text = f"Too many: {count}: must have at most {MAX_CONSUMERS} items"
            raise _WriteError(f"{begin}status.reservedFor: {text}", by_server=True)
        uids = [consumer["uid"] for consumer in claim["status"]["reservedFor"]]
        if len(set(uids)) < count:
            index = count - 1
            text = f'status.reservedFor[{index}].uid: Duplicate value: "{uids[index]}"'
            raise _WriteError(f"{begin}{text}", by_server=True)

    async def create_special_claim(
        self, pod: PodInfo, claim: ResourceClaim
    ) -> ResourceClaim | Status:
        metadata = special_metadata(claim)
        name = metadata.pop("generateName") + "NEW"
        metadata.update(name=name, uid=f"uid-{name}")
        stored = default_resource_claim({"metadata": metadata, "spec": written(claim.spec)})
        key = _key(stored)
        self.api_calls.append(f"create resourceclaims {name}")
        self.created.add(key)
        self._store(key, stored)
        self._cached[key] = self._stored[key]
        return decoded(stored)

    async def patch_extended_resource_status(
        self,
        pod: PodInfo,
        claim_name: str,
        mappings: Sequence[ContainerExtendedResourceRequest],
    ) -> Status:
        if not mappings:
            text = f"no update of pod {pod.key} ExtendedResourceClaimStatus"
            return Status.error(f"nil or empty request mappings, {text}")
        self.api_calls.append(f"patch pods/status {pod.name}")
        status = {"requestMappings": written(tuple(mappings)), "resourceClaimName": claim_name}
        self.pod_patch = {"status": {"extendedResourceClaimStatus": status}}
        return SUCCESS

    async def wait_until(
        self, check: Callable[[], Awaitable[Status | None]], timeout_s: float
    ) -> Status | None:
        ended = await check()
        if ended is None:
            self.waited_s = timeout_s
        return ended

    # -- what it wrote --------------------------------------------------------------------------

    def claims(self) -> dict[str, Any]:
        """The claims that changed, in the form of ``preBind.claims``."""
        return {key: self._described(key) for key in self._changed}

    def _described(self, key: str) -> dict[str, Any]:
        claim = self._stored[key]
        status = claim.get("status", {})
        allocation = dict(status.get("allocation") or {})
        consumers = status.get("reservedFor", [])
        found: dict[str, Any] = {
            "finalizers": claim["metadata"].get("finalizers", []),
            "allocationTimestamp": allocation.pop("allocationTimestamp", None),
            "created": key in self.created or None,
        }
        if len(consumers) > 5:
            found["reservedForCount"] = len(consumers)
            found["reservedForLast"] = consumers[-1]
        else:
            found["reservedFor"] = consumers
        before = self.reserved.get(key)
        if before is None:
            before = dict(self._cached[key].get("status", {}).get("allocation") or {})
            before.pop("allocationTimestamp", None)
        found["allocationAsReserved"] = allocation == before
        return {name: value for name, value in found.items() if value is not None}

    def _store(self, key: str, claim: ApiObject) -> None:
        self._stored[key] = claim
        self._changed[key] = True
        self._observe(claim)

    def _observe(self, claim: ApiObject) -> None:
        shown = copied(claim)
        allocation = shown.get("status", {}).get("allocation")
        if allocation and allocation.get("allocationTimestamp") == NOW:
            allocation["allocationTimestamp"] = _STORED_NOW
        self._fold.apply(ObjectObserved(decoded(shown)))

    def restore(self) -> None:
        """The fold observes the claims as they were before."""
        for key in self._changed:
            if key in self.created:
                uid = self._stored[key]["metadata"]["uid"]
                self._fold.apply(ObjectDeleted("ResourceClaim", key, uid))
            else:
                self._observe(self._cached[key])

    def as_binding_client(self) -> BindingClient:
        return cast(BindingClient, self)


def special_metadata(claim: ResourceClaim) -> ApiObject:
    """The metadata with which a special claim is created."""
    owner = claim.metadata.owner_references[0]
    return {
        "generateName": f"{owner.name}-extended-resources-",
        "namespace": claim.namespace,
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "ownerReferences": [written(owner)],
    }


def _is_reserved(claim: ApiObject, pod_uid: str) -> bool:
    consumers = claim.get("status", {}).get("reservedFor", ())
    return any(consumer["uid"] == pod_uid for consumer in consumers)


def _key(claim: Mapping[str, Any]) -> str:
    return f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
