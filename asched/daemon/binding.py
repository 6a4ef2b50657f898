"""The binding cycle of one pod: PreBind, Bind, PostBind. Asynchronous, beside later decisions."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
import structlog

from asched.daemon.pauses import Pauses
from asched.daemon.volume_requests import VolumeRequests
from asched.framework.interface import BindingClient, Plugin, PreBindPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.profile import Profile
from asched.framework.status import SUCCESS, Code, Status
from asched.kube.extenders import ExtenderError, HttpExtender
from asched.kube.timing import Backoff, Clock
from asched.kube.volume_writers import VolumeWriter
from asched.kube.writers import BindOutcome, Done, PodRef, PodWriter, Refused, Unknown
from asched.state.records import BindFailed, Bound

_POST_BIND_TIME_LIMIT_S = 60.0
"""Nothing depends on what PostBind does; longer than this nobody waits for its end."""
_CHECK_INTERVAL_S = 0.25
"""How often a plugin that waits for something looks again."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class BindingAbandoned(Exception):  # noqa: N818  nothing is wrong: the daemon stops
    """The daemon stops before the fate of a binding is known; the next start takes it up again."""


class PatientBinder(VolumeRequests):
    """The framework's :class:`BindingClient` for one binding.

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
        """Raises :class:`BindingAbandoned` where the daemon stops first."""
        ref = PodRef(pod.namespace, pod.name, pod.uid)
        while True:
            outcome = self.fate = await self._writer.bind(ref, node_name)
            if isinstance(outcome, Done):
                return SUCCESS
            if not self._worth_waiting(outcome, node_name):
                return Status.error(outcome.message)
            log.debug("binding tried again", pod=pod.key, node=node_name, error=outcome.message)
            await self._pause(self._backoff.next_s())

    async def bind_by(self, extender: HttpExtender, pod: PodInfo, node_name: str) -> Status:
        """Have the extender bind the pod. Where it fails, whether the pod is bound is read back.

        Raises :class:`BindingAbandoned` where the daemon stops first.
        """
        try:
            await extender.bind(pod.pod, node_name)
        except ExtenderError as error:
            message = str(error)
        else:
            return SUCCESS
        ref = PodRef(pod.namespace, pod.name, pod.uid)
        while True:
            outcome = self.fate = await self._writer.fate(ref, node_name, message)
            if isinstance(outcome, Done):
                return SUCCESS
            if not isinstance(outcome, Unknown):
                return Status.error(outcome.message)
            await self._pause(self._backoff.next_s())

    async def wait_until(
        self, check: Callable[[], Awaitable[Status | None]], timeout_s: float
    ) -> Status | None:
        """Raises :class:`BindingAbandoned` where the daemon stops first."""
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
            raise BindingAbandoned

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
) -> Bound | BindFailed | None:
    """Run the cycle and say how it ended; None if it was abandoned. The first of ``extenders`` that
    does not fail ignorably binds the pod, else the Bind plugins do.

    Never raises for what a plugin does.
    """
    status = await _pre_bind(profile, binder, pod, node_name)
    if status.is_success:
        bound = await _bind_outside(extenders, binder, pod, node_name)
        status = await _bind(profile, binder, pod, node_name) if bound is None else bound
    if binder.abandoned:
        return None
    # Once the API server has bound the pod it is bound, whatever a plugin makes of it.
    if not status.is_success and not isinstance(binder.fate, Done):
        return BindFailed(pod.key, pod.uid, node_name, status.code, status.plugin, status.message)
    await _post_bind(profile, binder, pod, node_name)
    return Bound(pod.key, pod.uid, node_name)


async def plain_binding(
    binder: PatientBinder, pod: PodInfo, node_name: str
) -> Bound | BindFailed | None:
    """Bind a pod that a batch session placed, which no profile has plugins for. As
    :func:`binding_cycle`."""
    try:
        status = await binder.bind(pod, node_name)
    except BindingAbandoned:
        return None
    if not status.is_success:
        return BindFailed(pod.key, pod.uid, node_name, status.code, "", status.message)
    return Bound(pod.key, pod.uid, node_name)


async def _pre_bind(
    profile: Profile, client: BindingClient, pod: PodInfo, node_name: str
) -> Status:
    for plugin in profile.pre_bind:
        if not _has_something_to_do(plugin, pod, node_name):
            continue
        ask = partial(plugin.pre_bind, client, pod, node_name)
        status = await _answer(plugin, "PreBind", ask, plugin.time_limit_s)
        if not status.is_success:
            return status
    return SUCCESS


def _has_something_to_do(plugin: PreBindPlugin, pod: PodInfo, node_name: str) -> bool:
    try:
        return plugin.pre_bind_pre_flight(pod, node_name)
    except Exception:
        log.exception("PreBindPreFlight raised", pod=pod.key, plugin=plugin.name)
        return True  # then its PreBind says what is wrong


async def _bind_outside(
    extenders: Sequence[HttpExtender], binder: PatientBinder, pod: PodInfo, node_name: str
) -> Status | None:
    """How an extender's binding ended (``extendersBinding`` of kube-scheduler); None where the Bind
    plugins are to do it."""
    for extender in extenders:
        try:
            status = await binder.bind_by(extender, pod, node_name)
        except BindingAbandoned:
            return Status.error("abandoned")
        if status.is_success or not extender.config.ignorable:
            return status
        log.info("an extender that may be ignored did not bind", pod=pod.key, error=status.message)
    return None


async def _bind(profile: Profile, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
    for plugin in profile.bind:
        ask = partial(plugin.bind, client, pod, node_name)
        # Without a limit of time: the fate of a binding that was cut short would be unknown.
        status = await _answer(plugin, "Bind", ask, None)
        if not status.is_skip:
            return status
    return Status.error("every Bind plugin answered Skip")


async def _post_bind(profile: Profile, client: BindingClient, pod: PodInfo, node_name: str) -> None:
    """The plugins are merely told: whatever they do, the pod is bound."""
    for plugin in profile.post_bind:
        try:
            with anyio.fail_after(_POST_BIND_TIME_LIMIT_S):
                told = partial(plugin.post_bind, client, pod, node_name)
                await _not_cancelled_by_itself(told)
        except Exception:
            log.exception("a PostBind plugin raised", pod=pod.key, plugin=plugin.name)


async def _answer(
    plugin: Plugin, point: str, ask: Callable[[], Awaitable[object]], timeout_s: float | None
) -> Status:
    """What a plugin says; an error with its name on it where it raises, hangs or talks nonsense.

    Errors are worded as kube-scheduler words them (``running PreBind plugin "X": ...``).
    """
    status: object = None
    in_time = True
    try:
        if timeout_s is None:
            status = await _not_cancelled_by_itself(ask)
        else:
            with anyio.move_on_after(timeout_s) as limit:
                status = await _not_cancelled_by_itself(ask)
            in_time = not limit.cancelled_caught
    except BindingAbandoned:
        return Status.error("abandoned").by(plugin.name)
    except Exception as error:
        # Third-party code runs here; whatever it raises fails this pod's binding and no more.
        log.exception("a plugin of the binding cycle raised", plugin=plugin.name, point=point)
        what = f"{type(error).__name__}: {error}"
    else:
        if isinstance(status, Status) and status.code is not Code.ERROR:
            return status.by(plugin.name)
        what = status.message if isinstance(status, Status) else f"answered {status!r}, no Status"
        if not in_time:
            what = f"no answer within {timeout_s:g} s"
    return Status.error(f'running {point} plugin "{plugin.name}": {what}').by(plugin.name)


class StrayCancellationError(Exception):
    """A plugin awaited something that was cancelled, while nobody had cancelled the plugin."""


async def _not_cancelled_by_itself(ask: Callable[[], Awaitable[object]]) -> object:
    """What ``ask`` answers. A cancellation that is the plugin's own doing must not pass for ours: it
    would end the daemon without a word."""
    try:
        return await ask()
    except anyio.get_cancelled_exc_class() as cancelled:
        if anyio.current_effective_deadline() == -math.inf:
            raise
        raise StrayCancellationError("awaited something that was cancelled") from cancelled
