"""Reservations of an allocated ResourceClaim for several pods in one request.

Pods that share a claim are often bound at the same time. If each updated the claim, most updates
would conflict, and each would cause an event. The API server rejects a reservation of a claim that
is not allocated, is being deleted, or was replaced by another one.
"""

from __future__ import annotations

import anyio
import anyio.lowlevel
import msgspec

from asched.framework.binding import ClaimRef
from asched.kube.claim_bodies import claim_path, reservation_patch
from asched.kube.client import STRATEGIC_MERGE_PATCH, ApiClient
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.pod_writer import PodTarget
from asched.kube.write_outcomes import IDEMPOTENT, WriteOutcome, WriteSucceeded, outcome_of


class _Batch:
    """Pods for which a claim is reserved by one request."""

    def __init__(self) -> None:
        self.consumers: dict[str, PodTarget] = {}
        """By UID."""
        self.outcome: WriteOutcome | None = None
        """None until the end, and if the task that writes it was cancelled."""
        self.ended = anyio.Event()


class ClaimReservations:
    """Adds pods to ``reservedFor`` of claims. Pods that wait while a request about their claim is
    under way share the next one."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._waiting: dict[ClaimRef, _Batch] = {}
        self._written: dict[ClaimRef, _Batch] = {}

    async def reserve(self, claim: ClaimRef, consumer: PodTarget) -> WriteOutcome:
        """Reserve the claim for the pod. A rejection may be due to another pod of the request."""
        outcome = None
        while outcome is None:  # again if the task that wrote was cancelled
            batch = self._waiting.get(claim)
            if batch is not None:
                batch.consumers[consumer.uid] = consumer
                await self._wait(batch, consumer)
            else:
                batch = self._waiting[claim] = _Batch()
                batch.consumers[consumer.uid] = consumer
                await self._write_next(claim, batch)
            outcome = batch.outcome
        return outcome

    async def _wait(self, batch: _Batch, consumer: PodTarget) -> None:
        try:
            await batch.ended.wait()
        except BaseException:
            batch.consumers.pop(consumer.uid, None)  # if it is not written yet
            raise

    async def _write_next(self, claim: ClaimRef, batch: _Batch) -> None:
        """Write the batch once no other one of the claim is being written."""
        try:
            before = self._written.get(claim)
            if before is not None:
                await before.ended.wait()
            else:
                await anyio.lowlevel.checkpoint()  # bindings that start now may join
            self._written[claim] = self._waiting.pop(claim)
            batch.outcome = await self._write(claim, [*batch.consumers.values()])
        finally:
            for batches in (self._waiting, self._written):
                if batches.get(claim) is batch:
                    del batches[claim]
            batch.ended.set()

    async def _write(self, claim: ClaimRef, consumers: list[PodTarget]) -> WriteOutcome:
        body, path = reservation_patch(claim, consumers), f"{claim_path(claim)}/status"
        try:
            await self._client.request(
                "PATCH", path, body=body, content_type=STRATEGIC_MERGE_PATCH, options=IDEMPOTENT
            )
        except (ApiError, NoResponseError) as error:
            outcome = outcome_of(error)
            message = f"add reservation to claim {claim.key}: {outcome.message}"
            return msgspec.structs.replace(outcome, message=message)
        return WriteSucceeded()
