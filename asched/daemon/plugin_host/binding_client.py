"""What a plugin of the binding cycle works with: a time limit, and a client that checks
permissions.

Python cannot isolate malicious code in the same process. The checks keep plugins honest: what a
plugin does to the cluster is listed in its ``needs``, which an operator can read.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from typing import Protocol

import anyio

from asched.daemon.effects.reconciler import BindReconciler
from asched.framework.binding import ClaimRef, NotPermitted, Permission
from asched.framework.interface import Plugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.observation import FAILURES, FailureReason
from asched.framework.status import Status
from asched.model.storage import PersistentVolume, PersistentVolumeClaim


class CancelReason(StrEnum):
    """Why a plugin is cancelled before its time limit."""

    POD_GONE = "the pod is gone"
    STOPPING = "the scheduler stops"
    LEADERSHIP_LOST = "leadership was lost"

    @property
    def defers_outcome(self) -> bool:
        """Whether the next start, or the next leader, continues the binding."""
        return self is not CancelReason.POD_GONE


class CallScope(Protocol):
    """The time limit of one plugin call; the framework's ``BindingContext``."""

    cancel_reason: str
    """Why the call is cancelled before its time limit; empty if it is not."""

    @property
    def limit_s(self) -> float: ...

    @property
    def remaining_s(self) -> float: ...

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled, for any reason."""

    def cancel(self, reason: str, grace_s: float = 0.0) -> None:
        """Cancel what the plugin awaits, ``grace_s`` from now or once a :meth:`paused` block
        ends."""

    def paused(self) -> AbstractContextManager[None]:
        """A block in which the time limit does not elapse and nothing is cancelled."""


class LimitedCall:
    """A call that is cancelled after ``limit_s`` seconds."""

    def __init__(self, limit_s: float) -> None:
        self.cancel_reason = ""
        self.limit_s = limit_s
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + limit_s)
        self._pauses = 0
        self._grace_s = 0.0

    @property
    def remaining_s(self) -> float:
        return math.inf if self._pauses else self.scope.deadline - anyio.current_time()

    @property
    def cancelled(self) -> bool:
        return self.scope.cancelled_caught

    def cancel(self, reason: str, grace_s: float = 0.0) -> None:
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
    """A call that is never cancelled: for a Bind plugin that awaits only the client.

    DefaultBinder binds almost every pod, so this adds no work.
    """

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


class BindingPluginClient:
    """The framework's ``BindingClient`` for one plugin call.

    Methods raise :class:`NotPermitted` unless the plugin's ``needs`` include their permission.
    """

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

    async def claim_volume(self, volume: str, claim: ClaimRef) -> Status:
        self._require(Permission.CLAIM_VOLUME)
        return await self._binder.claim_volume(volume, claim)

    async def select_node(self, claim: ClaimRef, node_name: str) -> Status:
        self._require(Permission.SELECT_NODE)
        return await self._binder.select_node(claim, node_name)

    async def read_volume(self, name: str) -> PersistentVolume | None:
        self._require(Permission.READ_VOLUME)
        return await self._binder.read_volume(name)

    async def read_claim(self, claim: ClaimRef) -> PersistentVolumeClaim | None:
        self._require(Permission.READ_CLAIM)
        return await self._binder.read_claim(claim)

    async def annotate(self, pod: PodInfo, annotations: Mapping[str, str]) -> Status:
        self._require(Permission.ANNOTATE)
        return await self._binder.annotate(pod, annotations)

    async def wait_until(
        self, check: Callable[[], Awaitable[Status | None]], timeout_s: float
    ) -> Status | None:
        return await self._binder.wait_until(check, timeout_s)
