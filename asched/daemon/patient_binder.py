"""One binding, until its fate is known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import structlog

from asched.daemon.pauses import Pauses
from asched.daemon.volume_requests import VolumeRequests
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.kube.extenders import ExtenderError, HttpExtender
from asched.kube.timing import Backoff, Clock
from asched.kube.volume_writers import VolumeWriter
from asched.kube.writers import BindOutcome, Done, PodRef, PodWriter, Refused, Unknown

_CHECK_INTERVAL_S = 0.25
"""How often a plugin that waits for something looks again."""

LATEST_ARRIVAL_S = 60.0
"""So long after it was sent an API server may still carry a request out (``--request-timeout`` of
kube-apiserver)."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class AbandonedError(Exception):
    """The daemon stops before the fate of a binding is known; the next start takes it up again."""


class PatientBinder(VolumeRequests):
    """Does what the framework's ``BindingClient`` is asked for, for one binding.

    It answers only when the fate of the binding is known: a pod whose binding may have succeeded
    must not be placed elsewhere, and one that never reached the API server keeps its place.
    """

    def __init__(
        self,
        writer: PodWriter,
        volumes: VolumeWriter,
        pauses: Pauses,
        clock: Clock,
        backoff: Backoff,
        node_exists: Callable[[str], bool],
        perhaps_begun_s: float | None = None,
    ) -> None:
        """``perhaps_begun_s``: by then, on the monotonic clock, the binding may have been sent by whom
        nobody can ask any more."""
        super().__init__(volumes)
        self.fate: BindOutcome | None = None
        """How the last try ended; None before the first."""
        self.abandoned = False
        self._doubt_since_s = perhaps_begun_s
        """When the last try was made that may have bound the pod without our knowledge, or may yet; None
        where there is none."""
        self._writer = writer
        self._pauses = pauses
        self._clock = clock
        self._backoff = backoff
        self._node_exists = node_exists

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        """A node that went since the pod was assigned is not bound to, as far as we know of it.

        Raises :class:`AbandonedError` where the daemon stops first.
        """
        ref = PodRef(pod.namespace, pod.name, pod.uid)
        while True:
            if not self._node_exists(node_name):
                gone = f"node {node_name} is gone since the pod was assigned"
                if self._doubt_since_s is not None:
                    return await self.settle(pod, node_name, gone)
                return Status.error(gone)
            still_there = partial(self._node_exists, node_name)
            outcome = self.fate = await self._writer.bind(ref, node_name, still_there)
            if isinstance(outcome, Done):
                return SUCCESS
            if isinstance(outcome, Unknown):
                self._doubt_since_s = self._clock.monotonic_s()
            if not self._worth_waiting(outcome, node_name):
                if self._doubt_since_s is not None and isinstance(outcome, Refused):
                    # It was this try that was refused: nothing is said of the ones before.
                    return await self.settle(pod, node_name, outcome.message)
                return Status.error(outcome.message)
            log.debug("binding tried again", pod=pod.key, node=node_name, error=outcome.message)
            await self._pause(self._backoff.next_s())

    async def bind_by(self, extender: HttpExtender, pod: PodInfo, node_name: str) -> Status:
        """Have the extender bind the pod. Where it fails, whether the pod is bound is read back.

        Raises :class:`AbandonedError` where the daemon stops, or does not lead any more.
        """
        if not self._writer.may_write:
            self.abandoned = True
            raise AbandonedError
        try:
            await extender.bind(pod.pod, node_name)
        except ExtenderError as error:
            message = str(error)
        else:
            return SUCCESS
        return await self.settle(pod, node_name, message)

    async def settle(self, pod: PodInfo, node_name: str, message: str) -> Status:
        """Read back whether the pod was bound by somebody who did not say so; an error with
        ``message`` where it was not, and cannot be any more.

        Raises :class:`AbandonedError` where the daemon stops first.
        """
        ref = PodRef(pod.namespace, pod.name, pod.uid)
        while True:
            outcome = self.fate = await self._writer.fate(ref, node_name, message)
            if isinstance(outcome, Done):
                return SUCCESS
            delay_s = self._backoff.next_s()
            if not isinstance(outcome, Unknown):
                left_s = self._doubt_left_s()
                if left_s <= 0 or not isinstance(outcome, Refused):
                    return Status.error(outcome.message)
                delay_s = min(delay_s, left_s)
            await self._pause(delay_s)

    def _doubt_left_s(self) -> float:
        """How long what was sent may still arrive."""
        if self._doubt_since_s is None:
            return 0.0
        return self._doubt_since_s + LATEST_ARRIVAL_S - self._clock.monotonic_s()

    async def annotate(self, pod: PodInfo, annotations: Mapping[str, str]) -> Status:
        ref = PodRef(pod.namespace, pod.name, pod.uid)
        outcome = await self._writer.annotate(ref, annotations)
        return SUCCESS if isinstance(outcome, Done) else Status.error(outcome.message)

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
        if isinstance(outcome, Unknown):
            return True
        if not isinstance(outcome, Refused) or not self._node_exists(node_name):
            return False
        # No server answered: deciding anew would only fail again. Or one did that cannot carry it out just
        # now, while an earlier try may have bound the pod, or may yet: its room must not be given away.
        not_now = outcome.status == 429 or outcome.status >= 500
        return not outcome.status or (self._doubt_since_s is not None and not_now)
