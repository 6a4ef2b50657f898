"""An event loop that protects the daemon from plugins.

Plugins run in the daemon's loop. A plugin that stops the loop, cancels tasks of the daemon or
leaves tasks behind would end the daemon, mostly by mistake. A context variable identifies
asynchronous plugins, :data:`~asched.framework.runtime.observation.CURRENT_CALL` synchronous ones.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar
from typing import Any, Self

import structlog
from prometheus_client.core import Metric

from asched.config.settings import AschedConfiguration, PluginLimits
from asched.daemon.telemetry.metrics import counter
from asched.framework.runtime.observation import (
    CURRENT_CALL,
    FAILURES,
    FailureReason,
    PluginCall,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class PluginTasks:
    """The tasks of one asynchronous plugin call: the task that it runs in and those that it starts.
    The plugin runs in the block of this context manager."""

    __slots__ = ("_outer", "_own", "_started", "call")

    def __init__(self, plugin: str, point: str) -> None:
        self.call: PluginCall = (plugin, point)
        self._own = asyncio.current_task()
        self._started: list[asyncio.Task[Any]] = []

    def __enter__(self) -> Self:
        self._outer = _PLUGIN.set(self)
        if isinstance(self._own, GuardedTask):
            self._own.plugin_tasks = self
        return self

    def __exit__(self, *exc: object) -> None:
        if isinstance(self._own, GuardedTask):
            self._own.plugin_tasks = None
        _PLUGIN.reset(self._outer)

    def add(self, task: GuardedTask) -> None:
        """The plugin started a task."""
        task.plugin_tasks = self
        self._started.append(task)

    def owns(self, task: asyncio.Task[Any]) -> bool:
        return task is self._own or task in self._started

    def cancel_leaked(self) -> None:
        """Cancel the tasks that the plugin left behind when it returned."""
        for task in self._started:
            if not task.done():
                plugin, point = self.call
                FAILURES.note(plugin, point, FailureReason.LEAKED_TASK)
                log.warning(
                    "plugin leaked a task", plugin=plugin, point=point, task=task.get_name()
                )
                task.cancel()


_PLUGIN: ContextVar[PluginTasks | None] = ContextVar("asched-plugin", default=None)
"""The asynchronous plugin call that runs in this context."""


class GuardedTask(asyncio.Task[Any]):
    """A task that only its own plugin can cancel, if the caller is a plugin."""

    plugin_tasks: PluginTasks | None = None
    """The asynchronous plugin call that the task executes now."""

    def cancel(self, msg: Any | None = None) -> bool:
        tasks = _PLUGIN.get()
        if tasks is None or not tasks.owns(self):
            call = _calling_plugin()
            if call is not None:
                plugin, point = call
                FAILURES.note(plugin, point, FailureReason.NOT_PERMITTED)
                log.error("plugin tried to cancel a task of the daemon", plugin=plugin, point=point)
                return False
        return super().cancel(msg)


def current_plugin_call(loop: asyncio.AbstractEventLoop) -> PluginCall | None:
    """The plugin call that ``loop`` executes now, one tuple for each call. Thread-safe."""
    call = CURRENT_CALL.call
    if call is not None:
        return call
    task = asyncio.current_task(loop)
    tasks = task.plugin_tasks if isinstance(task, GuardedTask) else None
    return None if tasks is None else tasks.call


def guarded_loop() -> asyncio.AbstractEventLoop:
    """A new event loop for a daemon."""
    try:
        import uvloop
    except ImportError:  # not available on every platform
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    guard(loop)
    return loop


def guard(loop: asyncio.AbstractEventLoop) -> None:
    """Guard the tasks that ``loop`` creates from now on, and its ``stop`` method."""
    loop.set_task_factory(_task)
    # asyncio looks the attribute up on each call: `run_until_complete` also stops the loop through
    # this attribute.
    loop.stop = _refused_to_plugins(loop.stop)  # type: ignore[method-assign]


def _task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    context: Context | None = None,
    **more: Any,
) -> asyncio.Task[Any]:
    task = GuardedTask(coroutine, loop=loop, context=context, **more)
    tasks = _PLUGIN.get()
    if tasks is not None:
        tasks.add(task)
    return task


def _refused_to_plugins(stop: Callable[[], None]) -> Callable[[], None]:
    def guarded_stop() -> None:
        call = _calling_plugin()
        if call is not None:
            FAILURES.note(*call, FailureReason.NOT_PERMITTED)
            raise RuntimeError("a plugin cannot stop the event loop")
        stop()

    return guarded_stop


def _calling_plugin() -> PluginCall | None:
    """The plugin call that this code runs in, if any."""
    tasks = _PLUGIN.get()
    return CURRENT_CALL.call if tasks is None else tasks.call


# -- the watchdog ---------------------------------------------------------------------------------

_REPORTED_FOR_S = 30.0
"""How long :meth:`Watchdog.problem` reports a plugin that has returned."""


class Watchdog:
    """Reports plugins that block the event loop in which the ``with`` block runs.

    A synchronous plugin that does not return cannot be interrupted. A thread can name it, though:
    it looks regularly at the plugin call that the loop executes.
    """

    def __init__(self, limit_s: Callable[[str], float], interval_s: float = 0.1) -> None:
        """``limit_s``: how long the plugin of a given name may block the loop."""
        self.overruns: Counter[PluginCall] = Counter()
        self._limit_s = limit_s
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plugin-watchdog", daemon=True)
        self._call: PluginCall | None = None
        """The call that ran at the last look, since ``_since_s`` at least."""
        self._since_s = self._last_overrun_s = 0.0
        self._reported = False
        self._problem = ""

    def __enter__(self) -> Watchdog:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def set_limits(self, limit_s: Callable[[str], float]) -> None:
        """Apply other limits from now on."""
        self._limit_s = limit_s

    def problem(self) -> str:
        """The plugin that blocks the loop or did so recently; empty if there is none."""
        recently = self._problem and time.monotonic() - self._last_overrun_s < _REPORTED_FOR_S
        return self._problem if recently else ""

    def metrics(self) -> Iterator[Metric]:
        """Counts the overruns."""
        yield counter(
            "asched_plugin_overruns",
            "Calls in which a plugin blocked the event loop for longer than its limit.",
            ["plugin", "extension_point"],
            [*self.overruns.items()],
        )

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._look()
        self._call_ended()

    def _look(self) -> None:
        call = current_plugin_call(self._loop)
        now_s = time.monotonic()
        if call is None or call is not self._call:
            self._call_ended()
            self._call, self._since_s = call, now_s
            return
        plugin, point = call
        blocked_s = now_s - self._since_s
        if blocked_s >= self._limit_s(plugin):
            self._last_overrun_s = now_s
            self._problem = (
                f"plugin {plugin} at {point} blocked the event loop for {blocked_s:.1f} s"
            )
            if not self._reported:
                self._reported = True
                self.overruns[call] += 1
                blocked_s = round(blocked_s, 1)
                log.error(
                    "plugin blocks the event loop", plugin=plugin, point=point, blocked_s=blocked_s
                )

    def _call_ended(self) -> None:
        if self._reported and self._call is not None:
            plugin, point = self._call
            blocked_s = round(self._last_overrun_s - self._since_s, 1)
            log.warning("blocking plugin returned", plugin=plugin, point=point, blocked_s=blocked_s)
        self._call, self._reported = None, False


@asynccontextmanager
async def watched(settings: AschedConfiguration) -> AsyncIterator[Watchdog]:
    """Watch the running event loop during the block."""
    with Watchdog(limits_of(settings)) as watchdog:
        yield watchdog


def limits_of(settings: AschedConfiguration) -> Callable[[str], float]:
    """How long plugins may block the loop, by name, in seconds."""
    limits = PluginLimits(settings.plugins)
    default_s = settings.engine.plugin_time_limit.total_seconds()
    return lambda plugin: limits.limit_s(plugin) or default_s
