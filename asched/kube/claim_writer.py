"""Writes to ResourceClaims in the binding cycle and after PostFilter (plugin DynamicResources).

The requests and their order are those of kube-scheduler 1.36 (``bindClaim``, ``deleteClaim``). A
claim is read first and updated under the resourceVersion that was read. Fields that scheduling does
not decode are written back as they were read. Exceptions: a claim that is allocated is read by the
patch that adds the finalizer; one that the watch shows as allocated is reserved by a patch, for
several pods at once; a reservation is removed by a patch of the version that was read. If the API
server finds an update in JSON invalid, it is repeated in protobuf.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime

import anyio.lowlevel
import msgspec

from asched.framework.binding import ClaimRef
from asched.kube.claim_bodies import (
    FINALIZER,
    StoredClaim,
    claim_path,
    finalizer_patch,
    is_special_claim_of,
    special_claim_body,
)
from asched.kube.claim_protobuf import PROTOBUF, ProtobufClaim
from asched.kube.claim_reservations import ClaimReservations
from asched.kube.client import STRATEGIC_MERGE_PATCH, ApiClient, RequestOptions
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.pod_writer import PodTarget
from asched.kube.transport import JSON
from asched.kube.write_outcomes import (
    IDEMPOTENT,
    ObjectGone,
    OutcomeUnknown,
    PatchOutcome,
    WriteOutcome,
    WriteRejected,
    WriteSucceeded,
    is_gone,
    outcome_of,
    patch,
)
from asched.model.pod import ContainerExtendedResourceRequest
from asched.model.resource_claims import AllocationResult, ResourceClaim
from asched.model.resources import DecodeError, Resource, decode

_TRIES = 5
"""Attempts to write a claim that others modify concurrently. Each begins by reading it."""

_AS_PROTOBUF = RequestOptions(accept=PROTOBUF)

_encode = msgspec.json.Encoder().encode

_Modification = Callable[[StoredClaim], Awaitable[WriteOutcome]]


class _ConflictError(Exception):
    """The claim was modified since it was read."""


class _FailedUpdateError(Exception):
    """An update failed for another reason than a conflict."""

    def __init__(self, outcome: WriteRejected | OutcomeUnknown) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class ClaimWriter:
    """Allocates, reserves, releases, creates and deletes ResourceClaims."""

    def __init__(
        self,
        client: ApiClient,
        shown: Callable[[str], ResourceClaim | None] = lambda _: None,
        confirm: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint,
    ) -> None:
        """``shown`` returns the claim with a key as the watch shows it. ``confirm`` raises if
        another process is the scheduler now. It is awaited between reading a claim and releasing
        it: what a successor wrote before was read, and what it writes later causes a conflict.
        """
        self._client = client
        self._shown = shown
        self._confirm = confirm
        self._reservations = ClaimReservations(client)

    async def allocate(
        self,
        claim: ClaimRef,
        allocation: AllocationResult | None,
        consumer: PodTarget,
        now: datetime,
        uninterrupted: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> WriteOutcome:
        """Write the allocation and reserve the claim for the pod; without one, only reserve.

        ``now`` is the time of an allocation without ``allocation_timestamp``. A claim that already
        has these devices and is reserved for the pod is a success. In an ``uninterrupted`` block
        the caller must not be cancelled: the API server might write the allocation after the
        devices were given to others.
        """

        async def modify(present: StoredClaim) -> WriteOutcome:
            done = _outcome_without_write(present, claim, allocation, consumer.uid)
            if done is not None:
                return done
            if allocation is not None and FINALIZER not in present.finalizers:
                body = present.with_finalizers((*present.finalizers, FINALIZER))
                what = f"add finalizer to claim {claim.key}"
                try:
                    present = await self._put(claim, body, what)
                except _FailedUpdateError as failed:
                    stored = await self._unchanged(claim, present, failed)
                    body = stored.with_finalizer(FINALIZER)
                    present = await self._put(claim, body, what, content_type=PROTOBUF)
            what = "reservation" if allocation is None else "allocation and reservation"
            body = present.with_reservation(consumer, allocation, now)
            what = f"add {what} to claim {claim.key}"
            with uninterrupted():
                try:
                    await self._put(claim, body, what, "/status")
                except _FailedUpdateError as failed:
                    if allocation is not None:
                        raise
                    stored = await self._unchanged(claim, present, failed)
                    body = stored.with_reservation(consumer)
                    await self._put(claim, body, what, "/status", content_type=PROTOBUF)
            return WriteSucceeded()

        if allocation is None and self._may_join_reservations(claim, consumer.uid):
            outcome = await self._reservations.reserve(claim, consumer)
            if not (isinstance(outcome, WriteRejected) and outcome.status):
                return outcome
            # The claim shows why, or another pod of the request was the reason.
        return await self._read_modify_write(claim, modify, adds_finalizer=allocation is not None)

    def _may_join_reservations(self, claim: ClaimRef, consumer_uid: str) -> bool:
        """Whether the watch shows the claim allocated, with a timestamp (the first reservation has
        to set it), and not reserved for the pod. A shown reservation may have been removed since,
        so the claim is read instead."""
        shown = self._shown(claim.key)
        if shown is None or shown.uid != claim.uid or shown.status.allocation is None:
            return False
        if any(each.uid == consumer_uid for each in shown.status.reserved_for):
            return False
        return shown.status.allocation.allocation_timestamp is not None

    async def release(self, claim: ClaimRef, consumer_uid: str) -> WriteOutcome:
        """Remove the pod from ``reservedFor``. The allocation stays. A claim that is gone is a
        success."""
        path = f"{claim_path(claim)}/status"

        async def modify(present: StoredClaim) -> WriteOutcome:
            if present.uid != claim.uid or consumer_uid not in present.reserved_for:
                return WriteSucceeded()
            await self._confirm()
            body = present.without_reservation(consumer_uid)
            outcome = await patch(self._client, path, body, STRATEGIC_MERGE_PATCH)
            if isinstance(outcome, WriteRejected) and outcome.status == 409:
                raise _ConflictError
            return WriteSucceeded() if isinstance(outcome, ObjectGone) else outcome

        return await self._read_modify_write(claim, modify, gone_is_success=True)

    async def deallocate(self, claim: ClaimRef, consumer_uid: str) -> WriteOutcome:
        """Remove allocation, reservations and status of devices. Rejected if the claim is reserved
        for another consumer than ``consumer_uid``. A claim without allocation is a success."""

        async def modify(present: StoredClaim) -> WriteOutcome:
            if present.uid != claim.uid or present.allocation is None:
                return WriteSucceeded()
            if any(uid != consumer_uid for uid in present.reserved_for):
                return WriteRejected(f"claim {claim.key} is reserved for another pod", 409)
            await self._confirm()
            body = present.without_allocation()
            await self._put(claim, body, f"deallocate claim {claim.key}", "/status")
            return WriteSucceeded()

        return await self._read_modify_write(claim, modify, gone_is_success=True)

    async def create_special(
        self, pod: PodTarget, claim: ResourceClaim
    ) -> ResourceClaim | WriteRejected | OutcomeUnknown:
        """Create the pod's claim for extended resources with the spec of ``claim``.

        The name depends only on the pod and the spec, so that a repeated request finds the claim
        that an earlier one created.
        """
        name, body = special_claim_body(pod, claim.spec)
        ref = ClaimRef(pod.namespace, name, "")
        what = f"create claim for extended resources {ref.key}"
        path, _, _ = claim_path(ref).rpartition("/")
        try:
            try:
                return _decoded(
                    await self._client.request("POST", path, body=body, options=IDEMPOTENT)
                )
            except ApiError as error:
                found = await self._read(ref) if error.status == 409 else None
                if found is None or not is_special_claim_of(found, pod.uid):
                    raise
                return found
        except (ApiError, NoResponseError) as error:
            return _prefixed(what, outcome_of(error))
        except DecodeError as error:
            # The claim exists.
            return OutcomeUnknown(f"{what}: {error}")

    async def delete_special(self, claim: ClaimRef) -> WriteOutcome:
        """Remove the finalizer of the claim, then delete it. A claim that is gone is a success."""

        async def modify(present: StoredClaim) -> WriteOutcome:
            if present.uid != claim.uid:
                return WriteSucceeded()
            await self._confirm()
            if FINALIZER in present.finalizers:
                kept = [each for each in present.finalizers if each != FINALIZER]
                body = present.with_finalizers(kept)
                present = await self._put(claim, body, f"update resourceclaim {claim.key}")
            return await self._delete(claim, present)

        return await self._read_modify_write(claim, modify, gone_is_success=True)

    async def patch_extended_resource_status(
        self,
        pod: PodTarget,
        claim_name: str,
        mappings: Sequence[ContainerExtendedResourceRequest],
    ) -> PatchOutcome:
        """Set ``status.extendedResourceClaimStatus`` of the pod."""
        target = f"pod {pod.key} ExtendedResourceClaimStatus"
        if not mappings:
            return WriteRejected(f"nil or empty request mappings, no update of {target}")
        status = {"requestMappings": mappings, "resourceClaimName": claim_name}
        body = _encode(
            {"metadata": {"uid": pod.uid}, "status": {"extendedResourceClaimStatus": status}}
        )
        outcome = await patch(self._client, f"{pod.path}/status", body, STRATEGIC_MERGE_PATCH)
        if isinstance(outcome, WriteRejected | OutcomeUnknown):
            return _prefixed(f"update {target}", outcome)
        return outcome

    async def read(self, claim: ClaimRef) -> ResourceClaim | None:
        """The present claim, None if it is gone or was recreated. Raises ApiError, NoResponseError
        and DecodeError."""
        found = await self._read(claim)
        return found if found is not None and found.uid == claim.uid else None

    async def _read(self, claim: ClaimRef) -> ResourceClaim | None:
        try:
            return _decoded(await self._client.request("GET", claim_path(claim)))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _unchanged(
        self, claim: ClaimRef, present: StoredClaim, failed: _FailedUpdateError
    ) -> ProtobufClaim:
        """The claim in protobuf if an update in JSON was invalid: its opaque parameters may be in
        a notation that JSON does not keep. Otherwise raises the failure."""
        outcome = failed.outcome
        if not isinstance(outcome, WriteRejected) or outcome.status != 422:
            raise failed
        body = await self._client.request("GET", claim_path(claim), options=_AS_PROTOBUF)
        try:
            stored = ProtobufClaim(body)
        except msgspec.DecodeError:
            raise failed from None
        if (stored.uid, stored.version) != (present.uid, present.version):
            raise _ConflictError
        return stored

    async def _put(
        self,
        claim: ClaimRef,
        body: bytes,
        what: str,
        subresource: str = "",
        content_type: str = JSON,
    ) -> StoredClaim:
        """The claim after the update. ``what`` begins the message of a failure."""
        path = claim_path(claim) + subresource
        try:
            return StoredClaim(
                await self._client.request(
                    "PUT", path, body=body, content_type=content_type, options=IDEMPOTENT
                )
            )
        except (ApiError, NoResponseError) as error:
            if isinstance(error, ApiError) and error.status == 409:
                raise _ConflictError from None
            raise _FailedUpdateError(_prefixed(what, outcome_of(error))) from None
        except msgspec.DecodeError as error:
            # The API server has accepted the update.
            raise _FailedUpdateError(OutcomeUnknown(f"{what}: {error}")) from None

    async def _add_finalizer(self, claim: ClaimRef) -> bytes | None:
        """The claim after a patch that adds the finalizer, if it has none. None if that failed:
        reading the claim shows why, or an update is permitted where a patch is not."""
        body, form = finalizer_patch(claim), STRATEGIC_MERGE_PATCH
        try:
            return await self._client.request(
                "PATCH", claim_path(claim), body=body, content_type=form, options=IDEMPOTENT
            )
        except (ApiError, NoResponseError):
            return None

    async def _delete(self, claim: ClaimRef, present: StoredClaim) -> WriteOutcome:
        unchanged = {"uid": claim.uid, "resourceVersion": present.version}
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": unchanged}
        body = _encode(options)
        try:
            await self._client.request("DELETE", claim_path(claim), body=body, options=IDEMPOTENT)
        except (ApiError, NoResponseError) as error:
            if is_gone(error):
                return WriteSucceeded()
            if isinstance(error, ApiError) and error.status == 409:
                raise _ConflictError from None
            return outcome_of(error)
        return WriteSucceeded()

    async def _read_modify_write(
        self,
        claim: ClaimRef,
        modify: _Modification,
        *,
        gone_is_success: bool = False,
        adds_finalizer: bool = False,
    ) -> WriteOutcome:
        """Read the claim and ``modify`` it, again after a conflict. ``adds_finalizer``: the first
        read adds the finalizer."""
        for attempt in range(_TRIES):
            try:
                read = await self._add_finalizer(claim) if adds_finalizer and attempt == 0 else None
                if read is None:
                    read = await self._client.request("GET", claim_path(claim))
                return await modify(StoredClaim(read))
            except _ConflictError:
                continue
            except _FailedUpdateError as failed:
                return failed.outcome
            except (ApiError, NoResponseError) as error:
                if gone_is_success and is_gone(error):
                    return WriteSucceeded()
                return _prefixed(f"get claim {claim.key}", outcome_of(error))
            except msgspec.DecodeError as error:
                return WriteRejected(f"claim {claim.key}: {error}")
        return WriteRejected(f"claim {claim.key} was modified concurrently", 409)


def _outcome_without_write(
    present: StoredClaim,
    claim: ClaimRef,
    allocation: AllocationResult | None,
    consumer_uid: str,
) -> WriteOutcome | None:
    """The outcome that follows from the claim as it is; None if it has to be written."""
    if present.uid != claim.uid:
        return WriteRejected(f"claim {claim.key} was replaced by another one", 409)
    if present.deleting:
        return WriteRejected(f"claim {claim.key} got deleted in the meantime", 409)
    reserved = consumer_uid in present.reserved_for
    if allocation is None:
        if present.allocation is None:
            message = f"claim {claim.key} got deallocated elsewhere in the meantime"
            return WriteRejected(message, 409)
        return WriteSucceeded() if reserved else None
    if present.allocation is None:
        return None
    if reserved and present.has_devices_of(allocation):
        return WriteSucceeded()
    return WriteRejected(f"claim {claim.key} got allocated elsewhere in the meantime", 409)


def _prefixed(what: str, outcome: WriteRejected | OutcomeUnknown) -> WriteRejected | OutcomeUnknown:
    return msgspec.structs.replace(outcome, message=f"{what}: {outcome.message}")


def _decoded(body: bytes) -> ResourceClaim:
    found = decode(Resource.RESOURCE_CLAIMS, body)
    if not isinstance(found, ResourceClaim):
        raise DecodeError("the API server returned no ResourceClaim")
    return found
