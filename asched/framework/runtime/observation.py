"""Observers of plugin calls, counts of plugin failures, and exceptions of plugins in one line.

The pure packages have no clock. A caller that has one sets an observer for one synchronous call, a
scheduling cycle or the folds of a turn. Observers do not affect decisions. Without one, the cost is
a comparison with None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import PurePath
from types import FrameType, TracebackType
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from asched.framework.events import ClusterEvent, QueueingHintFn

Args = ParamSpec("Args")
R = TypeVar("R")


class CallObserver(Protocol):
    """Observes one scheduling cycle."""

    def enter(self, point: str) -> None:
        """The cycle enters this extension point."""

    def wrap(self, plugin: str, point: str, method: Callable[Args, R]) -> Callable[Args, R]:
        """A function to call instead of ``method``: it calls ``method`` and passes on its result or
        exception."""


class HintObserver(Protocol):
    """Observes queueing hints."""

    def wrap_hint(self, plugin: str, event: ClusterEvent, hint: QueueingHintFn) -> QueueingHintFn:
        """As :meth:`CallObserver.wrap`."""


class Observation:
    """The current observers. Hot paths test them with ``is not None`` to avoid a call."""

    __slots__ = ("calls", "failed", "hints")

    def __init__(self) -> None:
        self.calls: CallObserver | None = None
        self.hints: HintObserver | None = None
        self.failed: Callable[[str, str, BaseException], None] | None = None
        """Called with a plugin's name, its extension point, and what it raised."""


OBSERVATION = Observation()


PluginCall = tuple[str, str]
"""Name of a plugin and the extension point at which it is called."""


class CurrentCall:
    """The synchronous plugin call that the event loop's thread executes now.

    Other threads read it: the watchdog reports a plugin that does not return. Each call stores a
    new tuple, so that its identity identifies the call.
    """

    __slots__ = ("call",)

    def __init__(self) -> None:
        self.call: PluginCall | None = None

    @contextmanager
    def of(self, plugin: str, point: str) -> Iterator[None]:
        """Record a call for the block. Hot paths set :attr:`call` inline."""
        outer, self.call = self.call, (plugin, point)
        try:
            yield
        finally:
            self.call = outer


CURRENT_CALL = CurrentCall()


class FailureReason(StrEnum):
    RAISED = "raised"
    EXITED = "exited"
    """It raised ``SystemExit``, ``KeyboardInterrupt`` or a similar exception."""
    INVALID_ANSWER = "invalid_answer"
    """An answer of the wrong type, shape or range."""
    ERROR = "error"
    """A valid answer with an error status."""
    TIMEOUT = "timeout"
    NOT_PERMITTED = "not_permitted"
    """It made a call that its ``needs`` do not list, or changed objects that it does not own."""
    LEAKED_TASK = "leaked_task"
    """It left an asyncio task running."""
    WORKER_ENDED = "worker_ended"
    """Its worker process ended or could not be started."""


class PluginFailureCount(NamedTuple):
    """The key of one failure counter."""

    plugin: str
    extension_point: str
    """As in kube-scheduler's metrics: ``Filter``, ``PreBind``."""
    reason: FailureReason


class Failures:
    """Counts the failures in this process, including those in replays."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[PluginFailureCount] = Counter()

    def note(self, plugin: str, extension_point: str, reason: FailureReason) -> None:
        self.counts[PluginFailureCount(plugin, extension_point, reason)] += 1


FAILURES = Failures()


def failure_reason(error: BaseException) -> FailureReason:
    return FailureReason.RAISED if isinstance(error, Exception) else FailureReason.EXITED


MAX_TEXT_LENGTH = 16_384
"""Longer texts of plugins are cut."""


def to_printable(text: object) -> str:
    """Text from a plugin as a string that can be recorded. Never raises."""
    try:
        words = text if isinstance(text, str) else str(text)
    except BaseException as error:  # noqa: BLE001  __str__ may be the plugin's code
        words = f"({type(text).__name__}: str() raises {type(error).__name__})"
    return words[:MAX_TEXT_LENGTH].encode("utf-8", "replace").decode()


_PLUGIN_PACKAGES = ("asched.plugins", "asched.batch.plugins", "asched.batch.actions")


def describe_raised(plugin: str, point: str, error: BaseException) -> str:
    """Such as ``KeyError: 'x' (example/plugin.py:12)``. Passes the exception to the observer of
    failures, which has the complete traceback."""
    if OBSERVATION.failed is not None:
        OBSERVATION.failed(plugin, point, error)
    text = f"{type(error).__name__}: {to_printable(error)}"
    place = _place(error.__traceback__)
    return f"{text} ({place})" if place else text


def _place(trace: TracebackType | None) -> str:
    """The innermost line of the package that the runtime called. The line of a library that raised
    within a call of the plugin would not show where to look."""
    called, found = "", ""
    while trace is not None:
        package = _package(trace.tb_frame)
        called = called or package
        if package and package == called:
            file = PurePath(trace.tb_frame.f_code.co_filename)
            found = f"{'/'.join(file.parts[-2:])}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _package(frame: FrameType) -> str:
    """The package of a plugin's code; empty for the runtime."""
    module = str(frame.f_globals.get("__name__", ""))
    for package in _PLUGIN_PACKAGES:
        if module == package or module.startswith(f"{package}."):
            return package
    top = module.partition(".")[0]
    return "" if top == "asched" else top
