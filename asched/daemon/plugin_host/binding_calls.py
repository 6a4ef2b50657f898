"""Calls plugins of the binding cycle: limited in time, isolated from the daemon's tasks, and with a
client that checks permissions.

Python cannot isolate malicious code in the same process. The checks keep plugins honest: what a
plugin does to the cluster is listed in its ``needs``, which an operator can read.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from math import inf

import anyio
import structlog

from asched.config.settings import PluginLimits
from asched.daemon.effects.reconciler import AbandonedError, BindReconciler
from asched.daemon.plugin_host.guarded_loop import PluginTasks
from asched.daemon.telemetry.stopwatch import BindingStopwatch
from asched.framework.binding import BindingClient, ClaimRef, NotPermitted, Permission, Unavailable
from asched.framework.interface import PRE_BIND_TIME_LIMIT_S, BindPlugin, Plugin, PreBindPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.observation import (
    FAILURES,
    FailureReason,
    describe_raised,
    failure_reason,
    to_printable,
)
from asched.framework.runtime.plugin_calls import status_fault
from asched.framework.status import SUCCESS, Code, Status
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.pod_writer import PodTarget
from asched.kube.write_outcomes import (
    OutcomeUnknown,
    PatchOutcome,
    WriteOutcome,
    WriteRejected,
    WriteSucceeded,
)
from asched.model.pod import ContainerExtendedResourceRequest
from asched.model.resource_claims import AllocationResult, ResourceClaim
from asched.model.resources import DecodeError
from asched.model.storage import PersistentVolume, PersistentVolumeClaim

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

POST_BIND_TIME_LIMIT_S = 60.0
POST_BIND_GRACE_S = 5.0
"""How long PostBind may run on once the scheduler stops: no later start calls it for the pod."""


class CancelReason(StrEnum):
    """Why a plugin is cancelled before its time limit."""

    POD_GONE = "the pod is gone"
    STOPPING = "the scheduler stops"
    LEADERSHIP_LOST = "leadership was lost"

    @property
    def defers_outcome(self) -> bool:
        """Whether the next start, or the next leader, continues the binding."""
        return self is not CancelReason.POD_GONE


class LimitedCall:
    """A plugin call that is cancelled after ``limit_s`` seconds; its ``BindingContext``."""

    def __init__(self, limit_s: float) -> None:
        self.cancel_reason = ""
        """Why the call is cancelled before its time limit; empty if it is not."""
        self.limit_s = limit_s
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + limit_s)
        self._pauses = 0
        self._grace_s = 0.0

    @property
    def remaining_s(self) -> float:
        return math.inf if self._pauses else self.scope.deadline - anyio.current_time()

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled, for any reason."""
        return self.scope.cancelled_caught

    def cancel(self, reason: str, grace_s: float = 0.0) -> None:
        """Cancel what the plugin awaits, ``grace_s`` from now or once a :meth:`paused` block
        ends."""
        self.cancel_reason = self.cancel_reason or reason
        self._grace_s = grace_s
        if not self._pauses:
            self._cancel_scope()

    def _cancel_scope(self) -> None:
        if self._grace_s:
            self.scope.deadline = min(self.scope.deadline, anyio.current_time() + self._grace_s)
        else:
            self.scope.cancel()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block in which the time limit does not elapse and nothing is cancelled."""
        remaining_s = self.scope.deadline - anyio.current_time()
        self._pauses += 1
        self.scope.deadline = math.inf
        try:
            yield
        finally:
            self._pauses -= 1
            self.scope.deadline = anyio.current_time() + remaining_s
            if self.cancel_reason and not self._pauses:
                self._cancel_scope()


class UnlimitedCall:
    """A call that is never cancelled: for a Bind plugin that awaits only the client. DefaultBinder
    binds almost every pod, so this adds no work."""

    __slots__ = ("cancel_reason",)

    limit_s = remaining_s = math.inf
    cancelled = False

    def __init__(self) -> None:
        self.cancel_reason = ""

    def cancel(self, reason: str, grace_s: float = 0.0) -> None:
        self.cancel_reason = self.cancel_reason or reason

    def paused(self) -> AbstractContextManager[None]:
        return _NO_PAUSE


_NO_PAUSE = nullcontext()

CallScope = LimitedCall | UnlimitedCall


class BindingPluginClient:
    """The framework's ``BindingClient`` for one plugin call. Methods raise :class:`NotPermitted`
    unless the plugin's ``needs`` include their permission."""

    __slots__ = ("_binder", "_plugin", "_point", "_scope")

    def __init__(
        self, plugin: Plugin, point: str, binder: BindReconciler, scope: CallScope
    ) -> None:
        self._plugin = plugin
        self._point = point
        self._binder = binder
        self._scope = scope

    @property
    def context(self) -> CallScope:
        return self._scope

    def _require(self, permission: Permission) -> None:
        plugin = self._plugin
        if permission not in plugin.needs:
            FAILURES.note(plugin.name, self._point, FailureReason.NOT_PERMITTED)
            raise NotPermitted(
                f"{permission.value} is refused: the needs of {plugin.name} do not name it"
            )

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        self._require(Permission.BIND)
        # A cancelled request would leave the outcome of the binding unknown.
        with self._scope.paused():
            return await self._binder.bind(pod, node_name)

    # A volume write with an unknown outcome is an error: the pod is scheduled again, and finds the
    # volume bound to its claim if the write succeeded.

    async def claim_volume(self, volume: str, claim: ClaimRef) -> Status:
        self._require(Permission.CLAIM_VOLUME)
        return _written(await self._binder.io.volumes.claim_volume(volume, claim))

    async def select_node(self, claim: ClaimRef, node_name: str) -> Status:
        self._require(Permission.SELECT_NODE)
        return _written(await self._binder.io.volumes.select_node(claim, node_name))

    async def read_volume(self, name: str) -> PersistentVolume | None:
        self._require(Permission.READ_VOLUME)
        with _unavailable():
            return await self._binder.io.volumes.read_volume(name)

    async def read_claim(self, claim: ClaimRef) -> PersistentVolumeClaim | None:
        self._require(Permission.READ_CLAIM)
        with _unavailable():
            return await self._binder.io.volumes.read_claim(claim)

    async def annotate(self, pod: PodInfo, annotations: Mapping[str, str]) -> Status:
        self._require(Permission.ANNOTATE)
        return _written(await self._binder.io.writer.annotate(_target(pod), annotations))

    async def allocate_claim(
        self, claim: ClaimRef, allocation: AllocationResult | None, consumer: PodInfo
    ) -> Status:
        self._require(Permission.ALLOCATE_CLAIM)
        io, target, unknown = self._binder.io, _target(consumer), False

        async def attempt() -> Status | None:
            """None while an earlier write without a response may have been carried out: the
            devices must stay reserved until that is known."""
            nonlocal unknown
            outcome = await io.claims.allocate(
                claim, allocation, target, io.clock.utc(), self._scope.paused
            )
            unknown |= isinstance(outcome, OutcomeUnknown)
            return None if unknown and not _is_definite(outcome) else _written(outcome)

        status = await attempt() or await self._binder.wait_until(attempt, inf)
        return status or Status.error(f"claim {claim.key}: no answer")

    async def release_claim(self, claim: ClaimRef, consumer: PodInfo) -> Status:
        self._require(Permission.RELEASE_CLAIM)
        with self._binder.marks_abandoned():
            return _written(await self._binder.io.claims.release(claim, consumer.uid))

    async def read_resource_claim(self, claim: ClaimRef) -> ResourceClaim | None:
        self._require(Permission.READ_RESOURCE_CLAIM)
        with _unavailable():
            return await self._binder.io.claims.read(claim)

    async def create_special_claim(
        self, pod: PodInfo, claim: ResourceClaim
    ) -> ResourceClaim | Status:
        self._require(Permission.CREATE_SPECIAL_CLAIM)
        made = await self._binder.io.claims.create_special(_target(pod), claim)
        return made if isinstance(made, ResourceClaim) else Status.error(made.message)

    async def delete_special_claim(self, claim: ClaimRef) -> Status:
        self._require(Permission.DELETE_SPECIAL_CLAIM)
        with self._binder.marks_abandoned():
            return _written(await self._binder.io.claims.delete_special(claim))

    async def patch_extended_resource_status(
        self,
        pod: PodInfo,
        claim_name: str,
        mappings: Sequence[ContainerExtendedResourceRequest],
    ) -> Status:
        self._require(Permission.PATCH_EXTENDED_RESOURCE_STATUS)
        claims = self._binder.io.claims
        outcome = await claims.patch_extended_resource_status(_target(pod), claim_name, mappings)
        return _written(outcome)

    async def wait_until(
        self, check: Callable[[], Awaitable[Status | None]], timeout_s: float
    ) -> Status | None:
        return await self._binder.wait_until(check, timeout_s)


def _is_definite(outcome: WriteOutcome) -> bool:
    """Whether the outcome is also the outcome of earlier requests."""
    if isinstance(outcome, WriteRejected):
        return 400 <= outcome.status < 500 and outcome.status != 429
    return isinstance(outcome, WriteSucceeded)


def _target(pod: PodInfo) -> PodTarget:
    return PodTarget(pod.namespace, pod.name, pod.uid)


def _written(outcome: PatchOutcome) -> Status:
    return SUCCESS if isinstance(outcome, WriteSucceeded) else Status.error(outcome.message)


@contextmanager
def _unavailable() -> Iterator[None]:
    """Errors of a read as :class:`Unavailable`."""
    try:
        yield
    except (ApiError, NoResponseError, DecodeError) as error:
        raise Unavailable(str(error)) from None


class StrayCancellationError(Exception):
    """A plugin awaited a cancelled task, but the plugin itself was not cancelled."""


class BindingPluginCalls:
    """Calls plugins for the binding cycle of one pod, one after the other."""

    def __init__(
        self,
        limits: PluginLimits | None = None,
        waiting: Callable[[int], None] = lambda change: None,
        stopwatch: BindingStopwatch | None = None,
    ) -> None:
        """``limits``: configured time limits. ``waiting`` is called with 1 and -1 as the pod starts
        and stops to wait for a plugin that may take long."""
        self._stopwatch = stopwatch
        self._limits = PluginLimits() if limits is None else limits
        self._waiting = waiting
        self._scope: CallScope | None = None
        self._point = ""
        """The extension point of the latest call."""
        self._reason: CancelReason | None = None
        self._undoing = False
        self.cancelled = False
        """Whether the latest call was cancelled."""

    def cancel(self, reason: CancelReason) -> None:
        """Cancel the present call and refuse later ones.

        If the reason :attr:`~CancelReason.defers_outcome`, PostBind is still called, for at most
        :data:`POST_BIND_GRACE_S`. While the scheduler stops, a plugin that awaits only the client
        may still bind.
        """
        if self._undoing and reason is CancelReason.POD_GONE:
            return
        self._reason = self._reason or reason
        if self._scope is not None:
            self._scope.cancel(self._reason, _grace_s(self._point, reason))

    def end(self) -> None:
        """No call follows."""
        if self._stopwatch is not None:
            self._stopwatch.end()

    def begin_undo(self) -> None:
        """From now on a deletion of the pod cancels no call: what PreBind wrote outlasts the
        pod."""
        self._undoing = True
        if self._reason is CancelReason.POD_GONE:
            self._reason = None

    async def call(
        self,
        plugin: Plugin,
        point: str,
        binder: BindReconciler,
        method: Callable[[BindingClient], Awaitable[object]],
    ) -> Status:
        """The plugin's status; an error with its name if it raises, times out or returns no status.

        Errors have the wording of kube-scheduler (``running PreBind plugin "X": ...``). Raises
        :class:`AbandonedError` if the daemon stops first or no longer leads. PostBind never raises
        it: the pod is bound already.
        """
        self._point = point
        scope = self._scope = self._scope_for(plugin, point)
        client = BindingPluginClient(plugin, point, binder, scope)
        if self._stopwatch is not None:
            method = self._stopwatch.wrap(plugin.name, point, method)
        status: object = None
        error: BaseException | None = None
        try:
            if isinstance(scope, LimitedCall):
                with PluginTasks(plugin.name, point) as tasks:
                    self._waiting(1)
                    try:
                        with scope.scope:
                            status = await _isolated(method, client, tasks)
                    finally:
                        self._waiting(-1)
            else:
                status = await method(client)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as raised:  # noqa: BLE001  third-party code
            error = raised
        finally:
            self._scope = None
        self.cancelled = scope.cancelled
        if point != "PostBind" and (binder.abandoned or (self.cancelled and self.deferred)):
            raise AbandonedError
        return _as_status(plugin, point, scope, status, error)

    @property
    def deferred(self) -> bool:
        """Whether the next start, or the next leader, continues the binding."""
        return self._reason is not None and self._reason.defers_outcome

    def _scope_for(self, plugin: Plugin, point: str) -> CallScope:
        limit_s, reason = self._limit_s(plugin, point), self._reason
        unguarded = limit_s == inf and isinstance(plugin, BindPlugin) and plugin.awaits_client_only
        if unguarded and (reason is None or reason is CancelReason.STOPPING):
            return UnlimitedCall()
        if self.deferred and point != "PostBind":
            raise AbandonedError
        scope = LimitedCall(limit_s)
        if reason is not None:
            scope.cancel(reason, _grace_s(point, reason))
        return scope

    def _limit_s(self, plugin: Plugin, point: str) -> float:
        configured_s = self._limits.limit_s(plugin.name)
        if configured_s is not None:
            return configured_s
        if point == "PostBind" or not isinstance(plugin, PreBindPlugin | BindPlugin):
            return POST_BIND_TIME_LIMIT_S
        try:
            own_s = float(plugin.time_limit_s)
        except BaseException as error:  # noqa: BLE001  a property may be third-party code
            FAILURES.note(plugin.name, point, failure_reason(error))
            return PRE_BIND_TIME_LIMIT_S
        return own_s if own_s > 0 else PRE_BIND_TIME_LIMIT_S


def _grace_s(point: str, reason: CancelReason) -> float:
    return POST_BIND_GRACE_S if point == "PostBind" and reason.defers_outcome else 0.0


def _as_status(
    plugin: Plugin, point: str, scope: CallScope, status: object, error: BaseException | None
) -> Status:
    if status is SUCCESS:
        return SUCCESS
    if scope.cancel_reason and (scope.cancelled or isinstance(error, AbandonedError)):
        what = scope.cancel_reason
    elif scope.cancelled:
        FAILURES.note(plugin.name, point, FailureReason.TIMEOUT)
        what = f"no answer within {scope.limit_s:g} s"
    elif error is not None:
        FAILURES.note(plugin.name, point, failure_reason(error))
        what = describe_raised(plugin.name, point, error)
        log.warning("plugin raised", plugin=plugin.name, point=point, error=what)
    elif not isinstance(status, Status):
        FAILURES.note(plugin.name, point, FailureReason.INVALID_ANSWER)
        what = f"answered {to_printable(status)!r}, no Status"
    elif (fault := status_fault(status)) is not None:
        FAILURES.note(plugin.name, point, FailureReason.INVALID_ANSWER)
        what = fault
    elif status.code is Code.ERROR:
        FAILURES.note(plugin.name, point, FailureReason.ERROR)
        what = to_printable(status.message)
    else:
        return status.by(plugin.name)
    return Status.error(f'running {point} plugin "{plugin.name}": {what}').by(plugin.name)


async def _isolated(
    method: Callable[[BindingClient], Awaitable[object]], client: BindingClient, tasks: PluginTasks
) -> object:
    """The plugin's answer. A cancellation that the plugin caused itself becomes an error: passed
    on, it would end the daemon silently."""
    try:
        return await method(client)
    except anyio.get_cancelled_exc_class() as cancelled:
        if anyio.current_effective_deadline() == -inf:
            raise
        raise StrayCancellationError("awaited something that was cancelled") from cancelled
    finally:
        tasks.cancel_leaked()
