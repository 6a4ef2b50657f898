"""Calls into plugins of the binding cycle: limited in time, and kept from doing harm to others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf

import anyio
import structlog

from asched.config.settings import PluginLimits
from asched.daemon.effects.binder import AbandonedError, BindReconciler
from asched.daemon.plugin_host.binding_client import (
    BindingPluginClient,
    CallTime,
    Ending,
    LimitedTime,
    UnlimitedTime,
)
from asched.daemon.plugin_host.guarded_loop import PluginTasks
from asched.daemon.telemetry.stopwatch import BindingStopwatch
from asched.framework.binding import BindingClient
from asched.framework.interface import PRE_BIND_TIME_LIMIT_S, BindPlugin, Plugin, PreBindPlugin
from asched.framework.runtime.observation import FAILURES, FailureReason, printable, reason_of
from asched.framework.status import Code, Status
from asched.plugins.default_binder import DefaultBinder

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


POST_BIND_TIME_LIMIT_S = 60.0
"""Nothing depends on what PostBind does; longer than this nobody waits for its end."""
POST_BIND_GRACE_S = 5.0
"""As long a PostBind has where the scheduler stops: the pod is bound, and no start tells it again."""


class StrayCancellationError(Exception):
    """A plugin awaited something that was cancelled, while nobody had cancelled the plugin."""


class BindingPluginCalls:
    """What plugins do for one pod, one after the other."""

    def __init__(
        self,
        limits: PluginLimits | None = None,
        waiting: Callable[[int], None] | None = None,
        watch: BindingStopwatch | None = None,
    ) -> None:
        """``limits``: how long plugins may take, where that is not left to them. ``waiting`` is told
        1 and -1 where the pod begins and ends to wait for a plugin that may take long. ``watch`` takes
        the time of each."""
        self._watch = watch
        self._limits = PluginLimits() if limits is None else limits
        self._waiting = waiting or _nobody_counts
        self._time: CallTime | None = None
        self._point = ""
        """The extension point of the plugin that was asked last."""
        self._ended: Ending | None = None
        self.cut_short = False
        """Whether the last plugin was cancelled."""

    def end(self, why: Ending) -> None:
        """Cancel the plugin that is asked now, and ask none any more.

        Where it :attr:`~Ending.leaves_it_open`, PostBind is told all the same, within
        :data:`POST_BIND_GRACE_S`; and at a stop DefaultBinder binds, which awaits nothing but us.
        """
        self._ended = self._ended or why
        if self._time is not None:
            self._time.end(self._ended, _grace_s(self._point, why))

    async def ask(
        self,
        plugin: Plugin,
        point: str,
        binder: BindReconciler,
        method: Callable[[BindingClient], Awaitable[object]],
    ) -> Status:
        """What a plugin says; an error with its name on it where it raises, hangs or talks nonsense.

        Errors are worded as kube-scheduler words them (``running PreBind plugin "X": ...``). Raises
        :class:`AbandonedError` where the daemon stops first, or does not lead any more; not at
        PostBind, because of what is so already there is nothing to abandon.
        """
        self._point = point
        time = self._time = self._time_for(plugin, point)
        client = BindingPluginClient(plugin, point, binder, time)
        if self._watch is not None:
            method = self._watch.watched(plugin.name, point, method)
        status: object = None
        error: BaseException | None = None
        try:
            if isinstance(time, LimitedTime):
                with PluginTasks(plugin.name, point) as tasks:
                    self._waiting(1)
                    try:
                        with time.scope:
                            status = await _not_cancelled_by_itself(method, client, tasks)
                    finally:
                        self._waiting(-1)
            else:
                status = await method(client)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as raised:  # noqa: BLE001  third-party code runs here
            error = raised
        finally:
            self._time = None
        self.cut_short = time.cut_short
        if point != "PostBind" and (binder.abandoned or (self.cut_short and self.left_open)):
            raise AbandonedError
        return _as_status(plugin, point, time, status, error)

    @property
    def left_open(self) -> bool:
        """Whether it was ended in a way that leaves what becomes of the pod to the next start."""
        return self._ended is not None and self._ended.leaves_it_open

    def _time_for(self, plugin: Plugin, point: str) -> LimitedTime | UnlimitedTime:
        limit_s, ended = self._limit_s(plugin, point), self._ended
        binds_itself = limit_s == inf and type(plugin) is DefaultBinder
        if binds_itself and (ended is None or ended is Ending.STOPPING):
            return UnlimitedTime()
        if self.left_open and point != "PostBind":
            raise AbandonedError
        time = LimitedTime(limit_s)
        if ended is not None:
            time.end(ended, _grace_s(point, ended))
        return time

    def _limit_s(self, plugin: Plugin, point: str) -> float:
        configured_s = self._limits.limit_s(plugin.name)
        if configured_s is not None:
            return configured_s
        if point == "PostBind" or not isinstance(plugin, PreBindPlugin | BindPlugin):
            return POST_BIND_TIME_LIMIT_S
        try:
            own_s = float(plugin.time_limit_s)
        except BaseException as error:  # noqa: BLE001  a property is third-party code as well
            FAILURES.note(plugin.name, point, reason_of(error))
            return PRE_BIND_TIME_LIMIT_S
        return own_s if own_s > 0 else PRE_BIND_TIME_LIMIT_S


def _grace_s(point: str, why: Ending) -> float:
    return POST_BIND_GRACE_S if point == "PostBind" and why.leaves_it_open else 0.0


def _nobody_counts(pods: int) -> None:
    pass


def _as_status(
    plugin: Plugin, point: str, time: CallTime, status: object, error: BaseException | None
) -> Status:
    if time.ended and (time.cut_short or isinstance(error, AbandonedError)):
        what = time.ended
    elif time.cut_short:
        FAILURES.note(plugin.name, point, FailureReason.TIMEOUT)
        what = f"no answer within {time.limit_s:g} s"
    elif error is not None:
        log.warning("a plugin of the binding cycle raised", plugin=plugin.name, point=point,
                    exc_info=error)  # fmt: skip
        FAILURES.note(plugin.name, point, reason_of(error))
        what = f"{type(error).__name__}: {printable(error)}"
    elif not isinstance(status, Status):
        FAILURES.note(plugin.name, point, FailureReason.NONSENSE)
        what = f"answered {printable(status)!r}, no Status"
    elif status.code is Code.ERROR:
        FAILURES.note(plugin.name, point, FailureReason.ERROR)
        what = printable(status.message)
    else:
        return status.by(plugin.name)
    return Status.error(f'running {point} plugin "{plugin.name}": {what}').by(plugin.name)


async def _not_cancelled_by_itself(
    method: Callable[[BindingClient], Awaitable[object]], client: BindingClient, tasks: PluginTasks
) -> object:
    """What the plugin answers. A cancellation that is its own doing must not pass for ours: it would
    end the daemon without a word."""
    try:
        return await method(client)
    except anyio.get_cancelled_exc_class() as cancelled:
        if anyio.current_effective_deadline() == -inf:
            raise
        raise StrayCancellationError("awaited something that was cancelled") from cancelled
    finally:
        tasks.end()
