"""The binding cycle of one pod: PreBind, Bind, PostBind. Asynchronous, beside later decisions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import structlog

from asched.daemon.pauses import Pauses
from asched.daemon.plugin_work import AbandonedError, PluginWork
from asched.daemon.volume_requests import VolumeRequests
from asched.framework.failures import FAILURES, printable, reason_of
from asched.framework.interface import BindingClient, BindPlugin, PostBindPlugin, PreBindPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.profile import Profile
from asched.framework.status import SUCCESS, Status
from asched.kube.extenders import ExtenderError, HttpExtender
from asched.kube.timing import Backoff, Clock
from asched.kube.volume_writers import VolumeWriter
from asched.kube.writers import BindOutcome, Done, PodRef, PodWriter, Refused, Unknown
from asched.state.records import BindFailed, Bound

_CHECK_INTERVAL_S = 0.25
"""How often a plugin that waits for something looks again."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


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
    ) -> None:
        super().__init__(volumes)
        self.fate: BindOutcome | None = None
        """How the last try ended; None before the first."""
        self.abandoned = False
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
                if isinstance(self.fate, Unknown):
                    return await self.settle(pod, node_name, gone)
                return Status.error(gone)
            still_there = partial(self._node_exists, node_name)
            outcome = self.fate = await self._writer.bind(ref, node_name, still_there)
            if isinstance(outcome, Done):
                return SUCCESS
            if not self._worth_waiting(outcome, node_name):
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
        ``message`` where it was not.

        Raises :class:`AbandonedError` where the daemon stops first.
        """
        ref = PodRef(pod.namespace, pod.name, pod.uid)
        while True:
            outcome = self.fate = await self._writer.fate(ref, node_name, message)
            if isinstance(outcome, Done):
                return SUCCESS
            if not isinstance(outcome, Unknown):
                return Status.error(outcome.message)
            await self._pause(self._backoff.next_s())

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
        # No server answered. Deciding anew would only fail again; unless the node went meanwhile.
        return isinstance(outcome, Refused) and not outcome.status and self._node_exists(node_name)


async def binding_cycle(
    profile: Profile,
    binder: PatientBinder,
    pod: PodInfo,
    node_name: str,
    extenders: Sequence[HttpExtender] = (),
    work: PluginWork | None = None,
) -> Bound | BindFailed | None:
    """Run the cycle and say how it ended; None if it was abandoned. The first of ``extenders`` that
    does not fail ignorably binds the pod, else the Bind plugins do. ``work`` is what may end it.

    Never raises for what a plugin does.
    """
    cycle = _Cycle(profile, binder, pod, node_name, PluginWork() if work is None else work)
    try:
        status = await cycle.pre_bind()
        if status.is_success:
            bound = await cycle.bind_outside(extenders)
            status = await cycle.bind() if bound is None else bound
    except AbandonedError:
        return None
    # Once the API server has bound the pod it is bound, whatever a plugin makes of it.
    if not status.is_success and not isinstance(binder.fate, Done):
        return BindFailed(pod.key, pod.uid, node_name, status.code, status.plugin, status.message)
    await cycle.post_bind()
    return Bound(pod.key, pod.uid, node_name)


async def plain_binding(
    binder: PatientBinder, pod: PodInfo, node_name: str
) -> Bound | BindFailed | None:
    """Bind a pod that a batch session placed, which no profile has plugins for. As
    :func:`binding_cycle`."""
    try:
        status = await binder.bind(pod, node_name)
    except AbandonedError:
        return None
    if not status.is_success:
        return BindFailed(pod.key, pod.uid, node_name, status.code, "", status.message)
    return Bound(pod.key, pod.uid, node_name)


class _Cycle:
    """The binding cycle of one pod. Its methods raise :class:`AbandonedError`."""

    def __init__(
        self,
        profile: Profile,
        binder: PatientBinder,
        pod: PodInfo,
        node_name: str,
        work: PluginWork,
    ) -> None:
        self._profile = profile
        self._binder = binder
        self._pod = pod
        self._node_name = node_name
        self._work = work

    async def pre_bind(self) -> Status:
        pod, node_name = self._pod, self._node_name
        for plugin in self._profile.pre_bind:
            if not _has_something_to_do(plugin, pod, node_name):
                continue

            async def ask(client: BindingClient, plugin: PreBindPlugin = plugin) -> object:
                return await plugin.pre_bind(client, pod, node_name)

            status = await self._work.ask(plugin, "PreBind", self._binder, ask)
            if not status.is_success:
                return status
        return SUCCESS

    async def bind_outside(self, extenders: Sequence[HttpExtender]) -> Status | None:
        """How an extender's binding ended (``extendersBinding`` of kube-scheduler); None where the
        Bind plugins are to do it."""
        pod = self._pod
        for extender in extenders:
            status = await self._binder.bind_by(extender, pod, self._node_name)
            if status.is_success or not extender.config.ignorable:
                return status
            log.info(
                "an extender that may be ignored did not bind", pod=pod.key, error=status.message
            )
        return None

    async def bind(self) -> Status:
        pod, node_name = self._pod, self._node_name
        for plugin in self._profile.bind:

            async def ask(client: BindingClient, plugin: BindPlugin = plugin) -> object:
                return await plugin.bind(client, pod, node_name)

            status = await self._work.ask(plugin, "Bind", self._binder, ask)
            if self._work.cut_short:
                # It may have bound the pod in a way of its own, and cannot say so any more.
                return await self._binder.settle(pod, node_name, status.message)
            if not status.is_skip:
                return status
        return Status.error("every Bind plugin answered Skip")

    async def post_bind(self) -> None:
        """The plugins are merely told: whatever they do, the pod is bound."""
        pod, node_name = self._pod, self._node_name

        async def tell(plugin: PostBindPlugin, client: BindingClient) -> Status:
            await plugin.post_bind(client, pod, node_name)
            return SUCCESS

        for plugin in self._profile.post_bind:
            try:
                status = await self._work.ask(
                    plugin, "PostBind", self._binder, partial(tell, plugin)
                )
            except AbandonedError:
                return
            if not status.is_success:
                log.warning("PostBind failed", pod=pod.key, error=status.message)


def _has_something_to_do(plugin: PreBindPlugin, pod: PodInfo, node_name: str) -> bool:
    try:
        return plugin.pre_bind_pre_flight(pod, node_name)
    except BaseException as error:  # noqa: BLE001  third-party code, and it awaits nothing
        FAILURES.note(plugin.name, "PreBindPreFlight", reason_of(error))
        log.warning(
            "PreBindPreFlight raised", pod=pod.key, plugin=plugin.name, error=printable(error)
        )
        return True  # then its PreBind says what is wrong
