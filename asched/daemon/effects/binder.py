"""One binding, until its fate is known.

What plugins of the binding cycle may ask about volumes and claims.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import structlog

from asched.daemon.engine.runtime import StoppableSleep
from asched.framework.binding import ClaimRef, Unavailable
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.extenders import ExtenderError, HttpExtender
from asched.kube.timing import Backoff, Clock
from asched.kube.volume_writers import VolumeOutcome, VolumeWriter
from asched.kube.writers import (
    BindOutcome,
    BoundElsewhere,
    OutcomeUnknown,
    PodGone,
    PodRef,
    PodWriter,
    WriteRejected,
    WriteSucceeded,
)
from asched.model.resources import DecodeError
from asched.model.storage import PersistentVolume, PersistentVolumeClaim


class VolumeRequests:
    """The part of the framework's ``BindingClient`` that is about volumes: outcomes as a Status.

    A write of unknown fate is an error too: the pod is tried again, and finds the volume promised
    to its claim if it was.
    """

    def __init__(self, writer: VolumeWriter) -> None:
        self._volumes = writer

    async def claim_volume(self, volume: str, claim: ClaimRef) -> Status:
        return _status(await self._volumes.claim_volume(volume, claim))

    async def select_node(self, claim: ClaimRef, node_name: str) -> Status:
        return _status(await self._volumes.select_node(claim, node_name))

    async def read_volume(self, name: str) -> PersistentVolume | None:
        try:
            return await self._volumes.read_volume(name)
        except (ApiError, NoResponseError, DecodeError) as error:
            raise Unavailable(str(error)) from None

    async def read_claim(self, claim: ClaimRef) -> PersistentVolumeClaim | None:
        try:
            return await self._volumes.read_claim(claim)
        except (ApiError, NoResponseError, DecodeError) as error:
            raise Unavailable(str(error)) from None


def _status(outcome: VolumeOutcome) -> Status:
    return SUCCESS if isinstance(outcome, WriteSucceeded) else Status.error(outcome.message)


_CHECK_INTERVAL_S = 0.25
"""How often a plugin that waits for something looks again."""

LATEST_ARRIVAL_S = 60.0
"""So long after it was sent an API server may still carry a request out (``--request-timeout`` of
kube-apiserver)."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class AbandonedError(Exception):
    """The daemon stops before the fate of a binding is known; the next start takes it up again."""


class BindReconciler(VolumeRequests):
    """Does what the framework's ``BindingClient`` is asked for, for one binding.

    It answers only when the fate of the binding is known: a pod whose binding may have succeeded
    must not be placed elsewhere, and one that never reached the API server keeps its place. So while
    a binding is :attr:`in_doubt` it does not fail: :meth:`settle`, which all failures go through, ends
    the doubt first.
    """

    def __init__(
        self,
        writer: PodWriter,
        volumes: VolumeWriter,
        pauses: StoppableSleep,
        clock: Clock,
        backoff: Backoff,
        node_exists: Callable[[str], bool],
        perhaps_begun_s: float | None = None,
        waiting: Callable[[int], None] = lambda change: None,
    ) -> None:
        """``perhaps_begun_s``: by then, on the monotonic clock, the binding may have been sent by whom
        nobody can ask any more. ``waiting`` is told 1 and -1 where the pod begins and ends to wait for
        what was sent to arrive."""
        super().__init__(volumes)
        self.fate: BindOutcome | None = None
        """What the API server last said of the binding; None before."""
        self.abandoned = False
        self._doubt_until_s: float | None = None
        """Until then, on the monotonic clock, the pod may be bound without our knowledge, by what was sent
        before. None where there is no doubt, or no more after a later look."""
        if perhaps_begun_s is not None:
            self._doubt_until_s = perhaps_begun_s + LATEST_ARRIVAL_S
        self._writer = writer
        self._pauses = pauses
        self._clock = clock
        self._backoff = backoff
        self._node_exists = node_exists
        self._waiting = waiting

    @property
    def in_doubt(self) -> bool:
        """Whether the pod may have been bound, or may yet be, by what was sent and not answered."""
        return self._doubt_until_s is not None

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        """A node that went since the pod was assigned is not bound to, as far as we know of it.

        Raises :class:`AbandonedError` where the daemon stops first.
        """
        ref = PodRef(pod.namespace, pod.name, pod.uid)
        still_there = partial(self._node_exists, node_name)
        while still_there():
            outcome = self._said(await self._writer.bind(ref, node_name, still_there))
            if isinstance(outcome, WriteSucceeded):
                return SUCCESS
            if isinstance(outcome, OutcomeUnknown):
                self.doubt()
            if not self._worth_waiting(outcome, node_name):
                return await self.settle(pod, node_name, Status.error(outcome.message))
            log.debug("binding tried again", pod=pod.key, node=node_name, error=outcome.message)
            await self._pause(self._backoff.next_s())
        gone = Status.error(f"node {node_name} is gone since the pod was assigned")
        return await self.settle(pod, node_name, gone)

    async def bind_by(self, extender: HttpExtender, pod: PodInfo, node_name: str) -> Status:
        """Have the extender bind the pod. Where that fails the binding is in doubt: as an extender says
        no it may have bound the pod, and where it says nothing it may do so yet.

        Raises :class:`AbandonedError` where the daemon stops, or does not lead any more.
        """
        if not self._writer.may_write:
            self.abandoned = True
            raise AbandonedError
        try:
            await extender.bind(pod.pod, node_name)
        except ExtenderError as error:
            self.doubt(may_arrive=error.in_doubt)
            return Status.error(str(error))
        return SUCCESS

    def doubt(self, *, may_arrive: bool = True) -> None:
        """Somebody was asked to bind the pod who did not say what became of it. What was sent for that
        ``may_arrive`` from now on, or has arrived if it ever does."""
        until_s = self._clock.monotonic_s() + (LATEST_ARRIVAL_S if may_arrive else 0.0)
        if self._doubt_until_s is None or self._doubt_until_s < until_s:
            self._doubt_until_s = until_s

    async def settle(self, pod: PodInfo, node_name: str, failure: Status) -> Status:
        """What a binding comes to that ends in ``failure``: just that where there is no doubt. Else the
        pod is looked at until it is bound after all, or cannot be any more. That takes no longer than
        :data:`LATEST_ARRIVAL_S` where the API server answers.

        Raises :class:`AbandonedError` where the daemon stops first.
        """
        ref = PodRef(pod.namespace, pod.name, pod.uid)
        self._waiting(1)
        try:
            while self.in_doubt:
                left_s = self._doubt_left_s()
                outcome = self._said(await self._writer.fate(ref, node_name, failure.message))
                if isinstance(outcome, WriteSucceeded):
                    return SUCCESS
                if isinstance(outcome, BoundElsewhere | PodGone):
                    return Status.error(outcome.message)
                if (
                    isinstance(outcome, WriteRejected) and left_s <= 0
                ):  # not bound, and nothing may come
                    self._doubt_until_s = None
                    break
                delay_s = self._backoff.next_s()
                await self._pause(min(delay_s, left_s) if left_s > 0 else delay_s)
        finally:
            self._waiting(-1)
        return failure

    def _doubt_left_s(self) -> float:
        """How long what was sent may still arrive."""
        return (
            0.0 if self._doubt_until_s is None else self._doubt_until_s - self._clock.monotonic_s()
        )

    def _said(self, outcome: BindOutcome) -> BindOutcome:
        """Note what the API server said. Where it ends the matter, what may arrive later changes nothing."""
        if isinstance(outcome, WriteSucceeded | BoundElsewhere | PodGone):
            self._doubt_until_s = None
        self.fate = outcome
        return outcome

    async def annotate(self, pod: PodInfo, annotations: Mapping[str, str]) -> Status:
        ref = PodRef(pod.namespace, pod.name, pod.uid)
        outcome = await self._writer.annotate(ref, annotations)
        return SUCCESS if isinstance(outcome, WriteSucceeded) else Status.error(outcome.message)

    async def wait_until(
        self, check: Callable[[], Awaitable[Status | None]], timeout_s: float
    ) -> Status | None:
        """Raises :class:`AbandonedError` where the daemon stops first."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            status = await check()
            if status is not None:
                return status
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                return None
            await self._pause(min(_CHECK_INTERVAL_S, left_s))

    async def _pause(self, delay_s: float) -> None:
        if not await self._pauses.pause(delay_s):
            self.abandoned = True
            raise AbandonedError

    def _worth_waiting(self, outcome: BindOutcome, node_name: str) -> bool:
        if isinstance(outcome, OutcomeUnknown):
            return True
        if not isinstance(outcome, WriteRejected) or not self._node_exists(node_name):
            return False
        # No server answered: deciding anew would only fail again. Or one did that cannot carry it out just
        # now, while the room of the pod must not be given away anyway.
        not_now = outcome.status == 429 or outcome.status >= 500
        return not outcome.status or (not_now and self._doubt_left_s() > 0)
