"""The binding cycle of one pod: PreBind, Bind, PostBind. Asynchronous, beside later decisions."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial

import structlog

from asched.daemon.effects.binder import AbandonedError, BindReconciler
from asched.daemon.plugin_host.binding_calls import BindingPluginCalls
from asched.framework.binding import BindingClient
from asched.framework.interface import BindPlugin, PostBindPlugin, PreBindPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.observation import CURRENT_CALL, FAILURES, to_printable, failure_reason
from asched.framework.runtime.profile import Profile
from asched.framework.status import SUCCESS, Status
from asched.kube.extenders import HttpExtender
from asched.kube.writers import WriteSucceeded
from asched.state.records import BindFailed, Bound

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def binding_cycle(
    profile: Profile,
    binder: BindReconciler,
    pod: PodInfo,
    node_name: str,
    extenders: Sequence[HttpExtender] = (),
    work: BindingPluginCalls | None = None,
) -> Bound | BindFailed | None:
    """Run the cycle and say how it ended; None if it was abandoned. The first of ``extenders`` that
    does not fail ignorably binds the pod, else the Bind plugins do. ``work`` is what may end it.

    Never raises for what a plugin does.
    """
    cycle = _Cycle(profile, binder, pod, node_name, BindingPluginCalls() if work is None else work)
    outcome = await concluded(binder, pod, node_name, cycle.run(extenders))
    if isinstance(outcome, Bound):
        await cycle.post_bind()
    return outcome


async def plain_binding(
    binder: BindReconciler, pod: PodInfo, node_name: str
) -> Bound | BindFailed | None:
    """Bind a pod that a batch session placed, which no profile has plugins for. As
    :func:`binding_cycle`."""
    return await concluded(binder, pod, node_name, binder.bind(pod, node_name))


async def given_up(
    binder: BindReconciler, pod: PodInfo, node_name: str, why: str
) -> Bound | BindFailed | None:
    """End a binding that is not wanted any more, or that is not ours to carry out. As
    :func:`binding_cycle`; but nothing is written."""
    failure = Status.error(why)
    return await concluded(binder, pod, node_name, binder.settle(pod, node_name, failure))


async def concluded(
    binder: BindReconciler, pod: PodInfo, node_name: str, steps: Awaitable[Status]
) -> Bound | BindFailed | None:
    """What a binding came to, however its ``steps`` end; None where that is before its fate is known.
    There is no other way out of a binding: none fails while it is in doubt."""
    try:
        status = await steps
        if not status.is_success:
            status = await binder.settle(pod, node_name, status)
    except AbandonedError:
        return None
    # Once the API server has bound the pod it is bound, whatever a plugin makes of it.
    if status.is_success or isinstance(binder.fate, WriteSucceeded):
        return Bound(pod.key, pod.uid, node_name)
    return BindFailed(pod.key, pod.uid, node_name, status.code, status.plugin, status.message)


class _Cycle:
    """The binding cycle of one pod. Its methods raise :class:`AbandonedError`."""

    def __init__(
        self,
        profile: Profile,
        binder: BindReconciler,
        pod: PodInfo,
        node_name: str,
        work: BindingPluginCalls,
    ) -> None:
        self._profile = profile
        self._binder = binder
        self._pod = pod
        self._node_name = node_name
        self._work = work

    async def run(self, extenders: Sequence[HttpExtender]) -> Status:
        status = await self._pre_bind()
        if not status.is_success:
            return status
        bound = await self._bind_outside(extenders)
        return await self._bind() if bound is None else bound

    async def _pre_bind(self) -> Status:
        pod, node_name = self._pod, self._node_name
        for plugin in self._profile.pre_bind:
            if not _has_something_to_do(plugin, pod, node_name):
                continue

            async def ask(client: BindingClient, plugin: PreBindPlugin = plugin) -> object:
                return await plugin.pre_bind(client, pod, node_name)

            status = await self._work.call(plugin, "PreBind", self._binder, ask)
            if not status.is_success:
                return status
        return SUCCESS

    async def _bind_outside(self, extenders: Sequence[HttpExtender]) -> Status | None:
        """How an extender's binding ended (``extendersBinding`` of kube-scheduler); None where the
        Bind plugins are to do it."""
        pod = self._pod
        if extenders and self._work.deferred:  # as a plugin that may take long
            raise AbandonedError
        for extender in extenders:
            status = await self._binder.bind_by(extender, pod, self._node_name)
            if status.is_success or not extender.config.ignorable:
                return status
            log.info(
                "an extender that may be ignored did not bind", pod=pod.key, error=status.message
            )
        return None

    async def _bind(self) -> Status:
        pod, node_name = self._pod, self._node_name
        for plugin in self._profile.bind:

            async def ask(client: BindingClient, plugin: BindPlugin = plugin) -> object:
                return await plugin.bind(client, pod, node_name)

            status = await self._work.call(plugin, "Bind", self._binder, ask)
            if self._work.cancelled:
                # It may have bound the pod in a way of its own, and cannot say so any more.
                self._binder.doubt()
                return status
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
            status = await self._work.call(plugin, "PostBind", self._binder, partial(tell, plugin))
            if not status.is_success:
                log.warning("PostBind failed", pod=pod.key, error=status.message)


def _has_something_to_do(plugin: PreBindPlugin, pod: PodInfo, node_name: str) -> bool:
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, "PreBindPreFlight")
    try:
        return plugin.pre_bind_pre_flight(pod, node_name)
    except BaseException as error:  # noqa: BLE001  third-party code, and it awaits nothing
        FAILURES.note(plugin.name, "PreBindPreFlight", failure_reason(error))
        log.warning(
            "PreBindPreFlight raised", pod=pod.key, plugin=plugin.name, error=to_printable(error)
        )
        return True  # then its PreBind says what is wrong
    finally:
        CURRENT_CALL.call = outer
