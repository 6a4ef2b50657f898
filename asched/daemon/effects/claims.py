"""Releases ResourceClaims that keep pods from being scheduled."""

from __future__ import annotations

from functools import partial

import structlog

from asched.daemon.effects.bind import PREVIOUS_TERM
from asched.daemon.effects.per_pod_queue import EffectContext
from asched.daemon.effects.reconciler import AbandonedError, WriterCheck
from asched.kube.claim_writer import ClaimWriter
from asched.kube.write_outcomes import WriteSucceeded
from asched.state.claim_releases import PendingClaimRelease
from asched.state.records import ClaimReleaseEnded

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ClaimReleaseHandler:
    """Deallocates or deletes claims and reports ``ClaimReleaseEnded``."""

    def __init__(self, context: EffectContext) -> None:
        self._context = context
        self._writer = ClaimWriter(context.services.client, confirm=WriterCheck(context))

    def release(self, claim_uid: str) -> None:
        """Carry out a decided release."""
        pending = self._context.cluster.claim_releases.get(claim_uid)
        if pending is not None:
            job = partial(self._run, pending)
            self._context.queue.submit(pending.pod.uid, f"release {claim_uid}", job)

    def resume(self) -> None:
        """Restart the releases that were decided before this process started."""
        for claim_uid in self._context.cluster.claim_releases:
            self.release(claim_uid)

    def abandon_previous_term(self) -> None:
        """Fail the releases of a previous term of this replica."""
        for pending in self._context.cluster.claim_releases.values():
            self._report(pending, PREVIOUS_TERM)

    async def _run(self, pending: PendingClaimRelease) -> None:
        claim, pod = pending.release.claim, pending.pod
        if self._context.cluster.claim_releases.get(claim.uid) != pending:
            return  # ended while this job waited
        try:
            if pending.release.delete:
                outcome = await self._writer.delete_special(claim)
            else:
                outcome = await self._writer.deallocate(claim, pod.uid)
        except AbandonedError:
            return  # the next start resumes it
        if isinstance(outcome, WriteSucceeded):
            log.info("claim released", claim=claim.key, pod=pod.key, deleted=pending.release.delete)
            self._report(pending, "")
        else:
            log.warning("claim not released", claim=claim.key, pod=pod.key, error=outcome.message)
            self._report(pending, outcome.message)

    def _report(self, pending: PendingClaimRelease, message: str) -> None:
        pod, claim = pending.pod, pending.release.claim
        self._context.report(ClaimReleaseEnded(pod.key, pod.uid, claim.uid, message))
