"""What a plugin of the binding cycle gets to work with: as long as it may, and what it asked for.

Python keeps nothing from code that wants at it, so this is no wall against malice. It keeps plugins
honest: what they do to the cluster is what their ``needs`` say, which an operator can read.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from typing import Protocol

import anyio

from asched.daemon.effects.binder import BindReconciler
from asched.framework.binding import NotPermitted, Permission
from asched.framework.interface import Plugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.observation import FAILURES, FailureReason
from asched.framework.status import Status
from asched.framework.volume_assumptions import ClaimRef
from asched.model.storage import PersistentVolume, PersistentVolumeClaim


class Ending(StrEnum):
    """Why a plugin is cancelled before its time is up."""

    POD_GONE = "the pod is gone"
    STOPPING = "the scheduler stops"
    LEADERSHIP_LOST = "leadership was lost"

    @property
    def leaves_it_open(self) -> bool:
        """Whether what becomes of the pod is for the next start, or the next leader, to say."""
        return self is not Ending.POD_GONE


class CallTime(Protocol):
    """The time of one call of a plugin: the framework's ``BindingContext``, and who ends it."""

    ended: str
    """Why it was ended, or is about to be, before its time was up; empty where it was not."""

    @property
    def limit_s(self) -> float: ...

    @property
    def left_s(self) -> float: ...

    @property
    def overrun(self) -> bool:
        """Whether it was cancelled because its time was up."""

    @property
    def cut_short(self) -> bool:
        """Whether it was cancelled, for whatever reason."""

    def end(self, why: str, grace_s: float = 0.0) -> None:
        """Cancel what the plugin awaits, in ``grace_s`` or as soon after as it may be."""

    def not_counted(self) -> AbstractContextManager[None]:
        """In the block no time passes and nothing is cancelled: the plugin waits for us, and what we
        do has to come to its end."""


class LimitedTime:
    """So many seconds from now."""

    def __init__(self, limit_s: float) -> None:
        self.ended = ""
        self.limit_s = limit_s
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + limit_s)
        self._not_counted = 0
        self._grace_s = 0.0

    @property
    def left_s(self) -> float:
        return math.inf if self._not_counted else self.scope.deadline - anyio.current_time()

    @property
    def overrun(self) -> bool:
        return self.scope.cancelled_caught and not self.ended

    @property
    def cut_short(self) -> bool:
        return self.scope.cancelled_caught

    def end(self, why: str, grace_s: float = 0.0) -> None:
        self.ended = self.ended or why
        self._grace_s = grace_s
        if not self._not_counted:
            self._cut()

    def _cut(self) -> None:
        if self._grace_s:
            self.scope.deadline = min(self.scope.deadline, anyio.current_time() + self._grace_s)
        else:
            self.scope.cancel()

    @contextmanager
    def not_counted(self) -> Iterator[None]:
        left_s = self.scope.deadline - anyio.current_time()
        self._not_counted += 1
        self.scope.deadline = math.inf
        try:
            yield
        finally:
            self._not_counted -= 1
            self.scope.deadline = anyio.current_time() + left_s
            if self.ended and not self._not_counted:
                self._cut()


class UnlimitedTime:
    """That of DefaultBinder, which awaits nothing but us: it is not cancelled, and nobody is guarded
    from it.

    It binds nearly every pod, so there is nothing here that costs time.
    """

    __slots__ = ("ended",)

    limit_s = left_s = math.inf
    overrun = cut_short = False

    def __init__(self) -> None:
        self.ended = ""

    def end(self, why: str, grace_s: float = 0.0) -> None:
        self.ended = self.ended or why

    def not_counted(self) -> AbstractContextManager[None]:
        return _NOTHING_TO_STOP


_NOTHING_TO_STOP = nullcontext()


class BindingPluginClient:
    """The framework's ``BindingClient`` for one call of one plugin. What its ``needs`` do not name
    raises :class:`NotPermitted`."""

    __slots__ = ("_binder", "_plugin", "_point", "_time")

    def __init__(self, plugin: Plugin, point: str, binder: BindReconciler, time: CallTime) -> None:
        self._plugin = plugin
        self._point = point
        self._binder = binder
        self._time = time

    @property
    def context(self) -> CallTime:
        return self._time

    def _demand(self, permission: Permission) -> None:
        plugin = self._plugin
        if permission not in plugin.needs:
            FAILURES.note(plugin.name, self._point, FailureReason.NOT_PERMITTED)
            raise NotPermitted(
                f"{permission.value} is refused: the needs of {plugin.name} do not name it"
            )

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        self._demand(Permission.BIND)
        # Cut short, the fate of the binding would be unknown.
        with self._time.not_counted():
            return await self._binder.bind(pod, node_name)

    async def claim_volume(self, volume: str, claim: ClaimRef) -> Status:
        self._demand(Permission.CLAIM_VOLUME)
        return await self._binder.claim_volume(volume, claim)

    async def select_node(self, claim: ClaimRef, node_name: str) -> Status:
        self._demand(Permission.SELECT_NODE)
        return await self._binder.select_node(claim, node_name)

    async def read_volume(self, name: str) -> PersistentVolume | None:
        self._demand(Permission.READ_VOLUME)
        return await self._binder.read_volume(name)

    async def read_claim(self, claim: ClaimRef) -> PersistentVolumeClaim | None:
        self._demand(Permission.READ_CLAIM)
        return await self._binder.read_claim(claim)

    async def annotate(self, pod: PodInfo, annotations: Mapping[str, str]) -> Status:
        self._demand(Permission.ANNOTATE)
        return await self._binder.annotate(pod, annotations)

    async def wait_until(
        self, check: Callable[[], Awaitable[Status | None]], timeout_s: float
    ) -> Status | None:
        return await self._binder.wait_until(check, timeout_s)
