"""A binding that is reported only with a definite outcome; whether bindings succeed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

import structlog

from asched.daemon.effects.per_pod_queue import EffectContext
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.journal.errors import TRANSIENT_ERRORS, JournalError
from asched.kube.claim_writer import ClaimWriter
from asched.kube.extenders import ExtenderError, HttpExtender
from asched.kube.pod_writer import PodTarget, PodWriter
from asched.kube.timing import Backoff, Clock, StoppableSleep
from asched.kube.volume_writer import VolumeWriter
from asched.kube.write_outcomes import (
    BindOutcome,
    BoundElsewhere,
    ObjectGone,
    OutcomeUnknown,
    WriteRejected,
    WriteSucceeded,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

UNUSABLE_AFTER_S: Final = 8.0
"""Time without a carried out binding after which the daemon is not ready: a probe has 2 s to see it
within 10 s."""
_RECENT_S: Final = 60.0
"""How long after the last request a failure counts: longer than a request and a backoff take."""


class BindHealth:
    """Remembers since when the API server carried out no binding.

    Other requests may succeed meanwhile. An answer about the pod, such as that it is gone or bound
    elsewhere, shows that bindings are processed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing_since_s: float | None = None
        self._requested_at_s = 0.0

    def requested(self) -> None:
        """A binding is about to be sent."""
        self._requested_at_s = self._clock.monotonic_s()
        if self._failing_since_s is None:
            self._failing_since_s = self._requested_at_s

    def answered(self, outcome: BindOutcome) -> None:
        if not _is_failure(outcome):
            self._failing_since_s = None

    def problem(self) -> str:
        """What is wrong, in one line; empty if bindings succeed or none is sent."""
        if self._failing_since_s is None:
            return ""
        now_s = self._clock.monotonic_s()
        if now_s - self._requested_at_s > _RECENT_S:
            self._failing_since_s = None
            return ""
        failing_s = now_s - self._failing_since_s
        if failing_s < UNUSABLE_AFTER_S:
            return ""
        return f"no binding has succeeded for {failing_s:.0f} s"


def _is_failure(outcome: BindOutcome) -> bool:
    """Whether the outcome is due to the API server or the way to it, not to the pod."""
    if isinstance(outcome, WriteRejected):
        return not outcome.status or outcome.status in (401, 429) or outcome.status >= 500
    return isinstance(outcome, OutcomeUnknown)


_WRITER_CHECK_INTERVAL_S = 1.0
_CHECK_INTERVAL_S = 0.25
"""Interval of :meth:`BindReconciler.wait_until`, and of checks of the lease."""

MAX_REQUEST_AGE_S = 60.0
"""An API server may execute a request up to this long after it was sent (``--request-timeout`` of
kube-apiserver)."""


class AbandonedError(Exception):
    """The daemon stops before the outcome of a binding is known. The next start resumes it."""


class WriterCheck:
    """Makes sure that this process still is the writer of the journal, before it undoes what its
    successor may rely on."""

    def __init__(self, context: EffectContext) -> None:
        self._check, self._sleep = context.services.check_writer, context.sleep

    async def __call__(self) -> None:
        """Returns while the process is the writer; waits while the journal cannot be asked. Raises
        :class:`AbandonedError` if another process is the writer, or the daemon stops first."""
        while True:
            try:
                return await self._check()
            except TRANSIENT_ERRORS:
                if await self._sleep.pause(_WRITER_CHECK_INTERVAL_S):
                    continue
            except JournalError as error:  # which also ends the engine
                log.warning("effects abandoned", error=str(error))
            raise AbandonedError


class BindingIO(NamedTuple):
    """What a :class:`BindReconciler` works with."""

    writer: PodWriter
    volumes: VolumeWriter
    claims: ClaimWriter
    sleep: StoppableSleep
    clock: Clock
    node_exists: Callable[[str], bool]
    health: BindHealth


class BindReconciler:
    """Carries out one binding.

    Returns once the outcome of the binding is known. Until then the pod keeps its node: if the
    request succeeded, placing the pod elsewhere would bind it twice. A binding is *unresolved*
    after a request was sent and not answered; every failure goes through :meth:`reconcile`, which
    ends that.
    """

    def __init__(
        self,
        io: BindingIO,
        backoff: Backoff,
        possibly_sent_at_s: float | None = None,
        waiting: Callable[[int], None] = lambda change: None,
    ) -> None:
        """``possibly_sent_at_s``: latest monotonic time at which a previous process may have sent
        the binding. ``waiting`` is called with 1 and -1 around waits for an unresolved request."""
        self.bind_result: BindOutcome | None = None
        """Latest result of the binding as the API server reports it."""
        self.abandoned = False
        self.io = io
        self._backoff = backoff
        self._waiting = waiting
        self._unresolved_until_s: float | None = None
        """Until this monotonic time an unanswered request may be executed; None if resolved."""
        if possibly_sent_at_s is not None:
            self._unresolved_until_s = possibly_sent_at_s + MAX_REQUEST_AGE_S

    @contextmanager
    def marks_abandoned(self) -> Iterator[None]:
        """A block that may raise :class:`AbandonedError`, which a plugin could suppress."""
        try:
            yield
        except AbandonedError:
            self.abandoned = True
            raise

    @property
    def unresolved(self) -> bool:
        """Whether the pod may have been bound, or may yet be, by an unanswered request."""
        return self._unresolved_until_s is not None

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        """Bind the pod unless the node is known to be deleted. Raises :class:`AbandonedError` if
        the daemon stops first."""
        ref = PodTarget(pod.namespace, pod.name, pod.uid)
        node_exists = partial(self.io.node_exists, node_name)
        while node_exists():
            self.io.health.requested()
            outcome = self._note(await self.io.writer.bind(ref, node_name, node_exists))
            self.io.health.answered(outcome)
            if isinstance(outcome, WriteSucceeded):
                return SUCCESS
            if isinstance(outcome, OutcomeUnknown):
                self.mark_unknown()
            if not self._retryable(outcome, node_name):
                return await self.reconcile(pod, node_name, Status.error(outcome.message))
            log.debug("binding retried", pod=pod.key, node=node_name, error=outcome.message)
            await self._pause(self._backoff.next_s())
        deleted = Status.error(f"node {node_name} was removed after the pod was assigned")
        return await self.reconcile(pod, node_name, deleted)

    async def bind_by(self, extender: HttpExtender, pod: PodInfo, node_name: str) -> Status:
        """Let the extender bind the pod. After a failure the binding is unresolved: the extender
        may have bound the pod before it failed.

        Waits while the lease does not allow writes: it may be renewed. Raises
        :class:`AbandonedError` if the daemon stops or no longer leads.
        """
        while not self.io.writer.may_write:
            await self._pause(_CHECK_INTERVAL_S)
        try:
            await extender.bind(pod.pod, node_name)
        except ExtenderError as error:
            self.mark_unknown(may_arrive=error.may_take_effect)
            return Status.error(str(error))
        return SUCCESS

    def mark_unknown(self, *, may_arrive: bool = True) -> None:
        """Note a request without a definite answer. With ``may_arrive`` the API server may still
        execute it; otherwise it was executed by now or never will be."""
        until_s = self.io.clock.monotonic_s() + (MAX_REQUEST_AGE_S if may_arrive else 0.0)
        if self._unresolved_until_s is None or self._unresolved_until_s < until_s:
            self._unresolved_until_s = until_s

    async def reconcile(self, pod: PodInfo, node_name: str, failure: Status) -> Status:
        """The final status of a binding that ended in ``failure``: success if the pod turns out to
        be bound. Reads the pod until it is bound or no request can be executed any longer, at most
        :data:`MAX_REQUEST_AGE_S` while the API server answers.

        Raises :class:`AbandonedError` if the daemon stops first.
        """
        ref = PodTarget(pod.namespace, pod.name, pod.uid)
        self._waiting(1)
        try:
            while self.unresolved:
                left_s = self._unresolved_s()
                read = await self.io.writer.read_bind_result(ref, node_name, failure.message)
                outcome = self._note(read)
                if isinstance(outcome, WriteSucceeded):
                    return SUCCESS
                if isinstance(outcome, BoundElsewhere | ObjectGone):
                    return Status.error(outcome.message)
                if isinstance(outcome, WriteRejected) and left_s <= 0:
                    self._unresolved_until_s = None  # not bound, and no request is left
                    break
                delay_s = self._backoff.next_s()
                await self._pause(min(delay_s, left_s) if left_s > 0 else delay_s)
        finally:
            self._waiting(-1)
        return failure

    def _unresolved_s(self) -> float:
        """Time left in which an unanswered request may be executed."""
        if self._unresolved_until_s is None:
            return 0.0
        return self._unresolved_until_s - self.io.clock.monotonic_s()

    def _note(self, outcome: BindOutcome) -> BindOutcome:
        """Keep the result. A definite one resolves the binding: a later request changes nothing."""
        if isinstance(outcome, WriteSucceeded | BoundElsewhere | ObjectGone):
            self._unresolved_until_s = None
        self.bind_result = outcome
        return outcome

    def _retryable(self, outcome: BindOutcome, node_name: str) -> bool:
        if isinstance(outcome, OutcomeUnknown):
            return True
        if not isinstance(outcome, WriteRejected) or not self.io.node_exists(node_name):
            return False
        # Without an answer another decision would fail as well. An overloaded server is retried
        # only while the pod must keep its node anyway.
        overloaded = outcome.status == 429 or outcome.status >= 500
        return not outcome.status or (overloaded and self._unresolved_s() > 0)

    async def wait_until(
        self, check: Callable[[], Awaitable[Status | None]], timeout_s: float
    ) -> Status | None:
        """Poll ``check`` until it returns a status; None after ``timeout_s``. Raises
        :class:`AbandonedError` if the daemon stops first."""
        deadline_s = self.io.clock.monotonic_s() + timeout_s
        while True:
            status = await check()
            if status is not None:
                return status
            left_s = deadline_s - self.io.clock.monotonic_s()
            if left_s <= 0:
                return None
            await self._pause(min(_CHECK_INTERVAL_S, left_s))

    async def _pause(self, delay_s: float) -> None:
        if not await self.io.sleep.pause(delay_s):
            self.abandoned = True
            raise AbandonedError
