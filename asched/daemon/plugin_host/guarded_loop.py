"""An event loop on which a plugin's doings stay its own.

Plugins run in the daemon's loop. One that stops the loop, cancels the tasks of others or leaves tasks
behind would take the daemon with it, mostly without meaning to. Who calls is seen by a context variable
(asynchronous plugins) or on the stack (synchronous ones); only calls that are rare anyway look.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from types import FrameType
from typing import Any, NoReturn, Self

import structlog

from asched.framework.runtime.observation import FAILURES, FailureReason

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_SYNCHRONOUS_CALLS = "asched.framework.runtime.plugin_calls"
"""The module through which synchronous plugins are called."""


class PluginTasks:
    """The tasks of one call of an asynchronous plugin: the one that it runs in, and those it began.

    The plugin runs in the block of this context manager.
    """

    __slots__ = ("_begun", "_outer", "_own", "plugin", "point")

    def __init__(self, plugin: str, point: str) -> None:
        self.plugin = plugin
        self.point = point
        self._own = asyncio.current_task()
        self._begun: list[asyncio.Task[Any]] = []

    def __enter__(self) -> Self:
        self._outer = _PLUGIN.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _PLUGIN.reset(self._outer)

    def begun(self, task: asyncio.Task[Any]) -> None:
        self._begun.append(task)

    def owns(self, task: asyncio.Task[Any]) -> bool:
        return task is self._own or task in self._begun

    def end(self) -> None:
        """The call is over: cancel what it left behind."""
        for task in self._begun:
            if not task.done():
                FAILURES.note(self.plugin, self.point, FailureReason.LEAKED_TASK)
                log.warning(
                    "a plugin left a task behind, which is cancelled", plugin=self.plugin,
                    point=self.point, task=task.get_name(),
                )  # fmt: skip
                task.cancel()


_PLUGIN: ContextVar[PluginTasks | None] = ContextVar("asched-plugin", default=None)
"""The call of an asynchronous plugin that runs in this context."""


class GuardedTask(asyncio.Task[Any]):
    """A task that plugins cannot cancel unless it is theirs."""

    def cancel(self, msg: Any | None = None) -> bool:
        tasks = _PLUGIN.get()
        if tasks is not None:
            if not tasks.owns(self):
                _meddled(tasks.plugin, tasks.point, "it cancelled a task that is not its own")
                return False
        elif (meddler := _synchronous_plugin()) is not None:
            _meddled(*meddler, "it cancelled a task")
            return False
        return super().cancel(msg)


def guarded_loop() -> asyncio.AbstractEventLoop:
    """A new event loop for a daemon."""
    try:
        import uvloop
    except ImportError:  # not every platform has it
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    guard(loop)
    return loop


def guard(loop: asyncio.AbstractEventLoop) -> None:
    """Guard a loop: tasks that are made from now on, and its end."""
    loop.set_task_factory(_task)
    stop = loop.stop
    # Read when it is called: `run_until_complete` itself ends by it.
    loop.stop = _unless_plugin(stop)  # type: ignore[method-assign]


def _task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    context: Context | None = None,
    **more: Any,
) -> asyncio.Task[Any]:
    task = GuardedTask(coroutine, loop=loop, context=context, **more)
    tasks = _PLUGIN.get()
    if tasks is not None:
        tasks.begun(task)
    return task


def _unless_plugin(stop: Callable[[], None]) -> Callable[[], None]:
    def stop_unless_plugin() -> None:
        tasks = _PLUGIN.get()
        if tasks is not None:
            _refuse(tasks.plugin, tasks.point)
        meddler = _synchronous_plugin()
        if meddler is not None:
            _refuse(*meddler)
        stop()

    return stop_unless_plugin


def _refuse(plugin: str, point: str) -> NoReturn:
    FAILURES.note(plugin, point, FailureReason.NOT_PERMITTED)
    raise RuntimeError("a plugin cannot stop the event loop")


def _meddled(plugin: str, point: str, what: str) -> None:
    FAILURES.note(plugin, point, FailureReason.NOT_PERMITTED)
    log.error("a plugin meddles", plugin=plugin, point=point, what=what)


def _synchronous_plugin() -> tuple[str, str] | None:
    """Name and extension point of the plugin that the present code was called by, if any."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        ours = frame.f_globals.get("__name__") == _SYNCHRONOUS_CALLS
        if ours and "plugin" in frame.f_locals:
            plugin, point = frame.f_locals["plugin"], frame.f_locals.get("point", "")
            return str(plugin.name), str(point)
        frame = frame.f_back
    return None
