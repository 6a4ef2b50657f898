"""Watching the core from outside, to measure it or to trace it.

The pure packages look at no clock. Who has one may watch: the daemon sets an observer for the length
of one synchronous call, a scheduling cycle or a turn's folds, and only of those that it samples.
Nothing that an observer does changes a decision, and without one there is nothing to pay but a
comparison with None.

Which plugins failed here, how often and in which way: for metrics, no decision depends on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from asched.framework.events import ClusterEvent, QueueingHintFn

Args = ParamSpec("Args")
R = TypeVar("R")


class CallObserver(Protocol):
    """Watches one scheduling cycle."""

    def enter(self, point: str) -> None:
        """The cycle is at this extension point from now on."""

    def watched(self, plugin: str, point: str, method: Callable[Args, R]) -> Callable[Args, R]:
        """What is called in place of a plugin's method; it has to call that, and hand through what
        it answers or raises."""


class HintObserver(Protocol):
    """Watches queueing hints."""

    def wrap_hint(self, plugin: str, event: ClusterEvent, hint: QueueingHintFn) -> QueueingHintFn:
        """As :meth:`CallObserver.watched`."""


class Observation:
    """Who watches now, None for nobody. Set and unset by who calls the core.

    It is looked at for every pod: with ``is not None`` on the spot, as a call would be felt.
    """

    __slots__ = ("calls", "hints")

    def __init__(self) -> None:
        self.calls: CallObserver | None = None
        self.hints: HintObserver | None = None


OBSERVATION = Observation()

PluginCall = tuple[str, str]
"""Name of a plugin and the extension point at which it is called."""


class CurrentCall:
    """The synchronous plugin call that the event loop's thread executes now.

    Other threads read it: the watchdog reports a plugin that does not return. Each call stores a new
    tuple, so that its identity tells calls apart.
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
    """In which way a plugin failed."""

    RAISED = "raised"
    """An exception."""
    EXITED = "exited"
    """It tried to end the process or to interrupt it (``SystemExit`` and its like)."""
    NONSENSE = "nonsense"
    """An answer of the wrong type, shape or range."""
    ERROR = "error"
    """A proper answer, which says Error."""
    TIMEOUT = "timeout"
    """No answer in time."""
    NOT_PERMITTED = "not_permitted"
    """It asked for what its ``needs`` do not name, or meddled with what is not its own."""
    LEAKED_TASK = "leaked_task"
    """It left a task behind."""
    WORKER_ENDED = "worker_ended"
    """Its worker process ended, or could not be started."""


class PluginFailureCount(NamedTuple):
    """One kind of failure."""

    plugin: str
    extension_point: str
    """As kube-scheduler's metrics name it: ``Filter``, ``PreBind``."""
    reason: FailureReason


class Failures:
    """Counts of this process, replays and questions of an audit included."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[PluginFailureCount] = Counter()

    def note(self, plugin: str, extension_point: str, reason: FailureReason) -> None:
        self.counts[PluginFailureCount(plugin, extension_point, reason)] += 1


FAILURES = Failures()


def failure_reason(error: BaseException) -> FailureReason:
    """What a plugin that raised this did."""
    return FailureReason.RAISED if isinstance(error, Exception) else FailureReason.EXITED


LONGEST_TEXT = 16_384
"""Of what a plugin says, at most so many characters are kept."""


def to_printable(text: object) -> str:
    """A plugin's words as text that can be recorded, whatever they are."""
    try:
        words = text if isinstance(text, str) else str(text)
    except BaseException as error:  # noqa: BLE001  even an exception's own text may be a plugin's
        words = f"({type(text).__name__}, whose text raises {type(error).__name__})"
    return words[:LONGEST_TEXT].encode("utf-8", "replace").decode()
